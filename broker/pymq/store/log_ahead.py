"""What can be made ready before puts need it: the next file of the log, pages of the current one.

Source: RocketMQ AllocateMappedFileService.
"""

from pymq.store.disk_jobs import TouchJob
from pymq.store.log.commit_log import CommitLog
from pymq.store.write_gate import WriteGate


class LogAhead:
    """Makes ready what puts will need; belongs to the thread of the store but for one method."""

    def __init__(self, log: CommitLog, gate: WriteGate) -> None:
        self._log = log
        self._gate = gate

    @property
    def segment_due(self) -> bool:
        """Whether to call ``prepare_segment``, in a thread that may wait."""
        return self._gate.failure is None and self._log.next_due

    def prepare_segment(self) -> None:
        """Create the next commit-log file before it is needed; in any thread.

        Raises:
            DiskFull, StoreError: it could not be created; the put that needs it tries again.
        """
        self._log.segments.prepare_next()

    @property
    def touchable_end(self) -> int:
        """Physical offset up to which pages may be touched: where the log's current file ends.

        With a transient pool, where the log does: then puts write to memory, and there is nothing
        to touch.
        """
        log = self._log
        return log.segments.at(-1).end if len(log.segments) and log.pool is None else log.end

    def begin_touch(self, first: int, end: int) -> TouchJob:
        """Return a job that has the system find memory for pages of the log.

        It does not have to be finished.

        Args:
            first, end: physical offsets, between the log's end and ``touchable_end``.

        Raises:
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        return TouchJob(self._log, first, end)
