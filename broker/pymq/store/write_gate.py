"""Whether the store is open and takes writes, and if not, why: for good, or until the next try.

A failed sync, and a disk that refused a write, are final: the system reports a lost page once,
so a second sync would succeed and vouch for what is not there. A full disk is not.

Source: RocketMQ RunningFlags.
"""

import logging
from pathlib import Path

from pymq.clock import Clock
from pymq.errors import FlushFailed, StoreClosed, StoreError
from pymq.store.statistics import StoreStatistics

_log = logging.getLogger(__name__)


class WriteGate:
    """Remembers what went wrong; every part of a store asks it before it works.

    Attributes:
        is_closed: the store was closed.
        failure: why no write is ever taken again; None while that is not so.
        refusal: why the last write was refused; None when it was not.
    """

    def __init__(
        self, root_path: Path, clock: Clock, statistics: StoreStatistics, *, retry_after_ms: int
    ) -> None:
        self._root_path = root_path
        self._clock = clock
        self._statistics = statistics
        self._retry_after_s = retry_after_ms / 1000
        self._retry_at_s = 0.0
        self.is_closed = False
        self.failure: str | None = None
        self.refusal: str | None = None

    def note(self, error: StoreError) -> None:
        """Close the gate; a line in the log says so, once."""
        if isinstance(error, FlushFailed):
            if self.failure is None:
                self.failure = f"{error}; the store takes no more writes"
                self._statistics.count_flush_failure()
                _log.error("the disk failed, no more writes are taken: %s", error)
            return
        if self.refusal is None:
            _log.error("writes are refused until this succeeds: %s", error)
        self.refusal = str(error)
        self._retry_at_s = self._clock.monotonic_s() + self._retry_after_s

    def note_success(self) -> None:
        """A write succeeded: open it again."""
        self.refusal = None

    @property
    def may_try(self) -> bool:
        """Whether a write may be tried now."""
        if self.failure is not None:
            return False
        return self.refusal is None or self._clock.monotonic_s() >= self._retry_at_s

    def check_open(self) -> None:
        """Raise if the store was closed.

        Raises:
            StoreClosed: it was.
        """
        if self.is_closed:
            raise StoreClosed(f"{self._root_path}: this store is closed")

    def check_disk(self) -> None:
        """Raise if the disk failed for good.

        Raises:
            FlushFailed: it did.
        """
        if self.failure is not None:
            raise FlushFailed(self.failure)
