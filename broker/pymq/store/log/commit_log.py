"""The commit log: every record of every topic, in order of arrival, in one address space.

A record of L bytes goes into a segment with R bytes left only if L + 8 <= R. Otherwise a blank
record of size R ends the segment, and the record is the first one of the next segment. So every
segment but the last ends with at least eight bytes of padding, and no segment is filled exactly.
Of a blank record only its eight bytes are written.

Source: RocketMQ CommitLog.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord, OffsetOutOfRange, StoreError
from pymq.protocol.codes import MessageFlag
from pymq.protocol.record import BLANK_BYTES, Record, decode_record, encode_blank, record_place
from pymq.protocol.record_batch import gather
from pymq.store.files import Files
from pymq.store.log.segment import Segment
from pymq.store.log.segments import Segments
from pymq.store.log.transient_pool import TransientPool

_ZEROS = bytes(1 << 16)
_SYS_FLAG = struct.Struct(">i")
_SIZE = struct.Struct(">I")
_LONG = struct.Struct(">q")
_BORN_V6 = int(MessageFlag.BORN_HOST_IPV6)
#: Positions in a record: system flag; store time after a born host of 8 B, and of 20 B.
_FLAG_AT, _STAMP_AT, _STAMP_AT_V6 = 36, 56, 68

Longs = npt.NDArray[np.int64]
#: The store time lies within this many bytes of a record's start.
STORE_TIME_END = 76


@dataclass(slots=True)
class LogFlush:
    """The files to flush so that everything below ``end`` is on the disk.

    Made by ``CommitLog.begin_flush``. ``run`` in any thread, then ``CommitLog.finish_flush``.

    Attributes:
        files: the operating system.
        end: physical offset.
        store_timestamp: of the last record below ``end``, ms.
        descriptors: duplicates, oldest segment first; ``run`` closes them.
    """

    files: Files
    end: int
    store_timestamp: int
    descriptors: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Flush, oldest segment first.

        Raises:
            FlushFailed: an fsync failed.
        """
        descriptors, self.descriptors = self.descriptors, []
        try:
            for fd in descriptors:
                self.files.fsync(fd)
        finally:
            for fd in descriptors:
                self.files.close(fd)


class CommitLog:
    """Appends to the last segment and reads from all of them.

    Invariants: ``flushed <= committed <= end``; everything below ``end`` is whole records and
    blanks; everything from ``end`` to the end of its segment is zero, or is recorded as dirty and
    will be zeroed before the next write. Only what is below ``committed`` is in the files and
    can be read: without a ``TransientPool`` that is everything.
    """

    def __init__(self, files: Files, segments: Segments) -> None:
        self.files = files
        self.segments = segments
        #: Physical offset where the next record goes.
        self.end = 0
        #: Everything below is on the disk.
        self.flushed = 0
        #: Store time of the last record, ms; the next one's is not smaller.
        self.store_timestamp = 0
        # End of what a failed write may have left after `end`. Whole records there would count as
        # valid after a crash, once something shorter overwrote the first of them.
        self._dirty_end = 0
        self.pool: TransientPool | None = None

    def use_pool(self, pool: TransientPool) -> None:
        """Collect new records in the buffers of a pool from now on."""
        pool.committed = self.end
        pool.store_timestamp = self.store_timestamp
        if len(self.segments):
            pool.enter(self.segments[-1])
        self.pool = pool

    @property
    def committed(self) -> int:
        """Physical offset up to which the files hold everything."""
        return self.end if self.pool is None else self.pool.committed

    @property
    def first(self) -> int:
        """The lowest physical offset kept."""
        return self.segments.at(0).first if len(self.segments) else self.end

    @property
    def next_due(self) -> bool:
        """Whether to prepare the next segment: it is not, and half of the last one is used."""
        segments = self.segments
        if segments.prepared or not len(segments):
            return False
        return self.end - segments.at(-1).first > segments.segment_bytes // 2

    @property
    def room(self) -> int:
        """Bytes that records may take in the current segment; 0 if there is no segment."""
        if not len(self.segments):
            return 0
        return max(0, self.segments.at(-1).end - self.end - BLANK_BYTES)

    def write(self, data: bytes | memoryview) -> None:
        """Append whole records; they fit into ``room``.

        When the process dies meanwhile, all of them are in the log or none: the first bytes of
        several records are written last, and the log ends where these are missing. (After a power
        loss only the first few may be there: the disk writes in an order of its own.)

        Raises:
            DiskFull, FlushFailed, StoreError: nothing counts as written.
        """
        self._put(self.segments[-1], data)
        self.end += len(data)

    def _put(self, segment: Segment, data: bytes | memoryview) -> None:
        """Write at ``end``: into the last segment, or into its buffer."""
        position = self.end - segment.first
        if self.pool is not None and self.pool.current is not None:
            self.pool.current[position : position + len(data)] = data
            return
        self.scrub()
        rest = memoryview(data)
        try:
            if _SIZE.unpack_from(data)[0] < len(data):
                segment.write(rest[_SIZE.size :], position + _SIZE.size)
                rest = rest[: _SIZE.size]
            segment.write(rest, position)
        except StoreError:
            self._dirty_end = self.end + len(data)
            self._try_scrub()
            raise

    def roll(self) -> None:
        """End the current segment with a blank record and begin the next one.

        Raises:
            DiskFull, FlushFailed, StoreBusy, StoreError: the current segment stays the last.
        """
        segments = self.segments
        if self.pool is not None:
            self.pool.check_free()
        if len(segments):
            segment = segments[-1]
            segments.make_next()
            if self.end < segment.end:
                self._put(segment, encode_blank(segment.end - self.end))
        is_first = not len(segments)
        segment = segments.append_next()
        self.end = segment.first
        if self.pool is not None:
            self.pool.enter(segment)
        if is_first:
            self.flushed = self.end
            if self.pool is not None:
                self.pool.committed = self.end

    def scrub(self) -> None:
        """Zero what a failed write left after ``end``, if anything.

        Raises:
            DiskFull, FlushFailed, StoreError: it is still there; call again.
        """
        if not self._dirty_end:
            return
        segment = self.segments[-1]
        position, end = self.end - segment.first, self._dirty_end - segment.first
        while position < end:
            piece = _ZEROS[: min(len(_ZEROS), end - position)]
            segment.write(piece, position)
            position += len(piece)
        self._dirty_end = 0

    def _try_scrub(self) -> None:
        try:
            self.scrub()
        except StoreError:
            pass  # The next write tries again, and fails if that fails.

    # -- flushing -----------------------------------------------------------------------------

    def begin_flush(self) -> LogFlush:
        """Return a flush of everything that is committed.

        Raises:
            StoreError: the process has too many open files; try again later.
        """
        end, store_timestamp = self.end, self.store_timestamp
        if self.pool is not None:
            end, store_timestamp = self.pool.committed, self.pool.store_timestamp
        due = []
        for segment in reversed(list(self.segments)):
            if segment.end <= self.flushed:
                break
            if segment.first < end:
                due.append(segment)
        return LogFlush(self.files, end, store_timestamp, self._duplicates(reversed(due)))

    def _duplicates(self, segments: Iterable[Segment]) -> list[int]:
        """Return duplicates of the descriptors of segments, all or none."""
        found: list[int] = []
        try:
            for segment in segments:
                found.append(self.files.duplicate(segment.fd))
        except StoreError:
            for fd in found:
                self.files.close(fd)
            raise
        return found

    def finish_flush(self, flush: LogFlush) -> None:
        """Record that a flush succeeded."""
        self.flushed = max(self.flushed, flush.end)
        self.segments.close_many()

    # -- reading ------------------------------------------------------------------------------

    def slice(self, physical_offset: int, size: int) -> memoryview:
        """Return bytes of the log as a view on the map.

        The view stays valid while it is referenced, also after the store was closed.

        Raises:
            OffsetOutOfRange: the range is not wholly inside one segment of the log.
        """
        segment = self.segments.find(physical_offset)
        stop = physical_offset + size
        if not physical_offset < stop <= min(self.committed, segment.end):
            raise OffsetOutOfRange(
                f"{size} B at physical offset {physical_offset}, "
                f"expected to end within {min(self.committed, segment.end)}"
            )
        return segment.view[physical_offset - segment.first : stop - segment.first]

    def slices(self, starts: list[int], stops: list[int]) -> list[memoryview]:
        """Return several ranges as ``slice`` does.

        Raises:
            OffsetOutOfRange: one of them is not wholly inside one segment of the log.
        """
        found = []
        end = self.committed
        first = stop_at = -1
        for start, stop in zip(starts, stops, strict=True):
            if not first <= start < stop_at:
                segment = self.segments.find(start)
                first, stop_at, view = segment.first, min(segment.end, end), segment.view
            if not start < stop <= stop_at:
                raise OffsetOutOfRange(
                    f"{stop - start} B at physical offset {start}, expected to end within {stop_at}"
                )
            found.append(view[start - first : stop - first])
        return found

    def is_loaded(self, first: int, end: int) -> bool:
        """Return whether a part of the log is in memory, as far as the system says."""
        while first < end:
            segment = self.segments.find(first)
            stop = min(end, segment.end)
            if not segment.is_loaded(first - segment.first, stop - segment.first):
                return False
            first = stop
        return True

    def places(self, starts: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return (descriptor, position, size) of ranges that ``slices`` gave.

        The descriptors, one for each file, are duplicates: any thread may read from them, and
        somebody has to close them.

        Raises:
            StoreError: the process has too many open files.
        """
        segments = [self.segments.find(start) for start in starts]
        originals = list(dict.fromkeys(segments))
        duplicates = dict(zip(originals, self._duplicates(originals), strict=True))
        return [
            (duplicates[segment], start - segment.first, size)
            for segment, start, size in zip(segments, starts, sizes, strict=True)
        ]

    def _readable(self, physical_offset: int) -> tuple[Segment, int]:
        """Return the segment that holds an offset, and the position where its records end."""
        if not self.first <= physical_offset < self.committed:
            raise OffsetOutOfRange(
                f"physical offset {physical_offset}, the log holds {self.first}..{self.committed}"
            )
        segment = self.segments.find(physical_offset)
        return segment, min(self.committed, segment.end) - segment.first

    def record_at(self, physical_offset: int) -> Record:
        """Return the record that starts at an offset.

        Raises:
            OffsetOutOfRange: the log does not hold the offset.
            CorruptRecord: there is no valid record at the offset.
        """
        segment, stop = self._readable(physical_offset)
        return decode_record(segment.view[:stop], physical_offset - segment.first)

    def record_view(self, physical_offset: int) -> memoryview:
        """Return the record that starts at an offset as it is stored, like ``slice``.

        Raises:
            OffsetOutOfRange: the log does not hold the offset.
            CorruptRecord: there is no record at the offset.
        """
        segment, stop = self._readable(physical_offset)
        position = physical_offset - segment.first
        size, own_offset = record_place(segment.view[:stop], position)
        if own_offset != physical_offset:
            raise CorruptRecord(
                f"{segment.path}, position {position}: a record that says it is at "
                f"physical offset {own_offset}, expected {physical_offset}"
            )
        return segment.view[position : position + size]

    def part_view(self, physical_offset: int, size_bytes: int) -> memoryview:
        """Return a part of the log inside of one segment, like ``slice``.

        Raises:
            OffsetOutOfRange: the log does not hold all of it there.
        """
        segment, stop = self._readable(physical_offset)
        position = physical_offset - segment.first
        if position + size_bytes > stop:
            raise OffsetOutOfRange(
                f"{segment.path}: {size_bytes} B at physical offset {physical_offset}, but it ends "
                f"at {segment.first + stop}"
            )
        return segment.view[position : position + size_bytes]

    def store_times(self, physical_offsets: Longs) -> Longs:
        """Return the store times (ms) of records in the log, by their offsets, ascending.

        Raises:
            OffsetOutOfRange: the log does not hold one of them.
        """
        times = np.empty(len(physical_offsets), np.int64)
        first = 0
        while first < len(times):
            segment = self.segments.find(int(physical_offsets[first]))
            last = int(physical_offsets.searchsorted(segment.end))
            buffer = np.frombuffer(segment.view, np.uint8)
            starts = physical_offsets[first:last] - segment.first
            is_wide = gather(buffer, starts + _FLAG_AT, ">i4") & _BORN_V6 != 0
            stamps = np.where(is_wide, _STAMP_AT_V6, _STAMP_AT)
            times[first:last] = gather(buffer, starts + stamps, ">i8")
            first = last
        return times

    def store_time_at(self, physical_offset: int) -> int | None:
        """Return the store time (ms) of the record at an offset; None if the log has none."""
        if not self.first <= physical_offset <= self.committed - 64:
            return None
        segment = self.segments.find(physical_offset)
        return store_time_of(segment.view, physical_offset - segment.first)


def store_time_of(data: bytes | memoryview, position: int = 0) -> int | None:
    """Return the store time (ms) of the record at a position, None if it is cut off there."""
    if position + STORE_TIME_END > len(data):
        return None
    (sys_flag,) = _SYS_FLAG.unpack_from(data, position + _FLAG_AT)
    position += _STAMP_AT_V6 if sys_flag & _BORN_V6 else _STAMP_AT
    stamp: int = _LONG.unpack_from(data, position)[0]
    return stamp
