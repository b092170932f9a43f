"""Held pulls: requests that found nothing and wait for a message or their deadline.

Source: RocketMQ PullRequestHoldService, NotifyMessageArrivingListener.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pymq.clock import Clock
from pymq.net.server import ServerConnection

#: A queue: (topic, queue id).
QueueKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits.

    ``tag_codes`` is the sorted filter, or None for everything; ``answer`` executes the pull
    once more, this time without waiting.
    """

    connection: ServerConnection
    queue: QueueKey
    offset: int
    tag_codes: npt.NDArray[np.int64] | None
    deadline_s: float
    answer: Callable[[], None]
    is_done: bool = field(default=False, init=False)


class LongPoll:
    """The held pulls of a broker, by queue and by deadline."""

    def __init__(self, clock: Clock, *, count_max: int) -> None:
        self._clock = clock
        self._count_max = count_max
        self._by_queue: dict[QueueKey, list[HeldPull]] = {}
        self._by_deadline: list[tuple[float, int, HeldPull]] = []
        self._sequence = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull) -> bool:
        """Keep a pull until its queue grows or its deadline passes; False above the limit."""
        if self._count >= self._count_max:
            return False
        self._count += 1
        self._by_queue.setdefault(pull.queue, []).append(pull)
        heapq.heappush(self._by_deadline, (pull.deadline_s, next(self._sequence), pull))
        return True

    def wake(
        self, queue: QueueKey, end_offset: int, tag_codes: npt.NDArray[np.int64] | None
    ) -> int:
        """Answer the pulls of a queue that has new messages for them; return how many.

        Args:
            end_offset: the queue's new end.
            tag_codes: of the new messages, or None when unknown (then everybody is woken).
        """
        held = self._by_queue.get(queue)
        if not held:
            return 0
        woken = [pull for pull in held if _concerns(pull, end_offset, tag_codes)]
        if len(woken) == len(held):
            del self._by_queue[queue]
        elif woken:
            chosen = set(map(id, woken))
            self._by_queue[queue] = [pull for pull in held if id(pull) not in chosen]
        for pull in woken:
            self._finish(pull)
        return len(woken)

    def expire(self) -> int:
        """Answer the pulls whose time is up; return how many."""
        now = self._clock.monotonic_s()
        count = 0
        heap = self._by_deadline
        while heap and (heap[0][2].is_done or heap[0][0] <= now):
            pull = heapq.heappop(heap)[2]
            if pull.is_done:
                continue
            self._forget(pull)
            self._finish(pull)
            count += 1
        return count

    def drop(self, connection: ServerConnection) -> int:
        """Forget the pulls of a connection that is gone; return how many."""
        gone = [
            pull
            for held in self._by_queue.values()
            for pull in held
            if pull.connection is connection
        ]
        for pull in gone:
            self._forget(pull)
            pull.is_done = True
            self._count -= 1
        return len(gone)

    def answer_all(self) -> int:
        """Answer every held pull now: the broker is closing."""
        held = [pull for pulls in self._by_queue.values() for pull in pulls]
        self._by_queue.clear()
        for pull in held:
            self._finish(pull)
        return len(held)

    def _forget(self, pull: HeldPull) -> None:
        held = self._by_queue[pull.queue]
        held.remove(pull)
        if not held:
            del self._by_queue[pull.queue]

    def _finish(self, pull: HeldPull) -> None:
        pull.is_done = True
        self._count -= 1
        if pull.connection.is_open:
            pull.answer()


def _concerns(
    pull: HeldPull, end_offset: int, tag_codes: npt.NDArray[np.int64] | None
) -> bool:
    if end_offset <= pull.offset:
        return False
    if pull.tag_codes is None or tag_codes is None:
        return True
    return bool(np.isin(tag_codes, pull.tag_codes).any())
