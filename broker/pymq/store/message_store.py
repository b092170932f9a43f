"""MessageStore: the one door to the store."""

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pymq.clock import Clock
from pymq.errors import FlushFailed, OffsetOutOfRange, StoreBusy, StoreClosed, StoreError
from pymq.protocol.new_records import NewRecords
from pymq.protocol.record import NewRecord, Record
from pymq.store import lookup
from pymq.store.append import Appender, PutResult, PutStatus
from pymq.store.cleaning import Cleaner, CleanJob
from pymq.store.config import FlushMode, StoreConfig
from pymq.store.consume_queue import ConsumeQueue
from pymq.store.dispatch import Arrival, BitMapOf, Dispatch
from pymq.store.files import DiskUsage, Files
from pymq.store.indexer import Indexer
from pymq.store.jobs import CommitJob, FlushJob, PrefetchJob, QueueFlushJob
from pymq.store.known_queues import IndexNote
from pymq.store.parts import StoreParts
from pymq.store.progress import OnProgress
from pymq.store.query import QUERY_COUNT_MAX, KeyQuery, QueryResult
from pymq.store.read import SCAN_MAX, ReadResult, read_queue
from pymq.store.statistics import StoreStatistics
from pymq.store.write_gate import WriteGate

_log = logging.getLogger(__name__)

#: How long closing goes on indexing keys; the rest is left to the next start.
CLOSE_INDEXING_S = 10.0


class MessageStore:
    """Commit log, consume queues and their files, behind one narrow face.

    One thread owns a store. Only the ``run`` of its jobs and ``prepare_next``
    may run in another one; all of them have to be over before ``close``.

    Visible means: ``read`` and ``queue_bounds`` show it. With ``FlushMode.ASYNC`` a record is
    visible when ``put`` returns, with ``FlushMode.SYNC`` after the ``flush_done`` that covers
    it: never before it is as durable as the mode promises.

    Source: RocketMQ DefaultMessageStore.
    """

    def __init__(self, config: StoreConfig, clock: Clock, parts: StoreParts) -> None:
        """Take over recovered parts; ``open`` is the way to get a store."""
        self._config = config
        self._clock = clock
        self._parts = parts
        self._log = log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._indexer = None if parts.index is None else Indexer(log, parts.index, clock)
        self._checkpoint = parts.checkpoint
        self._known = parts.known
        self._appender = Appender(config, log, parts.queues)
        self._dispatch = Dispatch(parts.write)
        self._dispatch.start_at(log.end, log.store_timestamp)
        self._sync_mode = config.flush_mode is FlushMode.SYNC
        self._closed = False
        self._checkpoint_at = 0.0
        #: What was put and read; its ``sample`` wants to be called once a second.
        self.statistics = StoreStatistics(
            wall_ms=clock.wall_ms(), monotonic_s=clock.monotonic_s()
        )
        self._gate = WriteGate(clock, self.statistics, retry_after_ms=config.retry_after_ms)
        self._queues_synced = log.end
        self._is_commit_failing = False
        self._cleaner = Cleaner(config, clock, log, parts.queues, parts.index, parts.known)
        self.check_disk()
        #: Called with what has just become visible, from inside ``put`` and ``flush_done``. It
        #: must not call the store's writing methods.
        self.on_dispatch: Callable[[list[Arrival]], None] | None = None

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        clock: Clock,
        *,
        files: Files | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
        bit_map_of: BitMapOf | None = None,
        on_progress: OnProgress | None = None,
    ) -> "MessageStore":
        """Open a store directory, made if missing, and recover what is in it.

        Args:
            config: its settings.
            clock: time for stamps and retries.
            files: the operating system; tests pass one that fails.
            is_cancelled: asked now and then; a long recovery ends early when it says so.
            bit_map_of: gives the bit map that goes into the unit of a record; used with
                ``queue_extension`` alone, for every record that becomes visible.
            on_progress: told (bytes, bytes in all) while a recovery reads the log; lines in our
                log unless given.

        Raises:
            StoreLocked: somebody else has it open.
            StoreMismatch: it was written with other settings; nothing was changed.
            CorruptRecord: records that were safe on the disk are damaged; nothing was changed.
            DiskFull, FlushFailed, StoreError: the disk refused.
            StoreClosed: it was cancelled; the directory can be opened again at any time.
        """
        parts = StoreParts.open(
            config,
            clock,
            files or Files(),
            is_cancelled=is_cancelled,
            bit_map_of=bit_map_of,
            on_progress=on_progress,
        )
        return cls(config, clock, parts)

    # -- writing ------------------------------------------------------------------------------

    @property
    def not_writable_reason(self) -> str | None:
        """Why writes are refused; None while the store takes them."""
        return self._gate.failure or self._cleaner.disk.refusal or self._gate.refusal

    def put(self, entries: Sequence[NewRecord | NewRecords], store_host: bytes) -> list[PutResult]:
        """Append records and batches in order, as one write where they fit one segment.

        Args:
            entries: what to store. Buffers are not kept.
            store_host: our packed address.

        Returns:
            One result per entry. A refused entry does not harm its neighbours; after a full or
            broken disk that entry and all later ones are NOT_WRITABLE and not stored.

        Raises:
            StoreClosed: the store was closed.
        """
        self._check_open()
        started_s = self._clock.monotonic_s()
        results: list[PutResult] = []
        put_bytes = 0
        if self._may_write():
            put_bytes = self._append(entries, store_host, results)
            if not self._sync_mode:
                self.dispatch_flushed()
        else:
            self._refuse_rest(results, len(entries))
        self.statistics.count_put(results, put_bytes, self._clock.monotonic_s() - started_s)
        return results

    def _append(
        self,
        entries: Sequence[NewRecord | NewRecords],
        store_host: bytes,
        results: list[PutResult],
    ) -> int:
        """Write entries to the log and stage them; return the bytes of their records."""
        log = self._log
        now = max(self._clock.wall_ms(), log.store_timestamp)
        count = len(entries)
        put_bytes = 0
        try:
            while True:
                start = log.end
                staged = self._appender.append_run(
                    entries, len(results), results, now=now, store_host=store_host
                )
                if staged is not None:
                    self._dispatch.stage(staged)
                    put_bytes += staged.end - start
                if len(results) == count:
                    break
                log.roll()
        except StoreBusy as error:
            results += [PutResult(PutStatus.BUSY, remark=str(error))] * (count - len(results))
        except StoreError as error:
            self._gate.note(error)
            self._refuse_rest(results, count)
        else:
            self._gate.note_success()
        return put_bytes

    def _may_write(self) -> bool:
        if not self._gate.may_try or self._cleaner.disk.refusal is not None:
            return False
        if self._is_commit_failing:
            return False  # What was acknowledged goes first.
        # Entries that found no room earlier go first.
        return self._gate.refusal is None or self.dispatch_flushed()

    def _refuse_rest(self, results: list[PutResult], count: int) -> list[PutResult]:
        reason = self.not_writable_reason
        while len(results) < count:
            results.append(PutResult(PutStatus.NOT_WRITABLE, remark=reason))
        return results

    def dispatch_flushed(self) -> bool:
        """Make visible what may be; return False if the queues could not be written.

        ``put`` and ``flush_done`` do this; after a full disk a later call does what is left.
        """
        try:
            arrivals = self._dispatch.apply(
                self._log.flushed if self._sync_mode else self._log.committed
            )
        except StoreError as error:
            self._gate.note(error)
            return False
        if arrivals and self.on_dispatch is not None:
            self.on_dispatch(arrivals)
        return True

    @property
    def next_segment_due(self) -> bool:
        """Whether ``prepare_next`` should be called soon, in a thread that may wait."""
        return self._gate.failure is None and self._log.next_due

    def prepare_next(self) -> None:
        """Make the next commit-log file ahead of need; in any thread.

        Raises:
            DiskFull, StoreError: it could not be made; the put that needs it tries again.
        """
        self._log.segments.prepare_next()

    def delete_queues(self, topic: str) -> int:
        """Delete the consume queues of a topic; its records stay in the log. Return how many.

        Offsets start from 0 when the topic comes back, also after a crash.

        Raises:
            DiskFull, StoreError: it could not be noted; nothing was deleted.
            FlushFailed: it may have been noted, or files could not be removed. Final: the next
                start does the rest, and until then the store takes no writes.
        """
        self._check_open()
        queues = self._queues.of_topic(topic)
        if not queues:
            return 0
        try:
            self._known.delete(topic, self._log.end)
            self._remove_deleted(queues)
        except FlushFailed as error:
            self._gate.note(error)
            raise
        return len(queues)

    def _remove_deleted(self, queues: list[ConsumeQueue]) -> None:
        """Remove queues whose deletion is noted.

        Raises:
            FlushFailed: files are left, which stand where those of new messages would.
        """
        failure: StoreError | None = None
        for queue in queues:
            try:
                self._queues.remove(queue)
            except StoreError as error:
                failure = error
        if failure is not None:
            raise FlushFailed(f"{failure}; the next start removes what is left") from failure

    # -- the key index ------------------------------------------------------------------------

    @property
    def index_behind(self) -> int:
        """Bytes of visible records whose keys cannot be found yet."""
        return 0 if self._index is None else max(0, self._dispatch.end - self._index.end)

    def index_step(self) -> int:
        """Index the keys of some visible records; return how many bytes of the log they take.

        A few milliseconds of work. Whoever owns the store repeats it until it returns 0.

        Raises:
            DiskFull, FlushFailed, StoreError: the index could not be written; try again later.
            StoreClosed: the store was closed.
        """
        self._check_open()
        return 0 if self._indexer is None else self._indexer.step(self._dispatch.end)

    @property
    def queue_flush_due(self) -> bool:
        """Whether a job of ``queue_flush_target`` should not wait.

        An index file is full, or the index has caught up after an unclean stop.
        """
        return self._index is not None and self._gate.failure is None and self._index.is_save_due

    def query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = QUERY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
    ) -> QueryResult:
        """Return messages of a topic that have a key, newest first.

        What is not indexed yet is not found, see ``index_behind``.

        Args:
            topic: the messages' topic.
            key: one of their KEYS, or their unique key.
            count_max: messages wanted at most, 1..64.
            begin_ms, end_ms: first and last store time wanted.

        Raises:
            StoreError: this store keeps no key index, or it is damaged.
            StoreClosed: the store was closed.
        """
        job = self.query_target(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )
        job.run()
        return self.query_done(job)

    def query_target(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> KeyQuery:
        """Return a job that looks for messages as ``query`` does.

        Raises:
            StoreError: this store keeps no key index.
            StoreClosed: the store was closed.
        """
        self._check_open()
        if self._index is None:
            raise StoreError(
                f"{self._config.root_path}: keys are not indexed here (key_index, RocketMQ "
                "messageIndexEnable, is off)"
            )
        return KeyQuery(
            self._log,
            self._index,
            topic,
            key,
            count_max=count_max,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )

    def query_done(self, job: KeyQuery) -> QueryResult:
        """Return what a job that has run found.

        Raises:
            StoreError: index or log are damaged, or could not be read.
            StoreClosed: the store was closed.
        """
        self._check_open()
        if job.error is not None:
            raise job.error
        result = QueryResult([], job.index_last_ms, job.index_last_offset)
        for physical_offset, size in job.places:
            try:
                result.buffers.append(self._log.slice(physical_offset, size))
            except OffsetOutOfRange:
                break  # It has expired meanwhile, and so have all that are older.
        return result

    # -- flushing -----------------------------------------------------------------------------

    @property
    def log_end(self) -> int:
        """Physical offset where the next record goes."""
        return self._log.end

    @property
    def log_first(self) -> int:
        """The lowest physical offset kept."""
        return self._log.first

    @property
    def flushed_end(self) -> int:
        """Physical offset up to which everything is on the disk."""
        return self._log.flushed

    @property
    def unflushed(self) -> int:
        """Bytes written to the log but not yet synced."""
        return self._log.end - self._log.flushed

    @property
    def undispatched(self) -> int:
        """Bytes written to the log that are not visible yet."""
        return self._log.end - self._dispatch.end if self._dispatch.behind else 0

    def _check_flushable(self) -> None:
        """Raise if the store is closed, or a sync has failed."""
        self._check_open()
        self._gate.check()

    @property
    def uncommitted(self) -> int:
        """Bytes put that are in memory only; always 0 without ``transient_pool``."""
        return self._log.end - self._log.committed

    @property
    def free_buffers(self) -> int | None:
        """Buffers of ``transient_pool`` that are not in use; None without a pool."""
        staging = self._log.staging
        return None if staging is None else staging.free_count

    def commit_target(self) -> CommitJob | None:
        """Return a job that writes everything put so far to the log's files.

        None if there is nothing to do, or another one is not done.

        Raises:
            FlushFailed: an earlier one failed for good.
            StoreError: no descriptor is left for it; try again later.
        """
        self._check_flushable()
        staging = self._log.staging
        if staging is None:
            return None
        commit = staging.begin(self._log.end, self._log.store_timestamp)
        return None if commit is None else CommitJob(staging, commit)

    def commit_done(self, job: CommitJob) -> None:
        """Take note of a job that has run; with FlushMode.ASYNC its records become visible.

        Raises:
            DiskFull, StoreError: nothing is lost; puts are refused until a later one succeeds.
            FlushFailed: final: the store takes no more writes, and what was not committed is
                lost. Reads go on.
        """
        staging = self._log.staging
        assert staging is not None
        if job.error is not None:
            staging.fail()
            self._is_commit_failing = True
            self._gate.note(job.error)
            raise job.error
        staging.finish(job.commit)
        self._is_commit_failing = False
        if not self._sync_mode:
            self.dispatch_flushed()

    def commit(self) -> None:
        """Write everything put so far to the log's files, in this thread.

        Raises:
            DiskFull, FlushFailed, StoreError: as ``commit_done``.
        """
        job = self.commit_target()
        if job is not None:
            job.run()
            self.commit_done(job)

    def flush_target(self) -> FlushJob:
        """Return a job that brings everything committed so far to the disk.

        Raises:
            FlushFailed: an earlier one failed, see ``flush_done``.
            StoreError: no descriptor is left for it; try again later.
        """
        self._check_flushable()
        now = self._clock.monotonic_s()
        save = now >= self._checkpoint_at
        if save:
            self._checkpoint_at = now + self._config.checkpoint_interval_ms / 1000
        return FlushJob(self._log, self._checkpoint, self._log.begin_sync(), save=save)

    def flush_done(self, job: FlushJob) -> None:
        """Take note of a job that has run; with FlushMode.SYNC its records become visible.

        Raises:
            FlushFailed: it failed. Final: nothing it covers may be acknowledged, and the store
                takes no more writes. Reads go on.
        """
        if job.error is not None:
            self._gate.note(job.error)
            raise job.error
        self._gate.check()
        self._log.finish_sync(job.sync)
        self.statistics.count_flush(job.elapsed_s)
        self.dispatch_flushed()

    def flush(self) -> None:
        """Bring everything put so far to the disk, in this thread.

        Raises:
            FlushFailed: as ``flush_done``.
        """
        self.commit()
        job = self.flush_target()
        job.run()
        self.flush_done(job)

    def queue_flush_target(self) -> QueueFlushJob:
        """Return a job that syncs changed consume queues and index, and writes the checkpoint.

        Raises:
            FlushFailed: an earlier sync failed.
        """
        self._check_flushable()
        dispatch = self._dispatch
        return QueueFlushJob(
            self._queues, self._index, self._checkpoint, dispatch.store_timestamp, dispatch.end
        )

    def queue_flush_done(self, job: QueueFlushJob) -> None:
        """Take note of a job that has run.

        Raises:
            FlushFailed: it failed; final, as in ``flush_done``.
            StoreError: files could not be opened; the next job tries again.
        """
        if isinstance(job.error, FlushFailed):
            self._gate.note(job.error)
        elif job.error is not None:
            job.give_back()
        if job.error is not None:
            raise job.error
        if self._index is not None:
            self._index.saved()
        self._queues_synced = max(self._queues_synced, job.end)

    # -- cleaning -----------------------------------------------------------------------------

    def check_disk(self) -> None:
        """Look how full the disks are, about once a second: writes are refused above a level."""
        self._check_open()
        self._cleaner.note_disk(self._cleaner.disk.look())

    def clean_target(self) -> CleanJob:
        """Return a job that deletes what the last one found to be old, and looks for more."""
        self._check_open()
        # Offsets of queues must not fall back: their entries outlive the records.
        safe_end = min(self._log.flushed, self._queues_synced) if self._gate.failure is None else 0
        return self._cleaner.target(safe_end)

    def clean_done(self, job: CleanJob) -> int:
        """Take note of a job that has run; return how much got done, 0 at the end of a pass.

        A pass deletes at most ``clean_batch_max`` log files and then trims the queues; the next
        job begins another pass.
        """
        self._check_open()
        return self._cleaner.done(job)

    def clean_step(self) -> int:
        """Do one bounded piece of cleaning, in this thread; return as ``clean_done``."""
        job = self.clean_target()
        job.run()
        return self.clean_done(job)

    def clean_now(self) -> None:
        """Let the next passes delete files past their time at any hour.

        Source: RocketMQ executeDeleteFilesManually, which asks for 20 passes.
        """
        self._cleaner.clean_now()

    def delete_expired_queues(
        self, may_go: Callable[[str, int], bool], *, count_max: int
    ) -> list[tuple[str, int]]:
        """Delete consume queues that hold nothing any more; return which.

        Their offsets start from 0 again: ``may_go`` has to keep whatever somebody may still read.

        Args:
            may_go: asked about topic and queue id.
            count_max: how many at most; call again until there is none.

        Raises:
            DiskFull, FlushFailed, StoreError: it could not be noted or done.

        Source: RocketMQ cleanExpiredConsumerQueue.
        """
        self._check_open()
        queues = list(itertools.islice(self._cleaner.expired_queues(may_go), count_max))
        found = [(queue.topic, queue.queue_id) for queue in queues]
        if found:
            self._known.forget(set(found))
        for queue in queues:
            self._queues.remove(queue)
        if found:
            # Now, not with the next flush: a lost power that brought old files back beneath
            # entries of new messages would hide these.
            self._queues.sync_names()
        return found

    @property
    def disks(self) -> Mapping[Path, DiskUsage]:
        """How full the disks of the log's and the queues' directories are, as last seen."""
        return self._cleaner.disk.usages

    # -- reading ------------------------------------------------------------------------------

    def queues(self) -> list[tuple[str, int]]:
        """Return (topic, queue id) of every queue that holds or held messages, sorted."""
        return sorted((one.topic, one.queue_id) for one in self._queues if one.next_offset)

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (first kept offset, end offset) of a queue; (0, 0) if there is none."""
        queue = self._queues.find(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.end_offset)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        tag_codes: npt.NDArray[np.int64] | None = None,
        scan_max: int = SCAN_MAX,
    ) -> ReadResult:
        """Return messages of a queue, oldest first, without copying them.

        At least one message when one matches, whatever its size; then none beyond the limits.

        Args:
            topic, queue_id, offset: where to start.
            count_max: messages wanted at most.
            bytes_max: bytes wanted at most.
            tag_codes: int64, sorted: only messages with one of these; None takes all.
            scan_max: entries looked at when filtering; at least ``count_max`` are.

        Raises:
            CorruptRecord: the queue's file is damaged.
            StoreClosed: the store was closed.
        """
        self._check_open()
        started_s = self._clock.monotonic_s()
        result = read_queue(
            self._log,
            self._queues.by_key.get((topic, queue_id)),
            offset,
            count_max=count_max,
            bytes_max=bytes_max,
            tag_codes=tag_codes,
            scan_max=scan_max,
        )
        self.statistics.count_get(
            result.count,
            sum(map(len, result.buffers)),
            self._clock.monotonic_s() - started_s,
        )
        return result

    def prefetch_target(
        self, buffers: Sequence[memoryview], starts: Sequence[int]
    ) -> PrefetchJob:
        """Return a job that reads from the disk what buffers of a read map.

        Args:
            buffers, starts: as in ``ReadResult``.

        Raises:
            StoreError: no descriptor is left for it.
        """
        self._check_open()
        return PrefetchJob(self._log, buffers, starts)

    def record_at(self, physical_offset: int) -> Record:
        """Return the record that starts at a physical offset.

        Raises:
            OffsetOutOfRange: the log does not hold the offset.
            CorruptRecord: no record stands there.
        """
        self._check_open()
        return self._log.record_at(physical_offset)

    def record_view(self, physical_offset: int) -> memoryview:
        """Return the record that starts at a physical offset, as it is stored.

        A view like those of ``ReadResult``. Its checksum is not looked at.

        Raises:
            OffsetOutOfRange: nothing visible is kept at the offset.
            CorruptRecord: no record starts there.
        """
        self._check_open()
        if physical_offset >= self._dispatch.end:
            raise OffsetOutOfRange(
                f"physical offset {physical_offset}, the log shows "
                f"{self._log.first}..{self._dispatch.end}"
            )
        return self._log.record_view(physical_offset)

    def physical_offset(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return where a message lies in the log; None if it is not there or not kept."""
        self._check_open()
        return lookup.place_of(self._queues.find(topic, queue_id), offset)

    def message_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time (ms) of a message; None if it is not there or not kept."""
        self._check_open()
        return lookup.time_of(self._log, self._queues.find(topic, queue_id), offset)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """Return the offset of a store time: the first message not before it.

        Args:
            topic, queue_id: the queue; 0 is returned if there is none.
            timestamp_ms: the time.
            upper: the last message not after it instead.

        Source: RocketMQ ConsumeQueue.getOffsetInQueueByTime (5.1.4 and later).
        """
        self._check_open()
        queue = self._queues.find(topic, queue_id)
        return lookup.offset_by_time(self._log, queue, timestamp_ms, upper=upper)

    @property
    def earliest_time(self) -> int | None:
        """Store time (ms) of the oldest record kept; None in an empty store."""
        return self._log.store_time_at(self._log.first)

    # -- end ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self._config.root_path}: this store is closed")

    def close(self) -> None:
        """Flush everything, mark the stop as clean, and let the directory go. Twice is harmless.

        The abort marker stays when anything could not be flushed or dispatched, so that the
        next opener recovers. Views handed out stay valid.

        Raises:
            DiskFull, FlushFailed, StoreError: the last flush failed; closed all the same.
        """
        if self._closed:
            return
        try:
            if self._gate.failure is None:
                self._flush_all()
        finally:
            self._closed = True
            self._cleaner.close()
            self._parts.close()

    def _flush_all(self) -> None:
        self._log.scrub()
        self.flush()
        is_indexed = self._index_rest()
        job = self.queue_flush_target()
        job.run()
        try:
            self.queue_flush_done(job)
        except FlushFailed:
            raise
        except StoreError as error:
            # What stands in the log is safe, and queues and index can be made of it.
            _log.warning("queues or index could not be saved (%s); the next start does it", error)
            return
        self._log.segments.drop_prepared()
        self._checkpoint.save()
        if self._dispatch.behind:
            _log.warning(
                "not all records could be indexed (%s); the next start does it", self._gate.refusal
            )
            return
        if not is_indexed:
            _log.warning("not all keys could be indexed; the next start does it")
            return
        ends = {(one.topic, one.queue_id): one.end_offset for one in self._queues if one.end_offset}
        index = self._index
        note = None if index is None else IndexNote(index.end, index.end_ms, index.last_offset)
        self._known.save_clean_stop(self._log, ends, note)
        self._parts.abort.remove()

    def _index_rest(self) -> bool:
        """Index what is visible, if that can be done soon; return whether it is done."""
        deadline = self._clock.monotonic_s() + CLOSE_INDEXING_S
        try:
            while self.index_step():
                if self._clock.monotonic_s() > deadline:
                    return False
        except StoreError as error:
            _log.warning("keys could not be indexed: %s", error)
            return False
        return True
