"""Which deletions of topics are known to a file of what groups have done in them.

If a crash comes between a deletion and the next save of the file, it holds offsets of the topic
that was deleted, and if the topic is created again, its groups would pass over the first messages.
So the file says which deletions it knows (``pymq.store.state.deleted_topics``). Writing the file
first, without the topic, would not do: after a crash before the deletion is recorded, a topic that
nobody has deleted would have lost its offsets.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pymq.broker.state.light_places import is_light_place
from pymq.broker.state.offset_places import Table
from pymq.store.state.deleted_topics import NAME, deleted_since, told_deletions

_log = logging.getLogger(__name__)


class KnownDeletions:
    """What a file says of deleted topics, and what it is going to say."""

    def __init__(self) -> None:
        self._recorded: Callable[[], Mapping[str, int]] | None = None
        #: Topic -> end of its deleted records; None: there was no file, or it does not say.
        self._known: dict[str, int] | None = None

    def follow(
        self,
        recorded: Callable[[], Mapping[str, int]],
        tables: Iterable[Table],
        first_offset: Callable[[str, int], int],
    ) -> list[tuple[str, str]]:
        """Take what is of deleted topics out of tables that were in the file; return its keys.

        A file of RocketMQ, or of an earlier pymq, does not tell: then all of it stays.

        Args:
            recorded: returns the deletions of topics; see ``QueueDeletion.recorded``.
            tables: where the groups are.
            first_offset: (topic, queue id) -> offset of the first message of a queue.
        """
        self._recorded = recorded
        gone = deleted_since(recorded(), self._known)
        changed = sorted({key for one in tables for key in _drop(one, gone, first_offset)})
        for topic, group in changed:
            _log.info("topic %s was deleted: forgets where group %s was in it", topic, group)
        return changed

    @property
    def is_told(self) -> bool:
        """Whether the file says anything."""
        return self._known is not None

    def restore(self, value: object) -> None:
        """Have the contents of the file."""
        self._known = told_deletions(value)

    def to_json(self) -> dict[str, Any]:
        """Return what the file has to say; nothing before ``follow``."""
        return {} if self._recorded is None else {NAME: dict(self._recorded())}


def _drop(
    table: Table, gone: Collection[str], first_offset: Callable[[str, int], int]
) -> set[tuple[str, str]]:
    """Take the offsets in deleted topics out of a table; return of which (topic, group).

    One that is not above the first message of its queue stays: it passes nothing over. Light
    groups stay where they are in light queues: another file says that.
    """
    changed = set()
    for key, queues in list(table.items()):
        if key[0] not in gone or is_light_place(key):
            continue
        kept = {one: at for one, at in queues.items() if at <= first_offset(key[0], one)}
        if kept != queues:
            changed.add(key)
            table[key] = kept
            if not kept:
                del table[key]
    return changed
