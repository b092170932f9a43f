"""The table from request codes to handlers."""

from collections.abc import Mapping

from pymq.broker.handling import Handler, call
from pymq.net.server import ServerConnection
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command


class Requests:
    """Dispatches the commands of every connection.

    Whatever goes wrong, the connection lives and a request that wants an answer gets one.
    """

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        self._handlers = dict(handlers)

    def on_commands(self, connection: ServerConnection, commands: list[Command]) -> None:
        """Handle commands that arrived together, in order."""
        handlers = self._handlers
        for command in commands:
            if command.is_response:
                continue  # of a one-way notification: nobody waits for it
            handler = handlers.get(command.code)
            if handler is None:
                response: Command | None = command.reply(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {command.code} not supported",
                )
            else:
                response = call(handler, connection, command)
            if response is not None:
                connection.respond(command, response)
