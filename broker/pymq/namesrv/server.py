"""NameServer: serves the route table on a port."""

import ipaddress
import logging

from pymq.clock import Clock
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.handlers import Handlers
from pymq.namesrv.kv import KVConfig
from pymq.namesrv.live_settings import LiveSettings
from pymq.namesrv.lowest_ids import LowestIds
from pymq.namesrv.registrations import Registration
from pymq.namesrv.routes import RouteTable
from pymq.net.dispatcher import Dispatcher
from pymq.net.server import Server, ServerConfig, ServerConnection
from pymq.net.standstill import Standstill
from pymq.net.tasks import Tasks
from pymq.protocol.addresses import join_address

_log = logging.getLogger(__name__)


class NameServer:
    """One name server; for one event loop.

    Args:
        config: how it behaves.
        clock: tells the time; tests pass their own.

    Raises:
        ConfigurationError: the key-value file, or that of live settings, cannot be read.
    """

    def __init__(self, config: NamesrvConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or Clock()
        self._routes = RouteTable(expiry_s=config.broker_expiry_s)
        kv = KVConfig.load(config.kv_config_path)
        self._lowest_ids = LowestIds(config, self._routes)
        handlers = Handlers(
            config, LiveSettings(config), self._routes, kv, self._lowest_ids, self._clock
        )
        self._dispatcher = Dispatcher("name server", handlers.table())
        self._server = Server(
            ServerConfig(host=config.host, port=config.port, idle_s=config.idle_s),
            self._dispatcher.on_commands,
            self._connection_ended,
        )
        self._standstill = Standstill(self._clock.monotonic_s())
        self._is_closed = False
        self._tasks = Tasks("name server")

    @property
    def port(self) -> int:
        """The port it listens on; known once it has been started."""
        return self._server.port

    @property
    def listener(self) -> Server:
        """What listens there."""
        return self._server

    @property
    def address(self) -> str:
        """``host:port`` for clients on this machine, or on the network it is bound to."""
        host = self._config.host
        if host == "0.0.0.0":
            host = "127.0.0.1"
        elif host == "::":
            host = "::1"
        return join_address(host, self.port)

    def is_registered(self, address: str) -> bool:
        """Whether a broker is registered that clients reach at this ``host:port``."""
        return self._routes.registration_of(address) is not None

    async def start(self) -> None:
        """Listen, and begin to look for silent brokers.

        Raises:
            ConfigurationError: the port is taken, or the address is not ours.
        """
        await self._server.start()
        if not _is_loopback(self._config.host):
            _log.warning(
                "name server listens on %s: anybody who reaches it can change routes",
                self._config.host,
            )
        self._standstill = Standstill(self._clock.monotonic_s())
        self._tasks.repeat("expiry scan", self.expire_brokers, self._scan_interval_s)

    async def close(self) -> None:
        """Stop; idempotent."""
        self._is_closed = True  # whose connections end now is not gone
        await self._tasks.close()
        await self._server.close()
        await self._dispatcher.close()
        await self._lowest_ids.close()

    def expire_brokers(self) -> int:
        """Remove brokers that were silent for too long, with their connections; return how many.

        Each is granted the time for which this process stood still.
        """
        now_s = self._clock.monotonic_s()
        self._routes.grant(self._standstill.look(now_s, self._scan_interval_s), now_s)
        late = self._routes.expire(now_s)
        for broker in late:
            _log.warning("broker %s was silent for too long: removed", _named(broker))
            if isinstance(broker.connection, ServerConnection):
                broker.connection.close()
        self._lowest_ids.left(late)
        return len(late)

    @property
    def _scan_interval_s(self) -> float:
        return self._config.scan_interval_ms / 1000

    def _connection_ended(self, connection: ServerConnection) -> None:
        if self._is_closed:
            return
        gone = self._routes.connection_ended(connection)
        for broker in gone:
            _log.info("broker %s closed its connection: removed", _named(broker))
        self._lowest_ids.left(gone)


def _named(broker: Registration) -> str:
    return f"{broker.broker_name} (id {broker.broker_id}) at {broker.address}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
