"""BlockingChannel: one outgoing connection over a plain socket, no thread, no event loop.

For one thread of one process. A child made by ``fork`` shares the socket with its parent and
would steal its answers: connect after forking, or close in the child before use.

What arrives is read by a small state machine, so that a deadline may fall anywhere: in a
length, in a header, in the middle of a large body; the next call goes on there.

Bodies above ``VIEW_BYTES_MIN`` are received straight into a buffer of the channel and handed
out as a view on it, without a copy. A buffer is used again once no view on it is left
(memoryview, numpy or Arrow array alike); while one is, another buffer is made. So a view
stays valid for as long as somebody holds it, even after the channel is closed.
"""

import logging
import select
import socket
import time

from pymq.errors import (
    ClientClosed,
    ConnectionFailed,
    LocalProtocolError,
    PymqError,
    RemoteProtocolError,
    RequestTimeout,
)
from pymq.protocol.command import Command
from pymq.protocol.connection import PENDING_MAX, RequestTable
from pymq.protocol.framing import FRAME_BYTES_MAX, check_frame_length, encode_parts

_log = logging.getLogger(__name__)

#: Bodies from this size on are views on the channel's buffers; smaller ones are ``bytes``.
VIEW_BYTES_MIN = 64 << 10
#: Buffers kept for large bodies; more are made when all are in use, and then dropped.
BUFFER_COUNT_MAX = 3
#: Room for small frames; at least one header plus the largest body that is not a view.
_INBOX_BYTES = 256 << 10
#: Requests with a body up to this are sent in one piece.
_JOIN_BYTES_MAX = 64 << 10

assert VIEW_BYTES_MIN * 2 <= _INBOX_BYTES


class BlockingChannel:
    """A connection to one name server or broker.

    ``send`` gives a request its number and returns it; ``receive`` waits for the answer to
    that number. Any number of requests may be on their way, and answers may come in any order.
    An answer that comes after its deadline is recognised and dropped. Requests of the peer
    (notifications to clients with consumers) are ignored.

    Invariant: ``_frame`` is None unless a large body is on its way; then the inbox is empty.
    """

    def __init__(
        self,
        peer: str,
        connection: socket.socket,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        pending_max: int = PENDING_MAX,
    ) -> None:
        """Take over a connected socket; ``connect`` makes one.

        Args:
            peer: ``host:port``, for error texts.
            connection: is closed with the channel.
            frame_bytes_max: largest frame sent or taken.
            pending_max: most requests unanswered at a time.
        """
        self.peer = peer
        self._socket: socket.socket | None = connection
        self._timeout_s: float | None = connection.gettimeout()
        self._frame_bytes_max = frame_bytes_max
        #: Code of each unanswered request.
        self._requests: RequestTable[int] = RequestTable(pending_max=pending_max)
        #: Answers that came while another one was waited for.
        self._answers: dict[int, Command] = {}
        self._failure: PymqError | None = None
        self._inbox = bytearray(_INBOX_BYTES)
        self._inbox_view = memoryview(self._inbox)
        self._start = 0  # the inbox holds unread bytes from here
        self._end = 0  # to here
        self._frame: _LargeFrame | None = None
        self._buffers: list[bytearray] = []

    @classmethod
    def connect(
        cls,
        host: str,
        port: int,
        *,
        timeout_s: float,
        hint: str = "",
        frame_bytes_max: int = FRAME_BYTES_MAX,
        pending_max: int = PENDING_MAX,
    ) -> "BlockingChannel":
        """Connect.

        Args:
            host: name or address.
            port: 1..65535.
            timeout_s: for the connection to be made.
            hint: who gave us the address and what to check, for the error's text.
            frame_bytes_max: largest frame sent or taken.
            pending_max: most requests unanswered at a time.

        Raises:
            ConnectionFailed: nobody accepted in time.
        """
        peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            connection = socket.create_connection((host, port), timeout=timeout_s)
        except (OSError, UnicodeError) as error:
            reason = f"none within {timeout_s:g} s" if isinstance(error, TimeoutError) else error
            raise ConnectionFailed(
                f"no connection to {peer}: {reason}{'; ' + hint if hint else ''}"
            ) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(
            peer, connection, frame_bytes_max=frame_bytes_max, pending_max=pending_max
        )

    # --- use

    @property
    def is_open(self) -> bool:
        """Can something still be sent, as far as we know?"""
        return self._socket is not None

    @property
    def pending_count(self) -> int:
        """Requests that are unanswered and were not given up."""
        return len(self._requests)

    def ended_by_peer(self) -> bool:
        """Has the peer closed the connection while nobody looked? Then it is closed here, too.

        Worth a look before a request is sent on a connection that was idle: what is written
        to a dead one may or may not have arrived, and nobody can tell.
        """
        if self._socket is None:
            return True
        readable, _, _ = select.select([self._socket], [], [], 0)
        if readable and not self._requests and self._frame is None:
            # Nothing is expected: either notifications, or the end.
            try:
                self._read(0.0)
            except (RequestTimeout, ConnectionFailed, RemoteProtocolError) as error:
                _log.debug("%s: %s", self.peer, error)
        return self._socket is None

    def send(self, request: Command, deadline_s: float) -> int:
        """Send a request and return its number.

        Args:
            request: gets its ``opaque`` here.
            deadline_s: on the monotonic clock; the time by which it must be written, and
                the time at which ``receive`` gives up unless told otherwise.

        Raises:
            TooManyPending: nothing was sent.
            LocalProtocolError: it does not fit a frame; nothing was sent.
            ConnectionFailed: the connection is gone.
        """
        self._check_open()
        request.opaque = opaque = self._requests.register(deadline_s, request.code)
        try:
            self._write(request, deadline_s)
        except LocalProtocolError:
            self._requests.forget(opaque)
            raise
        if request.is_one_way:
            self._requests.forget(opaque)
        return opaque

    def receive(self, opaque: int, deadline_s: float) -> Command:
        """Wait for the answer to a request.

        Args:
            opaque: what ``send`` returned; may be asked for once.
            deadline_s: when to give up, on the monotonic clock.

        Returns:
            The answer, whatever its code. A body of ``VIEW_BYTES_MIN`` or more is a
            memoryview; see the module's text for how long it lives.

        Raises:
            RequestTimeout: none came in time; when it comes it is dropped.
            ConnectionFailed: the connection is gone; ``outcome_known`` is False.
            RemoteProtocolError: the peer sent something else; the connection is closed.
        """
        answers = self._answers
        while True:
            answer = answers.pop(opaque, None)
            if answer is not None:
                return answer
            if self._failure is not None:
                raise self._failed()
            try:
                self._read(deadline_s - time.monotonic())
            except TimeoutError as error:
                code = self._requests.forget(opaque)
                raise RequestTimeout(
                    f"{self.peer} did not answer {_code_name(code)} in time; it may have been done"
                ) from error

    def request(self, request: Command, timeout_s: float) -> Command:
        """Send a request and wait for its answer; raises what ``send`` and ``receive`` do."""
        deadline_s = time.monotonic() + timeout_s
        return self.receive(self.send(request, deadline_s), deadline_s)

    def has_answer(self, opaque: int) -> bool:
        """Would ``receive`` return at once?"""
        return opaque in self._answers

    def forget(self, opaque: int) -> None:
        """Give a request up: its answer, come or still to come, is dropped."""
        if self._requests.forget(opaque) is None:
            self._answers.pop(opaque, None)

    def close(self) -> None:
        """Close the connection. Harmless when done twice."""
        self._fail(ClientClosed(f"the connection to {self.peer} was closed"))

    # --- writing

    def _write(self, request: Command, deadline_s: float) -> None:
        prefix, body = encode_parts(request, frame_bytes_max=self._frame_bytes_max)
        assert self._socket is not None
        self._set_timeout(deadline_s - time.monotonic())
        try:
            if len(body) <= _JOIN_BYTES_MAX:
                self._socket.sendall(b"".join((prefix, body)) if body else prefix)
            else:
                _send_parts(self._socket, (prefix, body))
        except OSError as error:
            # Part of the frame may be out: nothing can follow it on this connection.
            what = "does not read" if isinstance(error, TimeoutError) else f"is gone: {error}"
            self._fail(ConnectionFailed(f"{self.peer} {what}", sent=True))
            raise self._failed() from error

    # --- reading

    def _read(self, remaining_s: float) -> None:
        """Read once what there is, and file the answers that are complete.

        Raises:
            TimeoutError: nothing came.
            ConnectionFailed, RemoteProtocolError: the connection is closed.
        """
        self._check_open()
        assert self._socket is not None
        self._set_timeout(remaining_s)
        frame = self._frame
        room = self._inbox_view[self._end :] if frame is None else frame.room()
        try:
            count = self._socket.recv_into(room)
        except (TimeoutError, BlockingIOError) as error:
            raise TimeoutError from error
        except OSError as error:
            self._fail(ConnectionFailed(f"connection to {self.peer} broke: {error}", sent=True))
            raise self._failed() from error
        if count == 0:
            self._fail(ConnectionFailed(f"{self.peer} closed the connection", sent=True))
            raise self._failed()
        if frame is not None:
            frame.fill += count
            if frame.fill == len(frame.view):
                self._frame = None
                self._take(frame.form, frame.header, frame.body())
            return
        self._end += count
        try:
            self._unpack()
        except RemoteProtocolError as error:
            self._fail(RemoteProtocolError(f"{self.peer} sent no RocketMQ answer: {error}"))
            raise self._failed() from error

    def _unpack(self) -> None:
        """Take the frames in the inbox; leave the start of one that is not complete."""
        inbox, end = self._inbox, self._end
        position = self._start
        while end - position >= 8:
            frame_end, form, header_end = check_frame_length(
                inbox, position, frame_bytes_max=self._frame_bytes_max
            )
            body_bytes = frame_end - header_end
            if frame_end <= end and body_bytes < VIEW_BYTES_MIN:
                header = bytes(self._inbox_view[position + 8 : header_end])
                self._take(form, header, bytes(self._inbox_view[header_end:frame_end]))
                position = frame_end
                continue
            if frame_end - position > _INBOX_BYTES or body_bytes >= VIEW_BYTES_MIN:
                if header_end <= end or header_end - position > _INBOX_BYTES:
                    position = self._begin_large(position, header_end, frame_end, form)
                    if self._frame is not None:
                        break
                    continue
            break
        if position == end:
            self._start = self._end = 0
        elif position:
            # Keep the inbox's room in front of what comes next.
            rest = end - position
            inbox[:rest] = inbox[position:end]
            self._start, self._end = 0, rest

    def _begin_large(self, position: int, header_end: int, frame_end: int, form: int) -> int:
        """Move a frame out of the inbox whose body, or header, is large; return where it ended."""
        begin = self._inbox_view
        if header_end <= self._end:
            header = bytes(begin[position + 8 : header_end])
            frame = _LargeFrame(form, header, self._buffer(frame_end - header_end), 0)
            body_at = header_end
        else:
            # A batch of thousands is answered with a header of that many ids.
            frame = _LargeFrame(
                form, b"", self._buffer(frame_end - position - 8), header_end - position - 8
            )
            body_at = position + 8
        there = min(self._end, frame_end) - body_at
        frame.view[:there] = begin[body_at : body_at + there]
        frame.fill = there
        if there == len(frame.view):
            self._take(frame.form, frame.header, frame.body())
            return frame_end
        self._frame = frame
        return self._end

    def _buffer(self, size: int) -> memoryview:
        """Return a view of ``size`` bytes on a buffer that nobody holds a view on."""
        free = [buffer for buffer in self._buffers if _is_free(buffer)]
        for buffer in free:
            if len(buffer) >= size:
                return memoryview(buffer)[:size]
        for buffer in free:  # too small: its place is better used
            self._buffers.remove(buffer)
        buffer = bytearray(size)
        if len(self._buffers) < BUFFER_COUNT_MAX:
            self._buffers.append(buffer)
        return memoryview(buffer)

    def _take(self, form: int, header: bytes, body: bytes | memoryview) -> None:
        raise NotImplementedError

    # --- ends

    def _set_timeout(self, remaining_s: float) -> None:
        assert self._socket is not None
        timeout_s = max(remaining_s, 0.0)
        self._socket.settimeout(timeout_s)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failed()

    def _failed(self) -> PymqError:
        raise NotImplementedError

    def _fail(self, failure: PymqError) -> None:
        raise NotImplementedError
