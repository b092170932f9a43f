"""The only module that calls the operating system for files.

Every caller is given a ``Files``; tests pass one that fails on purpose. Errors come out as
ours: no space is ``DiskFull``, a disk that refuses a write or a sync is ``FlushFailed``,
everything else is a ``StoreError`` that names the path and the cause.

Data files are written by ``pwrite``, never through a map, so that a full or broken disk is an
exception from a call and not a SIGBUS.
"""

import errno
import fcntl
import mmap
import os
import resource
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pymq.errors import DiskFull, FlushFailed, StoreError, StoreLocked

_NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))
_UNSUPPORTED = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))
_LOCKED = frozenset((errno.EAGAIN, errno.EACCES))
_PUNCH_HOLE_KEEP_SIZE = 0x2 | 0x1  # linux/falloc.h
_LOCK_ON_FAULT = 1  # sys/mman.h MLOCK_ONFAULT
_HINTS = {
    errno.EACCES: "give this user the right to it, or choose another directory",
    errno.EPERM: "give this user the right to it, or choose another directory",
    errno.EROFS: "the file system is read-only: remount it, or choose another directory",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.ENOTDIR: "a file stands where a directory must be: move it away",
    errno.EEXIST: "something stands where a new file or directory must be: move it away",
    errno.EISDIR: "a directory stands where a file must be: move it away",
}


@dataclass(slots=True)
class DirectoryEntry:
    """One entry of a directory; ``size`` is 0 for directories."""

    name: str
    is_directory: bool
    size: int


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """How full a file system is, as ``df`` counts: what is kept for root is neither."""

    used_bytes: int
    available_bytes: int

    @property
    def ratio(self) -> float:
        """Used share, 0.0 to 1.0."""
        return self.used_bytes / max(1, self.used_bytes + self.available_bytes)


class Files:
    """What the store asks of the operating system.

    A method that changes something is one system call, or is made of other methods that are:
    tests stop the process between any two of them.
    """

    # -- data files ---------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> int:
        """Return a descriptor for reading and writing.

        Raises:
            FileNotFoundError: no such file, and ``create`` was not asked for.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _failure(error, "open", path) from error

    def open_for_reading(self, path: Path) -> int:
        """Return a descriptor for reading alone, which a read-only directory also gives."""
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _failure(error, "open", path) from error

    def create(self, path: Path, size_bytes: int, *, reserve: bool) -> int:
        """Make a new file of its final size, all zero, and return its descriptor.

        The size is set before anything else, so that a file cut short is at most an empty one.
        The file itself is synced; its directory is not.

        Args:
            path: must not exist.
            size_bytes: final size.
            reserve: also reserve the blocks, so that later writes find space.

        Raises:
            DiskFull: and nothing is left behind.
        """
        fd = self.create_empty(path)
        try:
            self.resize(fd, size_bytes)
            if reserve:
                self.reserve(fd, size_bytes)
                self.sync_data(fd)
        except (OSError, StoreError) as error:
            self.close(fd)
            self.remove(path)
            if isinstance(error, StoreError):
                raise
            raise _failure(error, f"create with {size_bytes} B", path) from error
        return fd

    def create_empty(self, path: Path) -> int:
        """Make a new file of length 0 and return its descriptor; ``path`` must not exist."""
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise _failure(error, "create", path) from error

    def open_emptied(self, path: Path) -> int:
        """Return a descriptor of a file whose content, if it had any, is gone."""
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _failure(error, "create", path) from error

    def resize(self, fd: int, size_bytes: int) -> None:
        """Set the length of a file; what is added reads as zeros."""
        try:
            os.ftruncate(fd, size_bytes)
        except OSError as error:
            raise _failure(error, f"set its size to {size_bytes} B", _path_of(fd)) from error

    def reserve(self, fd: int, size_bytes: int) -> None:
        """Reserve the blocks of a file. Raises OSError; ``create`` translates.

        Where the file system cannot, a full disk is an error of a later write instead.
        """
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise

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

    def map_for_reading(self, fd: int, size_bytes: int) -> memoryview:
        """Return a whole file as a shared read-only map; it outlives the descriptor."""
        try:
            mapped = mmap.mmap(fd, size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            return memoryview(mapped)
        except (OSError, ValueError) as error:
            raise StoreError(f"map {_path_of(fd)} ({size_bytes} B): {error}") from error

    def unmap(self, view: memoryview) -> memoryview | None:
        """Give a map back, unless somebody holds a slice of the view.

        Returns:
            None when the map is gone; else a new view, to try again with. Who drops it leaves
            the map to the last slice: it goes with that one.
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
        """Free the disk space of a file that is still mapped; it reads as zeros from then on.

        The file keeps its length: cut short, its readers would be killed by a SIGBUS.

        Returns:
            Whether it was done; not every system and file system can.
        """
        import ctypes  # Seldom needed, and a quarter of this module's start otherwise.

        try:
            fallocate = ctypes.CDLL(None, use_errno=True).fallocate
        except AttributeError:
            return False  # Not Linux.
        fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        return bool(fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, 0, size_bytes) == 0)

    def map_memory(self, size_bytes: int) -> memoryview:
        """Return so much memory of its own, zero, writable; it goes with its last view."""
        try:
            return memoryview(mmap.mmap(-1, size_bytes))
        except (OSError, ValueError) as error:
            raise StoreError(f"no memory for a buffer of {size_bytes} B: {error}") from error

    def lock_in_memory(self, view: memoryview, *, when_used: bool = False) -> bool:
        """Keep a map's pages in memory; return False if the system refuses.

        Args:
            view: all of the map.
            when_used: each page from its first use on, instead of all at once.
        """
        if when_used:
            return _on_pages("mlock2", view, _LOCK_ON_FAULT)
        return _on_pages("mlock", view)

    def unlock_from_memory(self, view: memoryview) -> None:
        """Let the system evict a map's pages again."""
        _on_pages("munlock", view)

    def data_ranges(self, fd: int, first: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [first, end) that are not holes, in order.

        All at once: reading one of them brings pages behind it into memory, and reserved blocks
        that are in memory count as data.
        """
        found: list[tuple[int, int]] = []
        while first < end:
            try:
                start = os.lseek(fd, first, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                start = first  # The file system cannot tell: take all as data.
            if start >= end:
                break
            try:
                stop = min(os.lseek(fd, start, os.SEEK_HOLE), end)
            except OSError:
                stop = end
            found.append((start, stop))
            first = stop
        return found

    def read_part(self, path: Path, size: int, position: int) -> bytes:
        """Return up to ``size`` bytes of a file that need not be open; fewer only at its end."""
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

    def disk_usage(self, path: Path) -> DiskUsage:
        """Return how full the file system is that a path is on, or will be once it is made."""
        while not path.exists() and path != path.parent:
            path = path.parent
        try:
            found = os.statvfs(path)
        except OSError as error:
            raise _failure(error, "look at its disk", path) from error
        unit = found.f_frsize
        return DiskUsage((found.f_blocks - found.f_bfree) * unit, found.f_bavail * unit)

    # -- durability ---------------------------------------------------------------------------

    def sync_data(self, fd: int) -> None:
        """Force a file's data to the disk.

        Raises:
            FlushFailed: always final: the pages may be lost and the next sync may lie.
        """
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise _failure(error, "sync", _path_of(fd), FlushFailed, full=FlushFailed) from error

    def start_sync_of_all(self) -> None:
        """Write everything back at once, so that many following ``sync_data`` are cheap.

        Reports no errors: it replaces none of them.
        """
        os.sync()

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and deletions in a directory durable.

        Raises:
            FlushFailed: final, as in ``sync_data``.
            StoreError: it could not be opened.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _failure(error, "open directory", path) from error
        try:
            os.fsync(fd)
        except OSError as error:
            raise _failure(error, "sync directory", path, FlushFailed, full=FlushFailed) from error
        finally:
            os.close(fd)

    # -- directories and names ----------------------------------------------------------------

    def make_directory(self, path: Path, mode: int = 0o777) -> bool:
        """Make a directory and its missing parents; return whether it was missing."""
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
        """Tell whether something stands at a path."""
        return path.exists()

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing the target."""
        try:
            os.rename(source, target)
        except OSError as error:
            raise _failure(error, f"rename to {target.name}", source) from error

    def remove(self, path: Path) -> None:
        """Remove a file; one that is gone already is fine."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failure(error, "remove", path) from error

    def remove_directory(self, path: Path) -> bool:
        """Remove an empty directory; return False if it is not empty or gone."""
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST):
                return False
            raise _failure(error, "remove directory", path) from error
        return True

    # -- small whole files --------------------------------------------------------------------

    def read_file(self, path: Path) -> bytes | None:
        """Return a file's content, or None if there is no such file."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failure(error, "read", path) from error

    def write_file(self, path: Path, data: bytes) -> None:
        """Write a whole file and sync it; its directory is not synced."""
        fd = self.open_emptied(path)
        try:
            self.pwrite(fd, data, 0)
            self.sync_data(fd)
        finally:
            self.close(fd)

    # -- locks and limits ---------------------------------------------------------------------

    def lock_directory(self, path: Path) -> int:
        """Lock a directory against a second opener in this process; return its descriptor.

        RocketMQ's own lock below is one per process on POSIX: a second store of this process
        would get it too, and closing it would take it from the first.

        Raises:
            StoreLocked: somebody has it.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _failure(error, "open directory", path) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCKED:
                os.close(fd)
                raise _locked(path) from error
            # Some network file systems cannot lock directories; the file's lock remains.
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
        """Return how many descriptors this process may have."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 1 << 20 if soft == resource.RLIM_INFINITY else soft

    def process_id(self) -> int:
        """Return the number of this process, for the abort marker."""
        return os.getpid()


def _on_pages(name: str, view: memoryview, *flags: int) -> bool:
    """Call ``mlock`` or one of its kin for the pages of a map; return whether it did it."""
    import ctypes  # as in give_back_blocks

    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except AttributeError:
        return False  # Not Linux, or an old one.
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int for _ in flags))
    address = np.frombuffer(view, np.uint8).ctypes.data
    return bool(call(address, len(view), *flags) == 0)


class ReadOnlyFiles(Files):
    """Opens for reading only: enough for a store on a file system that cannot be written to."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Return a descriptor for reading.

        Raises:
            FileNotFoundError: no such file.
        """
        assert not create, f"{path}: nothing is made here"
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _failure(error, "open", path) from error

    def is_locked(self, root: Path) -> bool:
        """Tell whether somebody has a store directory open; nothing is made or changed.

        Asks by taking both locks shared and giving them back at once. The file's is asked for
        last: it is one per process, and giving it back would take it from a store of this one.

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


def _failure(
    error: OSError,
    doing: str,
    path: Path,
    kind: type[StoreError] = StoreError,
    *,
    full: type[StoreError] = DiskFull,
) -> StoreError:
    """Return our error for one of the system's; a full disk is told apart."""
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
    """Return the path behind a descriptor, for an error's text."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return Path(f"descriptor {fd}")
