"""The only module that calls the operating system for files.

Every caller is given a ``Files``; tests pass one that fails on purpose. Errors of the system are
translated: no space is ``DiskFull``, a disk that refuses a write or an fsync is ``FlushFailed``,
everything else is a ``StoreError`` that names the path and the cause.

Data files are written by ``pwrite``, never through a map, so that a full or broken disk raises an
exception instead of a SIGBUS.
"""

import errno
import fcntl
import mmap
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from pymq.errors import DiskFull, FlushFailed, StoreError, StoreLocked
from pymq.store import pages

_NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))
_LOCKED = frozenset((errno.EAGAIN, errno.EACCES))
_LOCK_ON_FAULT = 1  # sys/mman.h MLOCK_ONFAULT
#: The room on a file system that does not say how much it has.
_UNTOLD_BYTES = 1 << 60
_HINTS = {
    errno.EACCES: "give this user the right to it, or choose another directory",
    errno.EPERM: "give this user the right to it, or choose another directory",
    errno.EROFS: "the file system is read-only: remount it, or choose another directory",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.ENOTDIR: "there is a file where a directory must be: move it away",
    errno.EEXIST: "there is something where a new file or directory must be: move it away",
    errno.EISDIR: "there is a directory where a file must be: move it away",
}


@dataclass(slots=True)
class DirectoryEntry:
    """One entry of a directory; ``size`` is 0 for directories."""

    name: str
    is_directory: bool
    size: int


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """How full a file system is, as ``df`` counts: blocks reserved for root are in neither."""

    used_bytes: int
    available_bytes: int

    @property
    def ratio(self) -> float:
        """Used share, 0.0 to 1.0."""
        return self.used_bytes / max(1, self.used_bytes + self.available_bytes)


class Files:
    """What the store asks of the operating system.

    A method that changes something is one system call, or calls other methods that are: tests
    stop the process between any two of them.
    """

    #: Files that are being created, or could neither be completed nor removed: ``create`` may
    #: find them in its way.
    half_made: frozenset[Path] = frozenset()

    # -- data files ---------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> int:
        """Return a descriptor for reading and writing.

        Raises:
            FileNotFoundError: there is no such file, and ``create`` is False.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _failure(error, "open", path) from error

    def open_for_reading(self, path: Path) -> int:
        """Return a descriptor only for reading, also in a read-only directory."""
        return _opened(path, os.O_RDONLY, "open")

    def create(self, path: Path, size_bytes: int, *, reserve: bool) -> int:
        """Create a file of its final size, all zeros, and return its descriptor.

        The size is set first, so that an interrupted creation leaves an empty file at most. With
        ``reserve`` the file is flushed; its directory is not.

        Args:
            path: must not exist.
            size_bytes: final size.
            reserve: also reserve the blocks, so that later writes find space.

        Raises:
            DiskFull: no file is left.
        """
        if path in self.half_made:
            self.remove(path)
        fd = self.create_empty(path)
        self.half_made |= {path}
        try:
            self.resize(fd, size_bytes)
            if reserve:
                self.reserve(fd, size_bytes)
                self.fsync(fd)
        except (OSError, StoreError) as error:
            self.close(fd)
            self.remove(path)
            if isinstance(error, StoreError):
                raise
            raise _failure(error, f"create with {size_bytes} B", path) from error
        self.half_made -= {path}
        return fd

    def create_empty(self, path: Path) -> int:
        """Create a file of length 0 and return its descriptor; ``path`` must not exist."""
        return _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "create")

    def open_emptied(self, path: Path) -> int:
        """Return a descriptor of a file, created if missing, with its content removed."""
        return _opened(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, "create")

    def resize(self, fd: int, size_bytes: int) -> None:
        """Set the length of a file; added bytes read as zeros."""
        try:
            os.ftruncate(fd, size_bytes)
        except OSError as error:
            raise _failure(error, f"set its size to {size_bytes} B", _path_of(fd)) from error

    def reserve(self, fd: int, size_bytes: int) -> None:
        """Reserve the blocks of a file. Raises OSError; ``create`` translates it.

        If the file system cannot do this, a full disk is an error of a later write.
        """
        pages.reserve(fd, size_bytes)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def duplicate(self, fd: int) -> int:
        """Return a second descriptor of the same open file."""
        try:
            return os.dup(fd)
        except OSError as error:
            raise _failure(error, "open once more", _path_of(fd)) from error

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> None:
        """Write all of ``data`` at a position.

        Raises:
            DiskFull: a part may have been written.
            FlushFailed: the disk refused.
        """
        try:
            done = os.pwrite(fd, data, position)
            if done != len(data):
                rest = memoryview(data)
                while done < len(rest):
                    done += os.pwrite(fd, rest[done:], position + done)
        except OSError as error:
            kind = FlushFailed if error.errno == errno.EIO else StoreError
            raise _failure(error, f"write at {position}", _path_of(fd), kind) from error

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Return up to ``size`` bytes; fewer only at the end of the file."""
        try:
            data = os.pread(fd, size, position)
            while len(data) < size:
                more = os.pread(fd, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _failure(error, f"read at {position}", _path_of(fd)) from error
        return data

    def is_cached(self, fd: int, size: int, position: int) -> bool:
        """Return whether a part of a file can be read without the disk, or nobody can tell."""
        return pages.is_cached(fd, size, position)

    def touch(self, path: Path, size: int, position: int) -> None:
        """Have the system hold a part of a file in memory; in a thread that may wait."""
        fd = self.open_for_reading(path)
        try:
            pages.touch(fd, size, position)
        except OSError as error:
            raise _failure(error, f"read at {position}", path) from error
        finally:
            self.close(fd)

    def map_for_reading(self, fd: int, size_bytes: int) -> memoryview:
        """Return a whole file as a shared read-only map; it outlives the descriptor."""
        try:
            return memoryview(mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ))
        except (OSError, ValueError) as error:
            failure = error if isinstance(error, OSError) else OSError(0, str(error))
            raise _failure(failure, f"map its {size_bytes} B", _path_of(fd)) from error

    def unmap(self, view: memoryview) -> memoryview | None:
        """Unmap, unless slices of the view are in use.

        Returns:
            None if it is unmapped; otherwise a new view, to try again with. Without it, the map
            lives as long as the last slice.
        """
        mapped = view.obj
        view.release()
        assert isinstance(mapped, mmap.mmap)
        try:
            mapped.close()
        except BufferError:
            return memoryview(mapped)
        return None

    def give_back_blocks(self, fd: int, size_bytes: int) -> bool:
        """Free the disk space of a file that is still mapped; it reads as zeros afterwards.

        The file keeps its length: if it was truncated, readers would be killed by a SIGBUS.

        Returns:
            Whether it was done; not every system and file system can do it.
        """
        return pages.punch(fd, size_bytes)

    def map_memory(self, size_bytes: int) -> memoryview:
        """Return writable anonymous memory, all zeros; it is freed with its last view."""
        try:
            return memoryview(mmap.mmap(-1, size_bytes))
        except (OSError, ValueError) as error:
            raise StoreError(f"no memory for a buffer of {size_bytes} B: {error}") from error

    def lock_in_memory(self, view: memoryview, *, when_used: bool = False) -> bool:
        """Keep a map's pages in memory; return False if the system refuses.

        Args:
            view: all of the map.
            when_used: lock each page at its first use, instead of all at once.
        """
        if when_used:
            return pages.on_pages("mlock2", view, _LOCK_ON_FAULT)
        return pages.on_pages("mlock", view)

    def is_resident(self, view: memoryview, first: int, end: int) -> bool:
        """Return whether a part of a map can be read without the disk, or nobody can tell.

        Args:
            view: all of the map.
            first, end: the part.
        """
        return pages.is_resident(view, first, end)

    def unlock_from_memory(self, view: memoryview) -> None:
        """Let the system evict a map's pages again."""
        pages.on_pages("munlock", view)

    def data_ranges(self, fd: int, first: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [first, end) that are not holes, in order.

        All in one call: reading one of them brings the pages after it into memory, and reserved
        blocks that are in memory count as data.
        """
        return pages.data_ranges(fd, first, end)

    def read_part(self, path: Path, size: int, position: int) -> bytes:
        """Open a file and return up to ``size`` bytes; fewer only at its end."""
        fd = self.open_for_reading(path)
        try:
            return self.pread(fd, size, position)
        finally:
            self.close(fd)

    def modified_ms(self, path: Path) -> int:
        """Return when a file was last written, ms since the epoch."""
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except OSError as error:
            raise _failure(error, "look at", path) from error

    def is_at(self, fd: int, path: Path) -> bool:
        """Return whether a path still leads to what a descriptor has open."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _failure(error, "look at", path) from error

    def disk_usage(self, path: Path) -> DiskUsage:
        """Return how full the file system of a path is, whether or not the path exists.

        One that does not say how large it is, as some do that are no disk, counts as empty.
        """
        while not path.exists() and path != path.parent:
            path = path.parent
        try:
            found = os.statvfs(path)
        except OSError as error:
            raise _failure(error, "look at its disk", path) from error
        if not found.f_blocks:
            return DiskUsage(0, _UNTOLD_BYTES)
        unit = found.f_frsize
        return DiskUsage((found.f_blocks - found.f_bfree) * unit, found.f_bavail * unit)

    # -- durability ---------------------------------------------------------------------------

    def fsync(self, fd: int) -> None:
        """Force a file's data to the disk.

        Raises:
            FlushFailed: always final: the pages may be lost, and the next fsync may succeed.
        """
        try:
            pages.sync(fd, data_only=True)
        except OSError as error:
            raise _failure(error, "fsync", _path_of(fd), FlushFailed, full=FlushFailed) from error

    def start_writeback(self) -> None:
        """Write back all files of the system, so that many following ``fsync`` are cheap.

        Reports no errors, and replaces no ``fsync``.
        """
        os.sync()

    def fsync_directory(self, path: Path) -> None:
        """Make creations, renames and deletions in a directory durable.

        Raises:
            FlushFailed: final, as in ``fsync``.
            StoreError: it could not be opened.
        """
        fd = _opened(path, os.O_RDONLY | os.O_DIRECTORY, "open directory")
        try:
            pages.sync(fd, data_only=False)
        except OSError as error:
            raise _failure(error, "fsync directory", path, FlushFailed, full=FlushFailed) from error
        finally:
            os.close(fd)

    # -- directories and names ----------------------------------------------------------------

    def make_directory(self, path: Path, mode: int = 0o777) -> bool:
        """Create a directory and its missing parents; return whether it was missing."""
        if path.is_dir():
            return False
        try:
            path.mkdir(mode=mode, parents=True, exist_ok=True)
        except OSError as error:
            raise _failure(error, "make directory", path) from error
        return True

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        """Return a directory's entries sorted by name; none if it does not exist."""
        try:
            with os.scandir(path) as entries:
                found = [
                    DirectoryEntry(
                        entry.name, entry.is_dir(), 0 if entry.is_dir() else entry.stat().st_size
                    )
                    for entry in entries
                ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failure(error, "list", path) from error
        return sorted(found, key=lambda entry: entry.name)

    def exists(self, path: Path) -> bool:
        """Return whether a path exists."""
        return path.exists()

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing the target."""
        try:
            os.rename(source, target)
        except OSError as error:
            raise _failure(error, f"rename to {target.name}", source) from error

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failure(error, "remove", path) from error

    def remove_directory(self, path: Path) -> bool:
        """Remove an empty directory; return False if it is not empty or does not exist."""
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST):
                return False
            raise _failure(error, "remove directory", path) from error
        return True

    # -- small whole files --------------------------------------------------------------------

    def read_file(self, path: Path) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failure(error, "read", path) from error

    def write_file(self, path: Path, data: bytes) -> None:
        """Write a whole file and flush it; its directory is not flushed."""
        fd = self.open_emptied(path)
        try:
            self.pwrite(fd, data, 0)
            self.fsync(fd)
        finally:
            self.close(fd)

    # -- locks and limits ---------------------------------------------------------------------

    def lock_directory(self, path: Path) -> int:
        """Lock a directory against a second opener in this process; return its descriptor.

        RocketMQ's own lock, ``lock_file``, belongs to the process on POSIX: a second store of this
        process would get it, too, and closing that would release the lock of the first.

        Raises:
            StoreLocked: it is taken.
        """
        fd = _opened(path, os.O_RDONLY | os.O_DIRECTORY, "open directory")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCKED:
                os.close(fd)
                raise _locked(path) from error
            # Some network file systems cannot lock directories; the lock of the file remains.
        return fd

    def lock_file(self, path: Path) -> int:
        """Take RocketMQ's lock, the record lock on byte 0 of a file; return its descriptor.

        Raises:
            StoreLocked: another process has it.
        """
        fd = self.open(path, create=True)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(fd)
            if error.errno in _LOCKED:
                raise _locked(path.parent) from error
            raise _failure(error, "lock", path) from error
        return fd

    def open_files_limit(self) -> int:
        """Return how many descriptors this process can open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 1 << 20 if soft == resource.RLIM_INFINITY else soft

    def process_id(self) -> int:
        """Return the id of this process, for the abort marker."""
        return os.getpid()


class ReadOnlyFiles(Files):
    """Opens only for reading: for inspection, also on a read-only file system."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Return a descriptor for reading.

        Raises:
            FileNotFoundError: no such file.
        """
        assert not create, f"{path}: read-only"
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _failure(error, "open", path) from error

    def is_locked(self, root: Path) -> bool:
        """Return whether a broker has a store directory open; nothing is created or changed.

        Takes both locks shared and releases them at once. That of the file comes last: it belongs
        to the process, and releasing it would take it from a store of this process.

        Raises:
            StoreError: the directory or its lock cannot be read.
        """
        try:
            fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            finally:
                os.close(fd)
            fd = os.open(root / "lock", os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        except OSError as error:
            raise _failure(error, "ask for its lock", root) from error
        return False


def _opened(path: Path, flags: int, what: str) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _failure(error, what, path) from error


def _failure(
    error: OSError,
    doing: str,
    path: Path,
    kind: type[StoreError] = StoreError,
    *,
    full: type[StoreError] = DiskFull,
) -> StoreError:
    """Return our error for an error of the system."""
    if error.errno in _NO_SPACE:
        return full(f"{path}: {doing}: no space left on the device; free some space there")
    hint = _HINTS.get(error.errno or 0)
    return kind(f"{path}: {doing}: {error.strerror or error}" + (f"; {hint}" if hint else ""))


def _locked(path: Path) -> StoreLocked:
    return StoreLocked(
        f"{path}: another broker has this store directory open; "
        "stop it, or give this one another storePathRootDir"
    )


def _path_of(fd: int) -> Path:
    """Return the path of a descriptor, for an error message."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return Path(f"descriptor {fd}")
