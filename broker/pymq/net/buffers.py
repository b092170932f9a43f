"""Buffers for large bodies, reused once no view on them is left."""

from collections.abc import Callable

_ROUND_BYTES = 1 << 20


class BufferPool:
    """Hands out memory for bodies to the connections that share it; for one thread.

    A fresh buffer costs several times as much as receiving into it: the system clears each of its
    pages, or even fetches it from elsewhere, when it is first touched.

    Args:
        count_max: buffers kept; while all are in use more are made, and dropped after use.

    Attributes:
        waiting_bytes: input of all these connections that was read and waits for its turn.
        unfinished_bytes: what has been received of frames that are not complete.
        unfinished_bytes_max: above this, ``on_full`` is called.
    """

    def __init__(self, *, count_max: int) -> None:
        self._count_max = count_max
        self._buffers: list[bytearray] = []
        self._used: set[int] = set()
        self.waiting_bytes = 0
        self.unfinished_bytes = 0
        self.unfinished_bytes_max: float = float("inf")
        self.on_full: Callable[[], object] = lambda: None

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes of a buffer on which there is no view.

        It belongs to the caller for as long as a view on it, or on a part of it, exists
        (memoryview, numpy or Arrow array alike).
        """
        free = [buffer for buffer in self._buffers if _is_free(buffer)]
        for buffer in free:
            if len(buffer) >= size:
                self._used.add(id(buffer))
                return memoryview(buffer)[:size]
        for buffer in free:  # Too small; make room for a larger one.
            self._drop(buffer)
        # Rounded up, so that a slightly larger body fits next time.
        buffer = bytearray((size + _ROUND_BYTES - 1) // _ROUND_BYTES * _ROUND_BYTES)
        if len(self._buffers) < self._count_max:
            self._buffers.append(buffer)
            self._used.add(id(buffer))
        return memoryview(buffer)[:size]

    def drop_unused(self) -> None:
        """Free the buffers that were not taken since the last call."""
        for buffer in list(self._buffers):
            if id(buffer) not in self._used:
                self._drop(buffer)
        self._used.clear()

    def _drop(self, unwanted: bytearray) -> None:
        self._buffers = [buffer for buffer in self._buffers if buffer is not unwanted]
        self._used.discard(id(unwanted))


def _is_free(buffer: bytearray) -> bool:
    """Is there no view on the buffer? While there is one, a bytearray cannot be resized."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
