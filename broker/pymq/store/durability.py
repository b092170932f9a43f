"""Bringing what was put to the disk, in three steps that any thread can run.

=============  ========================================  =======================================
step           moves                                     afterwards
=============  ========================================  =======================================
commit         records from the transient pool to the    they survive the process; with
               log's files (only with a pool)            ``FlushMode.ASYNC`` they are visible
flush          the log's files to the disk               they survive the machine; with
                                                         ``FlushMode.SYNC`` they are visible
queue flush    consume queues, key index, checkpoint     the next start reads less of the log
=============  ========================================  =======================================

Every step has one protocol: ``begin_...`` returns a job, ``run`` of the job does the disk work
in any thread and never raises, ``finish_...`` records the outcome and raises what went wrong.
``begin`` and ``finish`` belong to the thread of the store.

Source: RocketMQ FlushManager, CommitRealTimeService, FlushConsumeQueueService.
"""

from pymq.clock import Clock
from pymq.errors import FlushFailed, StoreError
from pymq.store.disk_jobs import FlushJob, QueueFlushJob, TrialJob
from pymq.store.dispatch import Dispatch
from pymq.store.index.key_index import KeyIndex
from pymq.store.log.commit_log import CommitLog
from pymq.store.log.transient_pool import CommitJob
from pymq.store.queues.queue_files import QueueFiles
from pymq.store.state.checkpoint import Checkpoint
from pymq.store.statistics import StoreStatistics
from pymq.store.write_gate import WriteGate


class Durability:
    """Commits and flushes of one store.

    Args:
        log, queue_files, index: what is flushed; ``index`` is None without an index.
        checkpoint: records how much of it is on the disk.
        dispatch: makes records visible when they became durable.
        gate: records failures.
        statistics: counts flushes.
        clock: for the time between two checkpoints.
        checkpoint_interval_s: least time between two checkpoints that flushes of the log write.
    """

    def __init__(
        self,
        log: CommitLog,
        queue_files: QueueFiles,
        index: KeyIndex | None,
        *,
        checkpoint: Checkpoint,
        dispatch: Dispatch,
        gate: WriteGate,
        statistics: StoreStatistics,
        clock: Clock,
        checkpoint_interval_s: float,
    ) -> None:
        self._log = log
        self._queue_files = queue_files
        self._index = index
        self._checkpoint = checkpoint
        self._dispatch = dispatch
        self._gate = gate
        self._statistics = statistics
        self._clock = clock
        self._checkpoint_interval_s = checkpoint_interval_s
        self._checkpoint_due_s = 0.0
        self._queues_end = log.end
        #: Whether the last commit failed: then puts wait, acknowledged records go first.
        self.is_commit_failing = False

    # -- progress -----------------------------------------------------------------------------

    @property
    def flushed_end(self) -> int:
        """Physical offset up to which the log is on the disk."""
        return self._log.flushed

    @property
    def failure(self) -> str | None:
        """Why the store will never take a write again; None: it does."""
        return self._gate.failure

    @property
    def unflushed_bytes(self) -> int:
        """Bytes put that are not on the disk yet."""
        return self._log.end - self._log.flushed

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes put that are only in memory; always 0 without ``transient_pool``."""
        return self._log.end - self._log.committed

    @property
    def free_buffer_count(self) -> int | None:
        """Buffers of ``transient_pool`` that are not in use; None without a pool."""
        pool = self._log.pool
        return None if pool is None else pool.free_count

    @property
    def complete_end(self) -> int:
        """Physical offset up to which log and queue entries are on the disk.

        0 after the disk failed: then nothing is certain.
        """
        return min(self._log.flushed, self._queues_end) if self._gate.failure is None else 0

    # -- commit -------------------------------------------------------------------------------

    def begin_commit(self) -> CommitJob | None:
        """Return a job that writes everything put so far to the log's files.

        None if there is nothing to do, or another one is not finished.

        Raises:
            FlushFailed: an earlier one failed for good.
            StoreError: the process has too many open files; try again later.
        """
        self._check()
        pool = self._log.pool
        if pool is None:
            return None
        return pool.begin_commit(self._log.end, self._log.store_timestamp)

    def finish_commit(self, job: CommitJob) -> None:
        """Record the outcome of a job; with FlushMode.ASYNC its records become visible.

        Raises:
            DiskFull, StoreError: nothing is lost; puts are refused until a later one succeeds.
            FlushFailed: final: the store takes no more writes, and what was not committed is
                lost. Reads go on.
        """
        pool = self._log.pool
        assert pool is not None
        try:
            pool.finish_commit(job)
        except StoreError as error:
            self.is_commit_failing = True
            self._gate.record_error(error)
            raise
        self.is_commit_failing = False
        if not self._dispatch.waits_for_flush:
            self._dispatch.advance()

    def commit(self) -> None:
        """Write everything put so far to the log's files, in this thread.

        Raises:
            DiskFull, FlushFailed, StoreError: as ``finish_commit``.
        """
        job = self.begin_commit()
        if job is not None:
            job.run()
            self.finish_commit(job)

    # -- flush --------------------------------------------------------------------------------

    def begin_flush(self) -> FlushJob:
        """Return a job that brings everything committed so far to the disk.

        Raises:
            FlushFailed: an earlier one failed, see ``finish_flush``.
            StoreError: the process has too many open files; try again later.
        """
        self._check()
        now_s = self._clock.monotonic_s()
        save = now_s >= self._checkpoint_due_s
        if save:
            self._checkpoint_due_s = now_s + self._checkpoint_interval_s
        return FlushJob(self._log.begin_flush(), self._checkpoint, save=save)

    def finish_flush(self, job: FlushJob) -> None:
        """Record the outcome of a job; with FlushMode.SYNC its records become visible.

        Raises:
            FlushFailed: it failed. Final: nothing it covers may be acknowledged, and the store
                takes no more writes. Reads go on.
        """
        if job.error is not None:
            self._gate.record_error(job.error)
            raise job.error
        self._gate.check_disk()
        self._log.finish_flush(job.flush)
        self._statistics.count_flush(job.elapsed_s)
        self._dispatch.advance()

    def flush(self) -> None:
        """Bring everything put so far to the disk, in this thread.

        Raises:
            FlushFailed: as ``finish_flush``.
        """
        self.commit()
        job = self.begin_flush()
        job.run()
        self.finish_flush(job)

    def begin_trial(self) -> TrialJob:
        """Return a job that finds out how long the disk takes for a write; nothing to finish.

        Raises:
            StoreError: the store is closed, its disk failed, or too many files are open.
        """
        self._check()
        return TrialJob(self._log)

    # -- queue flush --------------------------------------------------------------------------

    @property
    def queue_flush_due(self) -> bool:
        """Whether a queue flush is due at once.

        An index file is full, or the index has caught up after an unclean stop.
        """
        return self._index is not None and self._gate.failure is None and self._index.is_save_due

    def begin_queue_flush(self) -> QueueFlushJob:
        """Return a job that flushes changed queues and index, and writes the checkpoint.

        Raises:
            FlushFailed: an earlier flush failed.
        """
        self._check()
        physical_end, store_timestamp = self._dispatch.complete
        return QueueFlushJob(
            self._queue_files, self._index, self._checkpoint, store_timestamp, physical_end
        )

    def finish_queue_flush(self, job: QueueFlushJob) -> None:
        """Record the outcome of a job.

        Raises:
            FlushFailed: it failed; final, as in ``finish_flush``.
            StoreError: files could not be opened; the next job tries again.
        """
        if isinstance(job.error, FlushFailed):
            self._gate.record_error(job.error)
            raise job.error
        is_done = job.error is None
        self._queue_files.finish_flush(job.queue_flush, is_done=is_done)
        if self._index is not None and job.index_flush is not None:
            self._index.finish_flush(job.index_flush, is_done=is_done)
        if job.error is not None:
            raise job.error
        self._queues_end = max(self._queues_end, job.physical_end)

    def flush_queues(self) -> None:
        """Flush queues and index and write the checkpoint, in this thread.

        Raises:
            FlushFailed, StoreError: as ``finish_queue_flush``.
        """
        job = self.begin_queue_flush()
        job.run()
        self.finish_queue_flush(job)

    def _check(self) -> None:
        """Raise if the store is closed, or the disk failed for good."""
        self._gate.check_open()
        self._gate.check_disk()
