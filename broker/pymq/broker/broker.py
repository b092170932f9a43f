"""Broker: takes its ports, and has itself run, in one role or, with a controller, in many."""

import ipaddress
import logging
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pymq.broker.client_ports import ClientPorts
from pymq.broker.config import BrokerConfig
from pymq.broker.duties import Duties
from pymq.broker.read_queue import ReadQueue
from pymq.broker.registration import reachable_address
from pymq.broker.replication_config import HA_DISTANCE, ReplicationConfig
from pymq.broker.role_changes import RoleChanges
from pymq.broker.run import Base, Run
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.filters import FilterTable
from pymq.clock import Clock
from pymq.errors import ConfigurationError
from pymq.net.listening import bind
from pymq.net.server import Server
from pymq.protocol.addresses import join_address
from pymq.protocol.record import pack_host
from pymq.store import Files, StoreConfig

_log = logging.getLogger(__name__)

#: Threads, started when they are needed; see ``Broker``.
_WRITERS, _READERS = 12, 2


class Broker:
    """A broker and its store. ``Run`` opens it and has the parts made that answer requests.

    There are three executors, so that consumers that read old messages never delay producers. One
    writes: ``Flusher`` (flushes of log and queues), ``LogRoom`` (the next segment, pages of this
    one), ``StateFile`` (tables), ``Cleaner`` (deletions, and looks at the disks), ``KeyIndexing``
    (one prefetch), opening and closing the store; it has a thread for each of them. The other one
    reads what is no longer in memory, for ``RecordResponses`` and ``QueryHandlers``. The third has
    one thread that tries the disk, for ``DiskPressure``: when that hangs, all others may wait for
    it.

    Args:
        config, store_config, replication: its settings.
        clock: tells the time.
        files: the operating system, for the store; tests pass one that fails.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        clock: Clock | None = None,
        *,
        replication: ReplicationConfig | None = None,
        files: Files | None = None,
    ) -> None:
        self.config = config
        self.replication = replication or ReplicationConfig()
        role, is_automatic = self.replication.role, self.replication.controller_mode
        if not is_automatic and role.is_master == (config.broker_id > 0):
            raise ConfigurationError(
                f"brokerId={config.broker_id}, brokerRole={role.name}: the id of a master is 0, "
                "those of slaves are 1, 2, ..."
            )
        self.store_config = store_config
        self._clock = clock or Clock()
        self._files = files or Files()
        self._clients = ClientTable(self._clock, expiry_s=config.client_expiry_ms / 1000)
        self._ports = ClientPorts(config, self._clients)
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="pymq-write")
        self._readers = ReadQueue(config, _READERS)
        self._trials = ThreadPoolExecutor(1, thread_name_prefix="pymq-trial")
        self._ha_socket: socket.socket | None = None
        self._run: Run | None = None
        self._roles: RoleChanges | None = None
        self._is_closed = False
        #: Everything that has to be closed, in reverse order of starting.
        self._duties = Duties()
        self._duties.on_close(self._shut_executors_down)
        self.address = ""

    # --- start

    async def start(self) -> None:
        """Open the store, listen and register; with a controller, when that says in which role.

        Raises:
            ConfigurationError: a port is taken, or an address is not ours.
            StoreError: the store cannot be opened (locked, damaged, of another size, no space).
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        config, replication = self.config, self.replication
        self._ports.bind()
        self._duties.on_close(self._ports.close)
        if replication.role.is_master or replication.controller_mode:
            self._bind_ha()
        host = config.advertised_address or reachable_address(config.bind_address)
        self.address = join_address(host, self.port)
        self._warn_of_addresses(host)
        base = Base(
            clock=self._clock,
            address=self.address,
            store_host=pack_host(host, self.port),
            ha_address=self._ha_address(host),
            writers=self._writers,
            readers=self._readers,
            trials=self._trials,
            files=self._files,
            filters=FilterTable(config, self._clock),
            clients=self._clients,
        )
        self._duties.on_close(base.forget_registrations)
        if replication.controller_mode:
            self._roles = roles = RoleChanges(
                base, config, self.store_config, replication, self._ports, self._ha_socket
            )
            self._duties.start(roles)
            await roles.wait_started()
            return
        self._run = Run(
            base, config, self.store_config, replication, self._ports, ha_socket=self._ha_socket
        )
        self._duties.on_close(self._run.close)
        await self._run.start()

    def _bind_ha(self) -> None:
        """Take the port for slaves, any one if it is not configured: name servers tell them."""
        config = self.replication
        port = config.listen_port
        if port is None:
            port = self.port + HA_DISTANCE if self.config.listen_port else 0
        try:
            listening = bind(config.bind_address, port)
        except ConfigurationError as error:
            if config.listen_port is not None:
                raise
            listening = bind(config.bind_address, 0)
            _log.warning(
                "the HA port, for slaves, is %d: %s (haListenPort)",
                listening.getsockname()[1],
                error,
            )
        if config.controller_mode:
            # A port that was chosen by the system would be lost when nobody listens there.
            chosen = listening.getsockname()[1]
            listening.close()
            listening = bind(config.bind_address, chosen)
        self._ha_socket = listening

        async def close() -> None:
            listening.close()  # if nobody listens there

        self._duties.on_close(close)

    def _ha_address(self, host: str) -> str | None:
        """Return what slaves are told; ``host`` is what clients are."""
        if self._ha_socket is None:
            return None
        config = self.replication
        if config.advertised_address is not None:
            host = config.advertised_address
        elif not ipaddress.ip_address(self._ha_socket.getsockname()[0]).is_unspecified:
            host = self._ha_socket.getsockname()[0]
        return join_address(host, self._ha_socket.getsockname()[1])

    def _warn_of_addresses(self, host: str) -> None:
        bind = self.config.bind_address
        if bind in ("127.0.0.1", "::1", "localhost") and host not in ("127.0.0.1", "::1"):
            _log.warning(
                "clients are told to connect to %s (brokerIP1), but this broker listens on %s "
                "only; set bindAddress to an address that they can reach",
                host,
                bind,
            )
        elif bind not in ("127.0.0.1", "::1", "localhost"):
            _log.warning(
                "listening on %s without access control: anybody who reaches port %d can read, "
                "write and delete everything",
                bind,
                self.port,
            )

    # --- use and end

    @property
    def port(self) -> int:
        """The main port."""
        return self._ports.port

    @property
    def listeners(self) -> Sequence[Server]:
        """What listens for clients, once it was started."""
        return self._ports.listeners

    async def look_again(self) -> None:
        """Do what is due now: the wall time of the clock has jumped.

        Delayed messages and timers that are due are delivered, each open transaction is looked at,
        and a pass deletes what is too old.
        """
        running = self._run or self._roles
        if running is not None and not self._is_closed:
            await running.look_again()

    async def close(self) -> None:
        """Unregister, answer waiting clients, flush and close; idempotent.

        Raises:
            StoreError: the last flush failed; everything is closed nevertheless.
        """
        if not self._is_closed:
            self._is_closed = self._ports.is_over = True
            await self._duties.close()

    async def abandon(self) -> None:
        """End as a process that is killed does, as far as others can see; idempotent.

        Connections end and nobody is told anything. The store is closed as by ``close``.

        Raises:
            StoreError: as ``close``.
        """
        if not self._is_closed:
            self._is_closed = True
            await self._ports.close()
            await self._duties.close()

    async def _shut_executors_down(self) -> None:
        self._writers.shutdown()
        self._readers.shutdown()
        self._trials.shutdown()
