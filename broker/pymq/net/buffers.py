"""Buffers for large bodies, used again once nobody holds a view on them."""

_ROUND_BYTES = 1 << 20


class BufferPool:
    """Hands out memory for bodies, of connections that share it; for one thread.

    A fresh buffer costs several times what receiving into it does: each of its pages is cleared,
    or even fetched from elsewhere, when it is touched first.

    Args:
        count_max: buffers kept; more are made when all are in use, and then dropped.
    """

    def __init__(self, *, count_max: int) -> None:
        self._count_max = count_max
        self._buffers: list[bytearray] = []
        self._used: set[int] = set()

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes of a buffer that nobody holds a view on.

        It stays the caller's for as long as a view on it, or on a part of it, exists
        (memoryview, numpy or Arrow array alike).
        """
        free = [buffer for buffer in self._buffers if _is_free(buffer)]
        for buffer in free:
            if len(buffer) >= size:
                self._used.add(id(buffer))
                return memoryview(buffer)[:size]
        for buffer in free:  # Too small; let a larger one have the place.
            self._drop(buffer)
        # Rounded up, so that the next body, a little larger, fits, too.
        buffer = bytearray((size + _ROUND_BYTES - 1) // _ROUND_BYTES * _ROUND_BYTES)
        if len(self._buffers) < self._count_max:
            self._buffers.append(buffer)
            self._used.add(id(buffer))
        return memoryview(buffer)[:size]

    def drop_unused(self) -> None:
        """Give back the buffers that were not taken since this was called last."""
        for buffer in list(self._buffers):
            if id(buffer) not in self._used:
                self._drop(buffer)
        self._used.clear()

    def _drop(self, unwanted: bytearray) -> None:
        self._buffers = [buffer for buffer in self._buffers if buffer is not unwanted]
        self._used.discard(id(unwanted))


def _is_free(buffer: bytearray) -> bool:
    """Does nobody hold a view on the buffer? A bytearray cannot be resized while somebody does."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
