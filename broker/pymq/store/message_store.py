"""MessageStore: the one door to the store."""

from collections.abc import Callable, Sequence

from pymq.clock import Clock
from pymq.errors import OffsetOutOfRange, StoreBusy, StoreError
from pymq.protocol.record import Record
from pymq.store.append import Appender
from pymq.store.closing import flush_all
from pymq.store.config import FlushMode, StoreConfig
from pymq.store.disk_jobs import SMALL_RECORD_BYTES, PrefetchJob
from pymq.store.dispatch import BitMapOf, Dispatch
from pymq.store.durability import Durability
from pymq.store.entry_read import EntryReader
from pymq.store.files import Files
from pymq.store.keys import Keys
from pymq.store.log.segment import NORMAL_READS, RANDOM_READS
from pymq.store.log_ahead import LogAhead
from pymq.store.log_time import LogTime
from pymq.store.multi_dispatch import MultiDispatch
from pymq.store.opening import StoreParts
from pymq.store.progress import OnProgress
from pymq.store.put_result import PutResult, PutStatus
from pymq.store.puts import Put
from pymq.store.queues import offset_lookup
from pymq.store.queues.queue_table import QueueKey
from pymq.store.reads import Reads
from pymq.store.replication import Replication
from pymq.store.retention.cleaning import Retention
from pymq.store.retention.disk_watch import DiskWatch
from pymq.store.staging import Staging
from pymq.store.statistics import StoreStatistics
from pymq.store.time_lookup import OffsetSearch, TimeLookup
from pymq.store.write_gate import WriteGate


class MessageStore:
    """Commit log, consume queues and their files, behind one narrow face.

    One thread owns a store. Only the ``run`` of its jobs and ``ahead.prepare_segment``
    may run in another one; all of them have to end before ``close``.

    Visible means that ``read`` and ``queue_bounds`` show it. With ``FlushMode.ASYNC`` a record is
    visible when ``put`` returns, with ``FlushMode.SYNC`` after the ``finish_flush`` that covers
    it: never before it is as durable as the mode promises.

    Attributes:
        begin_queue: has a queue without any message begin at an offset; see ``QueueTable.begin``.
        dispatch: makes records visible, and calls a listener.
        durability: commits and flushes.
        entries: reads entries of queues without their records.
        keys: indexing messages by their keys, and finding them.
        light_queues: lists messages in light queues; None if that is not enabled.
        retention: deletes what is old or belonged to a deleted topic, and checks how full the
            disks are.
        reads: reads queues; ``read`` is its method.
        replication: the log as raw bytes, to and from other brokers.
        staging: records that no consumer sees before their batch is complete.
        statistics: what was put and read; its owner calls ``sample`` once a second.
        timers: the messages that wait for a time of their own; None if they are not enabled.

    Source: RocketMQ DefaultMessageStore.
    """

    def __init__(self, config: StoreConfig, clock: Clock, parts: StoreParts) -> None:
        """Use recovered parts; ``open`` makes them."""
        self._config = config
        self._clock = clock
        self._parts = parts
        self._log = log = parts.log
        log.segments.unflushed_from = lambda: log.flushed
        self._queues = queues = parts.queues
        self._index = index = parts.index
        self.timers = parts.timers
        self.begin_queue = queues.begin
        self.light_queues = MultiDispatch(queues) if config.lists_messages else None
        self._appender = Appender(config, log, queues, self.light_queues)
        self.statistics = StoreStatistics(wall_ms=clock.wall_ms(), monotonic_s=clock.monotonic_s())
        self._gate = gate = WriteGate(
            config.root_path, clock, self.statistics, retry_after_ms=config.retry_after_ms
        )
        self.dispatch = Dispatch(
            log, gate, parts.write, waits_for_flush=config.flush_mode is FlushMode.SYNC
        )
        self.durability = Durability(
            log,
            queues.files,
            index,
            checkpoint=parts.checkpoint,
            dispatch=self.dispatch,
            gate=gate,
            statistics=self.statistics,
            clock=clock,
            checkpoint_interval_s=config.checkpoint_interval_ms / 1000,
        )
        self.ahead = LogAhead(log, gate)
        self.entries = EntryReader(queues, gate)
        self.keys = Keys(log, index, self.dispatch, gate, clock, config.root_path)
        self.reads = Reads(log, queues, gate, self.statistics, clock)
        self.read = self.reads.read
        self.staging = Staging(log, queues, self.dispatch, gate)
        self.replication = Replication(config, log, queues, self.dispatch, gate)
        self._disks = DiskWatch(config, log.files)
        self.retention = Retention(
            config,
            clock,
            log,
            queues,
            index,
            lock=parts.lock,
            clean_stop=parts.clean_stop,
            disks=self._disks,
            durability=self.durability,
            reach=self.dispatch.reach,
            gate=gate,
        )
        self.retention.check_disk()
        self._time = LogTime(clock, log, config.root_path)

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
        """Open a store directory, created if missing, and recover it.

        Args:
            config: its settings.
            clock: time for stamps and retries.
            files: the operating system; tests pass one that fails.
            is_cancelled: asked repeatedly; a long recovery ends early when it returns True.
            bit_map_of: returns the bit map for the unit of a record; only used with
                ``queue_extension``, for every record that becomes visible.
            on_progress: called with (bytes, bytes in all) while a recovery reads the log, or the
                messages that wait for a time of theirs; by default the progress is logged.

        Raises:
            StoreLocked: another broker has it open.
            StoreMismatch: it was written with other settings; nothing was changed.
            CorruptRecord: records that were safe on the disk are damaged; nothing was changed.
            DiskFull, FlushFailed, StoreError: the disk refused.
            StoreClosed: it was cancelled; the directory can be opened again.
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
        """Why writes are refused; None: the store accepts them."""
        return self._gate.failure or self._disks.refusal or self._gate.refusal

    def put(self, puts: Sequence[Put], store_host: bytes) -> list[PutResult]:
        """Append records in order, as one write where they fit one segment.

        Args:
            puts: single records, batches for one queue each, and groups. Buffers are not kept.
            store_host: packed address of this broker.

        Returns:
            One result per put. A refused put does not affect the others. If the disk is full or
            broken, that put and all later ones are NOT_WRITABLE and not stored.

        Raises:
            StoreClosed: the store was closed.
        """
        self._gate.check_open()
        started_s = self._clock.monotonic_s()
        results: list[PutResult] = []
        put_bytes = staged_count = 0
        if self._may_write():
            put_bytes, staged_count = self._append(puts, store_host, results)
            if not self.dispatch.waits_for_flush:
                self.dispatch.advance()
        else:
            self._refuse_rest(results, len(puts))
        elapsed_s = self._clock.monotonic_s() - started_s
        self.statistics.count_put(results, put_bytes, elapsed_s, staged_count=staged_count)
        return results

    def _append(
        self,
        puts: Sequence[Put],
        store_host: bytes,
        results: list[PutResult],
    ) -> tuple[int, int]:
        """Write puts to the log; return the bytes of messages, and how many records are staged."""
        log = self._log
        now, count = self._time.now_ms(), len(puts)
        put_bytes = staged_count = 0
        try:
            while True:
                start = log.end
                pending = self._appender.append_run(puts, results, now=now, store_host=store_host)
                if pending is not None:
                    self.dispatch.add(pending)
                    put_bytes += pending.end - start - pending.staged_bytes
                    staged_count += pending.staged_count
                if len(results) == count:
                    break
                log.roll()
        except StoreBusy as error:
            results += [PutResult(PutStatus.BUSY, remark=str(error))] * (count - len(results))
        except StoreError as error:
            self._gate.record_error(error)
            self._refuse_rest(results, count)
        else:
            self._gate.record_success()
        return put_bytes, staged_count

    def _may_write(self) -> bool:
        if not self._gate.may_try or self._disks.refusal is not None:
            return False
        if self.durability.is_commit_failing:
            return False  # Acknowledged records go first.
        # Entries of earlier records that could not be written go first.
        return self._gate.refusal is None or self.dispatch.advance()

    def _refuse_rest(self, results: list[PutResult], count: int) -> list[PutResult]:
        reason = self.not_writable_reason
        while len(results) < count:
            results.append(PutResult(PutStatus.NOT_WRITABLE, remark=reason))
        return results

    @property
    def log_end(self) -> int:
        """Physical offset where the next record goes."""
        return self._log.end

    @property
    def log_first(self) -> int:
        """The lowest physical offset kept."""
        return self._log.first

    # -- reading ------------------------------------------------------------------------------

    @property
    def folds_case(self) -> bool:
        """Whether topics that differ only in case would have the same files: one is refused."""
        return self._queues.folds_case

    def queues(self) -> list[QueueKey]:
        """Return (topic, queue id) of every queue that holds or held messages, sorted."""
        return sorted((one.topic, one.queue_id) for one in self._queues if one.next_offset)

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (offset of the first message, end) of a queue; (0, 0) if there is none."""
        queue = self._queues.find(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.end_offset)

    def read_ahead(self, is_wanted: bool) -> None:
        """Have the system read more of the log than is asked for, or not."""
        self._log.segments.advise(NORMAL_READS if is_wanted else RANDOM_READS)

    def begin_prefetch(self, buffers: Sequence[memoryview], starts: Sequence[int]) -> PrefetchJob:
        """Return a job that reads the mapped records of a result from the disk.

        It does not have to be finished.

        Args:
            buffers, starts: as in ``ReadResult``.

        Raises:
            StoreError: the process has too many open files.
        """
        self._gate.check_open()
        return PrefetchJob(self._log, [len(buffer) for buffer in buffers], starts)

    def begin_record_prefetch(self, physical_offset: int) -> PrefetchJob:
        """Return a job that reads a record's size, and all of it if it is small, from the disk.

        Raises:
            OffsetOutOfRange: there is nothing visible at the offset.
            StoreError: the process has too many open files.
        """
        self._check_visible(physical_offset)
        return PrefetchJob(self._log, [SMALL_RECORD_BYTES], [physical_offset])

    def record_at(self, physical_offset: int) -> Record:
        """Return the record that starts at a physical offset.

        Raises:
            OffsetOutOfRange: the log does not hold the offset.
            CorruptRecord: there is no valid record at the offset.
        """
        self._gate.check_open()
        return self._log.record_at(physical_offset)

    def record_view(self, physical_offset: int) -> memoryview:
        """Return the record that starts at a physical offset, as it is stored.

        A view like those of ``ReadResult``. Its checksum is not verified.

        Raises:
            OffsetOutOfRange: there is nothing visible at the offset.
            CorruptRecord: there is no record at the offset.
        """
        self._check_visible(physical_offset)
        return self._log.record_view(physical_offset)

    def _check_visible(self, physical_offset: int) -> None:
        self._gate.check_open()
        if not self._log.first <= physical_offset < self.dispatch.end:
            raise OffsetOutOfRange(
                f"physical offset {physical_offset}, the log shows "
                f"{self._log.first}..{self.dispatch.end}"
            )

    def physical_offset(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the physical offset of a message; None if it does not exist or has expired."""
        self._gate.check_open()
        return offset_lookup.place_of(self._queues.find(topic, queue_id), queue_offset)

    def message_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time (ms) of a message; None if it does not exist or has expired."""
        self._gate.check_open()
        return offset_lookup.time_of(self._log, self._queues.find(topic, queue_id), queue_offset)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """Return the queue offset of a store time: the first message not before it.

        Args:
            topic, queue_id: the queue; 0 is returned if there is none.
            timestamp_ms: the time.
            upper: return the last message not after it instead.

        Source: RocketMQ ConsumeQueue.getOffsetInQueueByTime (5.1.4 and later).
        """
        self._gate.check_open()
        queue = self._queues.find(topic, queue_id)
        return offset_lookup.offset_by_time(self._log, queue, timestamp_ms, upper=upper)

    def begin_offset_search(
        self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False
    ) -> OffsetSearch:
        """Return a job that does what ``offset_by_time`` does, without the maps of files."""
        self._gate.check_open()
        queue = self._queues.find(topic, queue_id)
        return OffsetSearch(self._log, queue, timestamp_ms, upper=upper)

    def begin_time_lookup(self, messages: Sequence[tuple[str, int, int]]) -> TimeLookup:
        """Return a job that does what ``message_time`` does, without the maps of files.

        Args:
            messages: (topic, queue id, queue offset) of each.
        """
        self._gate.check_open()
        find = self._queues.find
        return TimeLookup(
            self._log, [(find(topic, queue_id), offset) for topic, queue_id, offset in messages]
        )

    @property
    def earliest_time(self) -> int | None:
        """Store time (ms) of the oldest record kept; None in an empty store."""
        return self._log.store_time_at(self._log.first)

    # -- end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush everything, mark the stop as clean, and release the directory. Idempotent.

        The abort marker stays if anything could not be flushed or dispatched, so that the next
        start recovers. Views stay valid.

        Raises:
            DiskFull, FlushFailed, StoreError: the last flush failed; the store is closed all the
                same.
        """
        if self._gate.is_closed:
            return
        try:
            if self._gate.failure is None:
                flush_all(
                    self._parts,
                    dispatch=self.dispatch,
                    durability=self.durability,
                    keys=self.keys,
                    gate=self._gate,
                )
        finally:
            self._gate.is_closed = True
            self.retention.close()
            self._parts.close()
