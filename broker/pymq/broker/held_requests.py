"""What held requests have in common, whatever they wait for: a connection, a deadline, an end.

``long_poll`` finds them by queue, ``pop.pop_polls`` by the room they wait in; here they are found
by what ends them in any case. One timer waits for the first deadline, so that nothing runs while
nothing is held.

Source: RocketMQ PullRequestHoldService, PopLongPollingService.
"""

import asyncio
import heapq
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import Generic, TypeVar

from pymq.clock import Clock
from pymq.net.dispatcher import Answer, Request
from pymq.net.server import ServerConnection

#: Answered requests stay among the deadlines until there are this many more of them than others.
_ANSWERED_MAX = 1000
#: Requests are answered up to this long after their deadline, those of that time together.
LATE_S = 0.02


def waited_ms(request: Request) -> float:
    """Return how long ago a request that is being handled was read.

    Not since it was sent, as far as it says when: the clock of its sender may be another, by more
    than anybody waits.
    """
    return (monotonic() - request.connection.input_at) * 1000


@dataclass(slots=True, eq=False)
class HeldRequest:
    """One request that waits.

    Attributes:
        request: who waits.
        deadline_s: it is executed again at this time at the latest.
        work: executes it again.
    """

    request: Request
    deadline_s: float
    work: Callable[[], Answer]
    is_done: bool = field(default=False, init=False)


_Held = TypeVar("_Held", bound=HeldRequest)


class HeldRequests(ABC, Generic[_Held]):
    """Held requests, by connection and by deadline.

    Args:
        early_s: they are answered this long before their deadline.
    """

    def __init__(self, clock: Clock, *, early_s: float = 0.0) -> None:
        self._clock = clock
        self._early_s = early_s
        # Dictionaries without values: sets that keep the order.
        self._by_connection: dict[ServerConnection, dict[_Held, None]] = {}
        self._by_deadline: list[tuple[float, int, _Held]] = []
        self._sequence = itertools.count()
        self._count = 0
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: The deadline that the timer waits for.
        self._timer_s = 0.0

    def start(self) -> None:
        """Begin to answer requests whose deadline has passed."""
        self._loop = asyncio.get_running_loop()
        self._wait()

    async def close(self) -> None:
        """Answer all requests now, and stop; idempotent. None is held any more."""
        self._is_closed = True
        self.answer_all()
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()

    def answer_all(self) -> int:
        """Answer all requests now; return how many."""
        return self._answer([one for held in self._by_connection.values() for one in held])

    def __len__(self) -> int:
        return self._count

    def _add(self, one: _Held) -> None:
        """Hold a request."""
        self._count += 1
        self._by_connection.setdefault(one.request.connection, {})[one] = None
        item = one.deadline_s - self._early_s, next(self._sequence), one
        heapq.heappush(self._by_deadline, item)
        if len(self._by_deadline) > 2 * self._count + _ANSWERED_MAX:
            self._by_deadline = [item for item in self._by_deadline if not item[2].is_done]
            heapq.heapify(self._by_deadline)
        self._wait()

    def _wait(self) -> None:
        """Have deadlines looked at when the first one has passed."""
        if self._loop is None or not self._by_deadline:
            return
        first_s = self._by_deadline[0][0]
        if self._timer is not None:
            if self._timer_s <= first_s:
                return
            self._timer.cancel()
        pause_s = max(first_s - self._clock.monotonic_s(), 0) + LATE_S
        self._timer, self._timer_s = self._loop.call_later(pause_s, self._passed), first_s

    def _passed(self) -> None:
        self._timer = None
        try:
            self.expire()
        finally:
            self._wait()

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
        for one in gone:
            self._forget(one)
            one.request.abandon()
        return len(gone)

    def _answer(self, held: Iterable[_Held]) -> int:
        """Execute requests again; return how many, without those whose sender has gone."""
        waiting = [one for one in held if not one.is_done]
        for one in waiting:
            self._forget(one)
        count = 0
        for one in waiting:
            if one.request.connection.is_open:
                one.request.resume(one.work)
                count += 1
            else:
                one.request.abandon()
        return count

    def _forget(self, one: _Held) -> None:
        one.is_done = True
        self._count -= 1
        held = self._by_connection[one.request.connection]
        del held[one]
        if not held:
            del self._by_connection[one.request.connection]
        self._forgotten(one)

    @abstractmethod
    def _forgotten(self, one: _Held) -> None:
        """Remove a request from where it is found otherwise."""
