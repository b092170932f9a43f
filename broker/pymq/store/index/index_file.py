"""One file of the key index; see ``index_format``.

Items are written as they come and never change; header and slots stay in memory until
``snapshot``. So a file that was not closed has a correct header and possibly outdated slots:
``cut`` rebuilds these from the items.

Source: RocketMQ IndexFile, IndexHeader.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pymq.errors import CorruptRecord
from pymq.store.files import Files
from pymq.store.index.index_chain import IndexChain
from pymq.store.index.index_format import (
    HEADER_BYTES,
    ITEM,
    ITEM_STRUCT,
    SECONDS_MAX,
    IndexHeader,
    IndexLayout,
    Ints,
    Items,
    Longs,
)
from pymq.store.searches import runs

_log = logging.getLogger(__name__)

#: Slots written together: one page of the file.
_SLOTS_PER_PAGE = 1024


@dataclass(slots=True)
class IndexSnapshot:
    """The parts of a file that have to be written and flushed, as they were at one moment.

    ``save`` runs in any thread. Items are flushed before the header that counts them is written,
    and the slots come last: whatever reaches the disk, a header never counts items that are not
    in the file.
    """

    path: Path
    header: bytes
    pages: list[tuple[int, bytes]]

    def save(self, files: Files) -> None:
        """Write and flush.

        Raises:
            DiskFull, FlushFailed, StoreError: the disk refused; it can be saved again.
        """
        try:
            fd = files.open(self.path)
        except FileNotFoundError:
            return  # Its messages have expired in the meantime.
        try:
            files.fsync(fd)
            files.pwrite(fd, self.header, 0)
            files.fsync(fd)
            for position, data in self.pages:
                files.pwrite(fd, data, position)
            files.fsync(fd)
        finally:
            files.close(fd)


class Slots:
    """The slots of a file, as they were when it had items below ``next_number``.

    Attributes:
        numbers: of items, one for each slot.
        is_sound: whether the file has all of these.
    """

    def __init__(self, numbers: Ints, next_number: int) -> None:
        self.numbers = numbers
        self.next_number = next_number
        self.is_sound = not ((numbers < 0) | (numbers >= next_number)).any()


class IndexFile:
    """One index file, for reading and, the newest one, for adding.

    Belongs to the thread of the store.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        layout: IndexLayout,
        header: IndexHeader,
        fd: int | None = None,
    ) -> None:
        self._files = files
        self._layout = layout
        self._fd = fd
        self._view: memoryview | None = None
        # None: not loaded.
        self._slots: Ints | None = None if fd is None else np.zeros(layout.slot_count, np.int32)
        pages = -(-layout.slot_count // _SLOTS_PER_PAGE)
        self._dirty_pages = np.zeros(pages, np.bool_)
        self._is_dirty = fd is not None
        self.path = path
        self.header = header

    @property
    def count(self) -> int:
        """How many items it holds."""
        return self.header.next_number - 1

    @property
    def room(self) -> int:
        """How many more items it can take."""
        return self._layout.item_limit - self.header.next_number

    @property
    def is_plausible(self) -> bool:
        """Whether its header can be correct."""
        header = self.header
        return (
            0 < header.next_number <= self._layout.item_limit
            and 0 <= header.first_physical <= header.last_physical
            and 0 <= header.slots_used < header.next_number
        )

    # -- adding -------------------------------------------------------------------------------

    def add(self, key_hashes: Ints, physical_offsets: Longs, times_ms: Longs) -> None:
        """Add items, at least one and at most ``room``.

        Args:
            key_hashes: int32, shape (n,), not negative.
            physical_offsets: of their messages, ascending.
            times_ms: store times of their messages.

        Raises:
            DiskFull, FlushFailed, StoreError: none was added.
        """
        slots, header = self._own_slots(), self.header
        count = len(key_hashes)
        numbers = np.arange(header.next_number, header.next_number + count, dtype=np.int32)
        slot = key_hashes % np.int32(len(slots))
        order = np.argsort(slot, kind="stable")
        sorted_slot = slot[order]
        chained = np.zeros(count, np.bool_)
        np.equal(sorted_slot[1:], sorted_slot[:-1], out=chained[1:])
        older = slots[sorted_slot]
        # An impossible number in a slot ends the chain, as in Java.
        older[(older <= 0) | (older >= header.next_number)] = 0
        fresh = int(np.count_nonzero(~chained & (older == 0)))
        older[1:] = np.where(chained[1:], numbers[order[:-1]], older[1:])
        items = np.empty(count, ITEM)
        items["key_hash"] = key_hashes
        items["physical_offset"] = physical_offsets
        items["seconds"] = self._seconds(times_ms)
        items["older"][order] = older
        position = self._layout.items_start + ITEM.itemsize * header.next_number
        self._files.pwrite(self._descriptor(), items.tobytes(), position)
        slots[slot] = numbers  # of several items of one slot, the last one stays
        self._dirty_pages[slot // _SLOTS_PER_PAGE] = True
        self._is_dirty = True
        if header.next_number == 1:
            header.first_physical, header.begin_ms = int(physical_offsets[0]), int(times_ms[0])
        header.slots_used += fresh
        header.next_number += count
        header.last_physical, header.end_ms = int(physical_offsets[-1]), int(times_ms[-1])

    def _seconds(self, times_ms: Longs) -> Longs:
        begin = np.full(len(times_ms), self.header.begin_ms)
        if self.header.next_number == 1:
            begin[1:] = times_ms[0]
        # Truncated towards zero, then at least zero: the same as rounded down.
        seconds: Longs = np.clip((times_ms - begin) // 1000, 0, SECONDS_MAX)
        seconds[begin <= 0] = 0
        return seconds

    def _own_slots(self) -> Ints:
        if self._slots is None:
            self._descriptor()  # says what to do if the file is gone
            self.take_slots(self.read_slots())
        assert self._slots is not None
        return self._slots

    @property
    def has_slots(self) -> bool:
        """Whether its slots are in memory."""
        return self._slots is not None

    def read_slots(self) -> Slots:
        """Return the slots as they are on the disk, for ``take_slots``; in any thread.

        Raises:
            StoreError: they cannot be read.
        """
        next_number = self.header.next_number
        data = self._files.read_part(self.path, 4 * self._layout.slot_count, HEADER_BYTES)
        slots = np.frombuffer(data, ">i4").astype(np.int32)
        return Slots(slots, next_number)

    def take_slots(self, slots: Slots) -> None:
        """Use the slots that were read, unless items were added meanwhile; rebuild unsound ones.

        Raises:
            StoreError: they are unsound, and the items cannot be read.
        """
        if self._slots is not None or slots.next_number != self.header.next_number:
            return
        if slots.is_sound:
            self._slots = slots.numbers
        else:
            _log.warning("%s: slots lead out of the file, they are rebuilt", self.path)
            self._make_slots()

    def _make_slots(self) -> None:
        """Rebuild the slots from the items."""
        slots = np.zeros(self._layout.slot_count, np.int32)
        for first, items in self.items():
            slot = items["key_hash"] % np.int32(len(slots))
            slots[slot] = np.arange(first, first + len(items))
        self._slots = slots
        self.header.slots_used = int(np.count_nonzero(slots))
        self._dirty_pages[:] = True
        self._is_dirty = True

    def cut(self, physical_offset: int, time_of: Callable[[int], int | None]) -> None:
        """Drop the items of messages from a physical offset on, and rebuild all slots.

        At least one item stays. Header and slots are written and flushed before this returns.

        Args:
            physical_offset: of the first message whose items are dropped.
            time_of: physical offset -> store time (ms) of the message there; if that is None, the
                time of the message's item is used, exact to a second.

        Raises:
            DiskFull, FlushFailed, StoreError: the disk refused; call again.
        """
        count = self.find(physical_offset)
        last = self.item(count)
        header = self.header
        header.next_number = count + 1
        header.last_physical = last[1]
        end_ms = time_of(last[1])
        header.end_ms = header.begin_ms + last[2] * 1000 if end_ms is None else end_ms
        self._make_slots()
        self.snapshot().save(self._files)
        self.mark_saved()

    # -- keeping ------------------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Whether header or slots changed since they were last written."""
        return self._is_dirty

    def snapshot(self) -> IndexSnapshot:
        """Return what has to be written so that the file is complete; see ``mark_saved``."""
        pages = []
        for first, end in runs(self._dirty_pages):
            slots = self._own_slots()[first * _SLOTS_PER_PAGE : end * _SLOTS_PER_PAGE]
            position = HEADER_BYTES + 4 * _SLOTS_PER_PAGE * first
            pages.append((position, slots.astype(">i4").tobytes()))
        return IndexSnapshot(self.path, self.header.pack(), pages)

    def mark_saved(self) -> None:
        """Record that everything is written, as of the last ``snapshot``."""
        self._dirty_pages[:] = False
        self._is_dirty = False

    def mark_unsaved(self) -> None:
        """Record that everything has to be written again: a snapshot could not be saved."""
        self._own_slots()
        self._dirty_pages[:] = True
        self._is_dirty = True

    def drop_slots(self) -> None:
        """Free the memory of the slots once the file is full and written."""
        if not self._is_dirty:
            self._slots = None

    # -- reading ------------------------------------------------------------------------------

    def chain(self, key_hash: int) -> IndexChain:
        """Return the chain of the items with a hash."""
        header, slots = self.header, self._slots
        newest = None if slots is None else int(slots[key_hash % self._layout.slot_count])
        return IndexChain(
            self.path, self._layout, key_hash, header.begin_ms, header.next_number, newest
        )

    def item(self, number: int) -> tuple[int, int, int, int]:
        """Return (key hash, physical offset, seconds, older item) of one item, 1..``count``."""
        position = self._layout.items_start + ITEM.itemsize * number
        found: tuple[int, int, int, int] = ITEM_STRUCT.unpack_from(self._mapped(), position)
        return found

    def items(self, first: int = 1, at_once: int = 1 << 18) -> Iterator[tuple[int, Items]]:
        """Yield (number of the first, items) in pieces, from a number on.

        The pieces are views on the file's map: release them before the file is closed.
        """
        while first < self.header.next_number:
            end = min(first + at_once, self.header.next_number)
            position = self._layout.items_start + ITEM.itemsize * first
            yield first, np.frombuffer(self._mapped(), ITEM, end - first, position)
            first = end

    def find(self, physical_offset: int) -> int:
        """Return how many items belong to messages before a physical offset."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.item(middle + 1)[1] < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def slots(self) -> Ints:
        """Return the number of the newest item of every chain; not to be changed."""
        return self._own_slots()

    # -- the file -----------------------------------------------------------------------------

    def _descriptor(self) -> int:
        if self._fd is None:
            try:
                self._fd = self._files.open(self.path)
            except FileNotFoundError as error:
                raise CorruptRecord(
                    f"{self.path}: this index file is gone; restart the broker to rebuild it"
                ) from error
        return self._fd

    def _mapped(self) -> memoryview:
        if self._view is None:
            self._view = self._files.map_for_reading(self._descriptor(), self._layout.file_bytes)
        return self._view

    def close(self) -> None:
        """Close the file; what was not saved by a ``snapshot`` is lost."""
        if self._view is not None:
            self._files.unmap(self._view)
            self._view = None
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None

    def remove(self) -> None:
        """Close and delete the file; the caller flushes the directory."""
        self.close()
        self._files.remove(self.path)
