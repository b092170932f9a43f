"""One run of a broker: an open store and the parts over it, in one role.

A broker without a controller has one run, from its start to its end. In a group with one, each
change of its role ends a run and begins another; the ports, the connections and what is known of
clients outlive them.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from pymq.broker.assembly import assemble
from pymq.broker.config import BrokerConfig
from pymq.broker.duties import Duties, TimedDuty
from pymq.broker.ha.replica_group import ReplicaGroup
from pymq.broker.parts import Assembly, Site
from pymq.broker.read_queue import ReadQueue
from pymq.broker.replication_config import ReplicationConfig
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.filters import FilterTable
from pymq.broker.table_saving import ANNOUNCE_WAIT_S
from pymq.clock import Clock
from pymq.errors import StoreError
from pymq.net.channel import AsyncChannel
from pymq.net.server import ServerConnection
from pymq.protocol.framing import Incoming
from pymq.store import Files, MessageStore, StoreConfig

_log = logging.getLogger(__name__)

#: Handlers that wait have this long to end before a change of roles; most need milliseconds.
DRAIN_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What all runs of a broker stand on.

    Attributes:
        clock: tells the time.
        address: ``host:port`` at which clients reach it.
        store_host: the same, packed: part of every record and message id.
        ha_address: ``host:port`` at which slaves reach it; None: it has no HA port.
        writers, readers, trials: executors for work on the disk; see ``Broker``.
        files: the operating system, for the store.
        filters: of consumer groups.
        clients: who is connected.
        registered_on: connections to name servers on which the run before was registered.
        unsaved: texts of tables that the run before could not save; see ``StateFile``.
    """

    clock: Clock
    address: str
    store_host: bytes
    ha_address: str | None
    writers: ThreadPoolExecutor
    readers: ReadQueue
    trials: ThreadPoolExecutor
    files: Files
    filters: FilterTable
    clients: ClientTable
    registered_on: list[AsyncChannel] = field(default_factory=list)
    unsaved: dict[str, str] = field(default_factory=dict)

    async def forget_registrations(self) -> None:
        """Close the connections on which runs before were registered."""
        while self.registered_on:
            self.registered_on.pop().close()


class Run:
    """Opens the store, has the parts made, and owns their lifetime.

    Args:
        base: what it stands on.
        config, store_config, replication: settings, with the role in this run.
        requests: those of clients; none come before ``start``, nor after ``close``.
        ha_socket: has taken the HA port; None: slaves cannot connect.
        group: in which the broker is, if that has a controller.
        prepare: called in a thread with the store, before anything else uses it.
    """

    def __init__(
        self,
        base: Base,
        config: BrokerConfig,
        store_config: StoreConfig,
        replication: ReplicationConfig,
        requests: "Requests",
        *,
        ha_socket: socket.socket | None,
        group: ReplicaGroup | None = None,
        prepare: Callable[[MessageStore], None] = lambda store: None,
    ) -> None:
        self._base = base
        self._config = config
        self._store_config = store_config
        self._replication = replication
        self._requests = requests
        self._prepare = prepare
        self._ha_socket = ha_socket
        self._group = group
        self._parts: Assembly | None = None
        self._is_closed = False
        #: Everything that has to be closed, in reverse order of starting.
        self._duties = Duties()
        self.store: MessageStore | None = None

    async def start(self) -> None:
        """Open the store, have requests answered, and register.

        Raises:
            ConfigurationError: the port is taken, or the address is not ours.
            StoreError: the store cannot be opened (locked, damaged, of another size, no space).
        """
        base, duties, requests = self._base, self._duties, self._requests
        duties.on_close(self._close_ha_socket)
        store_config = self._store_config
        if not self._replication.role.is_master:
            # Timers: see ``FollowedTimers``. A slave confirms what is in the files of its log.
            store_config = replace(store_config, timer_wheel=False, transient_pool=False)
        self.store = store = await self._open_store(store_config)
        await self._run(lambda: self._prepare(store))
        self._parts = parts = await assemble(
            Site(
                config=self._config,
                store_config=store_config,
                replication=self._replication,
                clock=base.clock,
                store=store,
                filters=base.filters,
                clients=base.clients,
                address=base.address,
                store_host=base.store_host,
                ha_socket=self._ha_socket,
                ha_address=base.ha_address,
                group=self._group,
                writers=base.writers,
                readers=base.readers,
                trials=base.trials,
                unsaved=base.unsaved,
            ),
            self._run,
        )
        for opening in parts.openings:
            await self._run(opening)
        duties.start(*parts.duties)
        for prepare in parts.preparations:
            await prepare()
        duties.start(*parts.later_duties)
        duties.on_close(self._end_requests)
        duties.on_close(requests.end)  # before the duties that they need
        await requests.begin(self)
        duties.start(*parts.holders)

        async def close() -> None:
            if requests.is_over:
                await parts.registration.close()
            else:
                base.registered_on.extend(await parts.registration.release())

        duties.on_close(close)
        await parts.registration.start(ANNOUNCE_WAIT_S)
        await base.forget_registrations()

    async def _close_ha_socket(self) -> None:
        if self._ha_socket is not None:
            self._ha_socket.close()  # if nobody came to listen there, as when no store opened

    async def _end_requests(self) -> None:
        if self._parts is not None:
            drain_s = 0.0 if self._requests.is_over else DRAIN_S
            await self._parts.dispatcher.close(drain_s=drain_s)

    async def _open_store(self, store_config: StoreConfig) -> MessageStore:
        loop = asyncio.get_running_loop()
        config, filters = self._config, self._base.filters
        if config.bit_maps and not store_config.queue_extension:
            _log.warning(
                "enableCalcFilterBitMap does nothing without enableConsumeQueueExt: bit maps are "
                "part of the extensions of queues"
            )
        opening = loop.run_in_executor(
            self._base.writers,
            lambda: MessageStore.open(
                store_config,
                self._base.clock,
                files=self._base.files,
                is_cancelled=lambda: self._is_closed,
                bit_map_of=filters.bit_map if config.bit_maps else None,
            ),
        )

        async def close() -> None:
            await asyncio.wait([opening])  # a recovery in progress ends early
            if not opening.cancelled() and opening.exception() is None:
                await loop.run_in_executor(self._base.writers, opening.result().close)

        self._duties.on_close(close)
        return await asyncio.shield(opening)

    async def _run(self, opening: Callable[[], None]) -> None:
        """Run an opening in a thread; the store stays open until it has ended."""
        running = asyncio.get_running_loop().run_in_executor(self._base.writers, opening)

        async def wait() -> None:
            await asyncio.wait([running])

        self._duties.on_close(wait)
        await asyncio.shield(running)

    def on_commands(self, connection: ServerConnection, commands: list[Incoming]) -> None:
        """Answer requests, or take answers of clients."""
        assert self._parts is not None
        self._parts.dispatcher.on_commands(connection, commands)

    def on_ended(self, connection: ServerConnection) -> None:
        """Forget a connection."""
        assert self._parts is not None
        for listener in self._parts.on_ended:
            listener(connection)

    async def look_again(self) -> None:
        """Do what is due now: wall time has jumped. What fails is logged, and tried again later."""
        if self._parts is None or self._is_closed:
            return
        for duty in (*self._parts.duties, *self._parts.later_duties):
            if isinstance(duty, TimedDuty):
                try:
                    await duty.look_again()
                except StoreError as error:
                    _log.warning("after a jump of time: %s; it is tried again", error)

    async def close(self) -> None:
        """Answer waiting clients, flush and close; idempotent.

        Raises:
            StoreError: the last flush failed; everything is closed nevertheless.
        """
        if not self._is_closed:
            self._is_closed = True
            self._requests.pause()  # what came now would be kept by nobody
            await self._duties.close()


class Requests(Protocol):
    """The requests of clients, which go from one run to the next.

    Attributes:
        is_over: whether there is no next run.
    """

    is_over: bool

    async def begin(self, run: Run) -> None:
        """Have requests handled by a run.

        Raises:
            ConfigurationError: the port is taken, or the address is not ours.
        """

    def pause(self) -> None:
        """Have requests wait, in their connections; those that were begun may be answered."""

    async def turn_away(self) -> None:
        """Close the connections, and those that come, until a run begins."""

    async def end(self) -> None:
        """Close the connections, if there is no next run."""
