"""Held pulls: requests that found nothing and wait for a message or their deadline.

Source: RocketMQ PullRequestHoldService, NotifyMessageArrivingListener.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pymq.clock import Clock
from pymq.net.dispatcher import Answer, Request
from pymq.net.server import ServerConnection
from pymq.net.tasks import Tasks
from pymq.store import Arrival

#: A queue: (topic, queue id).
QueueKey = tuple[str, int]
_Key = TypeVar("_Key")

#: Answered pulls stay among the deadlines until there are this many more of them than others.
_ANSWERED_MAX = 1000
#: How often deadlines are checked.
EXPIRE_INTERVAL_S = 0.1


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits.

    ``tag_codes`` is the sorted filter, or None for everything; ``pull_again`` executes the pull
    again, this time without waiting.
    """

    request: Request
    queue: QueueKey
    offset: int
    tag_codes: npt.NDArray[np.int64] | None
    deadline_s: float
    pull_again: Callable[[], Answer]
    is_done: bool = field(default=False, init=False)


class LongPoll:
    """The held pulls of a broker, by queue, by connection and by deadline."""

    def __init__(self, clock: Clock, *, count_max: int) -> None:
        self._clock = clock
        self._count_max = count_max
        # Dictionaries without values: sets that keep the order.
        self._by_queue: dict[QueueKey, dict[HeldPull, None]] = {}
        self._by_connection: dict[ServerConnection, dict[HeldPull, None]] = {}
        self._by_deadline: list[tuple[float, int, HeldPull]] = []
        self._sequence = itertools.count()
        self._count = 0
        self._tasks = Tasks("held pulls")

    def start(self) -> None:
        """Begin to answer pulls whose deadline has passed."""
        self._tasks.repeat("deadlines", self.expire, EXPIRE_INTERVAL_S)

    async def close(self) -> None:
        """Answer all pulls now, and stop; idempotent."""
        self._answer([pull for held in self._by_queue.values() for pull in held])
        await self._tasks.close()

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull) -> bool:
        """Keep a pull until its queue grows or its deadline passes; False above the limit."""
        if self._count >= self._count_max:
            return False
        self._count += 1
        self._by_queue.setdefault(pull.queue, {})[pull] = None
        self._by_connection.setdefault(pull.request.connection, {})[pull] = None
        heapq.heappush(self._by_deadline, (pull.deadline_s, next(self._sequence), pull))
        if len(self._by_deadline) > 2 * self._count + _ANSWERED_MAX:
            self._by_deadline = [item for item in self._by_deadline if not item[2].is_done]
            heapq.heapify(self._by_deadline)
        return True

    def take(self, arrivals: list[Arrival]) -> None:
        """Answer the pulls that wait for these arrivals."""
        if self._count:
            for arrival in arrivals:
                queue = (arrival.topic, arrival.queue_id)
                if queue in self._by_queue:
                    self.wake(queue, arrival.queue_end, arrival.tag_codes)

    def wake(
        self, queue: QueueKey, end_offset: int, tag_codes: npt.NDArray[np.int64] | None
    ) -> int:
        """Answer the pulls of a queue that has new messages for them; return how many.

        Args:
            queue: has the new messages.
            end_offset: the queue's new end.
            tag_codes: of the new messages, or None when unknown (then all pulls are woken).
        """
        held = self._by_queue.get(queue)
        if not held:
            return 0
        return self._answer([pull for pull in held if _concerns(pull, end_offset, tag_codes)])

    def expire(self) -> int:
        """Answer the pulls whose deadline has passed; return how many."""
        now = self._clock.monotonic_s()
        due = []
        heap = self._by_deadline
        while heap and (heap[0][2].is_done or heap[0][0] <= now):
            pull = heapq.heappop(heap)[2]
            if not pull.is_done:
                due.append(pull)
        return self._answer(due)

    def drop(self, connection: ServerConnection) -> int:
        """Forget the pulls of a connection that is gone; return how many."""
        gone = list(self._by_connection.get(connection, ()))
        self._forget(gone)
        for pull in gone:
            pull.request.abandon()
        return len(gone)

    def _answer(self, pulls: list[HeldPull]) -> int:
        self._forget(pulls)
        for pull in pulls:
            if pull.request.connection.is_open:
                pull.request.resume(pull.pull_again)
            else:
                pull.request.abandon()
        return len(pulls)

    def _forget(self, pulls: Iterable[HeldPull]) -> None:
        for pull in pulls:
            pull.is_done = True
            self._count -= 1
            _remove(self._by_queue, pull.queue, pull)
            _remove(self._by_connection, pull.request.connection, pull)


def _remove(table: dict[_Key, dict[HeldPull, None]], key: _Key, pull: HeldPull) -> None:
    held = table[key]
    del held[pull]
    if not held:
        del table[key]


def _concerns(
    pull: HeldPull, end_offset: int, tag_codes: npt.NDArray[np.int64] | None
) -> bool:
    if end_offset <= pull.offset:
        return False
    if pull.tag_codes is None or tag_codes is None:
        return True
    return bool(np.isin(tag_codes, pull.tag_codes).any())
