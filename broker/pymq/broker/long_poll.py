"""Held requests: those that found no message and wait for one, or for their deadline.

What a request waits for is its own affair: it names queues, and a function that decides whether an
arrival in one of them is for it.

Source: RocketMQ PullRequestHoldService, PopLongPollingService, NotifyMessageArrivingListener.
"""

import heapq
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pymq.clock import Clock
from pymq.errors import refusal
from pymq.net.dispatcher import Answer, Request
from pymq.net.said_once import SaidOnce
from pymq.net.server import ServerConnection
from pymq.net.tasks import Tasks
from pymq.protocol.codes import ResponseCode
from pymq.store import Arrival, QueueKey

_log = logging.getLogger(__name__)

_Key = TypeVar("_Key")

#: Answered requests stay among the deadlines until there are this many more of them than others.
_ANSWERED_MAX = 1000
_OVERLOADED = "[OVERLOAD]system busy, start flow control for a while"
#: How often deadlines are checked.
EXPIRE_INTERVAL_S = 0.1


@dataclass(slots=True, eq=False)
class HeldRequest:
    """One request that waits.

    Attributes:
        request: who waits.
        queues: whose arrivals may be for it; at least one.
        wants: whether an arrival in one of them is for it; must not raise.
        deadline_s: it is executed again at this time at the latest.
        work: executes it again, this time without waiting.
    """

    request: Request
    queues: Sequence[QueueKey]
    wants: Callable[[Arrival], bool]
    deadline_s: float
    work: Callable[[], Answer]
    is_done: bool = field(default=False, init=False)


class LongPoll:
    """The held requests of a broker, by queue, by connection and by deadline."""

    def __init__(self, clock: Clock, *, count_max: int) -> None:
        self._clock = clock
        self._count_max = count_max
        # Dictionaries without values: sets that keep the order.
        self._by_queue: dict[QueueKey, dict[HeldRequest, None]] = {}
        self._by_connection: dict[ServerConnection, dict[HeldRequest, None]] = {}
        self._by_deadline: list[tuple[float, int, HeldRequest]] = []
        self._sequence = itertools.count()
        self._count = 0
        self._said = SaidOnce(_log)
        self._tasks = Tasks("held requests")

    def start(self) -> None:
        """Begin to answer requests whose deadline has passed."""
        self._tasks.repeat("deadlines", self.expire, EXPIRE_INTERVAL_S)

    async def close(self) -> None:
        """Answer all requests now, and stop; idempotent."""
        self._answer([one for held in self._by_connection.values() for one in held])
        await self._tasks.close()

    def __len__(self) -> int:
        return self._count

    def hold(self, one: HeldRequest) -> None:
        """Keep a request until an arrival is for it or its deadline passes.

        Nothing may arrive between its look into the queues and this call: both belong into one
        turn of the event loop.

        Raises:
            BrokerError: SYSTEM_BUSY: as many are held as may. An answer that there is nothing would
                have the client ask again at once; after this one it waits for some seconds.
        """
        if self._count >= self._count_max:
            self._said.warn(
                "held",
                "%d pulls wait for messages, as many as may (pymqHeldPullCountMax): more are "
                "refused (SYSTEM_BUSY), and their consumers come again seconds later. Each queue "
                "of each group needs one; look for consumers that nobody stopped",
                self._count,
            )
            raise refusal(ResponseCode.SYSTEM_BUSY, _OVERLOADED)
        self._count += 1
        for queue in one.queues:
            self._by_queue.setdefault(queue, {})[one] = None
        self._by_connection.setdefault(one.request.connection, {})[one] = None
        heapq.heappush(self._by_deadline, (one.deadline_s, next(self._sequence), one))
        if len(self._by_deadline) > 2 * self._count + _ANSWERED_MAX:
            self._by_deadline = [item for item in self._by_deadline if not item[2].is_done]
            heapq.heapify(self._by_deadline)

    def take(self, arrivals: list[Arrival]) -> None:
        """Answer the requests that these arrivals are for."""
        if self._count:
            for arrival in arrivals:
                held = self._by_queue.get((arrival.topic, arrival.queue_id))
                if held:
                    self._answer([one for one in held if one.wants(arrival)])

    def wake(self, queue: QueueKey, is_meant: Callable[[Request], bool]) -> int:
        """Answer those requests for a queue that are meant; return how many."""
        held = self._by_queue.get(queue, ())
        return self._answer([one for one in held if is_meant(one.request)])

    def expire(self) -> int:
        """Answer the requests whose deadline has passed; return how many."""
        now = self._clock.monotonic_s()
        due = []
        heap = self._by_deadline
        while heap and (heap[0][2].is_done or heap[0][0] <= now):
            one = heapq.heappop(heap)[2]
            if not one.is_done:
                due.append(one)
        return self._answer(due)

    def drop(self, connection: ServerConnection) -> int:
        """Forget the requests of a connection that is gone; return how many."""
        gone = list(self._by_connection.get(connection, ()))
        self._forget(gone)
        for one in gone:
            one.request.abandon()
        return len(gone)

    def _answer(self, due: list[HeldRequest]) -> int:
        self._forget(due)
        for one in due:
            if one.request.connection.is_open:
                one.request.resume(one.work)
            else:
                one.request.abandon()
        return len(due)

    def _forget(self, gone: Iterable[HeldRequest]) -> None:
        for one in gone:
            one.is_done = True
            self._count -= 1
            for queue in one.queues:
                _remove(self._by_queue, queue, one)
            _remove(self._by_connection, one.request.connection, one)
        if self._count <= self._count_max // 2:
            self._said.over("held", "pulls are held again")


def _remove(table: dict[_Key, dict[HeldRequest, None]], key: _Key, one: HeldRequest) -> None:
    held = table[key]
    del held[one]
    if not held:
        del table[key]
