"""One outgoing connection: a client's end.

A child made by ``fork`` has copies of the sockets. They are given up as soon as the child exists,
also of connections that are only just being made: peers would otherwise not see when the parent is
gone.
"""

import asyncio
import logging
import os
import socket
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from pymq.errors import ConnectionFailed, RemoteProtocolError
from pymq.net.asking import AskingWire
from pymq.net.buffers import BufferPool
from pymq.net.threads import in_thread
from pymq.protocol.addresses import split_address
from pymq.protocol.codes import CommandFlag
from pymq.protocol.command import Command
from pymq.protocol.connection import PENDING_MAX
from pymq.protocol.framing import FRAME_BYTES_MAX, Incoming

_log = logging.getLogger(__name__)

_RESPONSE = int(CommandFlag.RESPONSE)

#: Handles a request that the server sent over our connection.
OnRequest = Callable[["AsyncChannel", Command], None]
#: Changes a request just before it is encoded; it must be idempotent.
OnLeave = Callable[[Command], None]

#: Family, kind and protocol of a socket; canonical name; where to connect it to.
_Address: TypeAlias = tuple[int, int, int, str, Any]


class AsyncChannel(AskingWire):
    """A connection to a server. For the event loop it was opened on.

    Args:
        address: ``host:port``, for error messages.
        on_request: gets the server's own requests; without it they are logged and dropped.
        on_ended: called once when the connection is gone, after its requests have failed.
        on_leave: gets each request that goes out as a ``Command``, before it is encoded.
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
        on_leave: OnLeave | None = None,
        pending_max: int = PENDING_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        # Answers live as long as their messages do, so there is no buffer to reuse.
        super().__init__(
            BufferPool(count_max=0), pending_max=pending_max, frame_bytes_max=frame_bytes_max
        )
        self.address = self.peer = address
        self._on_request = on_request
        self._on_ended = on_ended
        self._on_leave = on_leave
        self._socket: socket.socket | None = None
        _channels.add(self)

    @staticmethod
    async def connect(
        address: str,
        timeout_s: float,
        *,
        on_request: OnRequest | None = None,
        on_ended: Callable[["AsyncChannel"], None] | None = None,
        on_leave: OnLeave | None = None,
        pending_max: int = PENDING_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        reached: str | None = None,
    ) -> "AsyncChannel":
        """Open a connection.

        Args:
            address: ``host:port``, by which the peer is known.
            timeout_s: for the connection to be made; the addresses of a name are tried in turn.
            on_request, on_ended, on_leave, pending_max, frame_bytes_max: see the class.
            reached: where to connect to instead of ``address``.

        Raises:
            ConfigurationError: ``address`` is not ``host:port``.
            ConnectionFailed: no connection was made within ``timeout_s``.
        """
        host, port = split_address(reached or address)
        at = address if reached in (None, address) else f"{address} at {reached}"
        channel = AsyncChannel(
            address,
            on_request=on_request,
            on_ended=on_ended,
            on_leave=on_leave,
            pending_max=pending_max,
            frame_bytes_max=frame_bytes_max,
        )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                failures = []
                for one in await _addresses(host, port):
                    try:
                        await channel._connect(loop, one)
                    except OSError as error:
                        failures.append(error)
                    else:
                        return channel
                raise OSError("; ".join(dict.fromkeys(map(_reason, failures))))
        except TimeoutError as error:
            raise ConnectionFailed(f"{at} did not answer within {timeout_s:g} s") from error
        except (OSError, UnicodeError) as error:  # Unicode: a name that cannot be looked up
            raise ConnectionFailed(f"cannot connect to {at}: {_reason(error)}") from error

    async def _connect(self, loop: asyncio.AbstractEventLoop, address: _Address) -> None:
        family, kind, protocol, _, place = address
        self._socket = made = socket.socket(family, kind, protocol)
        try:
            made.setblocking(False)
            await loop.sock_connect(made, place)
            await loop.create_connection(lambda: self, sock=made)
        except BaseException:
            made.close()
            raise

    # --- use

    @property
    def local_host(self) -> str | None:
        """Our own address on this connection."""
        name = self._transport.get_extra_info("sockname") if self._transport else None
        return str(name[0]) if name else None

    def respond(self, request: Command, response: Command) -> None:
        """Answer a request from the server, unless it is one-way."""
        if not request.is_one_way and self.is_open:
            self._send_command(response)

    def _send_command(self, command: Command) -> None:
        if self._on_leave is not None and not command.flag & _RESPONSE:
            self._on_leave(command)
        super()._send_command(command)

    def leave_to_parent(self) -> None:
        """Give up our copy of the connection, in a child made by ``fork``; the parent's stays.

        Its descriptor leads nowhere from then on. It is not closed: its number would be used again,
        while the loop of the parent, of which this process has a copy, takes it for its own.
        """
        if self._socket is None or (number := self._socket.fileno()) < 0:
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        try:
            os.dup2(nowhere, number, inheritable=False)
        finally:
            os.close(nowhere)

    # --- answers

    def commands_received(self, commands: list[Incoming]) -> None:
        """Hand responses to their waiters, requests to ``on_request``."""
        resolve, last = self._table.resolve, None
        for command in cast(list[Command], commands):  # a server sends no messages
            if command.flag & _RESPONSE:
                token = resolve(command)  # as in answered: once for every message sent
                if token is not None:
                    last = command.opaque
                    token[0](command)
            elif self._on_request is None:
                _log.debug("%s sent request %d, which has no handler here", self.peer, command.code)
            else:
                self._on_request(self, command)
        if last is not None:
            self._progress.answered(last)

    def input_invalid(self, error: RemoteProtocolError) -> None:
        """Log it if nobody waits for an answer; those who do are told, at each of their tries."""
        if not self.pending_count:
            super().input_invalid(error)

    def connection_ended(self, error: Exception | None) -> None:
        """Fail the requests in flight and tell the owner."""
        super().connection_ended(error)
        on_ended, self._on_ended = self._on_ended, None
        if on_ended is not None:
            on_ended(self)


# Weak, so that nothing is kept for the sake of a fork.
_channels: weakref.WeakSet[AsyncChannel] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for channel in list(_channels):
        channel.leave_to_parent()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_to_parent)


async def _addresses(host: str, port: int) -> list[_Address]:
    """Return the addresses of a host, in the order in which they are to be tried.

    The event loop would look names up in its executor, see ``in_thread``.

    Raises:
        OSError, UnicodeError: it has none.
    """
    kind, flags = socket.SOCK_STREAM, socket.AI_NUMERICHOST
    try:
        return list(socket.getaddrinfo(host, port, 0, kind, 0, flags))
    except socket.gaierror:  # It is a name.
        return list(await in_thread("pymq look-up", socket.getaddrinfo, host, port, 0, kind))


def _reason(error: OSError | UnicodeError) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
