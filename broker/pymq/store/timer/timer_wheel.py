"""The wheel: for each moment of the next days, which units of the timer log are due then.

ROOT/timerwheel is a ring of slots of 32 bytes, big-endian::

    offset  size  field
    0       8     the moment: time in ms / precision
    8       8     position of the first unit of its chain in the timer log
    16      8     position of the last one; each unit has the position of the one before it
    24      4     how many messages there are, less those that cancel one
    28      4     0

Moment m has slot ``m % slots``. A slot that holds another moment is empty: slots are not erased
when their time has passed, but used again. The ring is twice as long as messages wait at most, so
that what is overdue is not overwritten either.

The slots in memory count; a flush writes the pages that changed. All of it can be rebuilt from the
timer log.

Source: RocketMQ TimerWheel, Slot.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pymq.errors import StoreError
from pymq.protocol.hashes import crc32
from pymq.store.files import Files
from pymq.store.searches import runs

SLOT = np.dtype(
    [("moment", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")]
)
SLOT_BYTES = 32
#: Slots that messages wait in at most: those of seven days, with the usual precision of 1 s.
WINDOW_SLOTS = 7 * 24 * 3600
_PAGE_SLOTS = 4096 // SLOT_BYTES

assert SLOT.itemsize == SLOT_BYTES  # on-disk contract

Longs = npt.NDArray[np.int64]


class Slot(NamedTuple):
    """A slot that is in use; positions as in the file."""

    first: int
    last: int
    message_count: int


class TimerWheel:
    """The slots; belongs to the thread of the store.

    Args:
        files: the operating system.
        path: of the file; created by the first flush.
        window_slots: half of the length of the ring.
    """

    def __init__(self, files: Files, path: Path, window_slots: int = WINDOW_SLOTS) -> None:
        self._files = files
        self._path = path
        self.length = 2 * window_slots
        # Pages of zeros take no memory until they are written.
        self._slots: npt.NDArray[Any] = np.zeros(self.length, SLOT)
        self._dirty = np.zeros(-(-self.length // _PAGE_SLOTS), np.bool_)
        self._page_crcs: npt.NDArray[np.uint32] = self._empty_crcs()
        #: Whether the file has to be replaced: what is in it does not count.
        self._is_new = True

    def _empty_crcs(self) -> npt.NDArray[np.uint32]:
        crcs = np.full(len(self._dirty), crc32(bytes(_PAGE_SLOTS * SLOT_BYTES)), np.uint32)
        rest = self.length % _PAGE_SLOTS
        if rest:
            crcs[-1] = crc32(bytes(rest * SLOT_BYTES))
        return crcs

    def load(self) -> bool:
        """Read the file; return False, and have no slot in use, if it is missing or another size.

        Raises:
            StoreError: it cannot be read.
        """
        size = self.length * SLOT_BYTES
        try:
            fd = self._files.open(self._path)
        except FileNotFoundError:
            return False
        try:
            if len(self._files.pread(fd, 1, size - 1)) != 1 or self._files.pread(fd, 1, size):
                return False
            target = self._slots.view(np.uint8)
            for first, end in self._files.data_ranges(fd, 0, size):
                data = self._files.pread(fd, end - first, first)
                target[first:end] = np.frombuffer(data, np.uint8)
        finally:
            self._files.close(fd)
        for page in np.flatnonzero(_pages_in_use(self._slots)).tolist():
            self._page_crcs[page] = crc32(self._bytes(page, page + 1))
        self._is_new = False
        return True

    @property
    def digest(self) -> int:
        """A checksum of the whole file, as it was loaded or flushed."""
        return crc32(self._page_crcs.tobytes())

    def _bytes(self, first: int, end: int) -> bytes:
        return self._slots[first * _PAGE_SLOTS : end * _PAGE_SLOTS].tobytes()

    # -- slots --------------------------------------------------------------------------------

    def find(self, moment: int) -> Slot | None:
        """Return the slot of a moment; None: it is empty."""
        found, first, last, count, _ = self._slots[moment % self.length].item()
        return Slot(first, last, count) if found == moment else None

    def next_used(self, first: int, end: int) -> int | None:
        """Return the first moment in [first, end) whose slot is in use; None: there is none."""
        while first < end:
            place = first % self.length
            stop = min(end - first, self.length - place)
            used = self._slots["moment"][place : place + stop]
            hit = used == np.arange(first, first + stop)
            at = int(hit.argmax())
            if hit[at]:
                return first + at
            first += stop
        return None

    def in_use(self, first: int) -> tuple[Longs, npt.NDArray[Any]]:
        """Return (moments, slots) of all that are in use from a moment on, in no order."""
        moments = self._slots["moment"].astype(np.int64)
        places = np.arange(self.length)
        used = np.flatnonzero((moments >= max(first, 1)) & (moments % self.length == places))
        return moments[used], self._slots[used]

    def previous(self, moments: Longs, positions: Longs) -> Longs:
        """Return the position of the unit before each of some new ones, -1 for none.

        Args:
            moments: of the units.
            positions: of the units, ascending.
        """
        order = np.argsort(moments, kind="stable")
        ordered, slots = moments[order], self._slots[moments[order] % self.length]
        earlier = np.where(slots["moment"] == ordered, slots["last"], -1)
        same = ordered[1:] == ordered[:-1]
        earlier[1:][same] = positions[order][:-1][same]
        found = np.empty(len(moments), np.int64)
        found[order] = earlier
        return found

    def add(self, moments: Longs, positions: Longs, steps: Longs) -> None:
        """Add units to the chains of their slots.

        Args:
            moments: of the units; less than the ring's length apart.
            positions: of the units, ascending.
            steps: what each adds to the count of its slot, 1 or -1.
        """
        places = moments % self.length
        slots = self._slots
        fresh = slots["moment"][places] != moments
        new = places[fresh]
        slots["count"][new] = 0
        slots["magic"][new] = 0
        # Of several values for one place the last one counts.
        slots["first"][new[::-1]] = positions[fresh][::-1]
        slots["moment"][new] = moments[fresh]
        slots["last"][places] = positions
        np.add.at(slots["count"], places, steps)
        self._dirty[places // _PAGE_SLOTS] = True

    def erase(self, first: int, end: int) -> None:
        """Empty the slots of the moments in [first, end)."""
        while (moment := self.next_used(first, end)) is not None:
            self._slots[moment % self.length] = 0
            self._dirty[moment % self.length // _PAGE_SLOTS] = True
            first = moment + 1

    def reset(self) -> None:
        """Empty all slots; the next flush replaces the file."""
        self._slots = np.zeros(self.length, SLOT)
        self._dirty[:] = False
        self._page_crcs = self._empty_crcs()
        self._is_new = True

    # -- flush --------------------------------------------------------------------------------

    def begin_flush(self) -> "WheelFlush":
        """Return a flush of the pages that changed; they count as flushed."""
        changed, self._dirty = self._dirty, np.zeros_like(self._dirty)
        pieces = [(first * _PAGE_SLOTS, self._bytes(first, end)) for first, end in runs(changed)]
        for page in np.flatnonzero(changed).tolist():
            self._page_crcs[page] = crc32(self._bytes(page, page + 1))
        size = self.length * SLOT_BYTES
        flush = WheelFlush(self._files, self._path, size, self._is_new, changed, pieces)
        self._is_new = self._is_new and not pieces
        return flush

    def finish_flush(self, flush: "WheelFlush", *, is_done: bool) -> None:
        """Record the outcome of a flush; unless it is done, all of it is left to the next."""
        if not is_done:
            self._dirty |= flush.changed
            self._is_new |= flush.is_new


@dataclass(frozen=True, slots=True)
class WheelFlush:
    """One flush of the wheel: ``run`` in any thread, then ``TimerWheel.finish_flush``.

    Attributes:
        is_new: whether the file is replaced.
        changed: which pages are written.
        pieces: (number of the first slot, bytes).
    """

    files: Files
    path: Path
    size_bytes: int
    is_new: bool
    changed: npt.NDArray[np.bool_]
    pieces: list[tuple[int, bytes]]

    def run(self) -> None:
        """Write and flush.

        Raises:
            DiskFull, FlushFailed, StoreError: a part of it may have been written.
        """
        if not self.pieces:
            return
        files, path = self.files, self.path
        if not self.is_new:
            if not files.exists(path):
                raise StoreError(f"{path}: the wheel is gone; restart the broker to rebuild it")
            fd = files.open(path)
        else:
            # A file that is half written must not be taken for a wheel with few slots in use.
            path = path.with_name(path.name + ".tmp")
            fd = files.open_emptied(path)
        try:
            if self.is_new:
                files.resize(fd, self.size_bytes)
            for first, data in self.pieces:
                files.pwrite(fd, data, first * SLOT_BYTES)
            files.fsync(fd)
        finally:
            files.close(fd)
        if self.is_new:
            files.rename(path, self.path)
            files.fsync_directory(path.parent)


def _pages_in_use(slots: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which pages do not consist of zeros."""
    words = slots.view(np.uint64)
    starts = np.arange(0, len(words), _PAGE_SLOTS * SLOT_BYTES // 8)
    found: npt.NDArray[np.bool_] = np.bitwise_or.reduceat(words, starts) != 0
    return found
