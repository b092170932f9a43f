"""Senders that wait until slaves have their messages."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pymq.broker.log_writer import Outcome
from pymq.clock import Clock
from pymq.net.alarm import Alarm

#: How often deadlines of waiters are checked at most.
EXPIRE_INTERVAL_S = 0.1

#: Gets STORED, SLAVE_TIMEOUT or NO_SLAVE, and the reason for anything but STORED.
Replicated = Callable[[Outcome, str | None], None]


@dataclass(slots=True)
class _Waiter:
    physical_end: int
    deadline_s: float
    done: Replicated


class ReplicaWaiters:
    """Waiters of several kinds, each kind in the order of the log.

    Args:
        clock: for deadlines.
        timeout_s: how long each waits (slaveTimeout).
    """

    def __init__(self, clock: Clock, *, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._waiters: dict[int, deque[_Waiter]] = {}
        self._alarm = Alarm(clock, self._ring, least_s=EXPIRE_INTERVAL_S)

    def start(self) -> None:
        """Begin."""
        self._alarm.start()

    def kinds(self) -> list[int]:
        """Return the kinds there have been."""
        return list(self._waiters)

    def any(self, kind: int) -> bool:
        """Return whether somebody waits."""
        return bool(self._waiters.get(kind))

    def add(self, kind: int, physical_end: int, done: Replicated) -> None:
        """Wait: ``done`` is called exactly once, on the event loop, later."""
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        self._waiters.setdefault(kind, deque()).append(_Waiter(physical_end, deadline_s, done))
        self._alarm.due(deadline_s)

    def release(self, kind: int, end: int, outcome: Outcome, reason: str | None) -> None:
        """Tell those who wait for no more than a physical offset."""
        waiters = self._waiters.get(kind)
        while waiters and waiters[0].physical_end <= end:
            waiters.popleft().done(outcome, reason)

    def _ring(self) -> float | None:
        now_s = self._clock.monotonic_s()
        for waiters in self._waiters.values():
            while waiters and waiters[0].deadline_s <= now_s:
                waiters.popleft().done(
                    Outcome.SLAVE_TIMEOUT,
                    f"stored by this broker; its slaves did not confirm it within "
                    f"{self._timeout_s:g} s (slaveTimeout)",
                )
        return min(
            (waiters[0].deadline_s for waiters in self._waiters.values() if waiters), default=None
        )

    def close(self) -> None:
        """Stop; tell whoever still waits. Idempotent."""
        self._alarm.close()
        for waiters in self._waiters.values():
            while waiters:
                waiters.popleft().done(
                    Outcome.SLAVE_TIMEOUT, "stored by this broker, which is shutting down"
                )
