"""All open checkpoints: those with messages that are neither acknowledged nor revived.

Source: RocketMQ PopBufferMergeService, PopInflightMessageCounter.
"""

import heapq
import itertools
from collections import OrderedDict

from pymq.broker.pop.checkpoint import Checkpoint, CheckpointKey


class CheckpointTable:
    """Open checkpoints by key, by the time they are due, and by their place in the journal.

    When the clock is set back, none waits for longer from then on than its invisible time.

    Args:
        queue_count: number of revive queues.
    """

    def __init__(self, queue_count: int) -> None:
        self._by_key: dict[CheckpointKey, Checkpoint] = {}
        self._by_place: list[OrderedDict[int, Checkpoint]] = [
            OrderedDict() for _ in range(queue_count)
        ]
        self._by_due: list[tuple[int, int, Checkpoint]] = []
        self._sequence = itertools.count()
        self._now_ms = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: CheckpointKey) -> Checkpoint | None:
        """Return an open checkpoint, or None."""
        return self._by_key.get(key)

    def add(self, checkpoint: Checkpoint, due_ms: int | None = None) -> None:
        """Add a checkpoint; it replaces one of the same key. Its place is told later.

        Args:
            due_ms: when it is due; None: it was popped just now, and its times say so.
        """
        known = self._by_key.get(checkpoint.key)
        if known is not None:
            self.remove(known)
            checkpoint.acknowledged |= known.acknowledged
        self._by_key[checkpoint.key] = checkpoint
        if due_ms is None:
            self._now_ms = max(self._now_ms, checkpoint.pop_time)
            due_ms = checkpoint.due_ms
        self.postpone(checkpoint, due_ms)

    def place(self, checkpoint: Checkpoint, revive_offset: int) -> None:
        """Note where the record of a checkpoint is; its earlier record is needed no longer.

        Records are told in the order of their queue, so that the first one is the lowest.
        """
        if not self.is_open(checkpoint):
            return
        places = self._by_place[checkpoint.revive_queue_id]
        places.pop(checkpoint.revive_offset, None)
        checkpoint.revive_offset = revive_offset
        places[revive_offset] = checkpoint

    def postpone(self, checkpoint: Checkpoint, due_ms: int) -> None:
        """Let an open checkpoint be due again, at a time in ms."""
        heapq.heappush(self._by_due, (due_ms, next(self._sequence), checkpoint))
        if len(self._by_due) > 2 * len(self._by_key) + 1000:
            self._by_due = [one for one in self._by_due if self.is_open(one[2])]
            heapq.heapify(self._by_due)

    def remove(self, checkpoint: Checkpoint) -> None:
        """Close a checkpoint."""
        del self._by_key[checkpoint.key]
        self._by_place[checkpoint.revive_queue_id].pop(checkpoint.revive_offset, None)

    def take_due(self, now_ms: int, count_max: int) -> list[Checkpoint]:
        """Return checkpoints that are due; each one only once, unless it is postponed."""
        if now_ms < self._now_ms:
            self._by_due = [
                (min(due_ms, now_ms + one.invisible_ms), number, one)
                for due_ms, number, one in self._by_due
            ]
            heapq.heapify(self._by_due)
        self._now_ms = now_ms
        due: list[Checkpoint] = []
        heap = self._by_due
        while heap and heap[0][0] <= now_ms and len(due) < count_max:
            one = heapq.heappop(heap)[2]
            if self.is_open(one):
                due.append(one)
        return due

    def first_place(self, revive_queue_id: int) -> int | None:
        """Return the lowest place of an open checkpoint's record in a revive queue, or None."""
        return next(iter(self._by_place[revive_queue_id]), None)

    def oldest(self, revive_queue_id: int, count_max: int) -> list[Checkpoint]:
        """Return the open checkpoints with the oldest records in a revive queue."""
        return list(itertools.islice(self._by_place[revive_queue_id].values(), count_max))

    def of_topic(self, topic: str) -> list[Checkpoint]:
        """Return the open checkpoints of messages of a topic."""
        return [one for one in self._by_key.values() if one.topic == topic]

    def of_group(self, group: str) -> list[Checkpoint]:
        """Return the open checkpoints of messages that a group has popped."""
        return [one for one in self._by_key.values() if one.group == group]

    def count_in(self, revive_queue_id: int) -> int:
        """Return how many open checkpoints have their record in a revive queue."""
        return len(self._by_place[revive_queue_id])

    def is_open(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint is in the table."""
        return self._by_key.get(checkpoint.key) is checkpoint
