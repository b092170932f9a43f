"""One outgoing connection: requests that are answered in any order, each with a deadline.

A single request has neither a task nor a timer of its own. One timer per connection watches the
earliest deadline, which keeps a hundred thousand requests a second affordable.
"""

import asyncio
import logging
from collections.abc import Callable

from pymq.errors import ConnectionFailed, PymqError, RemoteProtocolError, RequestTimeout
from pymq.net.buffers import BufferPool
from pymq.net.wire import Wire
from pymq.protocol.addresses import split_address
from pymq.protocol.codes import CommandFlag, request_name
from pymq.protocol.command import Command
from pymq.protocol.connection import PENDING_MAX, RequestTable
from pymq.protocol.framing import FRAME_BYTES_MAX, encode_parts

_log = logging.getLogger(__name__)

#: Precision of deadlines.
SWEEP_S = 0.05
_ONE_WAY = int(CommandFlag.ONE_WAY)

#: Called once, with the response or with the reason why there is none; must not raise.
OnAnswer = Callable[[Command | PymqError], None]
#: Handles a request that the server sent over our connection.
OnRequest = Callable[["AsyncChannel", Command], None]


class AsyncChannel(Wire):
    """A connection to a server. For the event loop it was opened on.

    Args:
        address: ``host:port``, for error messages.
        on_request: gets the server's own requests; without it they are logged and dropped.
        on_ended: called once when the connection is gone, after its requests have failed.
        pending_max: most requests in flight at a time.
        frame_bytes_max: largest frame accepted.
    """

    #: Unlike a server. Otherwise the peer could not answer and so would not read, and both ends
    #: would wait for ever.
    READS_WHILE_STUCK = True

    def __init__(
        self,
        address: str,
        *,
        on_request: OnRequest | None = None,
        on_ended: Callable[["AsyncChannel"], None] | None = None,
        pending_max: int = PENDING_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        # Answers live as long as their messages do, so there is no buffer to reuse.
        super().__init__(BufferPool(count_max=0), frame_bytes_max=frame_bytes_max)
        self.address = self.peer = address
        self._on_request = on_request
        self._on_ended = on_ended
        self._table: RequestTable[tuple[OnAnswer, str, float]] = RequestTable(
            pending_max=pending_max
        )
        self._sweep: asyncio.TimerHandle | None = None
        self._writers: list[asyncio.Future[None]] = []

    @staticmethod
    async def connect(
        address: str,
        timeout_s: float,
        *,
        on_request: OnRequest | None = None,
        on_ended: Callable[["AsyncChannel"], None] | None = None,
        pending_max: int = PENDING_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> "AsyncChannel":
        """Open a connection.

        Raises:
            ConfigurationError: ``address`` is not ``host:port``.
            ConnectionFailed: no connection was made within ``timeout_s``.
        """
        host, port = split_address(address)
        channel = AsyncChannel(
            address,
            on_request=on_request,
            on_ended=on_ended,
            pending_max=pending_max,
            frame_bytes_max=frame_bytes_max,
        )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: channel, host, port)
        except TimeoutError as error:
            raise ConnectionFailed(f"{address} did not answer within {timeout_s:g} s") from error
        except (OSError, UnicodeError) as error:  # Unicode: a name that cannot be looked up
            raise ConnectionFailed(f"cannot connect to {address}: {_reason(error)}") from error
        return channel

    # --- requests

    @property
    def pending_count(self) -> int:
        """Requests in flight."""
        return len(self._table)

    @property
    def local_host(self) -> str | None:
        """Our own address on this connection."""
        name = self._transport.get_extra_info("sockname") if self._transport else None
        return str(name[0]) if name else None

    def register(self, description: str, timeout_s: float, on_answer: OnAnswer) -> int:
        """Return the ``opaque`` for a request that the caller then sends itself, at once.

        Args:
            description: of the request, for error messages.
            timeout_s: how long to wait for the answer.
            on_answer: called once, from the event loop, with the response or the error.

        Raises:
            ConnectionFailed: the connection is closed; nothing was sent.
            TooManyPending: ``pending_max`` requests are unanswered.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            self.check_open()
        deadline_s = self._loop.time() + timeout_s
        opaque = self._table.register(deadline_s, (on_answer, description, timeout_s))
        if self._sweep is None or deadline_s < self._sweep.when() - SWEEP_S:
            self._schedule_sweep()
        return opaque

    def forget(self, opaque: int) -> None:
        """Give up a registered request; its ``on_answer`` is not called."""
        self._table.forget(opaque)

    def request_nowait(
        self, command: Command, timeout_s: float, *, description: str | None = None
    ) -> asyncio.Future[Command]:
        """Send a request; the future gets the response, whatever its code.

        It fails with RequestTimeout, or with ConnectionFailed when the connection is lost;
        in both cases the request may have taken effect.

        Args:
            command: its ``opaque`` is set here.
            timeout_s: how long to wait for the answer.
            description: of the request, for error messages.

        Raises:
            ConnectionFailed: the connection is closed; nothing was sent.
            LocalProtocolError: the command cannot be encoded.
            TooManyPending: ``pending_max`` requests are unanswered.
        """
        future: asyncio.Future[Command] = self._loop.create_future()

        def on_answer(answer: Command | PymqError) -> None:
            if future.done():
                return
            if isinstance(answer, Command):
                future.set_result(answer)
            else:
                future.set_exception(answer)

        description = description or f"request {request_name(command.code)}"
        command.opaque = self.register(description, timeout_s, on_answer)
        try:
            self._send_command(command)
        except BaseException:
            self.forget(command.opaque)
            raise
        return future

    async def request(
        self, command: Command, timeout_s: float, *, description: str | None = None
    ) -> Command:
        """Send a request and return its response, whatever its code.

        Raises:
            ConnectionFailed: the connection is closed or was lost.
            LocalProtocolError: the command cannot be encoded.
            RequestTimeout: no answer within ``timeout_s``.
            TooManyPending: ``pending_max`` requests are unanswered.
        """
        return await self.request_nowait(command, timeout_s, description=description)

    def send_one_way(self, command: Command) -> None:
        """Send a request that is never answered; if the connection is lost, so is it, silently.

        Raises:
            ConnectionFailed: the connection is closed; nothing was sent.
            LocalProtocolError: the command cannot be encoded.
        """
        self.check_open()
        command.flag |= _ONE_WAY
        self._send_command(command)

    def respond(self, request: Command, response: Command) -> None:
        """Answer a request from the server, unless it is one-way."""
        if not request.is_one_way and self.is_open:
            self._send_command(response)

    def _send_command(self, command: Command) -> None:
        head, body = encode_parts(command, frame_bytes_max=self._decoder.frame_bytes_max)
        if body:
            self.send(head, body)
        else:
            self.send(head)

    # --- back-pressure

    def resume_writing(self) -> None:
        """Called by asyncio."""
        super().resume_writing()
        self._wake_writers()

    async def wait_writable(self) -> None:
        """Wait until the peer has read most of what was sent, or is gone."""
        while self._paused and self.is_open:
            future: asyncio.Future[None] = self._loop.create_future()
            self._writers.append(future)
            await future

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for future in writers:
            if not future.done():
                future.set_result(None)

    # --- answers

    def commands_received(self, commands: list[Command]) -> None:
        """Hand responses to their waiters, requests to ``on_request``."""
        resolve = self._table.resolve
        for command in commands:
            if command.flag & 1:
                token = resolve(command)
                if token is not None:
                    token[0](command)
            elif self._on_request is None:
                _log.debug("%s sent request %d, which has no handler here", self.peer, command.code)
            else:
                self._on_request(self, command)

    def input_invalid(self, error: RemoteProtocolError) -> None:
        """Log it if nobody waits for an answer; those who do are told, at each of their tries."""
        if not len(self._table):
            super().input_invalid(error)

    def connection_ended(self, error: Exception | None) -> None:
        """Fail the requests in flight and tell the owner."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        reason = f": {error}" if error else ""
        for on_answer, description, _ in self._table.fail_all():
            on_answer(
                ConnectionFailed(
                    f"connection to {self.peer} was lost before {description} was answered"
                    f"{reason}; it may have taken effect",
                    sent=True,
                )
            )
        self._wake_writers()
        on_ended, self._on_ended = self._on_ended, None
        if on_ended is not None:
            on_ended(self)

    # --- deadlines

    def _schedule_sweep(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        at = max(self._table.earliest_s, self._loop.time()) + SWEEP_S
        self._sweep = self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._sweep = None
        for on_answer, description, timeout_s in self._table.expired(self._loop.time()):
            on_answer(
                RequestTimeout(
                    f"{self.peer} did not answer {description} within {timeout_s:g} s; it may have "
                    "taken effect"
                )
            )
        if len(self._table) and self._sweep is None:
            self._schedule_sweep()


def _reason(error: OSError | UnicodeError) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
