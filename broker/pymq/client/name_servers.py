"""Several name servers that know nothing of each other: any of them answers for all."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pymq.client import operations
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
        failures: list[str] = []
        for index, address in self._in_turn():
            channel = await self._probe(address, failures)
            if channel is not None:
                self._first = index
                return channel
        raise no_name_server(self.addresses, failures)

    async def _probe(self, address: str, failures: list[str]) -> AsyncChannel | None:
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
            failures.append(self._failure(address, error))
            return None
        return channel

    async def _not_a_name_server(self, channel: AsyncChannel) -> ConfigurationError:
        try:
            await self._connections.ask(channel, operations.broker_state())
        except PymqError:
            return not_a_name_server(channel.address, is_broker=False)
        return not_a_name_server(channel.address, is_broker=True)

    def _failure(self, address: str, error: PymqError) -> str:
        """Return why an address gave no answer; a connection that fell silent is given up."""
        if isinstance(error, RequestTimeout) and (
            silent := self._connections.open_channel(address)
        ):
            silent.abort()
        return str(error)

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
            BrokerError: a name server refused it, and no other did it; a note says which could
                not be asked.
            ConnectionFailed: none answers; the text names all and why.
            ClientClosed: we are closed.
        """
        connections = self._connections
        failures = []
        refusal: BrokerError | None = None
        for index, address in self._in_turn():
            try:
                answer = await connections.ask(await connections.channel(address), ask())
            except BrokerError as error:
                # Name servers know nothing of each other: one that has just started may lack
                # what another still knows.
                refusal = refusal or error
            except (ConnectionFailed, RequestTimeout, RemoteProtocolError) as error:
                failures.append(self._failure(address, error))
            else:
                self._first = index
                return answer
        if refusal is None:
            raise no_name_server(self.addresses, failures)
        for failure in failures:
            refusal.add_note(failure)
        raise refusal


def no_name_server(name_servers: Sequence[str], failures: Sequence[str]) -> ConnectionFailed:
    """Return what to raise when no name server answers."""
    return ConnectionFailed(
        f"no name server of {', '.join(name_servers)} answers: {'; '.join(failures)}"
    )
