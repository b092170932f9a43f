"""What one blocking connection receives: bytes where there is room for them, then whole commands.

Input may stop anywhere: in a length, in a header, in the middle of a large body; the next bytes
continue there.

Bodies of ``VIEW_BYTES_MIN`` or more are received straight into a buffer and handed out as a view on
it, without a copy. A buffer is reused once no view on it is left (memoryview, numpy or Arrow array
alike); until then another buffer is made. So a view stays valid for as long as it is referenced.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pymq.net.buffers import BufferPool
from pymq.protocol.command import Command, decode_header
from pymq.protocol.framing import FRAME_BYTES_MAX, check_length, read_prefix

#: Bodies of this size or more are views on buffers; smaller ones are ``bytes``.
VIEW_BYTES_MIN = 64 << 10
#: Buffers kept for large bodies.
BUFFER_COUNT_MAX = 3
#: Room for headers and small bodies; grows when a header needs more.
INBOX_BYTES = 128 << 10

assert INBOX_BYTES >= VIEW_BYTES_MIN + 4096


@dataclass(slots=True)
class LargeBody:
    """A frame whose body is being received into a buffer."""

    form: int
    header: bytes
    view: memoryview
    received_bytes: int


class FrameInput:
    """Turns what is received into commands. For one connection and one thread.

    Invariant: while a large body is being received, the inbox is empty.

    Attributes:
        room: where to put the next bytes; never empty.
        large: the large body that is being received, if there is one.
    """

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._inbox = memoryview(bytearray(INBOX_BYTES))
        self._inbox_end = 0
        self._buffers = BufferPool(count_max=BUFFER_COUNT_MAX)
        self.room = self._inbox
        self.large: LargeBody | None = None

    def received(self, count: int) -> Iterator[Command]:
        """Yield the commands that ``count`` more bytes, put into ``room``, complete.

        To be exhausted before more is received.

        Raises:
            RemoteProtocolError: the peer does not send frames; nothing can be read after it.
        """
        large = self.large
        if large is not None:
            large.received_bytes += count
            if large.received_bytes < len(large.view):
                self.room = large.view[large.received_bytes :]
            else:
                self.give_up()
                yield decode_header(large.form, large.header, large.view)
            return
        self._inbox_end += count
        inbox, end = self._inbox, self._inbox_end
        position = needed_bytes = 0
        if 4 <= end < 8:  # all that some other protocols say
            check_length(inbox, 0, self._frame_bytes_max)
        while end - position >= 8:
            form, body_at, frame_end = read_prefix(
                inbox, position, frame_bytes_max=self._frame_bytes_max
            )
            body_bytes = frame_end - body_at
            is_large = body_bytes >= VIEW_BYTES_MIN
            needed_end = body_at if is_large else frame_end
            if needed_end > end:
                needed_bytes = needed_end - position
                break
            header = bytes(inbox[position + 8 : body_at])
            if is_large:
                view = self._buffers.take(body_bytes)
                received_bytes = min(end, frame_end) - body_at
                view[:received_bytes] = inbox[body_at : body_at + received_bytes]
                if received_bytes < body_bytes:
                    self.large = LargeBody(form, header, view, received_bytes)
                    position = end
                    break
                yield decode_header(form, header, view)
            else:
                yield decode_header(form, header, bytes(inbox[body_at:frame_end]))
            position = frame_end
        self._keep(position, needed_bytes)

    def _keep(self, position: int, needed_bytes: int) -> None:
        """Move what is left after ``position`` to the front of the inbox, and make room."""
        rest = bytes(self._inbox[position : self._inbox_end])
        if needed_bytes > len(self._inbox):
            # The answer to a batch of thousands has that many ids in its header.
            self._inbox = memoryview(bytearray(needed_bytes))
        if position or needed_bytes:
            self._inbox[: len(rest)] = rest
        self._inbox_end = end = len(rest)
        large = self.large
        self.room = self._inbox[end:] if large is None else large.view[large.received_bytes :]

    def give_up(self) -> None:
        """Let go of the large body that is being received."""
        self.large = None
        self.room = self._inbox[self._inbox_end :]
