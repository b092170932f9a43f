"""Recovery after a clean and after an unclean stop.

1. If there is no ``abort`` file, and ``queues.json`` (written by our clean stop) fits the files,
   everything is as it was left, and only the ends are checked.
2. Otherwise the log is read from the first segment with records that the queues may lack: after a
   clean stop the last one that they reach, after an unclean one the last one that the checkpoint
   covers, or the first one of all if a queue turns out to lack older entries. Queue
   entries are compared with the records and written where they are missing or wrong, and so are
   the units of extensions.
3. The log ends where there is no valid record. If that is an unfinished write, the rest is copied
   to ``recovered/``, zeroed (stale records must never come back) and reported. If it is followed
   by valid records that were safe on the disk, or if the log is shorter than at the last clean
   stop, it is damage: nothing is cut off and the store does not open.
4. After an unclean stop, what the checkpoint does not vouch for is written again, and flushed. It
   was read from the page cache: if a flush of it has failed, the system takes its pages for clean,
   and the next flush would succeed although they are not on the disk.

RocketMQ cuts in both cases of 3, leaves the bytes in place, and does not do 4.

Source: RocketMQ CommitLog.recoverNormally and recoverAbnormally, ConsumeQueue.recover.
"""

import logging
from collections.abc import Callable

from pymq.errors import CorruptRecord, OffsetOutOfRange, StoreClosed
from pymq.protocol.multi_dispatch import is_light
from pymq.protocol.record import Record, decode_record
from pymq.protocol.record_crc import ends_with_record_crc
from pymq.store.config import ENTRY_BYTES, StoreConfig
from pymq.store.dispatch import WriteEntries
from pymq.store.files import Files
from pymq.store.index.key_index import KeyIndex
from pymq.store.log.commit_log import CommitLog
from pymq.store.log.log_scan import RecordCrcRule, Stop, first_record, scan_segment
from pymq.store.log.torn_tail import RECOVERED_NAME, TornTail
from pymq.store.progress import OnProgress
from pymq.store.queues.consume_queue import ConsumeQueue
from pymq.store.queues.queue_table import QueueKey, QueueTable
from pymq.store.recovery.end_check import LogEndMissing, check_clean_stop, check_flushed
from pymq.store.recovery.index_resumption import IndexResumption
from pymq.store.recovery.queue_repair import OlderNeeded, QueueRepair, is_adjacent
from pymq.store.recovery.unsupported_formats import check_kind
from pymq.store.state.checkpoint import AbortMarker, Checkpoint
from pymq.store.state.clean_stop import CleanStop

_log = logging.getLogger(__name__)


class Recovery:
    """One recovery of one store directory; ``run`` brings all parts to a common end."""

    def __init__(
        self,
        config: StoreConfig,
        files: Files,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        checkpoint: Checkpoint,
        abort: AbortMarker,
        clean_stop: CleanStop,
        write: WriteEntries,
        is_cancelled: Callable[[], bool],
        on_progress: OnProgress,
    ) -> None:
        self._is_cancelled = is_cancelled
        self._on_progress = on_progress
        self._config = config
        self._files = files
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._abort = abort
        self._clean_stop = clean_stop
        self._repair = QueueRepair(
            log,
            queues,
            clean_stop,
            config.delay_levels_ms,
            lists_messages=config.lists_messages,
            write=write,
            before_change=self._mark,
        )
        self._tail = TornTail(
            files, log.segments, config.root_path, kept_bytes_max=config.recovered_bytes_max
        )
        self._clean = True
        self._marked = False
        self._store_timestamp = 0

    def load(self) -> None:
        """Read the directory; nothing is changed.

        Raises:
            StoreMismatch: there are files of other kinds, sizes or names.
        """
        check_kind(self._files, self._config)
        self._checkpoint.load()
        self._clean_stop.load()
        self._log.segments.load()
        self._queues.load()
        if self._index is not None:
            self._index.load()

    def run(self) -> None:
        """Recover what was loaded.

        Raises:
            CorruptRecord: what was safe on the disk is damaged; the log was not changed.
            DiskFull, FlushFailed, StoreError: the disk refused.
            StoreClosed: it was cancelled; the next recovery starts from scratch.
        """
        self._clean = not self._abort.present()
        if self._clean and self._as_left():
            self._mark()
            self._log.segments.drop_empty()
            self._log.segments.flush_names()
            self._queues.drop_empty_files()
        else:
            self._recover()
        for queue in self._queues:
            queue.next_offset = queue.end_offset
            queue.correct_min(self._log.first)
            if queue.extension is not None:
                queue.extension.cut()
        if self._index is not None:
            IndexResumption(
                self._index, self._log, self._checkpoint, self._clean_stop, clean=self._clean
            ).resume(self._config.index_path)

    def _mark(self) -> None:
        """Create the abort marker before anything is changed, and delete empty queue files.

        Also if the marker exists: the process that created it may have died before it was
        flushed. Empty queue files, whose creation a crash interrupted, are where the files of
        rebuilt entries must be.
        """
        if not self._marked:
            self._abort.put()
            self._marked = True
        self._queues.drop_empty_files()

    # -- nothing happened since the clean stop ------------------------------------------------

    def _as_left(self) -> bool:
        """Adopt the content of ``queues.json`` if the files agree with it."""
        end, ends = self._clean_stop.log_end, self._clean_stop.ends
        segments = self._log.segments
        if len(segments):
            last = segments[-1]
            position = end - last.first
            if not 0 <= position <= last.size_bytes:
                return False
            if any(last.read(position, 8)):
                return False
        elif end:
            return False
        if set(ends) != set(self._queues.by_key):
            return False
        newest: ConsumeQueue | None = None
        for queue in self._queues:
            if not self._queue_as_left(queue, ends[queue.topic, queue.queue_id], end):
                return False
            if is_light(queue.topic):
                continue  # Its last record belongs to another queue.
            if newest is None or queue.physical_end > newest.physical_end:
                newest = queue
        if newest is not None and not self._last_record_whole(newest):
            return False
        self._log.end = self._log.flushed = end
        self._log.store_timestamp = max(
            self._clean_stop.store_timestamp, self._checkpoint.log_timestamp
        )
        return True

    def _last_record_whole(self, queue: ConsumeQueue) -> bool:
        offset = queue.end_offset - 1
        physical, size, _ = queue.entry(offset)
        try:
            segment = self._log.segments.find(physical)
            record = decode_record(segment.read(physical - segment.first, size), verify=True)
        except (CorruptRecord, OffsetOutOfRange):
            return False
        if self._config.force_record_crc and not ends_with_record_crc(record.properties):
            return False  # Reading the log reports it.
        if record.properties.endswith(b"\0"):
            return False  # A page that was never written; the checksum covers only the body.
        found = (record.physical_offset, record.size, record.topic, record.queue_id)
        return (
            found == (physical, size, queue.topic, queue.queue_id) and record.queue_offset == offset
        )

    def _queue_as_left(self, queue: ConsumeQueue, end: int, log_end: int) -> bool:
        if not queue.bases or not is_adjacent(queue):
            return False
        per_file = queue.file_bytes // ENTRY_BYTES
        if not queue.bases[-1] // ENTRY_BYTES <= end <= queue.bases[-1] // ENTRY_BYTES + per_file:
            return False
        physical, size, _ = queue.entry(end - 1)
        if physical < 0 or size <= 0 or queue.entry(end)[1] != 0 or physical + size > log_end:
            return False
        queue.end_offset = end
        if queue.trusted_end() != end or not self._repair.units_reach_back(queue):
            return False
        queue.physical_end = physical + size
        return True

    # -- reading the log ----------------------------------------------------------------------

    def _recover(self) -> None:
        self._repair.find_ends()
        covered = max((queue.physical_end for queue in self._queues), default=-1)
        whole = any(self._short(key, end) for key, end in self._clean_stop.ends.items())
        first = 0 if whole else self._start(covered)
        while first and self._log.segments.at(first).first > self._repair.lost_from:
            first -= 1
        try:
            end = self._scan(first, covered)
        except OlderNeeded:
            _log.info("a consume queue misses older entries, reading the whole log")
            first = 0
            end = self._scan(first, covered)
        self._judge(end, covered)
        self._finish(end, first)
        stop = self._clean_stop
        (stop.cut_stop if end < stop.log_end else stop.cut)(end)

    def _short(self, key: QueueKey, end: int) -> bool:
        queue = self._queues.find(*key)
        return queue is None or queue.end_offset < end

    def _start(self, covered: int) -> int:
        """Return the number of the segment to begin with."""
        segments = self._log.segments
        for index in range(len(segments) - 1, 0, -1):
            record = first_record(segments[index])
            if record is None or record.store_timestamp <= 0:
                continue
            if self._clean:
                if segments[index].first <= covered:
                    return index
            elif self._checkpoint.covers(segments[index].first, record.store_timestamp):
                return index
        return 0

    def _scan(self, first: int, covered: int) -> int:
        """Read the log from a segment on, bring the queues up to it, and return its end."""
        segments = self._log.segments
        self._repair.restart()
        # Its end, for the progress only, is not known yet; most often it is one of these.
        expected = max(covered, self._clean_stop.log_end)
        if len(segments) and expected < segments[-1].first:
            expected = segments[-1].end
        end, stop = (segments[0].first if len(segments) else 0), Stop.END
        for index in range(first, len(segments)):
            segment = segments[index]
            _log.info("reading %s", segment.path)
            for chunk in scan_segment(
                segment,
                check_crc=self._config.check_crc_on_recover,
                record_crc=RecordCrcRule.of(self._config),
            ):
                if chunk.columns is not None:
                    newest = int(chunk.columns.store_timestamp.max())
                    self._store_timestamp = max(self._store_timestamp, newest)
                    self._repair.take(chunk.columns, oldest=first == 0)
                end, stop = segment.first + chunk.end_position, chunk.stop
                begin = segments[first].first
                self._on_progress(end - begin, max(end, expected) - begin)
                if self._is_cancelled():
                    raise StoreClosed(
                        f"{self._config.root_path}: opening was interrupted at {end} of the log; "
                        "nothing is lost, the next start recovers it"
                    )
            if stop is not Stop.BLANK:
                break
            if index + 1 == len(segments):
                end = segment.end
        return end

    # -- the end of the log -------------------------------------------------------------------

    def _judge(self, end: int, covered: int) -> None:
        """Raise if the log ends because of damage and not of an unfinished write."""
        checkpoint, stop = self._checkpoint, self._clean_stop
        # A RocketMQ slave may have had the store since, and have cut log and queues.
        is_cut = checkpoint.is_foreign and not (self._clean and covered > end)
        newest_ms = self._store_timestamp
        if not is_cut:
            check_clean_stop(self._config, stop, end=end, newest_ms=newest_ms)
        later = self._tail.first_record(end)
        if later is not None and not self._stale(later) and self._was_safe(later, covered):
            segment = self._log.segments.find(end)
            raise LogEndMissing(
                f"{segment.path}: no valid record at position {end - segment.first} (physical "
                f"offset {end}), but a valid one that was safe on the disk follows at physical "
                f"offset {later.physical_offset}. The file was changed, by the disk or by hand",
                "Restore it from a copy or a slave; to give up everything after it, zero the file "
                "from that position on and remove the later files",
            )
        check_flushed(self._config, self._log.segments, checkpoint, end=end, newest_ms=newest_ms)

    def _was_safe(self, record: Record, covered: int) -> bool:
        """Return whether a record after the end was on the disk before the last stop."""
        if self._clean:
            return covered < 0 or covered > record.physical_offset
        checkpoint = self._checkpoint
        return record.store_timestamp < checkpoint.log_timestamp or (
            # Records of one millisecond, or after a clock was set back: the offset decides.
            record.store_timestamp == checkpoint.log_timestamp
            and record.physical_offset < checkpoint.flushed_end
        )

    def _stale(self, record: Record) -> bool:
        """Return whether a queue has another record at this one's queue offset.

        RocketMQ leaves the bytes that it cuts off, so valid but stale records may follow.
        """
        queue = self._queues.find(record.topic, record.queue_id)
        if queue is None or record.queue_offset >= queue.end_offset:
            return False
        return queue.entry(record.queue_offset)[0] != record.physical_offset

    def _finish(self, end: int, first: int) -> None:
        """Cut queues and log at their common end, and make the result durable."""
        self._mark()
        self._log.segments.drop_empty()
        self._queues.drop_empty_files()
        self._repair.cut(end)
        self._cut_log(end)
        if not self._clean:
            self._write_again(end, first)
            self._queues.flush_cuts_later()
        self._log.segments.flush_names()
        self._queues.files.flush()
        if self._repair.wrong_count:
            _log.warning("%d runs of consume-queue entries were wrong", self._repair.wrong_count)
        log = self._log
        log.end = log.flushed = end
        log.store_timestamp = max(self._store_timestamp, self._checkpoint.log_timestamp)
        checkpoint = self._checkpoint
        checkpoint.log_timestamp = log.store_timestamp
        index_end = None if self._index is None else 0 if self._clean else checkpoint.index_end
        checkpoint.record_queues(
            log.store_timestamp, self._index_ms(), queues_end=end, index_end=index_end
        )
        checkpoint.confirmed = end
        checkpoint.save()

    def _write_again(self, end: int, first: int) -> None:
        """Bring to the disk what was read from a segment on, whatever flushes have failed."""
        begin = self._checkpoint.flushed_end
        if begin > end:
            begin = 0  # Another broker has cut the log and written to it since.
        for index in range(first, len(self._log.segments)):
            segment = self._log.segments[index]
            if not segment.read_only:
                low, high = max(begin, segment.first), min(end, segment.end)
                segment.write_again(low - segment.first, high - segment.first)
            segment.flush()

    def _cut_log(self, end: int) -> None:
        cut = self._tail.cut(end)
        segments = self._log.segments
        if cut and len(segments):
            _log.warning(
                "%s: the log was cut at physical offset %d: the %d B after it were not "
                "acknowledged; a copy of them is in %s",
                segments.find(min(end, segments[-1].end - 1)).path,
                end,
                cut,
                self._config.root_path / RECOVERED_NAME,
            )

    def _index_ms(self) -> int | None:
        """Return the store time up to which the index on the disk is complete; None: no index.

        It catches up with the log later, while the store is in use.
        """
        index = self._index
        if index is None:
            return None
        if not self._clean:
            return self._checkpoint.index_timestamp
        # RocketMQ writes its time only when a file is full.
        return index.newest.header.end_ms if index.is_sound and index.newest is not None else 0
