"""The ports of servers that are stopped, kept from others until they start again."""

import contextlib
import socket
from collections.abc import Iterable

from pymq.errors import ConfigurationError
from pymq.net.listening import bind
from pymq.net.server import Server


class KeptPorts:
    """Takes ports without listening: clients are refused, as at a port that nobody has.

    Otherwise the system would give one to an outgoing connection, or to a server that asks for any
    port, and the server that comes back would find it taken.
    """

    def __init__(self) -> None:
        self._wanted: list[tuple[str, int]] = []
        self._taken: list[socket.socket] = []

    def note(self, servers: Iterable[Server]) -> None:
        """Learn the ports of servers that listen."""
        self._wanted = [(server.config.host, server.port) for server in servers]

    def keep(self) -> None:
        """Take the ports, once the servers have closed; one that somebody has is left to them."""
        self.release()
        for host, port in self._wanted:
            with contextlib.suppress(ConfigurationError):
                self._taken.append(bind(host, port))

    def release(self) -> None:
        """Let go of the ports, just before the servers take them, or for good; idempotent."""
        for one in self._taken:
            one.close()
        self._taken.clear()
