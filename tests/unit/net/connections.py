"""A server's connection that ends in a list: for handlers without sockets."""

from collections.abc import Sequence
from time import monotonic
from typing import cast

from pymq.net.dispatcher import Dispatcher
from pymq.net.server import ServerConnection
from pymq.protocol.command import Command
from pymq.protocol.framing import Incoming


class FakeConnection:
    """What dispatchers and handlers ask of a connection.

    Attributes:
        responses: (request, response, parts of the body) of everything that was answered.
        frames: what was sent as it is.
        answers: responses of the peer to what was asked of it.
    """

    def __init__(self) -> None:
        self.peer = "10.0.0.9:4000"
        self.packed_host = bytes((10, 0, 0, 9)) + (4000).to_bytes(4, "big")
        self.is_open = True
        self.write_stuck_at: float | None = None
        self.responses: list[tuple[Command, Command, list[bytes]]] = []
        self.frames: list[bytes] = []
        self.answers: list[Command] = []

    @property
    def input_at(self) -> float:
        """What it says was read a moment ago."""
        return monotonic()

    def respond(
        self, request: Command, response: Command, parts: Sequence[memoryview] | None = None
    ) -> None:
        if not request.is_one_way:
            self.responses.append((request, response, [bytes(part) for part in parts or ()]))

    def send(self, *buffers: bytes) -> None:
        self.frames += buffers

    def postpone(self, commands: Sequence[Incoming]) -> bool:
        return False  # There are no turns: all of them are handled now.

    def abort(self) -> None:
        self.is_open = False

    def answered(self, response: Command) -> None:
        self.answers.append(response)

    def as_connection(self) -> ServerConnection:
        return cast(ServerConnection, self)


def ask(dispatcher: Dispatcher, request: Command) -> Command:
    """Return the response to a request that is answered at once."""
    connection = FakeConnection()
    dispatcher.on_commands(connection.as_connection(), [request])
    ((_, response, _),) = connection.responses
    return response
