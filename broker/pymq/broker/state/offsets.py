"""Where each consumer group is in each queue: what it has committed, and what it has pulled.

Source: RocketMQ ConsumerOffsetManager.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from pymq.protocol import fastjson
from pymq.protocol.bodies import ConsumerOffsetTable
from pymq.protocol.multi_dispatch import LIGHT_QUEUE_ID, is_light

_SEPARATOR = "@"
#: (topic, group) -> queue id -> queue offset.
_Table: TypeAlias = dict[tuple[str, str], dict[int, int]]


class OffsetTable:
    """(topic, group) -> queue id -> next queue offset to consume.

    An offset below the stored one is accepted, too: consumers may be reset.

    A reset is pending until a member of the group pulls from the queue: it is told where to go on
    then. What members commit before that is of the time before the reset.
    """

    def __init__(self) -> None:
        self._offsets: _Table = {}
        #: Where pulls ended; since our start.
        self._pulled: _Table = {}
        #: Pending ones. They survive a restart, unlike in RocketMQ: a reset that was acknowledged
        #: would be lost to members that go on with what they know.
        self._resets: _Table = {}
        self.is_changed = False
        #: The same for a second file, which also holds the offsets of light groups in light queues.
        self.is_light_changed = False
        self.has_light_file = False
        #: What the file says of each (topic, group), as long as that is true. Every few seconds
        #: some of ten thousand groups have moved: only they are written again.
        self._texts: dict[tuple[str, str], str] = {}

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset."""
        key = topic, group
        queues = self._offsets.setdefault(key, {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._touch()
            self._texts.pop(key, None)

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset, or None if there is none."""
        queues = self._offsets.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record where a pull ended."""
        queues = self._pulled.get((topic, group))
        if queues is None:
            queues = self._pulled[topic, group] = {}
        queues[queue_id] = offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where the last pull ended, or None if there was none since our start."""
        queues = self._pulled.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group back or forward, whatever its members do."""
        self.commit(group, topic, queue_id, offset)
        self._resets.setdefault((topic, group), {})[queue_id] = offset
        self._touch()

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Is a reset pending?"""
        return queue_id in self._resets.get((topic, group), ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a member that pulls shall go on, once; None if no reset is pending."""
        if not self._resets:  # asked by every pull
            return None
        queues = self._resets.get((topic, group), {})
        offset = queues.pop(queue_id, None)
        if offset is not None:
            self._touch()
            if not queues:
                del self._resets[topic, group]
        return offset

    def clone(self, source: str, target: str, topic: str) -> None:
        """Have a group be where another one is."""
        queues = self._offsets.get((topic, source))
        if queues:
            self._offsets[topic, target] = dict(queues)
            self._touch()
            self._texts.pop((topic, target), None)

    def queues_of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the committed offsets of a group in a topic, by queue id."""
        return self._offsets.get((topic, group), {})

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets, sorted."""
        return sorted(topic for topic, owner in self._offsets if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic, sorted."""
        return sorted(group for owner, group in self._offsets if owner == topic)

    def delete_topic(self, topic: str) -> None:
        """Forget all offsets in a topic."""
        self._delete(lambda key: key[0] == topic)

    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Forget all offsets in one queue."""
        for table in self._tables():
            for (owner, _), queues in table.items():
                if owner == topic and queues.pop(queue_id, None) is not None:
                    self._touch()
        self._texts.clear()

    def delete_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        self._delete(lambda key: key[1] == group)

    def _delete(self, is_gone: Callable[[tuple[str, str]], bool]) -> None:
        for table in self._tables():
            for key in filter(is_gone, list(table)):
                del table[key]
                self._touch()
        self._texts.clear()

    def _tables(self) -> tuple[_Table, ...]:
        return self._offsets, self._pulled, self._resets

    def body(self) -> ConsumerOffsetTable:
        """Return the table as sent to slaves and written to disk."""
        return self._body(self._offsets)

    def _body(self, offsets: _Table) -> ConsumerOffsetTable:
        return ConsumerOffsetTable(
            offsets=_joined(offsets), resets=_joined(self._resets) if self._resets else None
        )

    def _touch(self) -> None:
        self.is_changed = self.is_light_changed = True

    def to_text(self) -> str:
        """Return the text of ``consumerOffset.json``."""
        rest = fastjson.dump_pretty(self._body({}).to_json())
        keys: Collection[tuple[str, str]] = self._offsets
        if self.has_light_file:
            keys = [key for key in keys if not _is_light(key)]
        if not keys:
            return rest
        texts = self._texts
        for key in keys:
            if key not in texts:
                text = fastjson.dump_pretty(_joined({key: self._offsets[key]}))
                texts[key] = text[2:-2].replace("\n", "\n\t")  # without its own braces
        whole = ",\n\t".join([texts[key] for key in keys])
        return rest.replace("{}", f"{{\n\t{whole}\n\t}}", 1)

    def restore(self, value: object) -> None:
        """Take over the contents of ``consumerOffset.json``."""
        body = ConsumerOffsetTable.from_json(value)
        self._offsets |= _split(body.offsets)
        self._resets |= _split(body.resets or {})

    def light_offsets(self) -> dict[str, int]:
        """Return the offsets of light groups in light queues, by ``topic@group``."""
        return {
            f"{topic}{_SEPARATOR}{group}": queues[LIGHT_QUEUE_ID]
            for (topic, group), queues in self._offsets.items()
            if _is_light((topic, group)) and LIGHT_QUEUE_ID in queues
        }

    def restore_light(self, offsets: Mapping[str, int]) -> None:
        """Take over what ``light_offsets`` returned."""
        self._offsets |= _split({key: {LIGHT_QUEUE_ID: one} for key, one in offsets.items()})


def _is_light(key: tuple[str, str]) -> bool:
    return is_light(key[1]) and is_light(key[0])


def _joined(table: _Table) -> dict[str, dict[int, int]]:
    return {f"{topic}{_SEPARATOR}{group}": queues for (topic, group), queues in table.items()}


def _split(table: dict[str, dict[int, int]]) -> _Table:
    parts = ((key.partition(_SEPARATOR), queues) for key, queues in table.items())
    return {
        (topic, group): dict(queues) for (topic, separator, group), queues in parts if separator
    }
