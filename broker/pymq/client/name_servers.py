"""Several name servers that know nothing of each other: any of them answers for all."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pymq.client.operations import Operation
from pymq.errors import BrokerError, ConnectionFailed, RemoteProtocolError, RequestTimeout
from pymq.net.channel import AsyncChannel

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
        self._addresses = connections.name_servers
        self._first = 0

    async def reach(self) -> AsyncChannel:
        """Return a connection to a name server, beginning with the one that last answered.

        Raises:
            ConnectionFailed: none can be reached; the text names all and why.
            ClientClosed: we are closed.
        """
        failures = []
        for index, address in self._in_turn():
            try:
                channel = await self._connections.channel(address)
            except ConnectionFailed as error:
                failures.append(str(error))
            else:
                self._first = index
                return channel
        raise no_name_server(self._addresses, failures)

    def _in_turn(self) -> list[tuple[int, str]]:
        """Return (index, address) of each, the one that last answered first.

        A list of the caller's own: others that fail at the same time must not make it skip one.
        """
        numbered = list(enumerate(self._addresses))
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
            except RequestTimeout as error:
                failures.append(str(error))
                if silent := connections.open_channel(address):
                    silent.abort()
            except (ConnectionFailed, RemoteProtocolError) as error:
                failures.append(str(error))
            else:
                self._first = index
                return answer
        if refusal is None:
            raise no_name_server(self._addresses, failures)
        for failure in failures:
            refusal.add_note(failure)
        raise refusal


def no_name_server(name_servers: Sequence[str], failures: Sequence[str]) -> ConnectionFailed:
    """Return what to raise when no name server answers."""
    return ConnectionFailed(
        f"no name server of {', '.join(name_servers)} answers: {'; '.join(failures)}"
    )
