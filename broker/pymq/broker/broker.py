"""Broker: opens the store, has its parts made, listens, and owns their lifetime."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pymq.broker.assembly import ANNOUNCE_WAIT_S, assemble
from pymq.broker.config import BrokerConfig
from pymq.broker.duties import Duties
from pymq.broker.parts import Assembly, Site
from pymq.broker.read_queue import ReadQueue
from pymq.broker.registration import reachable_address
from pymq.broker.state.filters import FilterTable
from pymq.clock import Clock
from pymq.errors import ConfigurationError
from pymq.net.server import Server, ServerConfig, ServerConnection
from pymq.protocol.addresses import join_address
from pymq.protocol.framing import Incoming
from pymq.protocol.record import pack_host
from pymq.store import MessageStore, StoreConfig

_log = logging.getLogger(__name__)

#: The fast (VIP) port is this much below the main one.
VIP_DISTANCE = 2
_EPHEMERAL_TRIES = 50
#: Threads, started when they are needed; see ``Broker``.
_WRITERS, _READERS = 12, 2


class Broker:
    """A broker and its store. Its parts are made in ``assembly``; it answers nothing itself.

    There are three executors, so that consumers that read old messages never delay producers. One
    writes: ``Flusher`` (flushes of log and queues), ``LogRoom`` (the next segment, pages of this
    one), ``StateFile`` (tables), ``Cleaner`` (deletions, and looks at the disks), ``KeyIndexing``
    (one prefetch), opening and closing the store; it has a thread for each of them. The other one
    reads what is no longer in memory, for ``RecordResponses`` and ``QueryHandlers``. The third has
    one thread that tries the disk, for ``DiskPressure``: when that hangs, all others may wait for
    it.
    """

    def __init__(
        self, config: BrokerConfig, store_config: StoreConfig, clock: Clock | None = None
    ) -> None:
        self.config = config
        self.store_config = store_config
        self._clock = clock or Clock()
        self._servers: list[Server] = []
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="pymq-write")
        self._readers = ReadQueue(config, _READERS)
        self._trials = ThreadPoolExecutor(1, thread_name_prefix="pymq-trial")
        self._parts: Assembly | None = None
        self._is_closed = False
        #: Everything that has to be closed, in reverse order of starting.
        self._duties = Duties()
        self._duties.on_close(self._shut_executors_down)
        self.address = ""

    # --- start

    async def start(self) -> None:
        """Open the store, listen and register.

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
        config = self.config
        self._bind()
        for server in self._servers:
            self._duties.on_close(server.close)  # its port is taken
        host = config.advertised_address or reachable_address(config.bind_address)
        self.address = join_address(host, self.port)
        self._warn_of_addresses(host)
        filters = FilterTable(config, self._clock)
        store = await self._open_store(filters)
        self._parts = parts = assemble(
            Site(
                config=config,
                store_config=self.store_config,
                clock=self._clock,
                store=store,
                filters=filters,
                address=self.address,
                store_host=pack_host(host, self.port),
                writers=self._writers,
                readers=self._readers,
                trials=self._trials,
            )
        )
        for opening in parts.openings:
            await self._run(opening)
        duties = self._duties
        duties.start(*parts.duties)
        duties.on_close(parts.dispatcher.close)
        for server in self._servers:
            duties.on_close(server.close)  # before the duties that its requests need
            await server.start()
        duties.start(*parts.holders)
        duties.on_close(parts.registration.close)
        await parts.registration.start(ANNOUNCE_WAIT_S)

    async def _open_store(self, filters: FilterTable) -> MessageStore:
        loop = asyncio.get_running_loop()
        if self.config.bit_maps and not self.store_config.queue_extension:
            _log.warning(
                "enableCalcFilterBitMap does nothing without enableConsumeQueueExt: bit maps are "
                "part of the extensions of queues"
            )
        opening = loop.run_in_executor(
            self._writers,
            lambda: MessageStore.open(
                self.store_config,
                self._clock,
                is_cancelled=lambda: self._is_closed,
                bit_map_of=filters.bit_map if self.config.bit_maps else None,
            ),
        )

        async def close() -> None:
            await asyncio.wait([opening])  # a recovery in progress ends early
            if not opening.cancelled() and opening.exception() is None:
                await loop.run_in_executor(self._writers, opening.result().close)

        self._duties.on_close(close)
        return await asyncio.shield(opening)

    async def _run(self, opening: Callable[[], None]) -> None:
        """Run an opening in a thread; the store stays open until it has ended."""
        running = asyncio.get_running_loop().run_in_executor(self._writers, opening)

        async def wait() -> None:
            await asyncio.wait([running])

        self._duties.on_close(wait)
        await asyncio.shield(running)

    def _bind(self) -> None:
        """Take the main port and the VIP port below it."""
        if self.config.listen_port:
            main = self._server(self.config.listen_port)
            main.bind()
            self._servers.append(main)
            self._bind_vip(main.port)
            return
        for _ in range(_EPHEMERAL_TRIES):
            main = self._server(0)
            main.bind()
            self._servers = [main]
            if self._bind_vip(main.port):
                return
            self._servers.clear()
        self._servers = [main]

    def _bind_vip(self, port: int) -> bool:
        if not self.config.vip_port:
            return True
        vip = self._server(port - VIP_DISTANCE)
        try:
            vip.bind()
        except ConfigurationError as error:
            if self.config.listen_port:
                _log.warning(
                    "no VIP port: %s. Clients with the VIP channel enabled cannot send", error
                )
            return False
        self._servers.append(vip)
        return True

    def _server(self, port: int) -> Server:
        config = ServerConfig(
            host=self.config.bind_address,
            port=port,
            frame_bytes_max=self.config.frame_bytes_max,
            connection_count_max=self.config.connection_count_max,
            plain_runs=True,
            busy_poll_s=self.config.busy_poll_us / 1e6,
        )
        return Server(config, self._on_commands, self._on_ended)

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

    def _on_commands(self, connection: ServerConnection, commands: list[Incoming]) -> None:
        assert self._parts is not None
        self._parts.dispatcher.on_commands(connection, commands)

    def _on_ended(self, connection: ServerConnection) -> None:
        assert self._parts is not None
        for listener in self._parts.on_ended:
            listener(connection)

    @property
    def port(self) -> int:
        """The main port."""
        return self._servers[0].port

    async def close(self) -> None:
        """Unregister, answer waiting clients, flush and close; idempotent.

        Raises:
            StoreError: the last flush failed; everything is closed nevertheless.
        """
        if not self._is_closed:
            self._is_closed = True
            await self._duties.close()

    async def _shut_executors_down(self) -> None:
        self._writers.shutdown()
        self._readers.shutdown()
        self._trials.shutdown()
