"""One connection as a stream of commands: decoding, gathered writes, back-pressure."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from pymq.errors import ConnectionFailed, RemoteProtocolError
from pymq.net.buffers import BufferPool
from pymq.net.invalid_frames import say_invalid
from pymq.protocol.framing import FRAME_BYTES_MAX, FrameDecoder, Incoming
from pymq.protocol.plain_runs import PlainRunReader

_log = logging.getLogger(__name__)

#: Less than this of an incomplete frame does not count: most reads end within a request.
UNFINISHED_BYTES_LEAST = 8 << 10

#: About this much is given to the transport at once, so that it copies little. Buffers are joined
#: up to it; what is larger is passed on in pieces of this size, without a copy.
WRITE_BYTES = 256 << 10
#: Bytes of input of one connection handled in one turn of the event loop: about 150 small
#: requests. Then their answers leave, and other connections have their turn. Less costs more for
#: each request: every turn is a write to the log and one to the socket.
TURN_BYTES = 64 << 10
#: Nothing more is read while more than this waits to be handled.
BACKLOG_BYTES_MAX = 1 << 20
#: The same for all connections of a server together: then each that has something waiting pauses.
SHARED_BACKLOG_BYTES_MAX = 64 << 20
#: Bytes read at once, except for large frames, which are received straight into their buffers.
READ_BYTES = 256 << 10
#: The transport asks for a pause above this.
WRITE_HIGH_BYTES = 1 << 20


class _Inbox(threading.local):
    """Where small input of all connections of a thread is received; it is copied out at once."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_inbox = _Inbox()


class Wire(asyncio.BufferedProtocol):
    """Base of both ends of a connection.

    Answers to commands that arrived together leave in one write, right after these were handled;
    whatever else is sent within one turn of the event loop leaves in one write at its end. While
    the peer does not read, nothing more is read from it either: its requests cannot pile up
    answers.

    Small frames are handled ``TURN_BYTES`` per turn; a frame larger than that is not split. Whoever
    handles them may leave some for another turn (``postpone``); what comes later waits for these.
    """

    #: Does this end keep reading while the peer does not read what we write?
    READS_WHILE_STUCK = False

    def __init__(
        self,
        buffers: BufferPool,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        plain_runs: PlainRunReader | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(
            frame_bytes_max=frame_bytes_max, memory=buffers.take, plain_runs=plain_runs
        )
        self._inbox = _inbox.view
        self._is_large = False  # is input received straight into the buffer of a large frame?
        self._transport: asyncio.Transport | None = None
        self._outgoing: deque[bytes | memoryview] = deque()
        self._flush_scheduled = False
        self._is_handling = False  # are commands being handled? What they send leaves afterwards
        self._paused = False
        self._is_held = False
        #: Commands that were left for another turn, and when the first of them was read.
        self._left: list[Incoming] = []
        self._left_at = 0.0
        # Input that waits for its turn. While there is either, _read_on is scheduled, or
        # will be by release or resume_writing.
        self._backlog: deque[tuple[float, bytes | memoryview]] = deque()
        self._backlog_bytes = 0
        self._shared = buffers
        self._unfinished_bytes = 0  # as far as they count
        #: Monotonic times for the deadlines that the owner enforces.
        self.read_at = self.frame_begun_at = self._loop.time()
        #: When what is being handled was read.
        self.input_at = self.read_at
        self.write_stuck_at: float | None = None
        self._written_bytes = 0
        self.peer = "?"
        #: Why we gave the connection up, if the peer sent what cannot be read.
        self._invalid: RemoteProtocolError | None = None

    # --- what the two ends define

    def commands_received(self, commands: list[Incoming]) -> None:
        """Handle commands that arrived together, in order."""
        raise NotImplementedError

    def connection_ended(self, error: Exception | None) -> None:
        """Clean up: the connection is gone, whoever closed it."""
        raise NotImplementedError

    def input_invalid(self, error: RemoteProtocolError) -> None:
        """Say that the connection is closed because of what the peer sent."""
        say_invalid(_log, self._shared, self.peer, error)

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports have all the methods, but are not a subclass.
        self._transport = stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio: return where to put the next input."""
        # A large frame that is complete would be handled at once.
        room = None if self._is_waiting or self._is_held else self._decoder.room
        self._is_large = room is not None
        return self._inbox if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio: ``nbytes`` arrived."""
        self.read_at = self.input_at = now = self._loop.time()
        if self._is_large:
            self._handle(lambda: self._decoder.filled(nbytes))
            return
        data = bytes(self._inbox[:nbytes])
        if not self._decoder.pending_bytes:
            self.frame_begun_at = now
        if self._is_waiting or self._is_held:
            self._put_off(data, now)
        else:
            self._read(data)

    def _read(self, data: bytes | memoryview) -> bool:
        """Handle one turn's share of the input, postpone the rest; False if it is invalid."""
        share = max(TURN_BYTES, self._decoder.missing_bytes)
        if len(data) > share:
            view = memoryview(data)
            self._put_off(view[share:], self.input_at)
            data = view[:share]
        part = data if type(data) is bytes else bytes(data)
        return self._handle(lambda: self._decoder.feed(part))

    def _handle(self, decode: Callable[[], list[Incoming]]) -> bool:
        """Handle the commands that are complete now; False if the input is invalid."""
        try:
            commands = decode()
        except RemoteProtocolError as error:
            self._invalid = error
            self.input_invalid(error)
            self._drop_backlog()
            self.abort()
            return False
        pending_bytes = self._decoder.pending_bytes
        if pending_bytes > UNFINISHED_BYTES_LEAST or self._unfinished_bytes:
            self._count_unfinished(pending_bytes)
        return self._hand_over(commands) if commands else True

    def _hand_over(self, commands: list[Incoming]) -> bool:
        """Have commands handled; False if that failed."""
        self.frame_begun_at = self.read_at
        self._is_handling = True
        try:
            self.commands_received(commands)
        except Exception:
            # A bug. What it left undone is unknown; the peer sees the connection end.
            _log.exception("%s: commands were not handled; connection closed", self.peer)
            self._drop_backlog()
            self.abort()
            return False
        finally:
            self._is_handling = False
        if self._outgoing and not self._flush_scheduled:
            self._flush()
        return True

    def postpone(self, commands: Sequence[Incoming]) -> bool:
        """Have the last of the commands that are being handled wait for another turn.

        Returns:
            False if none are being handled: they were kept until now, and cannot wait here.
        """
        if not self._is_handling:
            return False
        if not self._is_waiting:
            self._loop.call_soon(self._read_on)
        if not self._left:
            self._left_at = self.input_at
        self._left += commands
        return True

    def _count_unfinished(self, pending_bytes: int) -> None:
        shared = self._shared
        counted = pending_bytes if pending_bytes > UNFINISHED_BYTES_LEAST else 0
        shared.unfinished_bytes += counted - self._unfinished_bytes
        is_more = counted > self._unfinished_bytes
        self._unfinished_bytes = counted
        if is_more and shared.unfinished_bytes > shared.unfinished_bytes_max:
            shared.on_full()

    @property
    def unfinished_bytes(self) -> int:
        """What counts as received of a frame that is not complete."""
        return self._unfinished_bytes

    def give_up_frame(self) -> None:
        """Close the connection in the middle of a frame, and let go of its memory."""
        self._count_unfinished(0)
        self._decoder.clear()
        self.abort()

    @property
    def _is_waiting(self) -> bool:
        return bool(self._backlog or self._left)

    def _put_off(self, data: bytes | memoryview, read_at: float) -> None:
        if not self._is_waiting:
            self._loop.call_soon(self._read_on)
        self._backlog.append((read_at, data))
        self._backlog_bytes += len(data)
        self._shared.waiting_bytes += len(data)
        is_full = (
            self._backlog_bytes > BACKLOG_BYTES_MAX
            or self._shared.waiting_bytes > SHARED_BACKLOG_BYTES_MAX
        )
        if is_full and self.is_open and self._transport:
            self._transport.pause_reading()

    def _drop_backlog(self) -> None:
        self._shared.waiting_bytes -= self._backlog_bytes
        self._backlog_bytes = 0
        self._backlog.clear()
        self._left = []

    def _read_on(self) -> None:
        """Handle the next turn's share of what waits, unless reading is paused."""
        if not self._is_waiting or not self._may_read:
            return
        if self._left:
            self.input_at = self._left_at
            commands, self._left = self._left, []
            if not self._hand_over(commands):
                return
            if self._backlog:  # otherwise it is scheduled if some were left again
                self._loop.call_soon(self._read_on)
            elif not self._left:
                self._resume_reading()
            return
        waiting, self._backlog = self._backlog, deque()
        self.input_at, first = waiting.popleft()
        self._backlog_bytes -= len(first)
        self._shared.waiting_bytes -= len(first)
        if not self._read(first):
            return
        if waiting and not self._is_waiting:
            self._loop.call_soon(self._read_on)
        self._backlog.extend(waiting)
        if not self._is_waiting:
            self._resume_reading()

    @property
    def _may_read(self) -> bool:
        return not self._is_held and (self.READS_WHILE_STUCK or not self._paused)

    def _resume_reading(self) -> None:
        if self._transport is not None and self.is_open and self._may_read:
            self._transport.resume_reading()

    def hold(self) -> None:
        """Handle nothing that arrives until ``release``; what is handled can be answered."""
        if not self._is_held:
            self._is_held = True
            if self._transport is not None and self.is_open:
                self._transport.pause_reading()

    def release(self) -> None:
        """Handle what arrives again."""
        if self._is_held:
            self._is_held = False
            if self._is_waiting:
                self._loop.call_soon(self._read_on)
            else:
                self._resume_reading()

    def pause_writing(self) -> None:
        """Called by asyncio: the peer reads slower than we write."""
        self._paused = True
        self.write_stuck_at = self._loop.time()
        if not self._may_read and self._transport is not None and self.is_open:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._paused = False
        self.write_stuck_at = None
        self._flush()
        if self._is_waiting:
            self._loop.call_soon(self._read_on)
        else:
            self._resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        self._paused = False
        self._end(exc)

    def _end(self, exc: Exception | None) -> None:
        """Handle what arrived before the end, which still counts: a last commit, say."""
        while self._is_waiting and self._may_read:
            self._read_on()
            if self._left:  # that was one turn
                self._loop.call_soon(self._end, exc)
                return
        self._drop_backlog()
        self._count_unfinished(0)
        self._outgoing.clear()
        self.connection_ended(exc or self._invalid)

    # --- use

    @property
    def is_open(self) -> bool:
        """Can something still be sent?"""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def pending_bytes(self) -> int:
        """Bytes received of a frame that is not complete."""
        return self._decoder.pending_bytes

    def send(self, *buffers: bytes | memoryview) -> None:
        """Send buffers in order, gathered with others: see ``Wire``.

        A memoryview must stay valid until it is written; it is not copied. On a closed connection
        everything is dropped, as if the network had lost it.
        """
        self._outgoing.extend(buffers)
        if not self._flush_scheduled and not self._is_handling:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        transport = self._transport
        if transport is None or transport.is_closing():
            self._outgoing.clear()
            return
        while self._outgoing and not self._paused:
            pieces = _take_pieces(self._outgoing)
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._written_bytes += len(data)
            transport.write(data)

    def close(self) -> None:
        """Write what is pending, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what is pending is lost."""
        if self._transport is not None:
            self._transport.abort()

    def check_open(self) -> None:
        """Raise ConnectionFailed if nothing can be sent any more."""
        if not self.is_open:
            raise ConnectionFailed(f"connection to {self.peer} is closed")


def _take_pieces(outgoing: deque[bytes | memoryview]) -> list[bytes | memoryview]:
    """Take what is written next: everything, or between one and two times ``WRITE_BYTES``."""
    pieces: list[bytes | memoryview] = []
    size = 0
    while outgoing and size < WRITE_BYTES:
        buffer = outgoing.popleft()
        if len(buffer) > WRITE_BYTES:
            view = memoryview(buffer)
            outgoing.appendleft(view[WRITE_BYTES:])
            buffer = view[:WRITE_BYTES]
        pieces.append(buffer)
        size += len(buffer)
    return pieces
