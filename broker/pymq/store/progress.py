"""The progress of long work, as lines of the log."""

import logging
from collections.abc import Callable

from pymq.clock import Clock

_log = logging.getLogger(__name__)

#: Called with (bytes done, bytes in all) from time to time.
OnProgress = Callable[[int, int], None]
#: Time between two lines.
INTERVAL_S = 5.0
_MIB = 1 << 20


class LoggedProgress:
    """Logs a line every ``INTERVAL_S``; none if the work is done before that."""

    def __init__(self, what: str, clock: Clock) -> None:
        self._what = what
        self._clock = clock
        self._begun_s = self._logged_s = clock.monotonic_s()

    def __call__(self, done: int, total: int) -> None:
        """Record how many bytes are done."""
        now_s = self._clock.monotonic_s()
        if now_s - self._logged_s < INTERVAL_S or not 0 < done <= total:
            return
        self._logged_s = now_s
        _log.warning(
            "%s: %d %% of %d MiB read, about %.0f s left",
            self._what,
            100 * done // total,
            total // _MIB,
            (now_s - self._begun_s) * (total - done) / done,
        )
