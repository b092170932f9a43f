"""Controller: serves the groups of a store on a port."""

import ipaddress
import logging

from pymq.clock import Clock
from pymq.controller.administration import AdministrationHandlers
from pymq.controller.claims import Claims
from pymq.controller.config import ControllerConfig
from pymq.controller.failover import Failover
from pymq.controller.handlers import Handlers
from pymq.controller.live_settings import LiveSettings
from pymq.controller.liveness import Liveness
from pymq.controller.new_holders import NewHolders
from pymq.controller.notices import Notices
from pymq.controller.registrations import RegistrationHandlers
from pymq.controller.registry import Registry
from pymq.controller.stores.choice import open_store
from pymq.net.dispatcher import Dispatcher
from pymq.net.server import Server, ServerConfig, ServerConnection

_log = logging.getLogger(__name__)


class Controller:
    """One controller; for one event loop.

    Args:
        config: how it behaves.
        clock: tells the time; tests pass their own.

    Raises:
        ConfigurationError: there is no such store, the port is taken, or brokers could not connect
            to the address that it would tell them.
    """

    def __init__(self, config: ControllerConfig, clock: Clock | None = None) -> None:
        now_s = (clock or Clock()).monotonic_s
        self._config = config
        self._server = Server(
            ServerConfig(host=config.host, port=config.port, idle_s=config.idle_s),
            lambda connection, commands: self._dispatcher.on_commands(connection, commands),
            self._connection_ended,
        )
        self._server.bind()
        self.address = config.address(self._server.port)
        self.store = open_store(config, config.self_id or self.address, self.address)
        self._liveness = Liveness(
            limit_s=config.heartbeat_timeout_ms / 1000,
            unheard_s=config.patience_ms / 1000,
            now_s=now_s(),
        )
        registry = Registry(self.store, self._liveness.follow)
        self._notices = Notices()
        self._failover = Failover(config, registry, self._liveness, self._notices, now_s)
        claims, new_holders = Claims(), NewHolders(self._liveness)
        handlers = Handlers(
            config,
            store=self.store,
            registry=registry,
            liveness=self._liveness,
            failover=self._failover,
            claims=claims,
            new_holders=new_holders,
            now_s=now_s,
        )
        registrations = RegistrationHandlers(
            registry=registry,
            liveness=self._liveness,
            lacks_master=self._failover.lacks_master,
            claims=claims,
            new_holders=new_holders,
            now_s=now_s,
        )
        administration = AdministrationHandlers(
            LiveSettings(config), registry=registry, liveness=self._liveness
        )
        self._dispatcher = Dispatcher(
            "controller", handlers.table(), registrations.table(), administration.table()
        )
        self._is_closed = False

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    async def start(self) -> None:
        """Open the store, and listen.

        Raises:
            ConfigurationError: the store cannot be used, or the port cannot.
        """
        await self.store.start()
        await self._server.start()
        if not _is_loopback(self._config.host):
            _log.warning(
                "controller listens on %s: anybody who reaches it can change who is master",
                self._config.host,
            )
        self._failover.start()

    async def close(self) -> None:
        """Stop; idempotent."""
        self._is_closed = True  # whose connections end now is not gone
        await self._failover.close()
        await self._notices.close()
        await self._server.close()
        await self._dispatcher.close()
        await self.store.close()

    def _connection_ended(self, connection: ServerConnection) -> None:
        if not self._is_closed:
            self._failover.connection_ended(connection)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
