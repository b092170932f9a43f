"""What a producer or a consumer has one of: connections, routes, heartbeats.

* One connection per address, opened when first used, shared by everything of this client.
* Several name servers that know nothing of each other: any of them answers for all; the one
  that answered last is asked first.
* Routes of the topics in use are kept up to date: ``live_routes``.
* Every broker of these routes gets heartbeats: ``heartbeats``.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from pymq.client import operations
from pymq.client.cluster.client_keys import KEYS_CHECK_S, ClientKeys
from pymq.client.cluster.closing import Closing
from pymq.client.cluster.heartbeats import HEARTBEAT_S, Heartbeats
from pymq.client.cluster.home import Home
from pymq.client.cluster.live_routes import LiveRoutes
from pymq.client.cluster.loop_watch import WATCH_S, LoopWatch
from pymq.client.cluster.name_server_lookup import LOOKUP_S
from pymq.client.cluster.name_servers import NameServers
from pymq.client.cluster.namespaces import Namespaced
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.cluster.patience import first_contact
from pymq.client.cluster.routes import MASTER_ID
from pymq.client.cluster.shared_work import SharedWork
from pymq.client.cluster.unclosed_members import watch_unclosed_member
from pymq.clock import Clock
from pymq.errors import ClientClosed, ConfigurationError, ConnectionFailed, PymqError
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.bodies import ConsumerData, MessageQueue
from pymq.protocol.command import Command
from pymq.protocol.unique_keys import UniqueKeys

#: When we close, peers may take this long to read what is pending.
CLOSE_S = 1.0

_log = logging.getLogger(__name__)

#: Gets a request of a server, and the connection that it came over.
OnRequest = Callable[[AsyncChannel, Command], None]
T = TypeVar("T")


class ClientPool:
    """Connections and routes of one client. For one event loop.

    Args:
        name_servers: ``host:port`` of each, or the URL at which they are looked up.
        timeout_s: for each request of its own.
        connect_timeout_s: for opening a connection.
        route_age_s: routes are read again when they are older.
        producer_group: announced to masters.
        consumers: what to announce of consumers, called for each heartbeat; with any, slaves get
            heartbeats, too.
        on_request: server code -> what to do; other requests are answered "not supported".
        on_route: called with each topic whose route has changed.
        instance_name: part of the client id unless ``network`` has one; by default something that
            no other client has.
        clock: for the ids of messages.
        network: where brokers are reached, and who we say we are.
        what: is named in a warning if nobody closes it; ``None``: no warning.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        timeout_s: float = 3.0,
        connect_timeout_s: float = 3.0,
        route_age_s: float = 30.0,
        producer_group: str | None = None,
        consumers: Callable[[], list[ConsumerData]] | None = None,
        on_request: dict[int, OnRequest] | None = None,
        on_route: Callable[[str], None] | None = None,
        instance_name: str | None = None,
        clock: Clock | None = None,
        network: Network = PLAIN,
        what: str | None = None,
    ) -> None:
        self.network = network
        self._what = what
        self._forget_end = watch_unclosed_member(self, None)
        self._names = None if network.namespace is None else Namespaced(network)
        self.timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self.clock = clock or Clock()
        self._on_request = on_request or {}
        self._name_servers = NameServers(self, name_servers, unit_name=network.unit_name)
        self._channels: dict[str, AsyncChannel] = {}
        self._losses = SaidOnce(_log)
        self._tasks = Tasks("client")
        self.closing = Closing(self._tasks)
        self._connecting: SharedWork[AsyncChannel | PymqError] = SharedWork(
            self._tasks, "connection to", self._connect
        )
        self.routes = LiveRoutes(
            self._name_servers,
            self._tasks,
            age_s=route_age_s,
            check_open=self.check_open,
            on_change=on_route,
            clock=self.clock,
        )
        self._instance_name = instance_name
        #: Takes the place of a client of the parent process, in a child made by ``fork``.
        self.is_renewed = False
        self._client_id = ""
        self.heartbeats = Heartbeats(
            self,
            self.routes,
            client_id=lambda: self._client_id,
            producer_group=producer_group,
            consumers=consumers,
        )
        self.routes.on_new_master = lambda address: self.heartbeats.greet(address, timeout_s)
        self._all_ended: asyncio.Future[None] | None = None
        self._open = self._was_closed = False
        self._keys: ClientKeys | None = None
        self._starting = asyncio.Lock()
        #: Where it was started, and the loop there.
        self.home: Home
        self.loop: asyncio.AbstractEventLoop

    @property
    def name_servers(self) -> tuple[str, ...]:
        """``host:port`` of each."""
        return self._name_servers.addresses

    # --- life

    async def start(self) -> bool:
        """Reach a name server and begin the duties, waiting as ``network`` says; False: it has.

        Raises:
            ClientClosed: it was closed before, or meanwhile.
            ClientMisplaced: it was started in another process or event loop.
            ConnectionFailed: no name server can be reached; the text names all and why.
            RouteNotFound: no broker is known, and it was waited for one in vain.
        """
        self.check_home()
        async with self._starting:  # Whoever comes second may use it when it has started, too.
            return await self._start()

    async def _start(self) -> bool:
        if self._was_closed or self.closing.has_begun:
            raise ClientClosed("a client that was closed cannot start again; make a new one")
        if self._open:
            self.home.check()
            return False
        self._open = True
        self.home = Home()
        self.loop = self.home.loop
        try:
            channel = await first_contact(
                self._name_servers, self.network.start_deadline_s, self.check_open
            )
        except BaseException:
            self._open = False  # it may be started again
            for opened in list(self._channels.values()):
                opened.close()
            raise
        address = ipaddress.ip_address((channel.local_host or "127.0.0.1").partition("%")[0])
        self._client_id = self.network.client_id(
            str(address), self._instance_name, is_renewed=self.is_renewed
        )
        self._keys = keys = ClientKeys(address.packed)
        self._forget_end = watch_unclosed_member(self, self._what)
        self._tasks.start("routes", self.routes.watch(self._close_unnamed))
        if self._name_servers.is_looked_up:
            self._tasks.repeat("name servers", self._name_servers.look_up, LOOKUP_S)
        self._tasks.repeat("unique keys", keys.step, KEYS_CHECK_S)
        self._tasks.repeat("heartbeats", self.heartbeats.send_all, HEARTBEAT_S)
        self._tasks.repeat("loop watch", LoopWatch(self.loop.time).step, WATCH_S)
        return True

    async def close(self) -> None:
        """Unregister at the brokers and close all connections. Idempotent.

        Raises:
            ClientMisplaced: it was started in another event loop.
        """
        was_open = self.is_open
        if was_open:
            self.home.check()
        self._forget_end()
        is_open, self._open, self._was_closed = self._open, False, True
        if is_open and self.home.is_forked:
            return  # The connections are the parent's.
        try:
            if was_open and self._client_id:
                await self.heartbeats.unregister(self.timeout_s)
        finally:
            try:
                await self._tasks.close()
            finally:
                await self._close_channels()

    async def _close_channels(self) -> None:
        """Send what is pending and close; cut off whoever does not take it.

        One that is not cut off, and whoever waits for its answers, would wait for ever.
        """
        for channel in list(self._channels.values()):
            channel.close()
        if self._channels:
            self._all_ended = ended = self.loop.create_future()
            await asyncio.wait([ended], timeout=CLOSE_S)
        for channel in list(self._channels.values()):
            channel.abort()

    @property
    def is_open(self) -> bool:
        """Was it started in this process, and not closed?"""
        return self._open and not self.home.is_forked

    @property
    def client_id(self) -> str:
        """Who we are to the brokers: ``address@process#time``, or ``address@instance``."""
        return self._client_id

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` in a task that ends with the client at the latest."""
        return self._tasks.start(name, work)

    def repeat(self, name: str, step: Callable[[], object], interval_s: float) -> None:
        """Call ``step`` every ``interval_s`` seconds as long as the client is open."""
        self._tasks.repeat(name, step, interval_s)

    def check_open(self) -> None:
        """Accept a call while it is open, where it was started.

        Raises:
            ClientClosed: it was closed, or never started.
            ClientMisplaced: it was started in another process, thread or event loop.
        """
        if not self._open:
            raise ClientClosed(
                "the client is closed, or was never started; use it inside `async with`, or "
                "between start() and close()"
            )
        self.home.check()

    # --- message ids

    def check_home(self) -> None:
        """Accept what ``check_open`` does, and any call when it is not open."""
        if self._open:
            self.home.check()

    def unique_keys(self) -> UniqueKeys:
        """The maker of message ids."""
        self.check_open()
        assert self._keys is not None
        return self._keys.unique

    # --- connections

    async def channel(self, address: str) -> AsyncChannel:
        """Return the connection to an address, opened if need be.

        Raises:
            ConnectionFailed: it cannot be reached.
            ClientClosed: we are closed.
        """
        channel = self._channels.get(address)
        if channel is not None and channel.is_open:
            return channel
        self.check_open()
        opened = await self._connecting.wait_result(address)
        if isinstance(opened, PymqError):
            raise opened
        return opened

    def open_channel(self, address: str | None) -> AsyncChannel | None:
        """Return the connection to an address if it is open; ``None`` is nobody's address."""
        # Asked for each message: looking None up costs less than asking whether it is one.
        channel = self._channels.get(address)  # type: ignore[arg-type]
        return channel if channel is not None and channel.is_open else None

    async def broker_channel(self, topic: str, broker_name: str, address: str) -> AsyncChannel:
        """Return the connection to a broker.

        Raises:
            ConnectionFailed: the address it advertises cannot be reached.
            ClientClosed: we are closed.
        """
        channel = self._channels.get(address)
        if channel is not None and channel.is_open:
            return channel
        try:
            return await self.channel(address)
        except (ConfigurationError, ConnectionFailed) as error:
            self.routes.doubt_master(address)
            raise ConnectionFailed(
                f"topic {topic!r}: broker {broker_name!r} advertises {address}, which cannot be "
                f"reached from here ({error}); check that it runs and, if it does, set brokerIP1 "
                "in its configuration to an address that clients can reach, or broker_address_map"
            ) from error

    async def read_channel(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> AsyncChannel:
        """Return the connection to a broker that has a queue: that one, the master, or any slave.

        Raises:
            RouteNotFound: the topic or its broker is not known.
            ConnectionFailed: the address it advertises cannot be reached.
            ClientClosed: we are closed.
        """
        route = await self.routes.route(queue.topic)
        address = route.read_address(queue.broker_name, broker_id)
        return await self.broker_channel(queue.topic, queue.broker_name, address)

    async def _connect(self, address: str) -> AsyncChannel | PymqError:
        # The exception is handed over as a value: it concerns those who wait, not the log.
        try:
            channel = await AsyncChannel.connect(
                address,
                self._connect_timeout_s,
                on_request=self._dispatch,
                on_ended=self._ended,
                on_leave=None if self._names is None else self._names.leave,
                reached=self.network.reached(address),
            )
        except PymqError as error:
            return error
        if not self._open:
            channel.close()
            return ClientClosed("the client was closed while it connected")
        self._channels[address] = channel
        self._losses.over(address, "connected to %s again", address)
        if address in self.heartbeats.broker_addresses():
            self.heartbeats.send_nowait(channel, self.timeout_s)
        return channel

    def _ended(self, channel: AsyncChannel) -> None:
        address = channel.address
        if self._channels.get(address) is channel:
            del self._channels[address]
            if self._open and address in self.heartbeats.broker_addresses():
                text = "the connection to broker %s was lost; it is made again when needed"
                self._losses.warn(address, text, address)
        if self._all_ended is not None and not self._channels and not self._all_ended.done():
            self._all_ended.set_result(None)

    def _dispatch(self, channel: AsyncChannel, request: Command) -> None:
        if (handler := self._on_request.get(request.code)) is not None:
            if self._names is not None:
                self._names.enter(request)
            handler(channel, request)
        else:
            remark = f" request type {request.code} not supported"
            channel.respond(request, request.reply(3, remark))

    async def ask(
        self,
        channel: AsyncChannel,
        operation: operations.Operation[T],
        *,
        timeout_s: float | None = None,
    ) -> T:
        """Return the result of an operation.

        Raises:
            BrokerError: the peer refused it.
            ConnectionFailed: the connection is closed or was lost.
            RemoteProtocolError: the answer lacks what it must have.
            RequestTimeout: no answer in time.
        """
        with self.routes.hearing(channel.address):
            answer = await channel.request(
                operation.request, timeout_s or self.timeout_s, description=operation.description
            )
            result = operation.result(answer, peer=channel.address)
        return result if self._names is None else self._names.result(result)

    async def ask_name_servers(self, make: Callable[[], operations.Operation[T]]) -> list[T]:
        """Return the answers of all name servers that give one, at least one.

        Args:
            make: makes the operation, for each name server another one.

        Raises:
            BrokerError, ConnectionFailed: see ``NameServers.ask_all``.
        """
        return await self._name_servers.ask_all(make)

    # --- periodic duties

    def _close_unnamed(self) -> None:
        """Close idle connections to addresses that no route names any more."""
        brokers = self.heartbeats.broker_addresses()
        named = {*brokers, *map(self.network.send_address, brokers), *self.name_servers}
        for address, channel in list(self._channels.items()):
            if address not in named and not channel.pending_count:
                channel.close()
