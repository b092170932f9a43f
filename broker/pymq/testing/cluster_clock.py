"""The clock of an embedded cluster: the machine's, until a test advances it."""

import bisect
import math
from collections.abc import Callable
from datetime import UTC, datetime

from pymq.clock import Clock
from pymq.errors import ConfigurationError

_HOUR_MS = 3_600_000


class ClusterClock(Clock):
    """Tells the brokers of a cluster what time it is.

    Only wall time can be advanced: delays, retries, timers, checks of transactions, the time for
    which popped messages are invisible, the age of messages. What is measured in monotonic time
    goes on as before: heartbeats, silence on connections, time-outs of requests, locks of queues,
    how long a pull is held. So nobody is taken for dead because a test advances the clock.

    Args:
        moved: called after each step, from the thread that advances; has the brokers look at the
            time.
    """

    def __init__(self, moved: Callable[[], None]) -> None:
        self._moved = moved
        #: Machine times at which it was advanced, and how far ahead it has been since then.
        self._moments_ms = [0]
        self._ahead_ms = [0]

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, as the brokers see it."""
        return super().wall_ms() + self._ahead_ms[-1]

    def now(self) -> datetime:
        """Return the same, as a time in UTC: for ``deliver_at``, which is absolute."""
        return datetime.fromtimestamp(self.wall_ms() / 1000, UTC)

    def advance(self, seconds: float) -> None:
        """Have this much time pass at once; what is due by then happens.

        On return transactions have been checked and old files deleted; messages that are due are
        being delivered. Long times pass in steps that end at whole hours, and each step is one
        round of checks: advance several times to have a transaction checked several times.

        Args:
            seconds: how far; from 0 on.

        Raises:
            ConfigurationError: time would go back.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ConfigurationError(
                f"clock.advance({seconds!r}): expected seconds from 0 on; time does not go back, "
                "for that take a new cluster"
            )
        left_ms = round(seconds * 1000)
        while True:
            step_ms = min(left_ms, _HOUR_MS - self.wall_ms() % _HOUR_MS)
            # In this order: another thread may look up a moment meanwhile.
            ahead_ms, moment_ms = self._ahead_ms[-1] + step_ms, super().wall_ms()
            self._ahead_ms.append(ahead_ms)
            self._moments_ms.append(moment_ms)
            self._moved()
            while super().wall_ms() == moment_ms:
                pass  # What follows is later: see ``at``. This is less than a millisecond.
            left_ms -= step_ms
            if not left_ms:
                return

    def at(self, machine_ms: int) -> int:
        """Return what time it was here at a time of the machine.

        What happened in the very millisecond of an ``advance`` happened before it.
        """
        after = bisect.bisect_left(self._moments_ms, machine_ms, lo=1)
        return machine_ms + self._ahead_ms[after - 1]
