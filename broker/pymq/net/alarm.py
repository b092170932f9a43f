"""Calls a function when something is due, and never otherwise: an idle process sleeps."""

import asyncio
import logging
from collections.abc import Callable

from pymq.clock import Clock

_log = logging.getLogger(__name__)


class Alarm:
    """Rings when the first of many deadlines has passed; nothing is scheduled while there is none.

    Args:
        clock: of the deadlines.
        ring: does what is due, and returns when something is due next; None: nothing is. What it
            raises is logged, and it is called again after ``least_s``.
        least_s: from one ring to the next, so that many deadlines share one.
    """

    def __init__(
        self, clock: Clock, ring: Callable[[], float | None], *, least_s: float
    ) -> None:
        self._clock = clock
        self._ring = ring
        self._least_s = least_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = float("inf")

    def start(self) -> None:
        """Begin, with what is due already; on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._rings()

    def due(self, at_s: float) -> None:
        """Something is due at a time, by the clock."""
        if at_s < self._at_s and self._loop is not None:
            self._schedule(max(at_s, self._clock.monotonic_s()))

    def _schedule(self, at_s: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._at_s = at_s
        self._timer = self._loop.call_later(at_s - self._clock.monotonic_s(), self._rings)

    def _rings(self) -> None:
        self._timer, self._at_s = None, float("inf")
        soonest_s = self._clock.monotonic_s() + self._least_s
        try:
            next_s = self._ring()
        except Exception:
            _log.exception("what was due failed; trying again in %g s", self._least_s)
            next_s = soonest_s
        if next_s is not None and self._loop is not None:
            self._schedule(max(min(next_s, self._at_s), soonest_s))

    def close(self) -> None:
        """Stop; idempotent."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
