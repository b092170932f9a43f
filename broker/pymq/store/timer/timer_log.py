"""The timer log: one unit of 52 bytes for each message that waits for its time.

Files of ``file_bytes`` in ROOT/timerlog, named after the position of their first byte. A unit is
big-endian::

    offset  size  field
    0       4     52
    4       8     position of the unit before it in the chain of its slot, -1 for none
    12      4     magic: 1, plus 2 if the message is put back for another round (roll), plus 4 if
                  it cancels another message (delete)
    16      8     write time, ms: the wheel's when the unit was written
    24      4     delay, ms: the time of its slot less the write time
    28      8     physical offset of the message in the commit log
    36      4     size of its record
    40      4     Java hash of the topic it is for
    44      8     reserved, 0

A unit goes into a file only if 16 bytes are left after it; otherwise these bytes say so, and the
unit is the first one of the next file: ``remaining bytes (4), 0 (8), cbd43194``. So all files
hold equally many units. Example, a message of 270 B at 182 that waits 3 s, the first of its slot::

    00000034 ffffffffffffffff 00000001 000001a203bcda90 00000bb8 00000000000000b6
    0000010e cbecd30f 0000000000000000

Units are in the order of their messages. All of it can be rebuilt from these.

Source: RocketMQ TimerLog, TimerMessageStore.doEnqueue.
"""

import struct
from collections.abc import Callable, Iterator
from enum import IntFlag
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.errors import OffsetOutOfRange, StoreMismatch
from pymq.protocol.record import MAGIC_BLANK
from pymq.store.files import Files
from pymq.store.log.segment import parse_segment_name, segment_name, write_again
from pymq.store.queues.queue_files import QueueFlush

UNIT = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("write_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("physical_offset", ">i8"),
        ("record_bytes", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
UNIT_BYTES = 52
_BLANK = struct.Struct(">iqI")
#: Units read at once by a scan.
_CHUNK_UNITS = 1 << 16
_ZEROS = bytes(1 << 16)

assert UNIT.itemsize == UNIT_BYTES and _BLANK.size == 16  # on-disk contract

Units = npt.NDArray[Any]
Longs = npt.NDArray[np.int64]


class TimerMagic(IntFlag):
    """What a unit is about."""

    DEFAULT = 1
    ROLL = 2
    DELETE = 4


_KNOWN_MAGIC = 0xF


def due_times(units: Units) -> Longs:
    """Return the time (ms) of each unit's slot."""
    times: Longs = units["write_ms"].astype(np.int64) + units["delay_ms"]
    return times


class TimerLog:
    """Appends and reads units.

    Belongs to the thread of the store; ``read`` may be called from any thread.

    Attributes:
        file_bytes: size of a file.
        end: position after the last unit.
        is_damaged: whether a scan ended at a bad unit or where the next file would be, and not
            because of the commit log.
    """

    def __init__(self, files: Files, path: Path, file_bytes: int) -> None:
        self._files = files
        self._path = path
        self._bases: list[int] = []
        self._beyond: list[Path] = []  # after a gap
        self._fd: int | None = None  # of the last file
        self._per_file = (file_bytes - _BLANK.size) // UNIT_BYTES
        self.file_bytes = file_bytes
        self.end = 0
        self.is_damaged = False
        self._dirty: set[str] = set()
        self._dirty_directories: set[Path] = set()

    def load(self) -> None:
        """Find the files that exist; nothing is changed, and ``end`` is not known yet.

        After a power loss a file may be missing, or empty: then the log ends before it.

        Raises:
            StoreMismatch: a file has another size or name than a file of this log can have.
        """
        for entry in self._files.list_directory(self._path):
            path = self._path / entry.name
            base = parse_segment_name(entry.name)
            if entry.size not in (0, self.file_bytes):
                raise StoreMismatch(
                    f"{path}: {entry.size} B, expected {self.file_bytes} B "
                    "(mappedFileSizeTimerLog): set the size this store was written with, or "
                    f"delete {self._path} to have it made again from the messages"
                )
            if base is None or base % self.file_bytes:
                raise StoreMismatch(
                    f"{path}: not a file of a timer log with files of {self.file_bytes} B; move it "
                    "out of this directory"
                )
            is_next = not self._bases or base == self._bases[-1] + self.file_bytes
            if self._beyond or not entry.size or not is_next:
                self._beyond.append(path)
            else:
                self._bases.append(base)

    @property
    def units_bytes(self) -> int:
        """How many bytes of a file are for units."""
        return self._per_file * UNIT_BYTES

    @property
    def first(self) -> int:
        """The lowest position kept."""
        return self._bases[0] if self._bases else 0

    @property
    def bases(self) -> list[int]:
        """Positions of the first bytes of its files, ascending; not to be changed."""
        return self._bases

    def path_of(self, base: int) -> Path:
        """Return the path of a file."""
        return self._path / segment_name(base)

    # -- writing ------------------------------------------------------------------------------

    def positions(self, count: int) -> Longs:
        """Return where the next units go, ascending, shape (count,)."""
        number = self._number(self.end)
        numbers = np.arange(number, number + count, dtype=np.int64)
        found: Longs = (
            numbers // self._per_file * self.file_bytes + numbers % self._per_file * UNIT_BYTES
        )
        return found

    def _number(self, position: int) -> int:
        """Return how many units there are before a position, counted from position 0."""
        base, within = divmod(position, self.file_bytes)
        return base * self._per_file + min(within // UNIT_BYTES, self._per_file)

    def append(self, units: Units) -> None:
        """Write units at ``positions``.

        Raises:
            DiskFull, FlushFailed, StoreError: none counts as written; call again later.
        """
        assert units.dtype == UNIT, units.dtype
        number = self._number(self.end)
        done = 0
        while done < len(units):
            base, within = divmod(number + done, self._per_file)
            base *= self.file_bytes
            part = units[done : done + self._per_file - within]
            fd = self._open_last(base)
            self._files.pwrite(fd, part.tobytes(), within * UNIT_BYTES)
            self._dirty.add(str(self.path_of(base)))
            done += len(part)
        if len(units):
            self.end = base + (within + len(part)) * UNIT_BYTES

    def _open_last(self, base: int) -> int:
        """Return the descriptor of the last file, which is created if it is the next one."""
        files = self._files
        path = self.path_of(base)
        if self._bases and self._bases[-1] == base:
            if self._fd is None:
                self._fd = files.open(path)
            return self._fd
        if self._bases:
            previous = self._open_last(self._bases[-1])
            end = self._per_file * UNIT_BYTES
            blank = _BLANK.pack(self.file_bytes - end, 0, MAGIC_BLANK)
            files.pwrite(previous, blank, end)
            self._dirty.add(str(self.path_of(self._bases[-1])))
        files.make_directory(self._path)
        fd = files.create(path, self.file_bytes, reserve=False)
        if self._fd is not None:
            files.close(self._fd)
        self._fd = fd
        self._bases.append(base)
        self._dirty.add(str(path))
        self._dirty_directories.update((self._path, self._path.parent))
        return fd

    def begin_flush(self) -> QueueFlush:
        """Return a flush of everything up to ``end``."""
        flush = QueueFlush(self._files, self._dirty, self._dirty_directories)
        self._dirty, self._dirty_directories = set(), set()
        return flush

    def finish_flush(self, flush: QueueFlush, *, is_done: bool) -> None:
        """Record the outcome of a flush; unless it is done, all of it is left to the next."""
        if not is_done:
            self._dirty |= flush.paths
            self._dirty_directories |= flush.directories

    # -- reading ------------------------------------------------------------------------------

    def read(self, position: int, end: int) -> Units:
        """Return the units between two positions in one file, in any thread.

        Raises:
            OffsetOutOfRange: the file is not kept any more.
            StoreError: it cannot be read.
        """
        base = position - position % self.file_bytes
        path = self.path_of(base)
        if not self._files.exists(path):
            raise OffsetOutOfRange(f"{path}: this file of the timer log is not kept any more")
        data = self._files.read_part(path, end - position, position - base)
        return np.frombuffer(data, UNIT, len(data) // UNIT_BYTES)

    def after(self, position: int, count: int) -> int:
        """Return the position this many units after another one."""
        number = self._number(position) + count
        return number // self._per_file * self.file_bytes + number % self._per_file * UNIT_BYTES

    def scan(
        self,
        first: int,
        physical_end: int,
        *,
        flushed: int = 0,
        record_bytes: Callable[[Longs], Longs] | None = None,
    ) -> Iterator[tuple[Longs, Units]]:
        """Yield (positions, units) from a position on, and set ``end`` to where they end.

        They end at the first bad unit, or one of a message that the commit log has lost.

        Args:
            first: of a unit that is kept.
            physical_end: where the commit log ends.
            flushed: units from this position on may be torn.
            record_bytes: returns the sizes of records of the commit log, with which such a unit has
                to agree, by their physical offsets; below 0: it is not known.
        """
        number = self._number(first)
        self.is_damaged = False
        while True:
            base = number // self._per_file * self.file_bytes
            within = number % self._per_file
            self.end = base + within * UNIT_BYTES
            if base not in self._bases:
                self.is_damaged = True
                return
            count = min(self._per_file - within, _CHUNK_UNITS)
            units = self.read(self.end, self.end + count * UNIT_BYTES)
            ends = units["physical_offset"].astype(np.int64) + units["record_bytes"]
            whole = are_whole(units)
            good = whole & (ends <= physical_end)
            unsure = good & (self.end + np.arange(len(good)) * UNIT_BYTES >= flushed)
            if record_bytes is not None and unsure.any():
                sizes = record_bytes(units["physical_offset"][unsure].astype(np.int64))
                whole[unsure] = (sizes < 0) | (sizes == units["record_bytes"][unsure])
                good &= whole
            taken = len(good) if good.all() else int(good.argmin())
            if taken:
                positions = self.end + np.arange(taken, dtype=np.int64) * UNIT_BYTES
                number += taken
                yield positions, units[:taken]
            if taken < count:
                self.end = base + (within + taken) * UNIT_BYTES
                self.is_damaged = taken == len(whole) or not whole[taken]
                return

    # -- repair and end -----------------------------------------------------------------------

    def cut(self) -> bool:
        """Remove everything after ``end``; return whether there was anything.

        Raises:
            DiskFull, FlushFailed, StoreError: a part of it may be left; call again.
        """
        files = self._files
        is_cut = bool(self._beyond)
        while self._beyond:
            files.remove(self._beyond[-1])
            files.fsync_directory(self._path)
            self._beyond.pop()
        while self._bases and self._bases[-1] >= self.end and self._bases[-1]:
            is_cut = True
            self.close()
            files.remove(self.path_of(self._bases.pop()))
            files.fsync_directory(self._path)
        if not self._bases or self._bases[-1] + self.file_bytes <= self.end:
            return is_cut
        base = self._bases[-1]
        fd = self._open_last(base)
        for start, stop in files.data_ranges(fd, self.end - base, self._per_file * UNIT_BYTES):
            while start < stop:
                piece = files.pread(fd, min(len(_ZEROS), stop - start), start)
                if piece.count(0) != len(piece):
                    files.pwrite(fd, _ZEROS[: len(piece)], start)
                    self._dirty.add(str(self.path_of(base)))
                    is_cut = True
                start += len(piece)
        return is_cut

    def flush_later(self, position: int) -> None:
        """Have the next flush include all files from a position on, and all names.

        An earlier process may have written them and died before they were flushed, or failed to
        flush them: what lies after the position is written again, and so are the zeros after
        ``end``, which ``cut`` may find there already.
        """
        first = min(position, self.end)
        for base in self._bases:
            if base + self.file_bytes > first:
                fd = self._files.open(self.path_of(base))
                begin = max(0, first - base)
                try:
                    for start, stop in self._files.data_ranges(fd, begin, self.file_bytes):
                        write_again(self._files, fd, start, stop)
                finally:
                    self._files.close(fd)
                self._dirty.add(str(self.path_of(base)))
                self._dirty_directories.update((self._path, self._path.parent))

    def delete_expired(self, log_first: int) -> int | None:
        """Delete leading files whose messages are all deleted, in any thread; never the last one.

        Args:
            log_first: the lowest physical offset that the commit log holds.

        Returns:
            Position of the first file that is kept, for ``forget_before``; None: nothing was
            deleted.

        Raises:
            StoreError: a file could not be deleted.

        Source: RocketMQ MappedFileQueue.deleteExpiredFileByOffsetForTimerLog.
        """
        kept_from = None
        for base, following in pairwise(list(self._bases)):
            last = base + (self._per_file - 1) * UNIT_BYTES
            if self._files.exists(self.path_of(base)):
                if self.read(last, last + UNIT_BYTES)["physical_offset"][0] >= log_first:
                    break
                self._files.remove(self.path_of(base))
            self._files.fsync_directory(self._path)
            kept_from = following
        return kept_from

    def forget_before(self, base: int) -> None:
        """Record that the files before one are deleted."""
        self._bases = [one for one in self._bases if one >= base]

    def close(self) -> None:
        """Close the open file."""
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None


def are_whole(units: Units) -> npt.NDArray[np.bool_]:
    """Return which units are such."""
    magic = units["magic"]
    good: npt.NDArray[np.bool_] = units["size"] == UNIT_BYTES
    good &= (magic & ~_KNOWN_MAGIC) == 0
    good &= (magic & TimerMagic.DEFAULT) != 0
    # Zeros of a page that was never written: nothing is written at time 0, and no record is empty.
    good &= (units["write_ms"] > 0) & (units["record_bytes"] > 0)
    return good & (units["physical_offset"] >= 0)
