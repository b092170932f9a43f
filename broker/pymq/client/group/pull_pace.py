"""How fast a queue is asked again that failed, or answers at once and brings its reader nowhere."""

import asyncio

from pymq.errors import BrokerError, PymqError
from pymq.net.waiting import happens

#: Pause after the first such answer; it doubles with each one that follows.
PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 1.0
#: Who takes this long to answer needs no pause.
HELD_S = 0.1
#: Pause after a failed pull; after one that was refused because of flow control.
FAILURE_PAUSE_S = 1.0
FLOW_CONTROL_PAUSE_S = 0.02
FLOW_CONTROL = 215


class PullPace:
    """The pauses between the pulls of a queue. For one event loop.

    They are only made necessary by a broker that is away, or out of order.

    A broker holds a pull for which it has nothing. One that answers at once that there is nothing,
    or that reading has to go on where it stands, would be asked thousands of times in a second.
    """

    __slots__ = ("_is_over", "_pause_s")

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._is_over = asyncio.Event()

    @property
    def is_slowed(self) -> bool:
        """Did the last pull bring the reader nowhere?"""
        return self._pause_s > 0.0

    def pause_after(self, *, has_advanced: bool, took_s: float) -> float:
        """Return how long to wait before the next pull, in seconds.

        Args:
            has_advanced: does the next one begin behind where this one did? A move to another
                offset is none: it may lead back.
            took_s: from the request to its answer.
        """
        if has_advanced or took_s >= HELD_S:
            self._pause_s = 0.0
        else:
            self._pause_s = min(max(2 * self._pause_s, PAUSE_MIN_S), PAUSE_MAX_S)
        return self._pause_s

    def pause_after_failure(self, error: PymqError) -> float:
        """Return how long to wait before the next pull, in seconds."""
        if isinstance(error, BrokerError) and error.code == FLOW_CONTROL:
            return FLOW_CONTROL_PAUSE_S
        return FAILURE_PAUSE_S

    async def pause(self, pause_s: float) -> None:
        """Wait as long as these say, or until ``end_pause``."""
        if pause_s:
            self._is_over.clear()
            await happens(self._is_over, pause_s)

    def end_pause(self) -> None:
        """What was waited for may be there: pull now."""
        self._is_over.set()
