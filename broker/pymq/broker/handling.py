"""What a handler of requests is, and what happens around its call."""

import logging
from collections.abc import Callable

from pymq.errors import BrokerError, ProtocolError
from pymq.net.server import ServerConnection
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command

_log = logging.getLogger(__name__)

#: Takes a request; returns its response, or None when it answers later or never. It says no
#: by raising a BrokerError (``errors.refusal``), whose code and remark become the response.
Handler = Callable[[ServerConnection, Command], Command | None]


def call(handler: Handler, connection: ServerConnection, command: Command) -> Command | None:
    """Return what a handler returns; whatever goes wrong in it becomes a response."""
    try:
        return handler(connection, command)
    except BrokerError as error:
        return command.reply(error.code, error.remark)
    except ProtocolError as error:
        return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
    except Exception as error:
        _log.exception("request %d of %s failed", command.code, connection.peer)
        return command.reply(
            ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"[:1000]
        )
