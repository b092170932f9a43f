"""What a handler of requests is."""

from collections.abc import Callable

from pymq.net.server import ServerConnection
from pymq.protocol.command import Command

#: Takes a request; returns its response, or None when it answers later or never. It says no
#: by raising a BrokerError (``errors.refusal``), whose code and remark become the response.
Handler = Callable[[ServerConnection, Command], Command | None]
