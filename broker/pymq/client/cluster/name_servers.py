"""Several name servers that know nothing of each other: any answers for all, or all are asked."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pymq.client import operations
from pymq.client.cluster.config import parse_name_servers
from pymq.client.cluster.name_server_failures import NameServerFailures
from pymq.client.cluster.name_server_lookup import is_lookup, look_up
from pymq.client.cluster.routes import not_a_name_server
from pymq.client.operations import Operation
from pymq.errors import (
    BrokerError,
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RemoteProtocolError,
    RequestNotSupported,
    RequestTimeout,
)
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.net.threads import in_thread
from pymq.protocol.names import DEFAULT_TOPIC

_log = logging.getLogger(__name__)

#: Who has cost us this is waited for again after ``SILENT_S`` only: otherwise each question to all
#: would take so long.
_SLOW_S = 1.0
SILENT_S = 30.0

T = TypeVar("T")


class Connections(Protocol):
    """How a name server is reached."""

    async def channel(self, address: str) -> AsyncChannel: ...

    def open_channel(self, address: str | None) -> AsyncChannel | None: ...

    async def ask(self, channel: AsyncChannel, operation: Operation[T]) -> T: ...


class NameServers:
    """Asks the name server that answered last, then the others.

    Args:
        connections: of the client.
        name_servers: ``host:port`` of each, or the URL at which they are looked up.
        unit_name: for that.

    Attributes:
        addresses: ``host:port`` of each; empty before they are looked up.
    """

    def __init__(
        self,
        connections: Connections,
        name_servers: Sequence[str],
        *,
        unit_name: str | None = None,
    ) -> None:
        self._connections = connections
        self._url = next((one for one in name_servers if is_lookup(one)), None)
        self._unit_name = unit_name
        self.addresses = tuple(name_servers) if self._url is None else ()
        self._first = 0
        self._silent_until_s: dict[str, float] = {}
        self._troubles = SaidOnce(_log)

    @property
    def is_looked_up(self) -> bool:
        """Are the addresses looked up?"""
        return self._url is not None

    async def look_up(self) -> None:
        """Look the addresses up, if they are, in a thread; those from before stay as they may.

        Raises:
            ConnectionFailed: they cannot be looked up, and never were.
            ConfigurationError: likewise, what was found there is no list of addresses.
        """
        if self._url is None:
            return
        try:
            text = await in_thread("pymq look-up", look_up, self._url, self._unit_name)
            found = parse_name_servers(text)
        except (ConnectionFailed, ConfigurationError) as error:
            if not self.addresses:
                raise
            self._troubles.warn("look-up", "%s; going on with %s", error, ";".join(self.addresses))
            return
        self._troubles.over("look-up", "the name servers are looked up at %s again", self._url)
        if self.addresses and found != self.addresses:
            _log.info("the name servers are %s now", ";".join(found))
        self.addresses = found

    async def reach(self) -> AsyncChannel:
        """Return a connection to a name server, beginning with the one that last answered.

        Raises:
            ConfigurationError: one is not a name server, but a broker.
            ConnectionFailed: none answers; the text names all and why.
            ClientClosed: we are closed.
        """
        failures = NameServerFailures(self.addresses)
        for index, address in self._in_turn():
            channel = await self._probe(address, failures)
            if channel is not None:
                self._first = index
                return channel
        raise failures.error()

    async def _probe(self, address: str, failures: NameServerFailures) -> AsyncChannel | None:
        """Return the connection to an address if a name server answers there."""
        connections = self._connections
        began_s = _now_s()
        try:
            channel = await connections.channel(address)
            await connections.ask(channel, operations.route(DEFAULT_TOPIC))
        except RequestNotSupported as error:
            raise await self._not_a_name_server(channel) from error
        except BrokerError:
            return channel  # Whatever else it says, it knows what a route is.
        except (ConnectionFailed, RequestTimeout, RemoteProtocolError) as error:
            self._failed(address, error, began_s)
            failures.add(error)
            return None
        return channel

    async def _not_a_name_server(self, channel: AsyncChannel) -> ConfigurationError:
        try:
            await self._connections.ask(channel, operations.broker_state())
        except PymqError:
            return not_a_name_server(channel.address, is_broker=False)
        return not_a_name_server(channel.address, is_broker=True)

    def _failed(self, address: str, error: PymqError, began_s: float) -> None:
        """Give up a connection that fell silent, and remember who took long to say nothing."""
        if not isinstance(error, BrokerError) and _now_s() - began_s >= _SLOW_S:
            self._silent_until_s[address] = _now_s() + SILENT_S
        if isinstance(error, RequestTimeout) and (
            silent := self._connections.open_channel(address)
        ):
            silent.abort()

    def _in_turn(self) -> list[tuple[int, str]]:
        """Return (index, address) of each, the one that last answered first.

        A list of the caller's own: others that fail at the same time must not make it skip one.
        """
        numbered = list(enumerate(self.addresses))
        return numbered[self._first :] + numbered[: self._first]

    async def ask(self, ask: Callable[[], Operation[T]]) -> T:
        """Return the answer of the first name server that gives one.

        Args:
            ask: makes the operation, for each name server another one.

        Raises:
            BrokerError, ConnectionFailed: see ``NameServerFailures.error``.
            ClientClosed: we are closed.
        """
        failures = NameServerFailures(self.addresses)
        for index, address in self._in_turn():
            answer = await self._answer(address, ask())
            if not isinstance(answer, PymqError):
                self._first = index
                return answer
            failures.add(answer)
        raise failures.error()

    async def ask_all(self, ask: Callable[[], Operation[T]]) -> list[T]:
        """Return the answers of all name servers that give one; they are asked together.

        One that was silent is passed over for ``SILENT_S``, unless no other one has an answer.

        Args:
            ask: see ``ask``.

        Returns:
            At least one; first that of the name server that ``ask`` would believe.

        Raises:
            BrokerError, ConnectionFailed: see ``NameServerFailures.error``.
            ClientClosed: we are closed.
        """
        failures = NameServerFailures(self.addresses)
        turn = [address for _, address in self._in_turn()]
        silent = [one for one in turn if self._silent_until_s.get(one, 0.0) > _now_s()]
        found: dict[str, T] = {}

        async def hear(address: str) -> None:
            answer = await self._answer(address, ask())
            if isinstance(answer, PymqError):
                failures.add(answer)
            else:
                found[address] = answer

        for those in ([one for one in turn if one not in silent], silent):
            await asyncio.gather(*map(hear, those))
            if found:
                return [found[one] for one in turn if one in found]
        raise failures.error()

    async def _answer(self, address: str, operation: Operation[T]) -> T | PymqError:
        connections = self._connections
        began_s = _now_s()
        try:
            return await connections.ask(await connections.channel(address), operation)
        except (BrokerError, ConnectionFailed, RequestTimeout, RemoteProtocolError) as error:
            self._failed(address, error, began_s)
            return error


def _now_s() -> float:
    return asyncio.get_running_loop().time()
