"""What is cut off a log because its master's has other bytes there: kept aside, all of it.

::

    recovered/000007-cut-at-00000000000000001234/
        00000000000000001234    copied from the file of the log that is cut
        00000000000000004096    a whole file of the log, renamed

Each file has the physical offset of its first byte as its name. Each cut has a directory of its
own, which only a user deletes: somebody may have acknowledged these messages, by a setting or
by mistake, and here they are the last ones that are left.

A renamed file takes no room on the disk that it did not take before, less in fact: what was
reserved for later messages is given back. If the directory is on another file system than the
file, it is put beside the directory of the log, or copied if that is one, too. (Not into that
directory: RocketMQ 4.9 does not start if there is anything else.)

Nothing is cut before the copy is on the disk. If a part was cut when the process died, or the disk
refused, the next attempt cuts the rest, and uses the copy of the one before it if that is the same.
"""

import errno
from pathlib import Path

from pymq.errors import DiskFull, StoreError
from pymq.store.files import Files
from pymq.store.log.cut_bytes import Rest, number_of, rest_of, zero
from pymq.store.log.segment import NAME_DIGITS, PIECE_BYTES, Segment, segment_name
from pymq.store.log.segments import Segments
from pymq.store.log.torn_tail import RECOVERED_NAME


class LogCut:
    """One cut of a log that nobody has open.

    Args:
        files: the operating system.
        segments: of the log.
        root: of the store; what is cut off is kept in its directory ``recovered``.
        end: physical offset, in the log or at its end.

    Attributes:
        kept_in: the directories in which it is kept; complete after ``cut``.
    """

    def __init__(self, files: Files, segments: Segments, root: Path, end: int) -> None:
        self._files = files
        self._segments = segments
        self._end = end
        self._root = root / RECOVERED_NAME
        count = sum(segment.first < end for segment in segments)
        # A log without a file begins at 0. One that begins later keeps its first file.
        self._stay_count = max(count, 1) if end and len(segments) else count
        self._name = ""
        self._rest = Rest(0, [], [])
        self.kept_in: list[Path] = []

    @property
    def _last(self) -> Segment | None:
        """The segment in which the log will end, if something of it is cut off."""
        if not self._stay_count:
            return None
        last = self._segments[self._stay_count - 1]
        return last if self._end < last.end else None

    def copy(self) -> None:
        """Copy aside what is cut off a file that stays; nothing is cut yet.

        Raises:
            DiskFull, FlushFailed, StoreError: the disk refused; no copy is left.
        """
        last = self._last
        if last is not None:
            self._rest = rest_of(self._files, last, self._end - last.first)
        used = self._rest.used
        if last is None or not used:
            self._name = self._new_name()
            return
        found = self._copy_before(last, used)
        self._name = found or self._new_name()
        if found is None:
            self._copy(last, self._end - last.first, used)

    def cut(self) -> int:
        """Move whole files aside, the last one first, and zero what is copied.

        Returns:
            How many bytes are gone: those that are kept.

        Raises:
            DiskFull, FlushFailed, StoreError: the disk refused; begin again.
        """
        cut = 0
        while len(self._segments) > self._stay_count:
            segment = self._segments[len(self._segments) - 1]
            # Only the last file with messages, and those prepared after it, are not full.
            used = segment.size_bytes if cut else rest_of(self._files, segment, 0).used
            if used:
                self._move(segment, used)
            cut += used
            # Of a file that was moved this makes durable that it is gone from the log.
            self._segments.drop_after(len(self._segments) - 1)
        last = self._last
        if last is not None:
            zero(last, self._rest.pieces)
        return cut + self._rest.used

    # -- where it is kept ---------------------------------------------------------------------

    def _bases(self) -> list[Path]:
        """Return the directories in which those of cuts may be."""
        beside = [segment.path.parent.parent / RECOVERED_NAME for segment in self._segments]
        return list(dict.fromkeys((self._root, *beside)))

    def _new_name(self) -> str:
        numbers = (
            number_of(entry.name)
            for base in self._bases()
            for entry in self._files.list_directory(base)
        )
        return f"{1 + max(numbers, default=0):06d}{self._suffix}"

    @property
    def _suffix(self) -> str:
        return f"-cut-at-{self._end:0{NAME_DIGITS}d}"

    def _copy_before(self, segment: Segment, size: int) -> str | None:
        """Return the directory with the copy of an attempt that did not come to its end."""
        copy = segment_name(self._end)
        moved = {one.path.name for one in list(self._segments)[self._stay_count :]}
        for entry in reversed(self._files.list_directory(self._root)):
            if not entry.is_directory or not entry.name.endswith(self._suffix):
                continue
            path = self._root / entry.name
            there = {one.name: one.size for one in self._files.list_directory(path)}
            if there.get(copy) != size or moved & there.keys():
                continue
            if self._is_same(path / copy, segment, size):
                self._files.fsync_directory(path)
                self._files.fsync_directory(self._root)
                self.kept_in.append(path)
                return entry.name
        return None

    def _is_same(self, path: Path, segment: Segment, size: int) -> bool:
        """Return whether a copy is the same; if so, it is on the disk then."""
        position = self._end - segment.first
        fd = self._files.open(path)
        try:
            for at in range(0, size, PIECE_BYTES):
                piece = min(PIECE_BYTES, size - at)
                if self._files.pread(fd, piece, at) != segment.read(position + at, piece):
                    return False
            self._files.fsync(fd)
        finally:
            self._files.close(fd)
        return True

    def _make(self, base: Path) -> Path:
        """Return the directory of this cut, which exists then, durably."""
        path = base / self._name
        if path not in self.kept_in:
            is_new = self._files.make_directory(base)
            self._files.make_directory(path)
            self._files.fsync_directory(base)
            if is_new:
                self._files.fsync_directory(base.parent)
            self.kept_in.append(path)
        return path

    def _drop(self, path: Path) -> None:
        """Remove a directory of this cut if nothing is in it."""
        if self._files.remove_directory(path):
            self.kept_in.remove(path)

    # -- one file -----------------------------------------------------------------------------

    def _move(self, segment: Segment, used: int) -> None:
        for base in dict.fromkeys((self._root, segment.path.parent.parent / RECOVERED_NAME)):
            directory = self._make(base)
            try:
                self._files.rename(segment.path, directory / segment.path.name)
            except StoreError as error:
                self._drop(directory)
                if not _is_across(error):
                    raise
                continue
            self._files.fsync_directory(directory)
            if used < segment.size_bytes and not segment.read_only:
                self._files.resize(segment.fd, used)  # gives back what is reserved
            return
        self._copy(segment, 0, used)

    def _copy(self, segment: Segment, position: int, size: int) -> None:
        """Copy bytes of a segment aside, durably, or leave nothing."""
        # A copy that does not fit would take all the room there is, and others need some.
        free = self._files.disk_usage(self._root).available_bytes
        if free < size:
            raise DiskFull(self._lack(segment, size, f"{free} B are free"))
        directory = self._make(self._root)
        path = directory / segment_name(segment.first + position)
        try:
            fd = self._files.open_emptied(path)
            try:
                for at in range(0, size, PIECE_BYTES):
                    piece = segment.read(position + at, min(PIECE_BYTES, size - at))
                    self._files.pwrite(fd, piece, at)
                self._files.fsync(fd)
            finally:
                self._files.close(fd)
            self._files.fsync_directory(directory)
        except StoreError as error:
            self._files.remove(path)
            self._drop(directory)
            if isinstance(error, DiskFull):
                raise DiskFull(self._lack(segment, size, str(error))) from error
            raise

    def _lack(self, segment: Segment, size: int, reason: str) -> str:
        return (
            f"{segment.path}: {size} B of this file have to be cut off, and kept in {self._root}, "
            f"but there is no room for them: {reason}. They were not cut off: free some space there"
        )


def _is_across(error: StoreError) -> bool:
    """Return whether a rename failed because the two places are on different file systems."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EXDEV
