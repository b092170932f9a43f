"""One fixed-size file of the commit log: written by ``pwrite``, read through a map."""

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pymq.store.files import Files

#: madvise(2): read ahead, or only what is asked for.
NORMAL_READS, RANDOM_READS = 0, 1
#: Bytes per read or write of a long range.
PIECE_BYTES = 1 << 20
#: File names are the offset of the first byte, in this many decimal digits.
NAME_DIGITS = 20


def segment_name(first: int) -> str:
    """Return the name of the file whose first byte has this offset."""
    return f"{first:0{NAME_DIGITS}d}"


def write_again(files: Files, fd: int, first: int, end: int) -> None:
    """Write a part of a file again as it is, so that the next fsync brings it to the disk.

    After a write-back that failed the system reports that once, and takes the pages for clean: an
    fsync then succeeds without them.

    Raises:
        DiskFull, FlushFailed, StoreError: the disk refused; the file is as it was.
    """
    for at in range(first, end, PIECE_BYTES):
        files.pwrite(fd, files.pread(fd, min(PIECE_BYTES, end - at), at), at)


def parse_segment_name(name: str) -> int | None:
    """Return the offset that a file name stands for; None if it is not such a name."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


class Segment:
    """A file of ``size_bytes`` whose first byte has the physical offset ``first``.

    Opened and mapped at first use. Views on the map keep it alive after ``close``; it is
    unmapped when the last of them is released.

    Source: RocketMQ MappedFile.
    """

    __slots__ = (
        *("_advice", "_fd", "_files", "_view"),
        *("end", "first", "path", "read_only", "size_bytes"),
    )

    def __init__(
        self,
        files: Files,
        path: Path,
        first: int,
        size_bytes: int,
        fd: int | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._files = files
        self._fd = fd
        self._view: memoryview | None = None
        self._advice = NORMAL_READS
        self.path = path
        self.first = first
        self.read_only = read_only
        self.size_bytes = size_bytes
        self.end = first + size_bytes

    @property
    def fd(self) -> int:
        """The descriptor, for reading and writing; in a read-only directory only for reading."""
        if self._fd is None:
            files = self._files
            self._fd = (files.open_for_reading if self.read_only else files.open)(self.path)
        return self._fd

    @property
    def view(self) -> memoryview:
        """All bytes of the file, read-only; slices of it stay valid while they are referenced."""
        if self._view is None:
            self._view = self._files.map_for_reading(self.fd, self.size_bytes)
            if self._advice != NORMAL_READS:
                self.advise(self._advice)
        return self._view

    @property
    def is_closed(self) -> bool:
        """Whether it takes no descriptor: it has not been used, or was closed since."""
        return self._fd is None and self._view is None

    def is_loaded(self, first: int, end: int) -> bool:
        """Return whether a part of the file is in memory; False if it is not even mapped."""
        return self._view is not None and self._files.is_resident(self._view, first, end)

    def advise(self, advice: int) -> None:
        """Tell the system how the map will be read: NORMAL_READS or RANDOM_READS."""
        self._advice = advice
        if self._view is not None:
            mapped: Any = self._view.obj
            mapped.madvise(advice)

    def read(self, position: int, size: int) -> bytes:
        """Return bytes at a position, fewer at the end of the file, without the map.

        Raises:
            StoreError: the disk cannot read them. In the map, that would be a SIGBUS.
        """
        return self._files.pread(self.fd, size, position)

    def read_through(self, end: int) -> Iterator[None]:
        """Read everything before a position that is no hole, and drop it; yields after each piece.

        Raises:
            StoreError: as ``read``.
        """
        for start, stop in self._files.data_ranges(self.fd, 0, end):
            for at in range(start, stop, PIECE_BYTES):
                self.read(at, min(PIECE_BYTES, stop - at))
                yield

    def write(self, data: bytes | memoryview, position: int) -> None:
        """Write at a position of this file.

        Raises:
            DiskFull, FlushFailed: as ``Files.pwrite``.
        """
        self._files.pwrite(self.fd, data, position)

    def write_again(self, first: int, end: int) -> None:
        """Write a part of this file again as it is; see the function of this name.

        Raises:
            DiskFull, FlushFailed, StoreError: the disk refused.
        """
        write_again(self._files, self.fd, first, end)

    def lock_in_memory(self) -> bool:
        """Keep all pages in memory; return False if the system refuses."""
        return self._files.lock_in_memory(self.view)

    def unlock_from_memory(self) -> None:
        """Undo ``lock_in_memory``; closing does that, too."""
        view = self._view  # Another thread may close an old file now.
        if view is not None:
            self._files.unlock_from_memory(view)

    def flush(self) -> None:
        """Force what was written to the disk."""
        self._files.fsync(self.fd)

    def release(self) -> bool:
        """Close the file unless views on it are still in use; return whether it is closed."""
        if self._view is not None:
            self._view = self._files.unmap(self._view)
        if self._view is not None:
            return False
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None
        return True

    def close_unused(self) -> bool:
        """Close the file for now, unless somebody uses its map; return whether it is closed.

        Unlike ``release`` it leaves alone who has the view of the whole map at hand.
        """
        if self._view is not None:
            mapped = weakref.ref(self._view.obj)
            self._view = None
            used: Any = mapped()
            if used is not None:
                self._view = memoryview(used)
                return False
        return self.release()

    def close(self) -> None:
        """Close the file. Views stay valid: the map lives as long as the last of them."""
        if not self.release():
            self._view = None
            self.release()

    def give_back_blocks(self) -> bool:
        """Free the disk space of a deleted file that is still read; it reads as zeros afterwards.

        Returns:
            Whether the system can do this.
        """
        return self._files.give_back_blocks(self.fd, self.size_bytes)

    def remove(self) -> None:
        """Close and delete the file; the caller flushes the directory."""
        self.close()
        self._files.remove(self.path)
