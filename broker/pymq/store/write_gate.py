"""Whether the store is open and accepts writes, and if not, why: finally, or for now.

A failed flush, and a disk that refused a write, are final: the system reports a lost page only
once, so a second flush would succeed although the data are lost. The next start writes them again
first, see ``recovery``. A full disk is not final.

Source: RocketMQ RunningFlags.
"""

import logging
from pathlib import Path

from pymq.clock import Clock
from pymq.errors import FlushFailed, StoreClosed, StoreError
from pymq.store.statistics import StoreStatistics

_log = logging.getLogger(__name__)


class WriteGate:
    """The state that decides about writes; every part of a store checks it first.

    Attributes:
        is_closed: the store was closed.
        failure: why no write will ever be accepted again; None: they are accepted.
        refusal: why the last write was refused; None: it was not.
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

    def record_error(self, error: StoreError) -> None:
        """Refuse writes because of an error, and log that once."""
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

    def record_success(self) -> None:
        """Accept writes again: one succeeded."""
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
