"""Which deletions of topics are known to a file of what groups have done in them.

A topic is deleted for good once the store has recorded that. The file is saved later; if a crash
comes in between, it holds offsets of the topic that was deleted, and if the topic is created again,
its groups would pass over the first messages. So the file says up to which physical offset the
records of each topic are deleted, as the store does. Of a topic of which the store says more, the
file is older than the deletion. Writing the file first, without the topic, would not do: after a
crash before the deletion is recorded, a topic that nobody has deleted would have lost its offsets.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pymq.broker.state.light_places import is_light_place
from pymq.broker.state.offset_places import Table

_log = logging.getLogger(__name__)

_NAME = "deletedTopics"


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
        known = self._known
        if known is None:
            return []
        gone = {topic for topic, end in recorded().items() if end > known.get(topic, -1)}
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
        known = value.get(_NAME) if isinstance(value, dict) else None
        if isinstance(known, dict):
            self._known = {str(one): end for one, end in known.items() if isinstance(end, int)}

    def to_json(self) -> dict[str, Any]:
        """Return what the file has to say; nothing before ``follow``."""
        return {} if self._recorded is None else {_NAME: dict(self._recorded())}


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
