"""What Python does not offer of the system's calls for pages of memory and blocks of files."""

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
    import ctypes

    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:
        return False  # Not Linux.
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, 0, size_bytes) == 0)


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
