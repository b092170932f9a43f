"""Deleting what is old: segments first, then their entries in index and queues.

A pass is a run of small jobs. Each deletes the segments that were taken out of the log before it,
and looks at the disks and at the oldest remaining segment; ``finish_clean`` decides whether that
one is taken out, too. When none is, index and queues follow, some of them at a time. A crash in
between does no damage: segments are deleted oldest first, entries of deleted records are never
shown, and the first pass after the next start trims every queue.

A segment stays until it and all queue entries of its records are on the disk, and as long as
``Retention.needed_from`` says. The last segment always stays.

Source: RocketMQ CleanCommitLogService, CleanConsumeQueueService.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pymq.clock import Clock
from pymq.errors import FlushFailed, StoreError
from pymq.store.config import StoreConfig
from pymq.store.durability import Durability
from pymq.store.files import DiskUsage
from pymq.store.index.key_index import KeyIndex
from pymq.store.log.commit_log import CommitLog
from pymq.store.queues.consume_queue import ConsumeQueue
from pymq.store.queues.queue_table import QueueTable
from pymq.store.queues.queue_trim import TrimJob
from pymq.store.retention.clean_jobs import CleanJob, WatchJob
from pymq.store.retention.deleted_segments import DeletedSegments
from pymq.store.retention.disk_watch import DiskWatch, Usages
from pymq.store.retention.policy import DiskLevel, may_delete
from pymq.store.retention.queue_deletion import QueueDeletion
from pymq.store.state.checkpoint import DirectoryLock
from pymq.store.state.clean_stop import CleanStop
from pymq.store.write_gate import WriteGate

_log = logging.getLogger(__name__)

#: Queues trimmed by one job: closing the store waits for the job in progress.
_QUEUES_A_STEP = 64
#: Passes after one request, as in RocketMQ.
_REQUESTED_PASSES = 20


class Retention:
    """Decides what is deleted; belongs to the thread of the store.

    Args:
        config: the rules.
        clock: for ages and hours.
        log, queues, index: what is cleaned; no index if none is kept.
        lock: of the store's directories.
        clean_stop: records which queues are deleted.
        disks: how full they are.
        durability: says what is on the disk: nothing else may be deleted.
        reach: says where the last record of a queue ends in the log, visible or not.
        gate: refuses calls of a closed store, and writes after a deletion that failed half way.

    Attributes:
        needed_from: returns the physical offset from which the log has to stay, however full the
            disk is; None: there is none.
        begin_delete, begin_delete_topics, finish_delete, delete_queues, delete_expired_queues,
            recorded_deletions: the deletion of queues; see ``QueueDeletion``.
    """

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        *,
        lock: DirectoryLock,
        clean_stop: CleanStop,
        disks: DiskWatch,
        durability: Durability,
        reach: Callable[[ConsumeQueue], int],
        gate: WriteGate,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._queues = queues
        self._index = index
        self._lock = lock
        self._clean_stop = clean_stop
        self._disks = disks
        self._durability = durability
        self._gate = gate
        self.needed_from: Callable[[], int | None] = lambda: None
        self._deleted_segments = DeletedSegments(log.files, config.held_grace_ms / 1000)
        #: Passes that may still delete at any hour.
        self._requested_passes = 0
        #: Segments that this pass may still delete; None between passes.
        self._left: int | None = None
        self._trimmed_to = -1
        self._untrimmed: list[ConsumeQueue] = []
        self._unflushed: dict[Path, ConsumeQueue] = {}  # A file was deleted there.
        self._old_index: list[Path] = []  # Index files to delete.
        self._trim_again = False  # A queue could not be trimmed: the next pass tries all.
        self._logged = ""
        self._no_room_said = False
        log.segments.lack_of_room = disks.lack_of_room
        deletion = QueueDeletion(
            log, queues, clean_stop, self._deleted_segments, reach=reach, gate=gate
        )
        self.begin_delete = deletion.begin_delete
        self.begin_delete_topics = deletion.begin_delete_topics
        self.finish_delete = deletion.finish_delete
        self.delete_queues = deletion.delete_queues
        self.delete_expired_queues = deletion.delete_expired_queues
        self.recorded_deletions = deletion.recorded

    # -- the disks ----------------------------------------------------------------------------

    @property
    def disk_usages(self) -> Mapping[Path, DiskUsage]:
        """How full the disks of the log's and the queues' directories were, last time."""
        return self._disks.usages

    def begin_watch(self) -> WatchJob:
        """Return a job that closes deleted queue files and looks at the disks; one a second."""
        self._gate.check_open()
        deleted = self._queues.files.take_deleted()
        return WatchJob(self._log.files, self._disks, self._lock, deleted)

    def finish_watch(self, job: WatchJob) -> None:
        """Record how full the disks are: above a level, writes are refused.

        Without the directories that were opened, they are for good: what was written to files that
        nobody can open again would be lost with this process, and whoever finds the place empty
        may have begun another store there.
        """
        self._gate.check_open()
        self._record_disk(job.usages)
        if job.lost is not None:
            self._gate.record_error(
                FlushFailed(
                    f"{job.lost} was removed or replaced while this store had it open: put it "
                    "back, and start the broker again"
                )
            )

    def check_disk(self) -> None:
        """Look at the disks in this thread."""
        job = self.begin_watch()
        job.run()
        self.finish_watch(job)

    def _record_disk(self, usages: Usages) -> None:
        self._disks.record(usages)
        self._log.segments.full_paths = self._disks.full_log_paths

    # -- passes -------------------------------------------------------------------------------

    def clean_now(self) -> None:
        """Let the next passes delete files past their time at any hour.

        Source: RocketMQ executeDeleteFilesManually, which asks for 20 passes.
        """
        self._requested_passes = _REQUESTED_PASSES

    def begin_clean(self) -> CleanJob:
        """Return a job that deletes what was decided on before, and looks for more."""
        self._gate.check_open()
        if self._left is None:
            self._left = self._config.clean_batch_max
        segments = self._log.segments
        oldest = None
        # Queue offsets must not fall back: entries have to outlive their records.
        if (
            self._left
            and len(segments) > 1
            and segments.at(0).end <= self._durability.complete_end
        ):
            oldest = segments.at(0).path, segments.at(1).path
        return CleanJob(
            self._log.files,
            segments,
            self._deleted_segments,
            self._disks,
            self._lock,
            oldest,
            list(self._unflushed),
            self._old_index,
            [
                TrimJob(self._log.files, queue, self._trimmed_to)
                for queue in self._untrimmed[:_QUEUES_A_STEP]
            ],
            self._clock.monotonic_s(),
        )

    def finish_clean(self, job: CleanJob) -> int:
        """Decide what to delete next; return how much was done, 0 at the end of a pass.

        A pass deletes at most ``clean_batch_max`` log files and then trims the queues; the next
        job begins another pass.
        """
        self._gate.check_open()
        if job.is_lost:
            self._left = None
            return 0
        self._record_disk(job.usages)
        failed = {path: self._unflushed[path] for path in job.directories}
        # Each of them may have more files to delete.
        self._untrimmed += [one for path, one in self._unflushed.items() if path not in failed]
        self._unflushed = failed
        self._old_index = job.index_files
        if job.count:
            # What was freed may be enough: only an attempt from now on tells. Those before failed
            # for want of it, also while a file that was taken out was not deleted yet.
            self._log.segments.no_room = None
        if job.oldest is not None and self._may_go(job.last_write_ms):
            assert self._left is not None
            self._left -= 1
            self._deleted_segments.add(self._log.segments.take_first())
            return job.count + 1
        count = job.count + self._trim(job.trims)
        if not count:
            self._left = None
            if self._trim_again:
                self._trimmed_to, self._trim_again = -1, False
            else:
                self._logged = ""
            self._requested_passes = max(0, self._requested_passes - 1)
        return count

    def clean_step(self) -> int:
        """Do one bounded piece of cleaning, in this thread; return as ``finish_clean``."""
        job = self.begin_clean()
        job.run()
        return self.finish_clean(job)

    def _may_go(self, last_write_ms: int | None) -> bool:
        needed_from = self.needed_from()
        if needed_from is not None and needed_from < self._log.segments.at(0).end:
            return False
        return may_delete(
            last_write_ms,
            self._config,
            now_ms=self._clock.wall_ms(),
            level=self._level(),
            is_requested=self._requested_passes > 0,
        )

    def _level(self) -> DiskLevel:
        """Return the level of the disks, FORCE at least while the log's next file does not fit."""
        level, no_room = self._disks.level, self._log.segments.no_room
        if no_room is None or level >= DiskLevel.FORCE or self._deleted_segments.frees_later:
            return level
        if self._config.force_clean and not self._no_room_said:
            self._no_room_said = True  # Once: on a small disk it is so for each file.
            _log.warning("%s; the oldest commit-log files are deleted whenever it is so", no_room)
        return DiskLevel.FORCE

    def _trim(self, trims: Sequence[TrimJob]) -> int:
        """Trim the index, and then some queues at a time; return 0 when all of it is done."""
        if not self._deleted_segments.deleted:
            return 0  # After a crash now, segments would be back.
        first = self._log.first
        if first != self._trimmed_to:
            self._trimmed_to = first
            self._untrimmed = list(self._queues)
            if not self._queues.is_removing:  # After a crash, what is left would not count as such.
                self._clean_stop.trim(first)
            if self._index is not None:
                self._old_index += self._index.take_old(first)
            return 1
        del self._untrimmed[: len(trims)]
        for trim in trims:
            queue = trim.queue
            if queue.path in self._unflushed:
                self._trim_again = True
            elif self._try_trim(trim):
                self._unflushed[queue.path] = queue
        return max(len(trims), bool(self._untrimmed))

    def _try_trim(self, trim: TrimJob) -> bool:
        try:
            return trim.finish()
        except StoreError as error:
            self._trim_again = True
            if not self._logged:  # The first one: without descriptors, say, it is so for all.
                self._logged = str(error)
                _log.error("an old file stays until this succeeds: %s", error)
        return False

    def close(self) -> None:
        """Delete what was taken out of the log; views on it stay valid."""
        if self._deleted_segments.deleted or self._lock.lost() is None:
            self._deleted_segments.step(self._clock.monotonic_s())
        self._deleted_segments.close()
