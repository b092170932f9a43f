"""What is kept after a clean and after an unclean stop.

1. Without an ``abort`` file, and if ``queues.json`` (written by our clean stop) fits what is on
   the disk, everything is as it was left and only the ends are looked at.
2. Otherwise the log is read from the first segment that may hold something the queues lack: the
   last one they reach after a clean stop, the last one older than the checkpoint after an
   unclean one, the very first when a queue turns out to miss older entries. Queue entries are
   compared with the records and written where they are missing or wrong, and so are the units
   of their extensions.
3. The log ends at the first thing that is no valid record. If that is the unfinished end of what
   was being written, the rest is kept aside under ``recovered/``, zeroed (stale records must
   never come back) and reported. If valid records follow that were safe on the disk, or the log
   is shorter than at the last clean stop, it is damage: nothing is cut and the store does not
   open.

RocketMQ cuts in both cases and leaves the bytes where they are.

Source: RocketMQ CommitLog.recoverNormally and recoverAbnormally, ConsumeQueue.recover.
"""

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord, OffsetOutOfRange, StoreClosed
from pymq.protocol.record import Record, decode_record
from pymq.protocol.record_batch import RecordColumns
from pymq.store.checkpoint import AbortMarker, Checkpoint
from pymq.store.commit_log import CommitLog
from pymq.store.config import ENTRY_BYTES, StoreConfig
from pymq.store.consume_queue import BLANK_ENTRY, BLANK_SIZE, ENTRY, ConsumeQueue, Entries
from pymq.store.dispatch import TagCodes, WriteEntries
from pymq.store.files import Files
from pymq.store.key_index import KeyIndex
from pymq.store.known_queues import NAME, KnownQueues
from pymq.store.queue_extension import ADDRESS_MAX
from pymq.store.queue_table import TOPIC_BYTES_MAX, QueueTable, illegal_name
from pymq.store.scan import Chunk, Stop, find_record_after, first_record, scan_segment
from pymq.store.segment import Segment

_log = logging.getLogger(__name__)

RECOVERED_NAME = "recovered"
#: Queue files looked at, from the last one back, after an unclean stop; RocketMQ's number.
_FILES_CHECKED = 3
#: Longer gaps between queue offsets are taken for a damaged offset.
_GAP_MAX = 1 << 20
_PREPARED = 0x4
_INNER_BATCH = 0x80
_PIECE_BYTES = 1 << 20
_ZEROS = bytes(_PIECE_BYTES)


class _OlderNeeded(Exception):
    """A queue misses entries older than the segment the scan began with."""


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
        known: KnownQueues,
        write: WriteEntries,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._is_cancelled = is_cancelled
        self._config = config
        self._files = files
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._abort = abort
        self._known = known
        self._write = write
        self._tags = TagCodes(config.delay_levels_ms)
        self._clean = True
        self._marked = False
        self._cursors: dict[ConsumeQueue, int] = {}
        # The lowest physical offset of which a queue is known to have lost its entry.
        self._lost = 1 << 63
        self._repaired = 0
        self._store_timestamp = 0

    def run(self) -> None:
        """Recover.

        Raises:
            StoreMismatch: files of other sizes or names; nothing was changed.
            CorruptRecord: damage where everything was safe; the log was not changed.
            DiskFull, FlushFailed, StoreError: the disk refused.
            StoreClosed: it was cancelled; the next one begins anew.
        """
        self._checkpoint.load()
        self._known.load()
        self._log.segments.load()
        self._queues.load()
        if self._index is not None:
            self._index.load()
        self._marked = self._abort.present()
        self._clean = not self._marked
        if self._clean and self._as_left():
            self._mark()
            self._log.segments.drop_empty()
            self._queues.drop_empty_files()
        else:
            self._recover()
        for queue in self._queues:
            queue.next_offset = queue.end_offset
            queue.correct_min(self._log.first)
            if queue.extension is not None:
                queue.extension.cut()
        if self._index is not None:
            self._resume_index(self._index)

    def _mark(self) -> None:
        """Put the abort marker, before anything is changed.

        Also clears away queue files whose creation a crash cut short: they stand where the
        files of rebuilt entries must be.
        """
        if not self._marked:
            self._abort.put()
            self._marked = True
        self._queues.drop_empty_files()

    # -- nothing happened since our clean stop ------------------------------------------------

    def _as_left(self) -> bool:
        """Adopt what ``queues.json`` says if the files agree with it."""
        end, known = self._known.log_end, self._known.ends
        segments = self._log.segments
        if len(segments):
            last = segments[-1]
            position = end - last.first
            if not 0 <= position <= last.size_bytes:
                return False
            if any(last.view[position : position + 8]):
                return False
        elif end:
            return False
        if set(known) != set(self._queues.by_key):
            return False
        newest: ConsumeQueue | None = None
        for queue in self._queues:
            if not self._queue_as_left(queue, known[queue.topic, queue.queue_id], end):
                return False
            if newest is None or queue.max_physical > newest.max_physical:
                newest = queue
        if newest is not None and not self._last_record_whole(newest):
            return False
        self._log.end = self._log.flushed = end
        self._log.store_timestamp = max(self._known.store_timestamp, self._checkpoint.log_timestamp)
        return True

    def _last_record_whole(self, queue: ConsumeQueue) -> bool:
        offset = queue.end_offset - 1
        physical, size, _ = queue.entry(offset)
        try:
            segment = self._log.segments.find(physical)
            record = decode_record(segment.view, physical - segment.first, verify=True)
        except (CorruptRecord, OffsetOutOfRange):
            return False
        found = (record.physical_offset, record.size, record.topic, record.queue_id)
        return (
            found == (physical, size, queue.topic, queue.queue_id) and record.queue_offset == offset
        )

    def _queue_as_left(self, queue: ConsumeQueue, end: int, log_end: int) -> bool:
        if not queue.bases or not _adjacent(queue):
            return False
        per_file = queue.file_bytes // ENTRY_BYTES
        if not queue.bases[-1] // ENTRY_BYTES <= end <= queue.bases[-1] // ENTRY_BYTES + per_file:
            return False
        physical, size, _ = queue.entry(end - 1)
        if size <= 0 or queue.entry(end)[1] != 0 or physical + size > log_end:
            return False
        queue.end_offset = end
        if queue.trusted_end() != end or not self._units_reach_back(queue):
            return False
        queue.max_physical = physical + size
        return True

    # -- reading the log ----------------------------------------------------------------------

    def _recover(self) -> None:
        for queue in self._queues:
            self._find_end(queue)
            if queue.bases and queue.max_physical <= self._known.deleted.get(queue.topic, -1):
                # A power loss brought back what was deleted.
                self._mark()
                queue.reset()
        covered = max((queue.max_physical for queue in self._queues), default=-1)
        whole = any(self._short(key, end) for key, end in self._known.ends.items())
        first = 0 if whole else self._start(covered)
        while first and self._log.segments[first].first > self._lost:
            first -= 1
        try:
            end = self._scan(first)
        except _OlderNeeded:
            _log.info("a consume queue misses older entries, reading the whole log")
            first = 0
            end = self._scan(first)
        self._judge(end, covered)
        self._finish(end, first)
        self._known.cut(end)

    def _short(self, key: tuple[str, int], end: int) -> bool:
        queue = self._queues.find(*key)
        return queue is None or queue.end_offset < end

    def _start(self, covered: int) -> int:
        """Return the index of the segment to begin with."""
        segments = self._log.segments
        for index in range(len(segments) - 1, 0, -1):
            record = first_record(segments[index])
            if record is None or record.store_timestamp <= 0:
                continue
            if self._clean:
                if segments[index].first <= covered:
                    return index
            elif record.store_timestamp <= self._checkpoint.trusted_ms:
                return index
        return 0

    def _scan(self, first: int) -> int:
        """Read the log from a segment on, bring the queues up to it, and return its end."""
        segments = self._log.segments
        self._cursors.clear()
        end, stop = (segments[0].first if len(segments) else 0), Stop.END
        for index in range(first, len(segments)):
            segment = segments[index]
            _log.info("reading %s", segment.path)
            for chunk in scan_segment(segment, check_crc=self._config.check_crc_on_recover):
                self._take(segment, chunk, oldest=first == 0)
                end, stop = segment.first + chunk.end, chunk.stop
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

    def _take(self, segment: Segment, chunk: Chunk, *, oldest: bool) -> None:
        columns = chunk.columns
        if columns is None:
            return
        self._store_timestamp = max(self._store_timestamp, int(columns.store_timestamp.max()))
        topics = list(map(bytes, columns.slices(columns.topic_start, columns.topic_end)))
        rows = np.empty(len(columns), ENTRY)
        rows["physical_offset"] = columns.physical_offset
        rows["size"] = columns.size
        rows["tag_code"] = self._tag_codes(columns, topics)
        numbers: dict[tuple[bytes, int], int] = {}
        of_record = np.array(
            [
                numbers.setdefault(key, len(numbers))
                for key in zip(topics, columns.queue_id.tolist(), strict=True)
            ]
        )
        order = of_record.argsort(kind="stable")
        groups = np.split(order, np.diff(of_record[order]).nonzero()[0] + 1)
        indexed = (columns.sys_flag & (_PREPARED | _INNER_BATCH)) == 0
        for (topic, queue_id), group in zip(numbers, groups, strict=True):
            picked = group[indexed[group]]
            queue = self._queue_of(topic, queue_id) if len(picked) else None
            if queue is None:
                continue
            deleted = self._known.deleted.get(queue.topic)
            if deleted is not None:
                picked = picked[columns.physical_offset[picked] >= deleted]
            if len(picked):
                self._compare(queue, columns.queue_offset[picked], rows[picked], oldest=oldest)

    def _tag_codes(self, columns: RecordColumns, topics: list[bytes]) -> npt.NDArray[np.int64]:
        texts = columns.slices(columns.properties_start, columns.properties_end)
        times = columns.store_timestamp.tolist()
        return np.array(list(map(self._tags.of, topics, map(bytes, texts), times)), np.int64)

    def _queue_of(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        name = topic.decode("utf-8", "replace")
        reason = illegal_name(name, queue_id, topic_bytes_max=TOPIC_BYTES_MAX)
        if reason is not None:
            _log.warning("the log holds records that no queue can have: %s", reason)
            return None
        return self._queues.make(name, queue_id)

    # -- bringing a queue up to the log -------------------------------------------------------

    def _compare(
        self,
        queue: ConsumeQueue,
        offsets: npt.NDArray[np.int64],
        rows: Entries,
        *,
        oldest: bool,
    ) -> None:
        """Make a queue hold what the log says; the records are in log order."""
        if int(offsets[-1]) - int(offsets[0]) == len(offsets) - 1 and (np.diff(offsets) == 1).all():
            self._place(queue, int(offsets[0]), rows, oldest=oldest)
            return
        breaks = (np.diff(offsets) != 1).nonzero()[0] + 1
        for part, place in zip(np.split(rows, breaks), np.split(offsets, breaks), strict=True):
            self._place(queue, int(place[0]), part, oldest=oldest)

    def _place(self, queue: ConsumeQueue, first: int, rows: Entries, *, oldest: bool) -> None:
        cursor = self._cursors.get(queue)
        if first == 0 and cursor:
            # The topic was deleted and came back: its offsets began anew.
            self._mark()
            queue.reset()
        elif first > queue.end_offset and not self._bridge(
            queue, first, int(rows["physical_offset"][0]), cursor, oldest=oldest
        ):
            return
        overlap = max(0, min(queue.end_offset - first, len(rows)))
        good = self._good_count(queue, queue.entries(first, overlap), rows[:overlap])
        if good < overlap:
            self._mark()
            self._repaired += 1
            if queue.extension is None:
                queue.put_entries(first, rows[:overlap].tobytes())
            else:
                # Units stand in the order of their entries: everything from here on goes, and
                # is written anew as the log is read.
                overlap = good
                queue.erase_from(first + good)
                queue.end_offset = first + good
                if queue.trusted_end() < queue.end_offset and not oldest:
                    raise _OlderNeeded
        if overlap < len(rows):
            self._mark()
            if not queue.bases:
                queue.min_offset = first
            self._write(queue, first + overlap, rows[overlap:].tobytes())
        self._cursors[queue] = first + len(rows)

    def _bridge(
        self, queue: ConsumeQueue, first: int, physical: int, cursor: int | None, *, oldest: bool
    ) -> bool:
        """Prepare a queue for a record beyond its end; return False to leave the record out."""
        if cursor is None:
            if queue.max_physical > physical:
                return False  # Of an earlier life of the topic: the queue is newer than this.
            if not oldest:
                raise _OlderNeeded
            self._mark()
            queue.reset()  # Its older records are gone; it begins with this one.
            return True
        gap = first - queue.end_offset
        _log.warning(
            "%s: the log has no record for offsets %d..%d", queue.path, queue.end_offset, first
        )
        if gap > _GAP_MAX:
            _log.warning(
                "%s: record at physical offset %d left out: its queue offset %d cannot be right",
                queue.path,
                physical,
                first,
            )
            return False
        self._mark()
        queue.write(queue.end_offset, BLANK_ENTRY * gap)
        return True

    def _good_count(self, queue: ConsumeQueue, found: Entries, wanted: Entries) -> int:
        """Return how many leading entries are as wanted, by themselves or with their units."""
        if found.tobytes() == wanted.tobytes():
            return len(wanted)
        wanted = wanted[: len(found)]
        codes, good = queue.tag_codes(found)
        good &= codes == wanted["tag_code"]
        good &= found["physical_offset"] == wanted["physical_offset"]
        good &= found["size"] == wanted["size"]
        addressed = found["tag_code"] <= ADDRESS_MAX
        if queue.extension is not None and addressed.any():
            # Time tells a unit from one of an earlier life that a power loss brought back.
            units, _ = queue.extension.units(found["tag_code"][addressed].astype(np.int64))
            physical = wanted["physical_offset"][addressed].astype(np.int64)
            good[addressed] &= units["store_timestamp"] == self._log.store_times(physical)
        return len(good) if good.all() else int(good.argmin())

    def _find_end(self, queue: ConsumeQueue) -> None:
        """Find the end of a queue's valid entries by looking at its last files."""
        if not queue.bases:
            return
        if not _adjacent(queue):
            _log.warning("%s: a file is missing, the queue is rebuilt", queue.path)
            self._rebuild(queue)
            return
        per_file = queue.file_bytes // ENTRY_BYTES
        for base in queue.bases[-_FILES_CHECKED:]:
            entries = self._data(queue, base)
            count = _valid_count(entries)
            queue.end_offset = base // ENTRY_BYTES + count
            if count < per_file:
                break
        end = queue.trusted_end()
        if end < queue.end_offset:
            _log.warning(
                "%s: the extension lacks units of entries %d..%d, they are rebuilt",
                queue.path,
                end,
                queue.end_offset,
            )
            self._lost = min(self._lost, queue.entry(end)[0])
            queue.end_offset = end
        if not self._units_reach_back(queue):
            _log.warning("%s: a file of its extension is missing, it is rebuilt", queue.path)
            self._rebuild(queue)
            return
        queue.max_physical = self._reach(queue)

    def _units_reach_back(self, queue: ConsumeQueue) -> bool:
        """Tell whether no file of a queue's extension is missing in front or between."""
        if queue.extension is None:
            return True
        first = queue.first_kept(self._log.first)
        known = queue.tag_codes(queue.entries(first, min(1, queue.end_offset - first)))[1]
        return queue.extension.is_adjacent and bool(known.all())

    def _rebuild(self, queue: ConsumeQueue) -> None:
        """Drop a queue's files; the log has to be read from its beginning."""
        self._mark()
        queue.reset()
        self._lost = 0

    def _reach(self, queue: ConsumeQueue) -> int:
        """Return the end of the record of a queue's last entry, -1 without one."""
        if not queue.bases or queue.end_offset <= queue.bases[0] // ENTRY_BYTES:
            return -1
        physical, size, _ = queue.entry(queue.end_offset - 1)
        return physical + size if size != BLANK_SIZE else -1

    def _data(self, queue: ConsumeQueue, base: int) -> Entries:
        """Return the entries of a file up to its first hole."""
        fd = self._queues.files.descriptor(queue.path_of(base))
        for start, end in self._files.data_ranges(fd, 0, queue.file_bytes):
            if start:
                break
            return queue.entries(base // ENTRY_BYTES, end // ENTRY_BYTES)
        return np.empty(0, ENTRY)

    # -- the end of the log -------------------------------------------------------------------

    def _judge(self, end: int, covered: int) -> None:
        """Stop if what ends the log is damage and not an unfinished write."""
        if end < self._known.log_end:
            raise CorruptRecord(
                f"{self._config.log_path}: the log ends at physical offset {end}, but reached "
                f"{self._known.log_end} at its last clean stop: a file is missing (is its disk "
                "mounted?) or damaged. Restore it from a copy or a slave; to give up what is "
                f"missing, remove {self._config.root_path / NAME}"
            )
        later = self._record_after(end)
        if later is None:
            return
        if self._stale(later):
            return
        if self._clean:
            safe = covered < 0 or covered > later.physical_offset
        else:
            checkpoint = self._checkpoint
            safe = later.store_timestamp < checkpoint.log_timestamp or (
                # Of the same millisecond, or of a clock that was set back: all of a time alike.
                later.store_timestamp == checkpoint.log_timestamp
                and later.physical_offset < checkpoint.confirmed
            )
        if safe:
            segment = self._log.segments.find(end)
            raise CorruptRecord(
                f"{segment.path}: no valid record at position {end - segment.first} (physical "
                f"offset {end}), but a valid one that was safe on the disk follows at physical "
                f"offset {later.physical_offset}. The disk or somebody changed the file. Restore "
                "it from a copy or a slave; to give up everything behind it, zero the file from "
                "that position on and remove the later files"
            )

    def _record_after(self, end: int) -> Record | None:
        """Return the first valid record behind the end of the log, if there is one."""
        for segment in self._log.segments:
            if segment.end > end:
                position = max(0, end - segment.first)
                record = find_record_after(self._files, segment, position)
                if record is not None:
                    return record
        return None

    def _stale(self, record: Record) -> bool:
        """Tell whether a queue knows another record for this one's offset.

        RocketMQ leaves the bytes it cuts, so valid records of an earlier life can follow.
        """
        queue = self._queues.find(record.topic, record.queue_id)
        if queue is None or record.queue_offset >= queue.end_offset:
            return False
        return queue.entry(record.queue_offset)[0] != record.physical_offset

    def _finish(self, end: int, first: int) -> None:
        """Cut queues and log at their common end and make the result durable."""
        self._mark()
        self._log.segments.drop_empty()
        self._queues.drop_empty_files()
        for queue in list(self._queues):
            self._cut_queue(queue, end)
        self._cut_log(end)
        if not self._clean:
            # What was read may still be in the page cache alone.
            for segment in list(self._log.segments)[first:]:
                segment.sync()
        self._queues.sync()
        if self._repaired:
            _log.warning("%d runs of consume-queue entries were wrong", self._repaired)
        log = self._log
        log.end = log.flushed = end
        log.store_timestamp = max(self._store_timestamp, self._checkpoint.log_timestamp)
        self._checkpoint.log_timestamp = self._checkpoint.queues_timestamp = log.store_timestamp
        self._checkpoint.confirmed = end
        self._checkpoint.save()

    def _cut_queue(self, queue: ConsumeQueue, log_end: int) -> None:
        """Drop entries of records that are gone, and whatever stands behind the last one."""
        end = queue.end_offset
        low = queue.bases[0] // ENTRY_BYTES if queue.bases else 0
        while end > low:
            first = max(low, end - 1024)
            entries = queue.entries(first, end - first)
            size = entries["size"].astype(np.int64)
            reach = np.where(size == BLANK_SIZE, 0, entries["physical_offset"] + size)
            beyond = (reach > log_end).nonzero()[0]
            if not len(beyond):
                break
            end = first + int(beyond[0])
        if end < queue.end_offset:
            _log.warning(
                "%s: entries %d..%d pointed behind the end of the log and were dropped",
                queue.path,
                end,
                queue.end_offset,
            )
        queue.erase_from(end)
        queue.end_offset = end
        if not queue.bases:
            queue.end_offset = 0
        queue.trusted_end()
        queue.max_physical = self._reach(queue)

    def _cut_log(self, end: int) -> None:
        """Keep aside and zero what follows the end; delete the segments behind it."""
        segments = self._log.segments
        cut = 0
        for segment in segments:
            if segment.end > end:
                cut += self._zero_tail(segment, max(0, end - segment.first))
        if cut and len(segments):
            path = segments.find(min(end, segments[-1].end - 1)).path
            _log.warning(
                "%s: the log was cut at physical offset %d: %d B behind it were no acknowledged "
                "record; they are kept in %s",
                path,
                end,
                cut,
                self._config.root_path / RECOVERED_NAME,
            )
        segments.drop_after(sum(segment.first <= end for segment in segments))

    def _zero_tail(self, segment: Segment, position: int) -> int:
        """Keep what is not zero behind a position, then zero it; return how much that was."""
        used = 0
        pieces: list[tuple[int, bytes]] = []
        for start, stop in list(self._files.data_ranges(segment.fd, position, segment.size_bytes)):
            while start < stop:
                piece = bytes(segment.view[start : min(stop, start + _PIECE_BYTES)])
                if piece.count(0) != len(piece):
                    pieces.append((start, piece))
                    used = start + len(piece.rstrip(b"\0")) - position
                start += len(piece)
        if used:
            self._keep_aside(segment, position, used)
            for start, piece in pieces:
                segment.write(_ZEROS[: len(piece)], start)
            segment.sync()
        return used

    # -- the key index ------------------------------------------------------------------------

    def _resume_index(self, index: KeyIndex) -> None:
        """Find where indexing goes on; what may not be on the disk is forgotten.

        Indexing itself is done later, while the store is in use.
        """
        log, note = self._log, self._known.index
        index.drop_empty()
        if not index.is_sound:
            _log.warning("%s: damaged, the index is made anew", self._config.index_path)
            index.clear()
        if index.last_offset >= log.end:
            index.cut(log.end, log.store_time_at)
        index.end = max(index.last_offset, log.first)
        if self._clean:
            if note is not None and (note.last_offset, log.end) == (index.last_offset, note.end):
                index.end, index.end_ms = note.end, note.end_ms
            return
        first = self._trusted_index_end()
        if index.last_offset >= first:
            index.cut(first, log.store_time_at)
        index.end = max(first, log.first)

    def _trusted_index_end(self) -> int:
        """Return up to where an unclean stop left the index complete: the start of a segment."""
        segments = self._log.segments
        for index in range(len(segments) - 1, 0, -1):
            record = first_record(segments[index])
            if record is None or record.store_timestamp <= 0:
                continue
            if record.store_timestamp <= self._checkpoint.index_trusted_ms:
                return segments[index].first
        return self._log.first

    def _keep_aside(self, segment: Segment, position: int, size: int) -> None:
        """Copy bytes of a segment to ROOT/recovered; the oldest copies go beyond the bound."""
        bound = self._config.recovered_bytes_max
        size = min(size, bound)
        if not size:
            return
        directory = self._config.root_path / RECOVERED_NAME
        if self._files.make_directory(directory):
            self._files.sync_directory(directory.parent)
        kept = self._files.list_directory(directory)
        number = 1 + max((_number(entry.name) for entry in kept), default=0)
        used = sum(entry.size for entry in kept)
        for entry in sorted(kept, key=lambda entry: _number(entry.name)):
            if used + size <= bound:
                break
            self._files.remove(directory / entry.name)
            used -= entry.size
        path = directory / f"{number:06d}-at-{segment.first + position:020d}"
        self._files.write_file(path, bytes(segment.view[position : position + size]))
        self._files.sync_directory(directory)


def _number(name: str) -> int:
    head = name.partition("-")[0]
    return int(head) if head.isascii() and head.isdigit() else 0


def _adjacent(queue: ConsumeQueue) -> bool:
    bases = queue.bases
    return bases[-1] - bases[0] == (len(bases) - 1) * queue.file_bytes


def _valid_count(entries: Entries) -> int:
    """Return how many leading entries are plausible: written, and ascending in the log."""
    physical = entries["physical_offset"].astype(np.int64)
    size = entries["size"].astype(np.int64)
    valid = (physical >= 0) & (size > 0)
    ends = np.where(size == BLANK_SIZE, 0, physical + size)
    valid[1:] &= (physical[1:] >= ends[:-1]) | (size[1:] == BLANK_SIZE)
    return len(valid) if valid.all() else int(valid.argmin())
