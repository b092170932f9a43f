"""The ports at which clients connect: the main one, and the VIP port below it."""

import logging
from collections.abc import Sequence

from pymq.broker.config import BrokerConfig
from pymq.broker.run import Run
from pymq.broker.state.clients import ClientTable
from pymq.errors import ConfigurationError
from pymq.net.server import Server, ServerConfig, ServerConnection
from pymq.protocol.framing import Incoming

_log = logging.getLogger(__name__)

#: The fast (VIP) port is this much below the main one.
VIP_DISTANCE = 2
_EPHEMERAL_TRIES = 50


class ClientPorts:
    """Takes the ports, and has what arrives there handled by one run of the broker at a time.

    Between two runs, requests wait in their connections; if it is not known when the next run
    begins, connections are turned away.

    Args:
        config: of the broker.
        clients: those that are known; they stay from run to run.

    Attributes:
        is_over: whether there is no next run: at the end of this one, connections are closed.
    """

    def __init__(self, config: BrokerConfig, clients: ClientTable) -> None:
        self._config = config
        self._clients = clients
        self._servers: list[Server] = []
        self._run: Run | None = None
        self._is_listening = False
        self.is_over = False

    @property
    def listeners(self) -> Sequence[Server]:
        """What listens there, once they are bound."""
        return tuple(self._servers)

    @property
    def port(self) -> int:
        """The main port."""
        return self._servers[0].port

    def bind(self) -> None:
        """Take the ports, without listening yet.

        Raises:
            ConfigurationError: the main one is taken, or the address is not ours.
        """
        if self._config.listen_port:
            main = self._server(self._config.listen_port)
            main.bind()
            self._servers.append(main)
            self._bind_vip(main.port)
            return
        for left in reversed(range(_EPHEMERAL_TRIES)):
            main = self._server(0)
            main.bind()
            self._servers = [main]
            if self._bind_vip(main.port) or not left:
                return
            main.unbind()

    def _bind_vip(self, port: int) -> bool:
        if not self._config.vip_port:
            return True
        vip = self._server(port - VIP_DISTANCE)
        try:
            vip.bind(is_wanted=bool(self._config.listen_port))
        except ConfigurationError as error:
            if self._config.listen_port:
                _log.warning(
                    "no VIP port: %s. Clients with the VIP channel enabled cannot send", error
                )
            return False
        self._servers.append(vip)
        vip.beside, self._servers[0].beside = [self._servers[0]], [vip]
        return True

    def _server(self, port: int) -> Server:
        config = ServerConfig(
            host=self._config.bind_address,
            port=port,
            frame_bytes_max=self._config.frame_bytes_max,
            connection_count_max=self._config.connection_count_max,
            plain_runs=True,
            busy_poll_s=self._config.busy_poll_us / 1e6,
        )
        return Server(config, self._on_commands, self._on_ended)

    async def begin(self, run: Run) -> None:
        """Have requests handled by a run, also those that have waited.

        Raises:
            ConfigurationError: it is not possible to listen.
        """
        self._run = run
        if not self._is_listening:
            self._is_listening = True
            for server in self._servers:
                await server.start()
        for server in self._servers:
            server.release()

    def pause(self) -> None:
        """Have requests wait, in their connections; those that were begun may be answered."""
        for server in self._servers:
            server.hold()

    async def turn_away(self) -> None:
        """Close the connections, and those that come, until a run begins."""
        for server in self._servers:
            server.turn_away()

    async def end(self) -> None:
        """Close the ports, if there is no next run."""
        if self.is_over:
            await self.close()

    def _on_commands(self, connection: ServerConnection, commands: list[Incoming]) -> None:
        assert self._run is not None
        self._run.on_commands(connection, commands)

    def _on_ended(self, connection: ServerConnection) -> None:
        self._clients.drop(connection)
        if self._run is not None:
            self._run.on_ended(connection)

    async def close(self) -> None:
        """Stop listening and close every connection; idempotent."""
        for server in reversed(self._servers):
            await server.close()
