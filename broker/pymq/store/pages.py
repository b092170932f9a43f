"""What Python does not offer of the system's calls for pages of memory and blocks of files.

Nor does it offer one call for what is done otherwise on Linux, on macOS and elsewhere.
"""

import errno
import fcntl
import functools
import os
from collections.abc import Callable
from resource import getpagesize

import numpy as np

_PAGE_BYTES = getpagesize()
#: preadv(2): fail where the disk would have to be waited for. 0 where the system has no such thing.
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)
#: Where bytes are read to that nobody looks at: new memory would cost more than reading them.
_unread = memoryview(bytearray(1 << 20))
#: Read at once to have it in memory: less than a millisecond of work.
_TOUCHED_BYTES = 256 << 10
_PUNCH_HOLE_KEEP_SIZE = 0x2 | 0x1  # linux/falloc.h
#: How a file system, or the system, says that it has no such thing.
_UNSUPPORTED = frozenset(
    (errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.ENOTTY)
)

# ``ctypes`` is imported where it is needed: rarely, and it takes as long as all of the store's
# module for files.


def on_pages(name: str, view: memoryview, *flags: int) -> bool:
    """Call ``mlock`` or a similar function for the pages of a map; return whether it worked."""
    import ctypes

    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except AttributeError:
        return False  # Not Linux, or an old version.
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int for _ in flags))
    return bool(call(_address(view), len(view), *flags) == 0)


def is_resident(view: memoryview, first: int, end: int) -> bool:
    """Return whether all pages of a part of a map are in memory, or the system cannot tell."""
    first -= first % _PAGE_BYTES
    found = np.zeros(-(-(end - first) // _PAGE_BYTES), np.uint8)
    if _mincore()(_address(view) + first, end - first, found.ctypes.data) != 0:
        return True
    return bool((found & 1).all())  # the other bits are undefined


def is_cached(fd: int, size: int, position: int) -> bool:
    """Return whether a part of a file can be read without the disk, or nobody can tell."""
    if not _NO_WAIT:
        return True
    buffer = _unread[:size] if size <= len(_unread) else bytearray(size)
    try:
        return os.preadv(fd, (buffer,), position, _NO_WAIT) == size
    except BlockingIOError:
        return False
    except OSError:
        return True  # In memory anyway, as with tmpfs, or the read says what is wrong.


def punch(fd: int, size_bytes: int) -> bool:
    """Free the blocks of a file; return whether the system can."""
    return _fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, size_bytes) == 0


def data_ranges(fd: int, first: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of [first, end) of a file that are not holes, in order."""
    found: list[tuple[int, int]] = []
    while first < end:
        try:
            start = os.lseek(fd, first, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            start = first  # The file system does not say: all of it counts as data.
        if start >= end:
            break
        try:
            first = min(os.lseek(fd, start, os.SEEK_HOLE), end)
        except OSError:
            first = end
        found.append((start, first))
    return found


def reserve(fd: int, size_bytes: int) -> None:
    """Reserve the blocks of a file, if the system and the file system can.

    Raises:
        OSError: they can, and it failed.
    """
    # Not posix_fallocate, if it can be avoided: where the file system cannot reserve, that of glibc
    # writes into every 4 KiB of the file instead, which takes minutes for one of the log.
    code = _fallocate(fd, 0, size_bytes)
    if code == errno.ENOSYS and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            code = 0
        except OSError as error:
            code = error.errno or errno.EIO
    if code and code not in _UNSUPPORTED:
        raise OSError(code, os.strerror(code))


def _fallocate(fd: int, mode: int, size_bytes: int) -> int:
    """Call fallocate(2) for a whole file; return its error number, 0 if it worked."""
    import ctypes

    system = ctypes.CDLL(None, use_errno=True)
    # The first one is that of 32-bit systems for large files.
    call = getattr(system, "fallocate64", None) or getattr(system, "fallocate", None)
    if call is None:
        return errno.ENOSYS  # Not Linux.
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    code = errno.EINTR
    while code == errno.EINTR:
        code = 0 if call(fd, mode, 0, size_bytes) == 0 else ctypes.get_errno()
    return code


def sync(fd: int, *, data_only: bool) -> None:
    """Force a file, or the names in a directory, to the disk; a drive's own cache is flushed, too.

    Args:
        fd: of the file or the directory.
        data_only: leave out what nobody needs to read the file, such as its times.

    Raises:
        OSError: it failed.
    """
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:  # macOS, where fsync leaves all in the drive's cache
        try:
            fcntl.fcntl(fd, full_sync)
            return
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    if data_only and hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def touch(fd: int, size: int, position: int) -> None:
    """Have the system hold a part of a file in memory.

    In small pieces: others who need the processor may have to wait until a call returns.

    Args:
        fd: used for nothing else afterwards: reads from it will not read ahead.
        size, position: the part.
    """
    if hasattr(os, "posix_fadvise"):  # otherwise the system takes many pieces together
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    with open(os.devnull, "wb", buffering=0) as nowhere:
        for at in range(position, position + size, _TOUCHED_BYTES):
            piece_bytes = min(_TOUCHED_BYTES, position + size - at)
            try:
                os.sendfile(nowhere.fileno(), fd, at, piece_bytes)  # copies nothing
            except (OSError, AttributeError):  # macOS sends to sockets only, Windows not at all
                os.pread(fd, piece_bytes, at)


def _address(view: memoryview) -> int:
    address: int = np.frombuffer(view, np.uint8).ctypes.data
    return address


@functools.cache
def _mincore() -> Callable[[int, int, int], int]:
    """Return mincore(2): address, size, address of a byte for each page; not 0 if it fails."""
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).mincore
    except AttributeError:
        return lambda address, size, states: -1  # Not Linux.
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return call
