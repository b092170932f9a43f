"""What a peer takes and answers: whether a request that is late is stuck, or just behind others."""

import asyncio
import socket
import struct
from typing import Final

try:
    import fcntl
    import termios
except ImportError:  # Windows does not tell what its kernel keeps.
    _OUTPUT_BYTES: int | None = None
else:
    _OUTPUT_BYTES = getattr(termios, "TIOCOUTQ", None)

#: Numbers of requests wrap around.
_MASK: Final = (1 << 32) - 1
_HALF: Final = 1 << 31
#: Less than this leaves at once, or never; what was written a moment ago may wait by chance.
MUCH_BYTES: Final = 1 << 15


class Progress:
    """Of one connection. Times are those of its event loop, in seconds.

    Attributes:
        waited_s: when it was last seen that much waits to leave; 0: never.
    """

    __slots__ = ("_has_left", "_latest", "_left_bytes", "_left_s", "_looked_s", "waited_s")

    def __init__(self) -> None:
        self.waited_s = 0.0
        #: The last request, by its ``opaque``, that is answered.
        self._latest = -1
        #: What the peer had taken at the last look.
        self._left_bytes, self._looked_s = 0, 0.0
        #: Had it taken more than at the look before? When was the last look after which it had?
        self._has_left, self._left_s = False, 0.0

    def answered(self, opaque: int) -> None:
        """Record an answer."""
        if (self._latest - opaque) & _MASK >= _HALF:
            self._latest = opaque

    def is_behind(self, opaque: int) -> bool:
        """Is nothing answered yet that was asked after this request?"""
        return not 0 < (self._latest - opaque) & _MASK < _HALF

    def look(self, transport: asyncio.Transport, written_bytes: int, now_s: float) -> None:
        """See what the peer has taken.

        Args:
            transport: of the connection.
            written_bytes: what was handed to it so far.
            now_s: now; a second look at the same moment is none.
        """
        if now_s == self._looked_s:
            return
        waiting_bytes = transport.get_write_buffer_size()
        connection = transport.get_extra_info("socket")
        if connection is not None:
            waiting_bytes += kernel_bytes(connection)
        left_bytes = written_bytes - waiting_bytes
        self._has_left = left_bytes > self._left_bytes
        if self._has_left:
            # At some moment since then: it is not known to have been later.
            self._left_bytes, self._left_s = left_bytes, self._looked_s
        self._looked_s = now_s
        if waiting_bytes >= MUCH_BYTES:
            self.waited_s = now_s

    def is_taking(self, within_s: float) -> bool:
        """Did much wait at the last look, and had the peer taken some of it by then?

        Args:
            within_s: how long before.
        """
        if not self._looked_s or self.waited_s != self._looked_s:
            return False
        return self._has_left or self._looked_s - self._left_s < within_s


def kernel_bytes(connection: socket.socket) -> int:
    """Return what the kernel keeps until the peer has it; 0 if it does not tell."""
    if _OUTPUT_BYTES is None:
        return 0
    try:
        found = fcntl.ioctl(connection.fileno(), _OUTPUT_BYTES, bytes(4))
    except (OSError, ValueError):
        return 0
    return int(struct.unpack("i", found)[0])
