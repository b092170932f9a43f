"""Reading a whole commit log that may be damaged anywhere.

``read_log`` goes from record to record and yields, in the order of the log, blocks of valid
records and the gaps between them. After a gap it goes on at the next valid record. The caller
decides what a gap means (damage, an unfinished end, stale bytes).

Files are read by ``pread``, piece by piece: with a map, a failing disk would raise a SIGBUS.
Memory: two pieces of ``WINDOW_BYTES``, or one record if that is larger.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord
from pymq.protocol.codes import MessageFlag
from pymq.protocol.hashes import crc31
from pymq.protocol.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    decode_record,
)
from pymq.protocol.record_batch import Longs, RecordColumns
from pymq.store.config import StoreConfig
from pymq.store.files import Files
from pymq.store.inspection.layout import LogFile
from pymq.store.log.log_scan import (
    RECORD_MAGIC,
    RecordCrcRule,
    Stop,
    body_crcs_good,
    ends_in_zeros,
    follow_sizes,
    record_crcs_good,
    topics_written,
)

WINDOW_BYTES = 4 << 20
_SIZE_MAGIC = struct.Struct(">II")
#: Most bytes before a body (two IPv6 hosts), and around it (with topic and properties).
_HEAD_MAX = 112
_OVERHEAD_MAX = _HEAD_MAX + 2 + 255 + 2 + PROPERTIES_BYTES_MAX
_ZEROS = bytes(WINDOW_BYTES + 4)
_BORN_V6, _STORE_V6 = int(MessageFlag.BORN_HOST_IPV6), int(MessageFlag.STORE_HOST_IPV6)

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Block:
    """Valid records of one file, in order, without a gap.

    Attributes:
        path: the file.
        columns: the records; positions count from the start of ``columns.buffer``.
        physical: their physical offsets.
        file_first: physical offset of the file's first byte.
        end: physical offset after the last of them.
    """

    path: Path
    columns: RecordColumns
    physical: Longs
    file_first: int
    end: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A part of a file without a valid record.

    Attributes:
        path: the file.
        first, end: physical offsets.
        file_first: physical offset of the file's first byte.
        is_zero: whether it consists of zeros.
        found, expected: what is at its start, and what should be.
    """

    path: Path
    first: int
    end: int
    file_first: int
    is_zero: bool
    found: str
    expected: str

    @property
    def position(self) -> int:
        """Its position in the file."""
        return self.first - self.file_first


@dataclass(frozen=True, slots=True)
class Blank:
    """The end of a full file: the log goes on at ``end``, in the next one."""

    end: int


Part = Block | Gap | Blank


def read_log(files: Files, one: LogFile, config: StoreConfig) -> Iterator[Part]:
    """Yield the valid records of a commit-log file, and the gaps between them.

    Args:
        files: the operating system.
        one: the file.
        config: its size, and whether records end with a checksum.

    Raises:
        FileNotFoundError: it is gone.
        StoreError: it cannot be opened.
    """
    fd = files.open(one.path)
    try:
        yield from _FileReader(files, fd, one, config).read()
    finally:
        files.close(fd)


class _FileReader:
    def __init__(self, files: Files, fd: int, one: LogFile, config: StoreConfig) -> None:
        self._files = files
        self._fd = fd
        self._path = one.path
        self._first = one.first
        self._size = config.segment_bytes
        written = config.append_record_crc
        self._crc_rule = RecordCrcRule.WRITTEN if written else RecordCrcRule.USUAL

    def read(self) -> Iterator[Part]:
        position = 0
        while self._size - position >= _SIZE_MAGIC.size:
            data = memoryview(self._load(WINDOW_BYTES, position))
            done, stop = 0, Stop.FULL
            while stop is Stop.FULL:
                starts, end, stop = follow_sizes(data, done, len(data))
                if len(starts):
                    after = data[end : end + _SIZE_MAGIC.size]
                    is_last = len(after) == _SIZE_MAGIC.size and _is_zero(after)
                    yield from self._judge(data[:end], starts + done, position, is_last=is_last)
                done = end
            position += done
            if stop is Stop.BLANK:
                size, _ = _SIZE_MAGIC.unpack_from(data, done)
                if size == self._size - position:
                    yield Blank(self._first + self._size)
                    return
                found = f"a blank record of {size} B", f"{self._size - position} B"
            elif len(data) - done < _SIZE_MAGIC.size:
                if position + len(data) - done >= self._size:
                    found = "no blank record", "one at the end of the file"
                else:
                    continue
            else:
                need = self._cut_record(data, done, position)
                if need:
                    if done:
                        continue
                    yield from self._one_large(need, position)
                    position += need
                    continue
                found = _what(data, done)
            gap = self._gap(position, *found)
            yield gap
            position = gap.end - self._first

    def _load(self, size: int, position: int) -> bytes:
        """Return bytes of the file; zeros if it was truncated in the meantime."""
        size = min(size, self._size - position)
        return self._files.pread(self._fd, size, position).ljust(size, b"\0")

    def _cut_record(self, data: memoryview, at: int, position: int) -> int:
        """Return the size of a record that extends beyond the piece; 0 if there is none."""
        size: int
        size, magic = _SIZE_MAGIC.unpack_from(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or not OVERHEAD_BYTES <= size <= self._size - position:
            return 0
        if at + size <= len(data):
            return 0
        head = bytes(data[at : at + _HEAD_MAX])
        if len(head) < _HEAD_MAX and at:
            return size  # Checked again at the start of the next piece.
        return size if _is_head(head, size, self._first + position) else 0

    def _one_large(self, size: int, position: int) -> Iterator[Part]:
        data = memoryview(self._load(size, position))
        yield from self._judge(data, np.zeros(1, np.int64), position, is_last=False)

    # -- records --------------------------------------------------------------------------------

    def _judge(
        self, data: memoryview, starts: Longs, position: int, *, is_last: bool
    ) -> Iterator[Part]:
        """Yield the records of a piece; invalid ones as gaps."""
        base = self._first + position
        ends = np.append(starts[1:], len(data))
        columns, problems = _columns(data, starts)
        kept = np.ones(len(starts), np.bool_)
        kept[list(problems)] = False
        for row, problem in _problems(
            columns, starts[kept] + base, self._crc_rule, is_last=is_last
        ):
            problems[int(np.flatnonzero(kept)[row])] = problem
        if not problems:
            yield self._block(columns, base, int(ends[-1]))
            return
        done = 0
        for row in sorted(problems):
            if row > done:
                yield self._block(_columns(data, starts[done:row])[0], base, int(ends[row - 1]))
            found, expected = problems[row]
            first, end = base + int(starts[row]), base + int(ends[row])
            yield Gap(self._path, first, end, self._first, False, found, expected)
            done = row + 1
        if done < len(starts):
            yield self._block(_columns(data, starts[done:])[0], base, int(ends[-1]))

    def _block(self, columns: RecordColumns, base: int, end: int) -> Block:
        return Block(self._path, columns, columns.starts + base, self._first, base + end)

    # -- gaps -----------------------------------------------------------------------------------

    def _gap(self, position: int, found: str, expected: str) -> Gap:
        """Return the gap from a position to the next valid record of the file, or to its end."""
        end, is_zero = self._size, True
        for start, stop in self._files.data_ranges(self._fd, position, self._size):
            while start < stop and end == self._size:
                size = min(WINDOW_BYTES, stop - start)
                # Four more bytes at the start, so that a magic that spans two pieces is found.
                lead = min(4, start - position)
                data = self._load(size + lead, start - lead)
                if not _is_zero(data):
                    is_zero = False
                    end = self._next_record(data, start - lead, position) or self._size
                start += size
            if end < self._size:
                break
        return Gap(
            self._path,
            self._first + position,
            self._first + end,
            self._first,
            is_zero,
            found,
            expected,
        )

    def _next_record(self, data: bytes, at: int, after: int) -> int | None:
        for match in RECORD_MAGIC.finditer(data):
            start = at + match.start() - 4
            if start > after and self._is_record(start):
                return start
        return None

    def _is_record(self, position: int) -> bool:
        head = self._load(_HEAD_MAX, position)
        size = _SIZE_MAGIC.unpack_from(head)[0] if len(head) >= _SIZE_MAGIC.size else 0
        if size > self._size - position or not _is_head(head, size, self._first + position):
            return False
        try:
            record = decode_record(self._load(size, position), verify=True)
        except CorruptRecord:
            return False
        return record.physical_offset == self._first + position


def _is_zero(data: bytes | memoryview) -> bool:
    return data == _ZEROS[: len(data)]


def _is_head(head: bytes, size: int, physical_offset: int) -> bool:
    """Return whether the head of a record, or the start of one, fits a size and an offset.

    Without this check, a damaged size could make us read a whole file at once.
    """
    if int.from_bytes(head[28:36]) != physical_offset or len(head) < 40:
        return False
    sys_flag = int.from_bytes(head[36:40])
    at = 68 + (20 if sys_flag & _BORN_V6 else 8) + (20 if sys_flag & _STORE_V6 else 8)
    body = int.from_bytes(head[at : at + 4])
    return len(head) < at + 4 or OVERHEAD_BYTES <= size - body <= _OVERHEAD_MAX


def _what(data: memoryview, at: int) -> tuple[str, str]:
    """Return (what is found at the start of a record, what is expected)."""
    size, magic = _SIZE_MAGIC.unpack_from(data, at)
    if not size and not magic:
        return "zeros", "a record, or only zeros after it"
    if magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return f"size {size}", f"the size of a record, {OVERHEAD_BYTES} B at least"
    return f"magic {magic:08x}", f"{MAGIC_V1:08x}, {MAGIC_V2:08x} or {MAGIC_BLANK:08x}"


def _columns(data: memoryview, starts: Longs) -> tuple[RecordColumns, dict[int, tuple[str, str]]]:
    """Return the well-formed records, and by row what is wrong with the others."""
    buffer = np.frombuffer(data, np.uint8)
    try:
        return RecordColumns(buffer, starts), {}
    except CorruptRecord:
        pass
    problems: dict[int, tuple[str, str]] = {}
    for row, start in enumerate(starts.tolist()):
        try:
            decode_record(data, start)
        except CorruptRecord as error:
            problems[row] = str(error), "a record whose fields end where it does"
    return RecordColumns(buffer, np.delete(starts, list(problems))), problems


def _problems(
    columns: RecordColumns, physical: Longs, crc_rule: RecordCrcRule, *, is_last: bool
) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield (row, (found, expected)) of the records that are not valid.

    Args:
        columns: well-formed records.
        physical: their actual physical offsets.
        crc_rule: when a checksum of a whole record counts.
        is_last: whether only zeros follow the last one.
    """
    if not len(columns):
        return
    for row in np.flatnonzero(columns.physical_offset != physical).tolist():
        yield row, (f"physical offset {columns.physical_offset[row]}", f"{physical[row]}")
    for row in np.flatnonzero(~topics_written(columns)).tolist():
        yield row, ("a topic that is empty or of zeros", "a topic")
    for row in np.flatnonzero(~body_crcs_good(columns)).tolist():
        body = columns.buffer.data[columns.body_start[row] : columns.body_end[row]]
        wanted = int(columns.body_crc[row])
        yield row, (f"body CRC {crc31(body):08x}", f"{wanted & 0xFFFFFFFF:08x}")
    for row in np.flatnonzero(~record_crcs_good(columns, crc_rule)).tolist():
        yield row, ("a checksum of the whole record that does not fit", "one that does")
    if is_last and ends_in_zeros(columns):
        yield len(columns) - 1, ("properties that end in zeros", "a record written whole")
