"""Reading a commit-log segment record by record, in numpy-sized chunks.

A record is valid when it is whole: known magic, fields that end exactly at its size, a body that
fits its checksum, a topic and properties that are not the zeros of a page that was never written,
and its own physical offset. The last distinguishes it from a stale record, which an earlier
truncation left behind.

A checksum of the whole record that does not fit is damage if the records on both sides have one
that fits; the end of the log counts as such a record. Otherwise it is a property that a client
sent to a broker which writes no such checksums (``protocol.record_crc``), and the record is
valid: RocketMQ itself would keep it, and to cut off an acknowledged record is worse than to miss
a damaged property.

Source: RocketMQ CommitLog.checkMessageAndReturnSize.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord
from pymq.protocol.crc32_batch import crc32_each
from pymq.protocol.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    OVERHEAD_BYTES,
    Record,
    decode_record,
)
from pymq.protocol.record_batch import Longs, RecordColumns
from pymq.protocol.record_crc import RecordCrc
from pymq.protocol.record_crc_batch import check_record_crcs
from pymq.store.config import StoreConfig
from pymq.store.files import Files
from pymq.store.log.segment import Segment

CHUNK_RECORDS = 1 << 12
_SIZE_MAGIC = struct.Struct(">II")
#: Size, magic, physical offset.
_PLACE = struct.Struct(">II20xq")
#: The magic of a record of either version.
RECORD_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
#: Small enough that the next window reuses the memory of the last one, which is in cache.
_WINDOW_BYTES = 1 << 16
_ZEROS = bytes(_WINDOW_BYTES + 7)
#: For each byte that a search comes past it reads this many of what may be records, and once as
#: many as the file has: records do not overlap, but bytes that a client has sent may claim to be
#: large ones at every place.
_TRIED_PER_BYTE = 4


class Stop(Enum):
    """Why a walk ended."""

    BLANK = "blank record: the log goes on in the next segment"
    END = "nothing more is written"
    BAD = "no valid record"
    FULL = "chunk is full"


class RecordCrcRule(Enum):
    """When a checksum of a whole record counts."""

    USUAL = "if the records around it have one that fits"
    WRITTEN = "also if there is no record around it: the store writes them"
    DEMANDED = "always, and every record must have one (RocketMQ forceVerifyPropCRC)"

    @classmethod
    def of(cls, config: StoreConfig) -> "RecordCrcRule":
        """Return the rule of a store."""
        if config.force_record_crc:
            return cls.DEMANDED
        return cls.WRITTEN if config.append_record_crc else cls.USUAL


@dataclass(slots=True)
class Chunk:
    """Consecutive valid records of one segment, up to a file position."""

    columns: RecordColumns | None
    end_position: int
    stop: Stop


def scan_segment(
    segment: Segment, *, check_crc: bool, record_crc: RecordCrcRule = RecordCrcRule.USUAL
) -> Iterator[Chunk]:
    """Yield the valid records of a segment; the last chunk says where and why they end.

    All of it is read without the map first, so that a bad block is an error and not a SIGBUS;
    meanwhile empty chunks come.

    Args:
        segment: of the log.
        check_crc: whether checksums are verified.
        record_crc: when those of whole records count.

    Raises:
        CorruptRecord: a record lacks the checksum that it must have.
        StoreError: the disk cannot read it.
    """
    for _ in segment.read_through(segment.size_bytes):
        yield Chunk(None, 0, Stop.FULL)
    position = 0
    while True:
        chunk = _scan_chunk(segment, position, check_crc=check_crc, record_crc=record_crc)
        yield chunk
        if chunk.stop is not Stop.FULL:
            return
        position = chunk.end_position


def _scan_chunk(
    segment: Segment, position: int, *, check_crc: bool, record_crc: RecordCrcRule
) -> Chunk:
    view = segment.view
    starts, end, stop = follow_sizes(view, position, segment.size_bytes)
    columns = _columns(view, position, starts, end)
    if columns is None:
        starts, end, stop = *_good_prefix(view, position, starts), Stop.BAD
        columns = _columns(view, position, starts, end)
        assert columns is not None
    good = columns.physical_offset == starts + (segment.first + position)
    good &= topics_written(columns)
    if check_crc:
        good &= body_crcs_good(columns)
        count = len(good) if good.all() else int(good.argmin())
        states, torn = _record_crcs(columns, count)
        if record_crc is RecordCrcRule.DEMANDED:
            _require_checksums(segment, position, columns.starts, states, torn)
        good[:count] &= _undamaged(states, torn, record_crc)
    if not good.all():
        count, stop = int(good.argmin()), Stop.BAD
    elif stop is Stop.END and len(starts) and ends_in_zeros(columns):
        count, stop = len(starts) - 1, Stop.BAD
    else:
        return Chunk(columns if len(starts) else None, end, stop)
    end = position + int(starts[count])
    columns = _columns(view, position, starts[:count], end)
    assert columns is not None
    return Chunk(columns if count else None, end, stop)


def follow_sizes(view: memoryview, position: int, limit: int) -> tuple[Longs, int, Stop]:
    """Go from record to record by their sizes.

    Args:
        view: bytes of a segment.
        position: start of the first record.
        limit: position that no record reaches beyond.

    Returns:
        The start of each record, counted from ``position``, at most ``CHUNK_RECORDS`` of them;
        the end of the last one; why the walk stopped. Only sizes and magics are checked.
    """
    unpack = _SIZE_MAGIC.unpack_from
    at, last = position, limit - _SIZE_MAGIC.size
    stop = Stop.FULL
    alike = _alike(view, position, limit)
    starts: list[int] = []
    if alike is not None:
        count, size = alike
        starts = list(range(at, at + count * size, size))
        at += count * size
    for _ in range(CHUNK_RECORDS - len(starts)):
        if at > last:
            stop = Stop.END
            break
        size, magic = unpack(view, at)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            if magic == MAGIC_BLANK:
                stop = Stop.BLANK
            else:
                stop = Stop.BAD if size or magic else Stop.END
            break
        if size < OVERHEAD_BYTES or at + size > limit:
            stop = Stop.BAD
            break
        starts.append(at)
        at += size
    return np.array(starts, np.int64) - position, at, stop


def _alike(view: memoryview, position: int, limit: int) -> tuple[int, int] | None:
    """Return (count, size) of the records of equal size from a position on; None for less than 2.

    Equal records often follow each other; one comparison finds all of them.
    """
    if limit - position < 2 * OVERHEAD_BYTES:
        return None
    size, magic = _SIZE_MAGIC.unpack_from(view, position)
    count = min((limit - position) // size, CHUNK_RECORDS) if size >= OVERHEAD_BYTES else 0
    if count < 2 or magic not in (MAGIC_V1, MAGIC_V2):
        return None
    heads = np.ndarray((count,), np.uint64, view, position, (size,))
    same = heads == heads[0]
    return count if same.all() else int(same.argmin()), size


def _columns(view: memoryview, position: int, starts: Longs, end: int) -> RecordColumns | None:
    try:
        return RecordColumns(np.frombuffer(view[position:end], np.uint8), starts)
    except CorruptRecord:
        return None


def _good_prefix(view: memoryview, position: int, starts: Longs) -> tuple[Longs, int]:
    """Return the starts of the records before the first malformed one, and their end."""
    for index, start in enumerate(starts.tolist()):
        try:
            decode_record(view, position + start)
        except CorruptRecord:
            return starts[:index], position + start
    raise AssertionError("RecordColumns refused what decode_record accepts")


def topics_written(columns: RecordColumns) -> npt.NDArray[np.bool_]:
    """Return which records have a topic that does not begin or end with a zero byte.

    A page that never reached the disk reads as zeros, and no checksum covers the topic.
    """
    written: npt.NDArray[np.bool_] = columns.topic_end > columns.topic_start
    written &= columns.buffer[columns.topic_start] != 0
    written &= columns.buffer[columns.topic_end - 1] != 0
    return written


def ends_in_zeros(columns: RecordColumns) -> bool:
    """Return whether the last record's properties end with a zero byte: a torn write."""
    start, end = int(columns.properties_start[-1]), int(columns.ends[-1])
    return end > start and not columns.buffer[end - 1]


def body_crcs_good(columns: RecordColumns) -> npt.NDArray[np.bool_]:
    """Return which bodies fit their checksums."""
    found = crc32_each(columns.buffer, columns.body_start, columns.body_end)
    matches: npt.NDArray[np.bool_] = (found & 0x7FFFFFFF) == columns.body_crc
    return matches


def _record_crcs(
    columns: RecordColumns, count: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Return (state of the checksum, whether it is torn) of the first records."""
    starts, ends = columns.properties_start[:count], columns.ends[:count]
    states = check_record_crcs(columns.buffer, columns.starts[:count], ends, starts)
    torn = (states == RecordCrc.NONE) & (ends > starts) & (columns.buffer[ends - 1] == 0)
    return states, torn


def record_crcs_good(columns: RecordColumns, rule: RecordCrcRule) -> npt.NDArray[np.bool_]:
    """Return which of consecutive records are not damaged according to their own checksums."""
    return _undamaged(*_record_crcs(columns, len(columns)), rule)


def _require_checksums(
    segment: Segment,
    position: int,
    starts: Longs,
    states: npt.NDArray[np.int8],
    torn: npt.NDArray[np.bool_],
) -> None:
    """Raise unless every record before the first damage has a checksum of its own."""
    others = np.flatnonzero(states != RecordCrc.FITS)
    if len(others) and states[others[0]] == RecordCrc.NONE and not torn[others[0]]:
        raise CorruptRecord(
            f"{segment.path}: the record at position {position + int(starts[others[0]])} has no "
            "checksum, but force_record_crc (forceVerifyPropCRC) demands one. It was written "
            "without append_record_crc (enabledAppendPropCRC), or is damaged. The log was not "
            "changed; open it without force_record_crc, checksums that are there are verified "
            "all the same"
        )


def _undamaged(
    states: npt.NDArray[np.int8], torn: npt.NDArray[np.bool_], rule: RecordCrcRule
) -> npt.NDArray[np.bool_]:
    """Return which of otherwise valid records are undamaged."""
    fits: npt.NDArray[np.bool_] = states == RecordCrc.FITS
    if rule is RecordCrcRule.DEMANDED:
        return fits
    # Padded: there is no record before the first one and after the last one.
    is_fitting = np.pad(fits, 1)
    may_fit = np.pad(fits | torn, 1, constant_values=True)
    damaged = (states == RecordCrc.WRONG) & may_fit[:-2] & may_fit[2:]
    if rule is not RecordCrcRule.WRITTEN:
        damaged &= is_fitting[:-2] | is_fitting[2:]
    good: npt.NDArray[np.bool_] = ~damaged
    return good


def first_record(segment: Segment) -> Record | None:
    """Return the first record of a segment; None if it does not begin with a valid one.

    Raises:
        StoreError: the disk cannot read it.
    """
    return _record_at(segment, 0, _size_at(segment, 0), verify=False)


def find_record_after(files: Files, segment: Segment, position: int) -> Record | None:
    """Return the first valid record at or after a position, however much around it is damaged.

    A large one is missed close behind many forged ones, which somebody made who knew where in the
    log they would be.
    """
    room = segment.size_bytes
    for start, end in files.data_ranges(segment.fd, position, segment.size_bytes):
        while start < end:
            stop = min(end, start + _WINDOW_BYTES)
            room += _TRIED_PER_BYTE * (stop - start)
            # Seven bytes more: the size before a magic, and a magic that spans two windows.
            first = max(0, start - 7)
            window = files.pread(segment.fd, stop - first, first)
            if window != _ZEROS[: len(window)]:
                for found in RECORD_MAGIC.finditer(window):
                    at = first + found.start() - 4
                    size = _size_at(segment, at) if at >= position else 0
                    if 0 < size <= room:
                        room -= size
                        record = _record_at(segment, at, size, verify=True)
                        if record is not None:
                            return record
            start = stop
    return None


def _size_at(segment: Segment, position: int) -> int:
    """Return the size of what may be a record at a position; 0: there is none.

    Its place in the log tells: nobody but the store writes that, unless it was foreseen.
    """
    head = segment.read(position, OVERHEAD_BYTES)
    if len(head) < OVERHEAD_BYTES:
        return 0
    size, magic, physical_offset = _PLACE.unpack_from(head)
    is_possible = (
        magic in (MAGIC_V1, MAGIC_V2)
        and OVERHEAD_BYTES <= size <= segment.size_bytes - position
        and physical_offset == segment.first + position
    )
    return int(size) if is_possible else 0


def _record_at(segment: Segment, position: int, size: int, *, verify: bool) -> Record | None:
    """Return the record that may be at a position, read without the map; None: it is not valid."""
    try:
        return decode_record(segment.read(position, size), verify=verify)
    except CorruptRecord:
        return None
