"""The time that records are stored with: it never goes back in a log, whatever the clock does."""

import logging
from pathlib import Path

from pymq.clock import Clock
from pymq.store.log.commit_log import CommitLog

_log = logging.getLogger(__name__)

#: How far the clock may be behind before anybody is told: clocks that are kept right go back less.
BEHIND_MS = 60_000
_UNITS = ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


class LogTime:
    """Tells the store time of the next record, and warns of a clock behind that of the last one.

    Args:
        clock: tells the time.
        log: says when its last record was stored.
        root_path: of the store.
    """

    def __init__(self, clock: Clock, log: CommitLog, root_path: Path) -> None:
        self._clock = clock
        self._log = log
        self._root_path = root_path
        self._is_behind = False
        self.now_ms()  # It may have been set back while the store was closed.

    def now_ms(self) -> int:
        """Return the time, or that of the last record if this is later."""
        now_ms, last_ms = self._clock.wall_ms(), self._log.store_timestamp
        if now_ms >= last_ms:
            self._is_behind = False
            return now_ms
        if last_ms - now_ms >= BEHIND_MS and not self._is_behind:
            self._is_behind = True  # Said once: every message would say it.
            _log.warning(
                "%s: the last stored message is %s ahead of this machine's clock, and store times "
                "do not go back: until the clock has passed it, new messages are stored with its "
                "time, so that positions and queries by time are wrong for them, and log files "
                "that were written while the clock was ahead are kept that much longer. If the "
                "clock is wrong now, set it right; if it was ahead before, use offsets instead of "
                "times until then, and look after the room on the disk",
                self._root_path,
                span_text(last_ms - now_ms),
            )
        return last_ms


def span_text(span_ms: int) -> str:
    """Return a span of time in the largest unit of which there are two at least."""
    for unit_ms, name in _UNITS:
        if span_ms >= 2 * unit_ms:
            return f"{span_ms // unit_ms} {name}"
    return f"{span_ms} ms"
