"""A listener: accepts connections and hands their commands to one handler."""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pymq.errors import ConfigurationError, LocalProtocolError, RequestTimeout
from pymq.net.asking import AskingWire
from pymq.net.buffers import BufferPool
from pymq.net.busy_poll import LARGE_ANSWER_BYTES, BusyPoll, processor_count
from pymq.net.listening import BACKLOG_COUNT, bind, listen, listen_error
from pymq.net.said_once import SaidOnce
from pymq.net.standstill import Standstill
from pymq.net.tasks import Tasks
from pymq.protocol.addresses import join_address
from pymq.protocol.codes import ResponseCode, request_name
from pymq.protocol.command import Command
from pymq.protocol.framing import FRAME_BYTES_MAX, Incoming, encode_frame, encode_head
from pymq.protocol.plain_runs import RUN_COUNT_MIN, PlainRunReader
from pymq.protocol.record import pack_host, unpack_host

_log = logging.getLogger(__name__)

#: Buffers for large requests, kept while large requests keep coming.
BUFFER_COUNT_MAX = 8
BUFFERS_KEPT_S = 5.0
#: How often it is checked whether connections can be accepted.
FILES_CHECKED_S = 5.0
#: How often, at least, it is looked which connections are silent or stuck.
DEADLINES_CHECKED_S = 5.0
#: Open files of a process without a limit.
_FILE_COUNT_MAX = 1 << 20
#: Most requests of ours to one client that are unanswered.
ASKED_COUNT_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where a server listens and how long it tolerates silence."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    frame_bytes_max: int = FRAME_BYTES_MAX
    connection_count_max: int = 20_000
    idle_s: float = 120.0  # RocketMQ serverChannelMaxIdleTimeSeconds
    frame_s: float = 30.0  # a frame must be complete this long after its first byte
    unfinished_bytes_max: int = 512 << 20  # of incomplete frames, all connections together
    write_stuck_s: float = 30.0  # a peer that does not read is disconnected after this
    plain_runs: bool = False  # whether runs of requests come as one
    busy_poll_s: float = 0.0  # how long the event loop stays awake after an answer

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"port={self.port}: expected 0..65535")


class ServerConnection(AskingWire):
    """One accepted connection; also the server's only identity of the client behind it.

    A server may ask its client, too. Whoever handles the commands passes its responses to
    ``answered``.
    """

    def __init__(self, server: "Server") -> None:
        super().__init__(
            server.buffers,
            pending_max=ASKED_COUNT_MAX,
            frame_bytes_max=server.config.frame_bytes_max,
            plain_runs=PlainRunReader() if server.config.plain_runs else None,
        )
        self._server = server
        self._busy_poll = server.busy_poll
        #: The client's address as a record stores it.
        self.packed_host = b"\x00" * 8

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.packed_host = pack_host(peer[0], peer[1])
            self.peer = join_address(*unpack_host(self.packed_host))
        self._server.accepted(self)

    def commands_received(self, commands: list[Incoming]) -> None:
        """Pass commands on to the server's handler."""
        if self._busy_poll is not None:
            is_run = type(commands[0]) is not Command
            self._busy_poll.heard(RUN_COUNT_MIN if is_run else len(commands))
        self._server.on_commands(self, commands)

    def connection_ended(self, error: Exception | None) -> None:
        """Fail what we have asked, and tell the server."""
        super().connection_ended(error)
        self._server.ended(self)

    async def ask(self, command: Command, timeout_s: float) -> Command:
        """Ask the client, once it has read most of what was sent to it; return its response.

        Questions to a client that does not read would otherwise pile up here, with their bodies.

        Raises:
            ConnectionFailed: the connection is closed or was lost.
            LocalProtocolError: the command cannot be encoded.
            RequestTimeout: no answer within ``timeout_s``.
            TooManyPending: ``ASKED_COUNT_MAX`` requests are unanswered.
        """
        deadline_s = self._loop.time() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait_writable()
        except TimeoutError as error:
            raise RequestTimeout(
                f"{self.peer} has not read for {timeout_s:g} s; {request_name(command.code)} was "
                "not sent"
            ) from error
        return await self.request(command, deadline_s - self._loop.time())

    def respond(
        self, request: Command, response: Command, parts: Sequence[memoryview] | None = None
    ) -> None:
        """Send the answer to a request, unless it is one-way.

        Args:
            request: to be answered.
            response: the answer.
            parts: pieces of a body that replaces the body of ``response``; sent without a copy.
        """
        if request.is_one_way:
            return
        body: Sequence[bytes | memoryview]
        if parts is not None:
            body = parts
        else:
            body = (response.body,) if len(response.body) else ()
        body_bytes = sum(map(len, body))
        if body_bytes >= LARGE_ANSWER_BYTES and self._busy_poll is not None:
            self._busy_poll.answered_much()
        try:
            head = encode_head(
                response, body_bytes, frame_bytes_max=self._decoder.frame_bytes_max
            )
        except LocalProtocolError as error:
            head, body = encode_frame(request.reply(ResponseCode.SYSTEM_ERROR, str(error))), ()
        self.send(head, *body)

    def _flush(self) -> None:
        super()._flush()
        if self._busy_poll is not None:
            self._busy_poll.answered()


class Server:
    """One listening port.

    Args:
        config: where and how.
        on_commands: gets the commands that arrived together on one connection.
        on_ended: called once per connection, when it is gone.

    Attributes:
        beside: other ports of the same server: one limit is for the connections of all of them.
    """

    def __init__(
        self,
        config: ServerConfig,
        on_commands: Callable[[ServerConnection, list[Incoming]], None],
        on_ended: Callable[[ServerConnection], None],
    ) -> None:
        self.config = config
        self.on_commands = on_commands
        self._on_ended = on_ended
        self.buffers = BufferPool(count_max=BUFFER_COUNT_MAX)
        self.buffers.unfinished_bytes_max = config.unfinished_bytes_max
        self.buffers.on_full = self.close_slowest
        self._connections: set[ServerConnection] = set()
        self._is_held = False
        self._turns_away = False
        self.busy_poll: BusyPoll | None = None
        if config.busy_poll_s and processor_count() > 1:
            self.busy_poll = BusyPoll(config.busy_poll_s)
        self._said = SaidOnce(_log)
        self.beside: Sequence[Server] = ()
        # As many are left for others: a store that cannot open a file stops (``log.segments`` has
        # the shares).
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = _FILE_COUNT_MAX if soft == resource.RLIM_INFINITY else soft
        self._count_max = min(config.connection_count_max, max(files // 2, 1))
        self._tasks = Tasks("server")
        self._standstill: Standstill | None = None
        self._deadlines_checked_s = min(config.frame_s, DEADLINES_CHECKED_S)
        self._server: asyncio.Server | None = None
        self._socket: socket.socket | None = None
        self.port = config.port

    def bind(self, *, is_wanted: bool = True) -> None:
        """Take the port, without listening yet; ``port`` is its number.

        Args:
            is_wanted: see ``listening.bind``.

        Raises:
            ConfigurationError: the port is taken, or the address is not ours.
        """
        self._socket = bind(self.config.host, self.config.port, is_wanted=is_wanted)
        self.port = self._socket.getsockname()[1]

    def unbind(self) -> None:
        """Give up a port on which nobody has listened; idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def start(self) -> None:
        """Listen, on the port that ``bind`` took or takes now.

        Raises:
            ConfigurationError: the port is taken, or the address is not ours.
        """
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        try:
            listen(self._socket)
            self._server = await asyncio.get_running_loop().create_server(
                lambda: ServerConnection(self), sock=self._socket, backlog=BACKLOG_COUNT
            )
        except OSError as error:
            address = join_address(self.config.host, self.port)
            raise ConfigurationError(
                f"cannot listen on {address}: {listen_error(error)}"
            ) from error
        self._standstill = Standstill(asyncio.get_running_loop().time())
        self._tasks.repeat("deadlines", self.enforce_deadlines, self._deadlines_checked_s)
        self._tasks.repeat("files", self.check_files, FILES_CHECKED_S)
        self._tasks.repeat("buffers", self.buffers.drop_unused, BUFFERS_KEPT_S)

    def accepted(self, connection: ServerConnection) -> None:
        """Accept a new connection, or refuse it above the limit."""
        self._connections.add(connection)
        if self._is_held:
            connection.hold()
        if self._turns_away:
            connection.abort()
            return
        if self._count() > self._count_max:
            self._said.warn(
                "connections",
                "%s refused, and so are others: %d connections are open, as many as may "
                "(connection_count_max, and half of ulimit -n). Look for clients that open one "
                "after another, or raise both",
                connection.peer,
                self._count_max,
            )
            connection.abort()

    def _count(self) -> int:
        """Return how many connections there are, at all ports."""
        return len(self._connections) + sum(len(one._connections) for one in self.beside)

    def hold(self) -> None:
        """Handle no request, of old or new connections, until ``release``."""
        self._is_held = True
        for connection in self._connections:
            connection.hold()

    def turn_away(self) -> None:
        """Close all connections, and those that come, until ``release``.

        What is still to be sent over them is sent; what waits to be handled never is.
        """
        self.hold()
        self._turns_away = True
        self._close_connections()

    def release(self) -> None:
        """Handle requests again."""
        turned_away, self._turns_away = self._turns_away, False
        self._is_held = False
        for connection in list(self._connections):
            if connection.is_open or not turned_away:
                connection.release()

    def ended(self, connection: ServerConnection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        if self._count() < self._count_max // 2:
            self._said.over("connections", "connections are taken again")
        self._on_ended(connection)

    def check_files(self) -> None:
        """Say that no connection can be accepted: the event loop refuses them without a word."""
        if self._socket is None:
            return
        try:
            self._socket.dup().close()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._said.warn(
                "files",
                "port %d: no connection can be accepted, %s, with %d open: raise ulimit -n (or "
                "fs.file-max), or have fewer clients",
                self.port,
                error.strerror,
                len(self._connections),
            )
        else:
            self._said.over("files", "port %d: connections can be accepted again", self.port)

    def close_slowest(self) -> None:
        """Close the connection that has been in the middle of a frame for the longest time."""
        unfinished = [one for one in self._connections if one.unfinished_bytes]
        if not unfinished:
            return
        slowest = min(unfinished, key=lambda one: one.frame_begun_at)
        self._said.warn(
            "unfinished",
            "%s closed, and perhaps others: %d requests that have not arrived completely take %d "
            "MiB, more than %d (unfinished_bytes_max), and its own began %.1f s ago. Look for "
            "clients that begin large requests and do not finish them, or a slow network",
            slowest.peer,
            len(unfinished),
            self.buffers.unfinished_bytes >> 20,
            self.config.unfinished_bytes_max >> 20,
            asyncio.get_running_loop().time() - slowest.frame_begun_at,
        )
        slowest.give_up_frame()

    def enforce_deadlines(self) -> int:
        """Close connections that are silent, stuck in a frame or do not read; return how many.

        Each is granted the time for which this process stood still.
        """
        now = asyncio.get_running_loop().time()
        if self._standstill is not None:
            self._grant(self._standstill.look(now, self._deadlines_checked_s), now)
        if self.buffers.unfinished_bytes <= self.config.unfinished_bytes_max // 2:
            self._said.over("unfinished")
        closed = 0
        for connection in list(self._connections):
            reason = self._overdue(connection, now)
            if reason:
                _log.info("%s closed: %s", connection.peer, reason)
                connection.abort()
                closed += 1
        return closed

    def _grant(self, stall_s: float, now: float) -> None:
        """Count a standstill of ours as nobody's silence."""
        if not stall_s:
            return
        # Every port says so, and a machine that is slow does so all the time.
        _log.debug("port %d: this process stood still for %.1f s", self.port, stall_s)
        for one in self._connections:
            one.read_at = min(one.read_at + stall_s, now)
            one.frame_begun_at = min(one.frame_begun_at + stall_s, now)
            if one.write_stuck_at is not None:
                one.write_stuck_at = min(one.write_stuck_at + stall_s, now)

    def _overdue(self, connection: ServerConnection, now: float) -> str | None:
        config = self.config
        stuck_at = connection.write_stuck_at
        if stuck_at is not None and now - stuck_at > config.write_stuck_s:
            return f"it has not read for {config.write_stuck_s:g} s (write_stuck_s)"
        if connection.pending_bytes and now - connection.frame_begun_at > config.frame_s:
            return f"a frame was incomplete for {config.frame_s:g} s (frame_s)"
        if now - connection.read_at > config.idle_s:
            return f"silent for {config.idle_s:g} s (idle_s)"
        return None

    def abort_connections(self) -> int:
        """Close every connection at once, as a network does that fails; return how many."""
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        return len(connections)

    async def close(self) -> None:
        """Stop listening and close every connection; idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        else:
            self.unbind()
        self._socket = None
        self._close_connections()
        await self._tasks.close()

    def _close_connections(self) -> None:
        for connection in list(self._connections):
            if connection.write_stuck_at is None:
                connection.close()
            else:  # otherwise it would stay until its peer reads
                connection.abort()
