"""The committed offset of each consumer group in each queue.

Source: RocketMQ ConsumerOffsetManager.
"""

from collections.abc import Iterable

from pymq.protocol import fastjson
from pymq.protocol.bodies import ConsumerOffsetTable

_SEPARATOR = "@"


class OffsetTable:
    """(topic, group) -> queue id -> next queue offset to consume.

    An offset below the stored one is accepted, too: consumers may be reset.
    """

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.is_changed = False

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset."""
        queues = self._offsets.setdefault((topic, group), {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.is_changed = True

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset, or None if there is none."""
        queues = self._offsets.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets, sorted."""
        return sorted(topic for topic, owner in self._offsets if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic, sorted."""
        return sorted(group for owner, group in self._offsets if owner == topic)

    def delete_topic(self, topic: str) -> None:
        """Forget all offsets in a topic."""
        self._delete(key for key in list(self._offsets) if key[0] == topic)

    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Forget all offsets in one queue."""
        for (owner, _), queues in self._offsets.items():
            if owner == topic and queues.pop(queue_id, None) is not None:
                self.is_changed = True

    def delete_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        self._delete(key for key in list(self._offsets) if key[1] == group)

    def _delete(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in keys:
            del self._offsets[key]
            self.is_changed = True

    def body(self) -> ConsumerOffsetTable:
        """Return the table as sent to slaves and written to disk."""
        return ConsumerOffsetTable(
            offsets={
                f"{topic}{_SEPARATOR}{group}": queues
                for (topic, group), queues in self._offsets.items()
            }
        )

    def to_text(self) -> str:
        """Return the text of ``consumerOffset.json``."""
        return fastjson.dump_pretty(self.body().to_json())

    def restore(self, value: object) -> None:
        """Take over the contents of ``consumerOffset.json``."""
        for key, queues in ConsumerOffsetTable.from_json(value).offsets.items():
            topic, separator, group = key.partition(_SEPARATOR)
            if separator:
                self._offsets[topic, group] = dict(queues)
