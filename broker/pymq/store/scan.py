"""Reading a commit-log segment record by record, in numpy-sized chunks.

A record counts when it is whole: known magic, fields that end exactly at its size, a body that
fits its checksum, a topic and properties that are not the zeros of a page never written, and a
physical offset that is the place where it stands. The last is what tells a live record from a
stale one that an earlier truncation left behind.

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
from pymq.protocol.hashes import crc32
from pymq.protocol.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    OVERHEAD_BYTES,
    Record,
    decode_record,
)
from pymq.protocol.record_batch import Longs, RecordColumns, spans
from pymq.store.files import Files
from pymq.store.segment import Segment

CHUNK_RECORDS = 1 << 12
_SIZE_MAGIC = struct.Struct(">II")
_LIVE = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_WINDOW_BYTES = 1 << 20
_ZEROS = bytes(_WINDOW_BYTES + 7)


class Stop(Enum):
    """Why a walk ended."""

    BLANK = "blank record: the log goes on in the next segment"
    END = "nothing more is written"
    BAD = "no valid record"
    FULL = "chunk is full"


@dataclass(slots=True)
class Chunk:
    """Consecutive valid records of one segment; positions count from the segment's start."""

    columns: RecordColumns | None
    end: int
    stop: Stop


def scan_segment(segment: Segment, *, check_crc: bool) -> Iterator[Chunk]:
    """Yield the valid records of a segment; the last chunk tells where and why it ended."""
    position = 0
    while True:
        chunk = _scan_chunk(segment, position, check_crc=check_crc)
        yield chunk
        if chunk.stop is not Stop.FULL:
            return
        position = chunk.end


def _scan_chunk(segment: Segment, position: int, *, check_crc: bool) -> Chunk:
    view = segment.view
    starts, end, stop = follow_sizes(view, position, segment.size_bytes)
    columns = _columns(view, position, starts, end)
    if columns is None:
        starts, end, stop = *_good_prefix(view, position, starts), Stop.BAD
        columns = _columns(view, position, starts, end)
        assert columns is not None
    good = columns.physical_offset == starts + (segment.first + position)
    good &= _topic_written(columns)
    if check_crc:
        good &= _crc_matches(columns)
    if not good.all():
        count, stop = int(good.argmin()), Stop.BAD
    elif stop is Stop.END and len(starts) and _ends_in_zeros(columns):
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
        position: where the first record starts.
        limit: where they end at the latest.

    Returns:
        Where each starts, counted from ``position``, at most ``CHUNK_RECORDS`` of them; where
        the last of them ends; and what is there. Only sizes and magics were looked at.
    """
    unpack = _SIZE_MAGIC.unpack_from
    starts: list[int] = []
    at, last = position, limit - _SIZE_MAGIC.size
    stop = Stop.FULL
    for _ in range(CHUNK_RECORDS):
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


def _columns(view: memoryview, position: int, starts: Longs, end: int) -> RecordColumns | None:
    try:
        return RecordColumns(np.frombuffer(view[position:end], np.uint8), starts)
    except CorruptRecord:
        return None


def _good_prefix(view: memoryview, position: int, starts: Longs) -> tuple[Longs, int]:
    """Return the starts of the records in front of the first that is malformed, and their end."""
    for index, start in enumerate(starts.tolist()):
        try:
            decode_record(view, position + start)
        except CorruptRecord:
            return starts[:index], position + start
    raise AssertionError("RecordColumns refused what decode_record accepts")


def _topic_written(columns: RecordColumns) -> npt.NDArray[np.bool_]:
    """Tell which records have a topic that does not begin or end with a zero byte.

    A page that never reached the disk reads as zeros, and no checksum covers the topic.
    """
    written: npt.NDArray[np.bool_] = columns.topic_end > columns.topic_start
    written &= columns.buffer[columns.topic_start] != 0
    written &= columns.buffer[columns.topic_end - 1] != 0
    return written


def _ends_in_zeros(columns: RecordColumns) -> bool:
    """Tell whether the last record's properties end with a zero byte: a torn write, see above."""
    start, end = int(columns.properties_start[-1]), int(columns.properties_end[-1])
    return end > start and not columns.buffer[end - 1]


def _crc_matches(columns: RecordColumns) -> npt.NDArray[np.bool_]:
    bodies = map(columns.buffer.data.__getitem__, spans(columns.body_start, columns.body_end))
    found = np.fromiter(map(crc32, bodies), np.int64, len(columns)) & 0x7FFFFFFF
    matches: npt.NDArray[np.bool_] = found == columns.body_crc
    return matches


def first_record(segment: Segment) -> Record | None:
    """Return the record a segment begins with, None if it does not begin with a valid one."""
    try:
        record = decode_record(segment.view)
    except CorruptRecord:
        return None
    return record if record.physical_offset == segment.first else None


def find_record_after(files: Files, segment: Segment, position: int) -> Record | None:
    """Return the first valid record at or behind a position, however damaged its surroundings."""
    for start, end in files.data_ranges(segment.fd, position, segment.size_bytes):
        while start < end:
            stop = min(end, start + _WINDOW_BYTES)
            # Seven bytes more: the size in front of a magic, and a magic across two windows.
            first = max(0, start - 7)
            window = files.pread(segment.fd, stop - first, first)
            if window != _ZEROS[: len(window)]:
                for found in _LIVE.finditer(window):
                    at = first + found.start() - 4
                    if at >= position:
                        record = _valid_at(segment.view, at)
                        if record is not None and record.physical_offset == segment.first + at:
                            return record
            start = stop
    return None


def _valid_at(view: memoryview, position: int) -> Record | None:
    try:
        return decode_record(view, position, verify=True)
    except CorruptRecord:
        return None
