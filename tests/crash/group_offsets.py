"""Where a group is in the topics of a store that crashes: never beyond the end of a queue."""

import json
from collections.abc import Collection
from pathlib import Path

from pymq.broker.state.offsets import OffsetTable
from pymq.clock import Clock
from pymq.store import Files, MessageStore
from pymq.store.state.sealed_file import SealedFile


class GroupOffsets:
    """A group that has consumed all that is durable, and its offsets in a file as brokers have it.

    Args:
        clock: tells the time.
        root: of the store.
        files: the operating system.
        store: is open.
    """

    def __init__(self, clock: Clock, root: Path, files: Files, store: MessageStore) -> None:
        self._store = store
        self._table = OffsetTable(clock)
        self._file = SealedFile(root / "config" / "consumerOffset.json", files=files)
        self._file.load(lambda text: self._table.restore(json.loads(text)))
        self._table.follow_deletions(
            store.retention.recorded_deletions, lambda *queue: store.queue_bounds(*queue)[0]
        )

    def save(self) -> None:
        """Commit what is durable, and save that."""
        store = self._store
        if store.durability.flushed_end == store.log_end:
            for topic, queue_id in store.queues():
                self._table.commit("g", topic, queue_id, store.queue_bounds(topic, queue_id)[1])
        self._file.save(self._table.to_text())

    def delete(self, topic: str) -> None:
        """Forget a topic that was deleted; the file says so when it is saved."""
        self._table.delete_topic(topic)

    def complaints(self, topics: Collection[str]) -> list[str]:
        """Return where the group would pass over the next messages."""
        return [
            f"{topic} {queue_id}: the group is at {offset}, the queue ends at {end}"
            for topic in topics
            for queue_id, offset in self._table.queues_of("g", topic).items()
            if offset > (end := self._store.queue_bounds(topic, queue_id)[1])
        ]
