"""Several name servers that know nothing of each other: any of them answers for all."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from pymq.client import operations
from pymq.client.name_server_failures import NameServerFailures
from pymq.client.operations import Operation
from pymq.client.routes import not_a_name_server
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
from pymq.protocol.names import DEFAULT_TOPIC

T = TypeVar("T")


class Connections(Protocol):
    """How a name server is reached."""

    name_servers: tuple[str, ...]

    async def channel(self, address: str) -> AsyncChannel: ...

    def open_channel(self, address: str | None) -> AsyncChannel | None: ...

    async def ask(self, channel: AsyncChannel, operation: Operation[T]) -> T: ...


class NameServers:
    """Asks the name server that answered last, then the others.

    Args:
        connections: of the client.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.addresses = connections.name_servers
        self._first = 0

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
        try:
            channel = await connections.channel(address)
            await connections.ask(channel, operations.route(DEFAULT_TOPIC))
        except RequestNotSupported as error:
            raise await self._not_a_name_server(channel) from error
        except BrokerError:
            return channel  # Whatever else it says, it knows what a route is.
        except (ConnectionFailed, RequestTimeout, RemoteProtocolError) as error:
            self._give_up_silent(address, error)
            failures.add(error)
            return None
        return channel

    async def _not_a_name_server(self, channel: AsyncChannel) -> ConfigurationError:
        try:
            await self._connections.ask(channel, operations.broker_state())
        except PymqError:
            return not_a_name_server(channel.address, is_broker=False)
        return not_a_name_server(channel.address, is_broker=True)

    def _give_up_silent(self, address: str, error: PymqError) -> None:
        """Give up a connection that fell silent."""
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
        connections = self._connections
        failures = NameServerFailures(self.addresses)
        for index, address in self._in_turn():
            try:
                answer = await connections.ask(await connections.channel(address), ask())
            except (BrokerError, ConnectionFailed, RequestTimeout, RemoteProtocolError) as error:
                self._give_up_silent(address, error)
                failures.add(error)
            else:
                self._first = index
                return answer
        raise failures.error()
