"""The open files of consume queues and of their extensions."""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from pymq.errors import CorruptRecord, StoreError
from pymq.store.files import Files
from pymq.store.log.segment import write_again

#: Above this many files, one write-back of everything first is cheaper than a journal commit
#: for each file.
_MANY_FILES = 256
_ZEROS = bytes(1 << 16)
#: Descriptors of deleted files take no more than one of so many.
_DELETED_SHARE = 4


class QueueFiles:
    """The open queue files; beyond a limit the least recently used one is closed.

    Also records which files and directories changed since they were last flushed.

    Attributes:
        deleted: descriptors of deleted files, for another thread to close: the blocks and pages of
            a file are freed then, which takes a hundred times as long as removing its name.
    """

    def __init__(self, files: Files, open_max: int) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._open_max = open_max
        self.files = files
        self.deleted: list[int] = []
        self.dirty: set[str] = set()
        self.dirty_directories: set[Path] = set()

    def descriptor(self, path: str) -> int:
        """Return the descriptor of an existing file.

        Raises:
            CorruptRecord: the file is gone.
        """
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        try:
            fd = self.files.open(Path(path))
        except FileNotFoundError as error:
            raise CorruptRecord(
                f"{path}: this consume-queue file is gone; restart the broker to rebuild it"
            ) from error
        self._keep(path, fd)
        return fd

    def is_cached(self, path: str, size: int, position: int) -> bool:
        """Return whether a part of a file is in memory; opening the file may mean to wait, too."""
        fd = self._open.get(path)
        return fd is not None and self.files.is_cached(fd, size, position)

    def create(self, path: Path, size_bytes: int) -> None:
        """Create a file of its nominal size, and its directories."""
        directory = path.parent
        self.files.make_directory(directory)
        self._keep(str(path), self.files.create(path, size_bytes, reserve=False))
        # Up to the store's own: a process that created them may have died before flushing them.
        self.dirty_directories.update((directory, *directory.parents[:3]))

    def _keep(self, path: str, fd: int) -> None:
        self._open[path] = fd
        if len(self._open) + len(self.deleted) > self._open_max:
            _, oldest = self._open.popitem(last=False)
            self.files.close(oldest)

    def begin_flush(self) -> "QueueFlush":
        """Return a flush of the files and directories that changed; they count as flushed."""
        flush = QueueFlush(self.files, self.dirty, self.dirty_directories)
        self.dirty, self.dirty_directories = set(), set()
        return flush

    def finish_flush(self, flush: "QueueFlush", *, is_done: bool) -> None:
        """Record the outcome of a flush; unless it is done, all of it is left to the next."""
        if not is_done:
            self.dirty |= flush.paths
            self.dirty_directories |= flush.directories

    def flush(self) -> None:
        """Force every changed file and directory to the disk, in this thread."""
        self.begin_flush().run()

    def flush_names(self) -> None:
        """Force every changed directory to the disk; the next flush does it again."""
        QueueFlush(self.files, set(), self.dirty_directories).run()

    def remove(self, path: str) -> None:
        """Delete a file; a descriptor of it goes to ``deleted``, if there are some left for that.

        All together are no more than may be open.
        """
        fd = self._open.pop(path, None)
        self.dirty.discard(path)
        is_few = len(self.deleted) < self._open_max // _DELETED_SHARE
        if is_few and len(self._open) + len(self.deleted) < self._open_max:
            fd = self._last_descriptor(path) if fd is None else fd
            if fd is not None:
                self.deleted.append(fd)
        elif fd is not None:
            self.files.close(fd)
        self.files.remove(Path(path))
        self.dirty_directories.add(Path(path).parent)

    def forget(self, path: str) -> None:
        """Close a file that another thread is going to delete; nothing of it is flushed."""
        self.dirty.discard(path)
        fd = self._open.pop(path, None)
        if fd is not None:
            self.files.close(fd)

    def _last_descriptor(self, path: str) -> int | None:
        """Return a descriptor of a file that is going to be deleted, unless there is none left."""
        try:
            return self.files.open(Path(path))
        except (FileNotFoundError, StoreError):
            return None

    def take_deleted(self) -> list[int]:
        """Return the descriptors of deleted files; the caller closes them, in any thread."""
        taken, self.deleted = self.deleted, []
        return taken

    def remove_directory(self, path: Path) -> None:
        """Delete a directory, and the one that holds it, if they are empty."""
        for directory in (path, path.parent):
            if not self.files.remove_directory(directory):
                return
            self.dirty_directories.discard(directory)
            self.dirty_directories.add(directory.parent)

    def zero(self, path: str, position: int, size_bytes: int) -> None:
        """Zero a file of ``size_bytes`` from a position on; holes stay holes."""
        fd = self.descriptor(path)
        for start, end in self.files.data_ranges(fd, position, size_bytes):
            while start < end:
                piece = self.files.pread(fd, min(len(_ZEROS), end - start), start)
                if piece.count(0) != len(piece):
                    self.files.pwrite(fd, _ZEROS[: len(piece)], start)
                    self.dirty.add(path)
                start += len(piece)

    def write_again(self, path: str, first: int, end: int) -> None:
        """Write a part of a file again as it is, and leave it to the next flush; holes stay holes.

        See the function of this name for the reason.
        """
        self.dirty.add(path)
        fd = self.descriptor(path)
        for start, stop in self.files.data_ranges(fd, first, end):
            write_again(self.files, fd, start, stop)

    def close(self) -> None:
        """Close all files."""
        for fd in self.take_deleted():
            self.files.close(fd)
        while self._open:
            _, fd = self._open.popitem()
            self.files.close(fd)


@dataclass(frozen=True, slots=True)
class QueueFlush:
    """One flush of queue files: ``run`` in any thread, then ``QueueFiles.finish_flush``."""

    files: Files
    paths: set[str]
    directories: set[Path]

    def run(self) -> None:
        """Flush the files, then the directories. Deleted ones are skipped.

        Raises:
            FlushFailed: an fsync failed.
            StoreError: something could not be opened; it can be tried again.
        """
        files = self.files
        if len(self.paths) > _MANY_FILES:
            files.start_writeback()
        for path in sorted(self.paths):  # sorted, so that a crash test can be repeated
            try:
                fd = files.open(Path(path))
            except FileNotFoundError:
                continue
            try:
                files.fsync(fd)
            finally:
                files.close(fd)
        for directory in sorted(self.directories):
            try:
                files.fsync_directory(directory)
            except StoreError:
                if files.exists(directory):
                    raise
