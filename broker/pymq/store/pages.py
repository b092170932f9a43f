"""What Python does not offer of the system's calls for pages of memory and blocks of files."""

import functools
from collections.abc import Callable
from resource import getpagesize

import numpy as np

_PAGE_BYTES = getpagesize()
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


def punch(fd: int, size_bytes: int) -> bool:
    """Free the blocks of a file; return whether the system can."""
    import ctypes

    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:
        return False  # Not Linux.
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, 0, size_bytes) == 0)


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
