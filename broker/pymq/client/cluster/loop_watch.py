"""Notices that the event loop stood still: then a client seems dead to its brokers."""

import logging
from collections.abc import Callable

from pymq.net.said_once import SaidOnce

_log = logging.getLogger(__name__)

#: How often is looked.
WATCH_S = 1.0
#: Longer than most time-outs, and far from the 120 s after which a broker drops a silent client.
STANDSTILL_S = 5.0
#: Without a standstill for this long they are over: the next one is said again.
QUIET_S = 300.0


class LoopWatch:
    """Compares when it is called with when it should have been.

    Args:
        time_s: the event loop's time.
    """

    def __init__(self, time_s: Callable[[], float]) -> None:
        self._time_s = time_s
        self._last_s = time_s()
        self._stood_still_s = self._last_s
        self._said = SaidOnce(_log)

    def step(self) -> None:
        """Say it if much more than ``WATCH_S`` has passed since then, and that it is over."""
        now_s = self._time_s()
        late_s = now_s - self._last_s - WATCH_S
        self._last_s = now_s
        if late_s > STANDSTILL_S:
            self._stood_still_s = now_s
            self._said.warn(
                "standstill",
                "the event loop stood still for %.1f s, because something in it blocks, such as a "
                "handler that calls time.sleep, or the process was suspended: meanwhile requests "
                "time out, and brokers that hear nothing for 120 s give the queues to other "
                "members; use asyncio.to_thread for what blocks, or pymq.blocking",
                late_s,
            )
        elif now_s - self._stood_still_s >= QUIET_S:
            self._said.over(
                "standstill", "the event loop has not stood still again for %.0f s", QUIET_S
            )
