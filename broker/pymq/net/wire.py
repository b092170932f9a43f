"""One connection as a stream of commands: decoding, gathered writes, back-pressure."""

import asyncio
import logging
from collections import deque
from typing import cast

from pymq.errors import ConnectionFailed, RemoteProtocolError
from pymq.protocol.command import Command
from pymq.protocol.framing import FRAME_BYTES_MAX, FrameDecoder

_log = logging.getLogger(__name__)

#: A buffer above this is handed to the transport as it is; smaller ones are joined.
JOIN_BYTES_MAX = 64 << 10
#: At most this much is given to the transport at once, so that it copies little.
WRITE_BYTES = 256 << 10
#: The transport asks for a pause above this.
WRITE_HIGH_BYTES = 1 << 20


class Wire(asyncio.Protocol):
    """Base of both ends of a connection.

    What is sent within one turn of the event loop leaves in one write. While the peer does
    not read, nothing more is read from it either: its requests cannot pile up answers.
    """

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(frame_bytes_max=frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._outgoing: deque[bytes | memoryview] = deque()
        self._flush_scheduled = False
        self._paused = False
        #: Monotonic times for the deadlines that the owner enforces.
        self.read_at = self.frame_begun_at = self._loop.time()
        self.write_stuck_at: float | None = None
        self.peer = "?"

    # --- what the two ends define

    def commands_received(self, commands: list[Command]) -> None:
        """Handle commands that arrived together, in order."""
        raise NotImplementedError

    def connection_ended(self, error: Exception | None) -> None:
        """Clean up: the connection is gone, whoever closed it."""
        raise NotImplementedError

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports have all the methods, but are no subclass.
        self._transport = stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        peer = stream.get_extra_info("peername")
        if peer:
            self.peer = f"{peer[0]}:{peer[1]}"

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self.read_at = now = self._loop.time()
        if not self._decoder.pending_bytes:
            self.frame_begun_at = now
        try:
            commands = self._decoder.feed(data)
        except RemoteProtocolError as error:
            _log.warning("%s sent no RocketMQ frame, connection closed: %s", self.peer, error)
            self.abort()
            return
        if commands:
            self.frame_begun_at = now
            self.commands_received(commands)

    def pause_writing(self) -> None:
        """Called by asyncio: the peer reads slower than we write."""
        self._paused = True
        self.write_stuck_at = self._loop.time()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._paused = False
        self.write_stuck_at = None
        self._flush()
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        self._outgoing.clear()
        self.connection_ended(exc)

    # --- use

    @property
    def is_open(self) -> bool:
        """Can something still be sent?"""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that has begun to arrive and is not complete."""
        return self._decoder.pending_bytes

    def send(self, *buffers: bytes | memoryview) -> None:
        """Send buffers in order, gathered with whatever else is sent in this turn.

        A memoryview must stay valid until it is written; it is not copied. What is sent on
        a closed connection is dropped, as if the network had lost it.
        """
        self._outgoing.extend(buffers)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        transport = self._transport
        if transport is None or transport.is_closing():
            self._outgoing.clear()
            return
        outgoing = self._outgoing
        small: list[bytes | memoryview] = []
        small_bytes = 0
        while outgoing and not self._paused:
            buffer = outgoing.popleft()
            if len(buffer) <= JOIN_BYTES_MAX:
                small.append(buffer)
                small_bytes += len(buffer)
                if small_bytes < WRITE_BYTES:
                    continue
            elif len(buffer) > WRITE_BYTES:
                view = memoryview(buffer)
                outgoing.appendleft(view[WRITE_BYTES:])
                small.append(view[:WRITE_BYTES])
            else:
                small.append(buffer)
            transport.write(small[0] if len(small) == 1 else b"".join(small))
            small.clear()
            small_bytes = 0
        if small:
            # Paused or done: the transport still takes what was already joined.
            transport.write(small[0] if len(small) == 1 else b"".join(small))

    def close(self) -> None:
        """Send what is pending, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what is pending is lost."""
        if self._transport is not None:
            self._transport.abort()

    def check_open(self) -> None:
        """Raise ConnectionFailed when nothing can be sent any more."""
        if not self.is_open:
            raise ConnectionFailed(f"connection to {self.peer} is closed")
