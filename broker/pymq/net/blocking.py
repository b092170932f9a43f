"""BlockingChannel: one outgoing connection over a plain socket, no thread, no event loop.

For one thread of one process. A child made by ``fork`` shares the socket with its parent and
would steal its answers: connect after forking, or close in the child before use.

A deadline may fall anywhere in an answer; the next call continues there. Large bodies are views on
buffers of the channel: ``frame_input`` says how long these stay valid, which does not end when the
channel is closed.
"""

import socket
import time
from collections.abc import Mapping

from pymq.errors import (
    ClientClosed,
    ConnectionFailed,
    LocalProtocolError,
    PymqError,
    RemoteProtocolError,
    RequestTimeout,
)
from pymq.net.connecting import Peer, connect_sockets
from pymq.net.frame_input import FrameInput
from pymq.net.polling import READ, WRITE, new_poll
from pymq.net.progress import kernel_bytes
from pymq.protocol.addresses import join_address
from pymq.protocol.codes import MAY_BE_DONE, consequence_of, request_name
from pymq.protocol.command import Command
from pymq.protocol.connection import PENDING_MAX, RequestTable
from pymq.protocol.framing import FRAME_BYTES_MAX, encode_parts

#: A request of up to this many bytes is joined and sent in one piece.
JOIN_BYTES_MAX = 64 << 10

#: What is large may take this many times the wait for an answer on a slow network, and more.
SLOW_FACTOR = 20
#: Into how many parts a wait is divided, to see whether the peer takes what is large.
LOOKS_PER_WAIT = 8


class BlockingChannel:
    """A connection to one name server or broker.

    ``send`` assigns a request its number and returns it; ``receive`` waits for the answer to
    that number. Any number of requests may be in flight, and answers may come in any order.
    An answer that comes after its deadline is recognised and dropped. Requests of the peer
    (notifications to clients with consumers) are ignored.
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
            peer: ``host:port``, for error messages.
            connection: is closed with the channel.
            frame_bytes_max: largest frame sent or accepted.
            pending_max: most requests in flight at a time.
        """
        self.peer = peer
        # Non-blocking: while data is there, each read costs one system call, not three.
        connection.setblocking(False)
        self._socket = connection
        self._readable = new_poll()
        self._readable.register(connection, READ)
        self._writable = new_poll()
        self._writable.register(connection, WRITE)
        #: Sends some of the first of several parts; Windows' Python has nothing for several.
        self._send_some = getattr(connection, "sendmsg", lambda parts: connection.send(parts[0]))
        self._frame_bytes_max = frame_bytes_max
        # Was a request given up during which nothing was received, and has nothing come since?
        self._is_silent = False
        #: Code of each unanswered request.
        self._requests: RequestTable[int] = RequestTable(pending_max=pending_max)
        #: Answers that came while waiting for another one.
        self._answers: dict[int, Command] = {}
        #: When something was last received, on the monotonic clock.
        self.heard_s = 0.0
        #: When the last request was written to its end.
        self.written_s = 0.0
        self._failure: PymqError | None = None
        self._input = FrameInput(frame_bytes_max=frame_bytes_max)

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
            hint: who gave us the address and what to check, for the error message.
            frame_bytes_max: largest frame sent or accepted.
            pending_max: most requests in flight at a time.

        Raises:
            ConnectionFailed: no connection was made in time.
        """
        found = cls.connect_all(
            {(host, port): hint},
            timeout_s=timeout_s,
            frame_bytes_max=frame_bytes_max,
            pending_max=pending_max,
        )[host, port]
        if isinstance(found, ConnectionFailed):
            raise found
        return found

    @classmethod
    def connect_all(
        cls,
        peers: Mapping[Peer, str],
        *,
        timeout_s: float,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        pending_max: int = PENDING_MAX,
    ) -> "dict[Peer, BlockingChannel | ConnectionFailed]":
        """Connect to several peers at the same time.

        Args:
            peers: host and port -> hint, as for ``connect``.
            timeout_s, frame_bytes_max, pending_max: as for ``connect``.

        Returns:
            For each peer its connection, or why there is none.
        """
        found: dict[Peer, BlockingChannel | ConnectionFailed] = {}
        for (host, port), connection in connect_sockets(peers, timeout_s=timeout_s).items():
            peer, hint = join_address(host, port), peers[host, port]
            if isinstance(connection, socket.socket):
                found[host, port] = cls(
                    peer, connection, frame_bytes_max=frame_bytes_max, pending_max=pending_max
                )
                continue
            failed = ConnectionFailed(
                f"no connection to {peer}: {connection}{'; ' + hint if hint else ''}"
            )
            failed.__cause__ = connection
            found[host, port] = failed
        return found

    # --- use

    @property
    def is_open(self) -> bool:
        """Can something still be sent, as far as we know?"""
        return self._failure is None

    @property
    def pending_count(self) -> int:
        """Requests that are neither answered nor given up."""
        return len(self._requests)

    def check_alive(self) -> bool:
        """Is the connection open? Checks whether the peer has closed it.

        Worthwhile before a request goes out on an idle connection: the outcome of a request that
        was written to a dead one is unknown. A connection on which nothing has been received
        since a request was given up is closed: a peer that lost power, or a firewall that forgot
        the connection, does not say so, and the system may retry for a quarter of an hour.
        """
        if self._failure is None and (self._is_silent or not self._requests):
            try:
                self._read()
            except PymqError:
                pass  # The channel has recorded it.
        if self._is_silent:
            self._broken(f"{self.peer} was silent, the connection is given up")
        return self._failure is None

    def send(self, request: Command, deadline_s: float) -> int:
        """Send a request and return its number.

        Args:
            request: its ``opaque`` is set here.
            deadline_s: by when it must be written, on the monotonic clock. While the peer takes
                it, it is postponed, up to ``SLOW_FACTOR`` times the wait.

        Raises:
            TooManyPending: nothing was sent.
            LocalProtocolError: it does not fit into a frame; nothing was sent.
            ConnectionFailed: the connection is gone.
        """
        if isinstance(self._failure, (ConnectionFailed, RemoteProtocolError)):
            raise ConnectionFailed(f"nothing was sent: {self._failure}") from self._failure
        self._check_open()
        request.opaque = opaque = self._requests.register(deadline_s, request.code)
        try:
            self._write(request, deadline_s)
        except LocalProtocolError:
            self._requests.forget(opaque)
            raise
        except BaseException as error:
            # Ctrl-C: part of the frame may be out; what follows would be taken for the rest of it.
            self._broken(f"a request to {self.peer} was interrupted: {type(error).__name__}")
            raise
        if request.is_one_way:
            self._requests.forget(opaque)
        return opaque

    def receive(self, opaque: int, deadline_s: float) -> Command:
        """Wait for the answer to a request.

        Args:
            opaque: as returned by ``send``; each may be waited for once.
            deadline_s: when to give up, on the monotonic clock. While a large body keeps
                coming in, or the peer keeps taking a large request, it is postponed, up to
                ``SLOW_FACTOR`` times the wait.

        Returns:
            The answer, whatever its code. A body of ``frame_input.VIEW_BYTES_MIN`` or more is a
            memoryview; the docstring there says how long it stays valid.

        Raises:
            RequestTimeout: none came in time; when it comes it is dropped.
            ConnectionFailed: the connection is gone, and the outcome of the request is unknown.
            RemoteProtocolError: the peer sent something else; the connection is closed.
        """
        wait_s = deadline_s - time.monotonic()
        last_s = deadline_s + SLOW_FACTOR * wait_s
        has_received, untaken_bytes = False, 0
        while True:
            answer = self._answers.pop(opaque, None)
            if answer is not None:
                return answer
            self._check_answerable()
            if self._read():
                has_received = True
                if self._input.large is not None:
                    # The peer has answered; how long the rest takes depends on the network.
                    deadline_s = _postponed_s(deadline_s, wait_s, last_s)
                continue
            left_bytes = kernel_bytes(self._socket)
            if left_bytes < untaken_bytes:  # It cannot answer what it does not have yet.
                deadline_s = _postponed_s(deadline_s, wait_s, last_s)
            untaken_bytes = left_bytes if left_bytes > JOIN_BYTES_MAX else 0
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                self._is_silent = not has_received
                code = self._requests.forget(opaque)
                name = "a request" if code is None else f"request {request_name(code)}"
                doubt = MAY_BE_DONE if code is None else consequence_of(code)
                raise RequestTimeout(f"{self.peer} did not answer {name} in time{doubt}")
            if untaken_bytes:
                remaining_s = min(remaining_s, wait_s / LOOKS_PER_WAIT)
            self._readable.poll(remaining_s * 1000)

    def request(self, request: Command, timeout_s: float) -> Command:
        """Send a request and wait for its answer; raises what ``send`` and ``receive`` do.

        Args:
            request: its ``opaque`` is set here.
            timeout_s: for it to be written, and then once more for the answer.
        """
        opaque = self.send(request, time.monotonic() + timeout_s)
        try:
            return self.receive(opaque, self.written_s + timeout_s)
        except BaseException:
            self.forget(opaque)  # Ctrl-C: nobody waits for the answer any more
            raise

    def forget(self, opaque: int) -> None:
        """Give up a request: its answer is dropped, whether it has come or not."""
        if self._requests.forget(opaque) is None:
            self._answers.pop(opaque, None)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._fail(ClientClosed(f"the connection to {self.peer} was closed"))

    # --- writing

    def _write(self, request: Command, deadline_s: float) -> None:
        wait_s = deadline_s - time.monotonic()
        last_s = deadline_s + SLOW_FACTOR * wait_s
        prefix, body = encode_parts(request, frame_bytes_max=self._frame_bytes_max)
        parts = [memoryview(prefix)]
        if len(body) > JOIN_BYTES_MAX:
            parts.append(memoryview(body).cast("B"))
        elif body:
            parts = [memoryview(b"".join((prefix, body)))]
        while parts:
            try:
                count = self._send_some(parts)
            except BlockingIOError:
                self._wait_writable(deadline_s)
                deadline_s = _postponed_s(deadline_s, wait_s, last_s)
                continue
            except OSError as error:
                raise self._broken(f"connection to {self.peer} broke: {error}") from error
            while parts and count >= len(parts[0]):
                count -= len(parts.pop(0))
            if count:
                parts[0] = parts[0][count:]
        self.written_s = time.monotonic()

    def _wait_writable(self, deadline_s: float) -> None:
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0 or not self._writable.poll(remaining_s * 1000):
            # Part of the frame is out: nothing else can be sent on this connection.
            raise self._broken(f"{self.peer} does not read what is sent to it; connection closed")

    # --- reading

    def _read(self) -> bool:
        """Read what is available, once; return whether there was anything.

        Raises:
            ConnectionFailed, RemoteProtocolError: the connection is closed.
        """
        try:
            return self._read_once()
        except PymqError:
            raise
        except BaseException as error:
            # Ctrl-C: bytes that were read may be lost, so the position in the stream is unknown.
            self._broken(f"reading from {self.peer} was interrupted: {type(error).__name__}")
            raise

    def _read_once(self) -> bool:
        try:
            count = self._socket.recv_into(self._input.room)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._broken(f"connection to {self.peer} broke: {error}") from error
        if count == 0:
            raise self._broken(f"{self.peer} closed the connection")
        self._is_silent, self.heard_s = False, time.monotonic()
        try:
            for command in self._input.received(count):
                if command.is_response and self._requests.resolve(command) is not None:
                    self._answers[command.opaque] = command
                # Else: a notification, or the answer to a request that was given up.
        except RemoteProtocolError as error:
            failure = RemoteProtocolError(f"{self.peer} sent an invalid frame: {error}")
            self._fail(failure)
            raise failure from error
        return True

    # --- the end

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _check_answerable(self) -> None:
        if isinstance(self._failure, ClientClosed):
            raise ClientClosed(f"{self._failure} before a request was answered", sent=True)
        self._check_open()

    def _broken(self, text: str) -> ConnectionFailed:
        failure = ConnectionFailed(text, sent=True)
        self._fail(failure)
        return failure

    def _fail(self, failure: PymqError) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        self._requests.fail_all()
        self._input.give_up()
        self._socket.close()


def _postponed_s(deadline_s: float, wait_s: float, last_s: float) -> float:
    """Return the deadline of a wait that goes on because the peer does."""
    return min(max(deadline_s, time.monotonic() + wait_s), last_s)
