"""The key index: which messages have a key, over all index files.

Keys are added to the newest file until it is full; the keys of one message may be in two files.
Files are named after the local time of their creation, ``yyyyMMddHHmmssSSS``, and read in that
order.

The index follows the log, possibly some way behind, and can be rebuilt from it: ``end`` says how
far it is. Adding is idempotent: what is in the index already is left out, according to the
physical offset of the last message and the number of its keys.

Source: RocketMQ IndexService.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pymq.errors import StoreMismatch
from pymq.store.files import Files
from pymq.store.index.index_chain import IndexChain
from pymq.store.index.index_file import IndexFile, IndexSnapshot
from pymq.store.index.index_format import (
    HEADER_BYTES,
    IndexHeader,
    IndexLayout,
    Ints,
    Longs,
    unpack_header,
)

#: Times in index items are rounded down to a second.
_ROUNDED_MS = 999


class IndexPosition(NamedTuple):
    """How far the key index was at a clean stop.

    Attributes:
        end: physical offset up to which the log was indexed.
        end_ms: store time of the last message below it.
        last_physical: physical offset of the last message with a key; -1: there is none.
        last_count: how many keys it has; -1: an earlier pymq, which did not note that.
    """

    end: int
    end_ms: int
    last_physical: int
    last_count: int


class KeyIndex:
    """The index files of a store.

    Belongs to the thread of the store; only an ``IndexSnapshot`` may be saved in another one.
    """

    def __init__(self, files: Files, path: Path, layout: IndexLayout) -> None:
        self._files = files
        self._path = path
        self._layout = layout
        self._all: list[IndexFile] = []
        self._empty: list[Path] = []
        # The last message in the index, and how many of its keys are in it.
        self._last_physical = -1
        self._last_count = 0
        #: False if a header cannot be correct: then only ``clear`` may follow.
        self.is_sound = True
        #: Physical offset up to which the log is indexed.
        self.end = 0
        #: Store time (ms) of the last indexed message, with or without keys.
        self.end_ms = 0
        #: Once the index has reached this physical offset, it is saved as soon as possible.
        self.save_at: int | None = None

    def load(self) -> None:
        """Find the files that exist; nothing is changed.

        Raises:
            StoreMismatch: a file has another size or name than an index file can have.
        """
        for entry in self._files.list_directory(self._path):
            path = self._path / entry.name
            if entry.is_directory or not entry.name.isdigit() or not entry.name.isascii():
                continue  # as RocketMQ does
            if entry.size == 0:
                self._empty.append(path)  # A crash interrupted its creation.
                continue
            if entry.size != self._layout.file_bytes:
                raise StoreMismatch(
                    f"{path}: {entry.size} B, expected {self._layout.file_bytes} B for "
                    f"index_slot_count={self._layout.slot_count} and "
                    f"index_item_limit={self._layout.item_limit} (RocketMQ maxHashSlotNum, "
                    "maxIndexNum): set what this store was written with, or remove the directory "
                    f"{self._path} to have the index rebuilt"
                )
            fd = self._files.open(path)
            try:
                header = unpack_header(self._files.pread(fd, HEADER_BYTES, 0))
            finally:
                self._files.close(fd)
            if header.next_number == 1:
                self._empty.append(path)  # A crash came before its header was written.
                continue
            self._all.append(IndexFile(self._files, path, self._layout, header))
        self.is_sound = all(one.is_plausible for one in self._all)
        if self.is_sound:
            self._find_last()

    def drop_empty(self) -> None:
        """Delete files whose creation was interrupted by a crash.

        Raises:
            FlushFailed, StoreError: the disk refused.
        """
        if self._empty:
            while self._empty:
                self._files.remove(self._empty.pop())
            self._files.fsync_directory(self._path)

    def _find_last(self) -> None:
        """Find the last message in the index, and how many of its keys are in it."""
        self._last_physical, self._last_count = -1, 0
        for file in reversed(self._all):
            number = file.count
            while number:
                offset = file.item(number)[1]
                if self._last_count and offset != self._last_physical:
                    return
                self._last_physical, self._last_count = offset, self._last_count + 1
                number -= 1

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[IndexFile]:
        return iter(self._all)

    @property
    def last_physical(self) -> int:
        """Physical offset of the last message in the index; -1 in an empty one."""
        return self._last_physical

    @property
    def position(self) -> IndexPosition:
        """How far it is, to be noted at a clean stop."""
        return IndexPosition(self.end, self.end_ms, self._last_physical, self._last_count)

    @property
    def newest(self) -> IndexFile | None:
        """The file that keys are added to; None in an empty index."""
        return self._all[-1] if self._all else None

    # -- adding -------------------------------------------------------------------------------

    def add(self, key_hashes: Ints, physical_offsets: Longs, times_ms: Longs, now_ms: int) -> None:
        """Add keys; those that are in the index already are left out.

        Args:
            key_hashes: int32, shape (n,).
            physical_offsets: of the keys' messages, ascending.
            times_ms: store times of these messages.
            now_ms: wall time, for the name of a new file.

        Raises:
            DiskFull, FlushFailed, StoreError: a part may have been added; add all of them again.
        """
        first = int(np.searchsorted(physical_offsets, self._last_physical))
        same = int(np.searchsorted(physical_offsets, self._last_physical, "right")) - first
        first += min(same, self._last_count)
        while first < len(key_hashes):
            file = self.newest
            if file is None or not file.room:
                file = self._create(now_ms)
            end = min(first + file.room, len(key_hashes))
            offsets = physical_offsets[first:end]
            file.add(key_hashes[first:end], offsets, times_ms[first:end])
            last = int(offsets[-1])
            count = len(offsets) - int(np.searchsorted(offsets, last))
            if last == self._last_physical:
                count += self._last_count
            self._last_physical, self._last_count = last, count
            first = end

    def _create(self, now_ms: int) -> IndexFile:
        if self._files.make_directory(self._path):
            self._files.fsync_directory(self._path.parent)
        path = self._path / self._next_name(now_ms)
        header = IndexHeader()
        newest = self.newest
        if newest is not None:
            # Only positive numbers, as in Java.
            header.begin_ms = header.end_ms = max(newest.header.end_ms, 0)
            header.first_physical = header.last_physical = max(newest.header.last_physical, 0)
        fd = self._files.create(path, self._layout.file_bytes, reserve=False)
        file = IndexFile(self._files, path, self._layout, header, fd)
        self._all.append(file)
        return file

    def _next_name(self, now_ms: int) -> str:
        """Return a name that is greater than all others, whatever the clock says."""
        name = _name(datetime.datetime.fromtimestamp(now_ms / 1000))
        if self._all and name <= self._all[-1].path.name:
            last = self._all[-1].path.name
            try:
                when = datetime.datetime.strptime(last[:14], "%Y%m%d%H%M%S")
            except ValueError:
                return f"{int(last) + 1:0{len(last)}d}"  # not a time, but a number
            when += datetime.timedelta(milliseconds=int(last[14:]) + 1)
            name = _name(when)
        return name

    def cut(self, physical_offset: int, time_of: Callable[[int], int | None]) -> None:
        """Drop the keys of messages from a physical offset on, durably.

        Args:
            physical_offset: of the first message to drop; ``end`` is at most this afterwards.
            time_of: physical offset -> store time (ms) of the message there, if known.

        Raises:
            DiskFull, FlushFailed, StoreError: the disk refused; call again.
        """
        count = len(self._all)
        while self._all and not self._all[-1].find(physical_offset):
            self._all.pop().remove()
        if len(self._all) < count:
            self._files.fsync_directory(self._path)
        if self._all:
            self._all[-1].cut(physical_offset, time_of)
        self._find_last()
        self.end = min(self.end, physical_offset)

    def clear(self) -> None:
        """Delete all files.

        Raises:
            FlushFailed, StoreError: the disk refused.
        """
        self.drop_empty()
        if self._all:
            while self._all:
                self._all.pop().remove()
            self._files.fsync_directory(self._path)
        self.is_sound = True
        self._last_physical, self._last_count, self.end, self.end_ms = -1, 0, 0, 0

    def take_old(self, log_first: int) -> list[Path]:
        """Drop the oldest files, whose messages have all expired, but never the newest one.

        Returns:
            Files for the caller to delete, oldest first and in any thread: each is large, so that
            it takes a while.
        """
        paths = []
        while len(self._all) > 1 and self._all[0].header.last_physical < log_first:
            file = self._all.pop(0)
            file.close()
            paths.append(file.path)
        return paths

    # -- keeping ------------------------------------------------------------------------------

    @property
    def is_save_due(self) -> bool:
        """Whether a full file was not saved yet, or ``save_at`` was reached.

        RocketMQ ignores all files older than an empty one: a process that is killed must not leave
        several files without a header.
        """
        if self.save_at is not None and self.end >= self.save_at:
            return True
        return any(file.is_dirty and not file.room for file in self._all)

    def begin_flush(self) -> "IndexFlush":
        """Return a flush of all changes, which count as flushed from now on."""
        if self.save_at is not None and self.end >= self.save_at:
            self.save_at = None
        dirty = [file for file in self._all if file.is_dirty]
        snapshots = [file.snapshot() for file in dirty]
        for file in dirty:
            file.mark_saved()
        return IndexFlush(self._files, self._path, snapshots)

    def finish_flush(self, flush: "IndexFlush", *, is_done: bool) -> None:
        """Record the outcome of a flush.

        Args:
            flush: from ``begin_flush``.
            is_done: False leaves all of it to the next flush. True: full files no longer need
                their slots in memory.
        """
        if is_done:
            for file in self._all:
                if not file.room:
                    file.drop_slots()
            return
        paths = {snapshot.path for snapshot in flush.snapshots}
        for file in self._all:
            if file.path in paths:
                file.mark_unsaved()

    # -- finding ------------------------------------------------------------------------------

    def chains(self, key_hash: int, *, begin_ms: int, end_ms: int) -> list[IndexChain]:
        """Return what to read for a hash, newest first; ``candidates`` reads it.

        Args:
            key_hash: as ``index_keys.key_hash`` returns it.
            begin_ms, end_ms: first and last store time wanted.
        """
        found = []
        for file in reversed(self._all):
            header = file.header
            if header.begin_ms <= end_ms and header.end_ms >= begin_ms:
                found.append(file.chain(key_hash))
            if header.begin_ms < begin_ms:
                break
        return found

    def close(self) -> None:
        """Close all files; what was not flushed is lost."""
        for file in self._all:
            file.close()


@dataclass(frozen=True, slots=True)
class IndexFlush:
    """One flush of a key index: ``run`` in any thread, then ``KeyIndex.finish_flush``."""

    files: Files
    path: Path
    snapshots: list[IndexSnapshot]

    def run(self) -> None:
        """Write and flush.

        Raises:
            DiskFull, FlushFailed, StoreError: the disk refused.
        """
        for snapshot in self.snapshots:
            snapshot.save(self.files)
        if self.snapshots:
            self.files.fsync_directory(self.path)


def candidates(
    files: Files, chains: Iterable[IndexChain], *, begin_ms: int, end_ms: int
) -> Iterator[int]:
    """Yield physical offsets of messages that may have a key, newest first; in any thread.

    Two keys may share a hash, and times are exact to a second: the caller checks the messages.
    The same offset may occur more than once.

    Args:
        chains: as ``KeyIndex.chains`` returned them.
        begin_ms, end_ms: first and last store time wanted.

    Raises:
        CorruptRecord: an index file is damaged.
        StoreError: the process has too many open files, or the disk failed.
    """
    for chain in chains:
        for number, physical_offset, time_ms in chain.read(files):
            if number == 1:  # Its time is relative to the file before.
                time_ms = chain.begin_ms
            if time_ms + _ROUNDED_MS < begin_ms:
                break
            if time_ms <= end_ms:
                yield physical_offset


def _name(when: datetime.datetime) -> str:
    return when.strftime("%Y%m%d%H%M%S") + f"{when.microsecond // 1000:03d}"
