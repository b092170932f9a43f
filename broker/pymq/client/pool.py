"""What a producer or a consumer has one of: connections, routes, heartbeats.

* One connection per address, opened when first used, shared by everything of this client.
* Several name servers that know nothing of each other: any of them answers for all; the one
  that answered last is asked first.
* Routes of the topics in use are read anew every 30 s; within a second when a send or a pull
  found them wrong, or when they are only borrowed.
* Every broker of these routes gets a heartbeat every 30 s, and one first thing on a new
  connection: it is how the broker knows who is behind it.
"""

import asyncio
import ipaddress
import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from pymq.client import operations
from pymq.client.home import Home
from pymq.client.message_ids import month_around
from pymq.client.name_servers import NameServers
from pymq.client.routes import MASTER_ID, Route, RouteTable, no_route
from pymq.client.said_once import SaidOnce
from pymq.clock import Clock
from pymq.errors import (
    ClientClosed,
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    TopicNotExist,
)
from pymq.net.channel import AsyncChannel
from pymq.net.tasks import Tasks
from pymq.protocol.bodies import ConsumerData, Heartbeat, ProducerData
from pymq.protocol.command import Command
from pymq.protocol.message import UniqueKeys
from pymq.protocol.names import DEFAULT_TOPIC

_log = logging.getLogger(__name__)

HEARTBEAT_S = 30.0
#: How often is looked which routes are old.
ROUTE_CHECK_S = 1.0
#: A route is not read again within this, whoever doubts it.
ROUTE_READ_MIN_S = 0.2
#: When we close, peers may take this long to read what is pending.
CLOSE_S = 1.0

_client_numbers = itertools.count()

OnRequest = Callable[[Command], None]
T = TypeVar("T")


class ClientPool:
    """Connections and routes of one client. For one event loop.

    Args:
        name_servers: ``host:port`` of each.
        timeout_s: for each request of its own.
        connect_timeout_s: for opening a connection.
        route_age_s: routes are read again when they are older.
        producer_group: announced to masters.
        consumers: what to announce of consumers, asked anew for each heartbeat; with any,
            slaves get heartbeats, too.
        on_request: server code -> what to do; other requests are answered "not supported".
        on_route: called with each topic whose route has changed.
        clock: for the ids of messages.
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
        clock: Clock | None = None,
    ) -> None:
        self.name_servers = tuple(name_servers)
        self.timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self.clock = clock or Clock()
        self._producer_group = producer_group
        self._consumers = consumers
        self._on_request = on_request or {}
        self._on_route = on_route
        self._name_servers = NameServers(self)
        self._channels: dict[str, AsyncChannel] = {}
        self._connecting: dict[str, asyncio.Task[AsyncChannel | PymqError]] = {}
        self._routes = RouteTable(route_age_s)
        self._read_at: dict[str, float] = {}
        self._refreshing: dict[str, asyncio.Task[PymqError | None]] = {}
        self._tasks = Tasks("client")
        self._troubles = SaidOnce(_log)
        self._all_ended: asyncio.Future[None] | None = None
        self._open = self._was_closed = False
        self._client_id = ""
        self._unique_keys: UniqueKeys | None = None
        self._keys_until_ms = 0
        #: Where it was started, and the loop there.
        self.home: Home
        self.loop: asyncio.AbstractEventLoop

    # --- life

    async def start(self) -> None:
        """Reach a name server and begin the periodic duties.

        Raises:
            ClientClosed: it was closed before.
            ClientMisplaced: it was started in another process or event loop.
            ConnectionFailed: no name server can be reached; the text names all and why.
        """
        if self._was_closed:
            raise ClientClosed("a client that was closed cannot start again; make a new one")
        if self._open:
            self.home.check()
            return
        self._open = True
        self.home = Home()
        self.loop = self.home.loop
        try:
            channel = await self._name_servers.reach()
        except BaseException:
            self._open = False  # it may be started again
            for opened in list(self._channels.values()):
                opened.close()
            raise
        address = ipaddress.ip_address((channel.local_host or "127.0.0.1").partition("%")[0])
        number = next(_client_numbers)
        self._client_id = f"{address}@{os.getpid()}#{time.time_ns()}{number}"
        self._unique_keys = UniqueKeys(
            address=address.packed, pid=os.getpid(), salt=secrets.randbits(32), start_ms=0
        )
        self._restart_keys()
        self._tasks.repeat("routes", self.refresh_routes, ROUTE_CHECK_S)
        self._tasks.repeat("heartbeats", self.send_heartbeats, HEARTBEAT_S)

    async def close(self) -> None:
        """Unregister at the brokers and close all connections. Idempotent.

        Raises:
            ClientMisplaced: it was started in another event loop.
        """
        was_open = self.is_open
        if was_open:
            self.home.check()
        is_copy = self._open and self.home.is_forked
        self._open, self._was_closed = False, True
        if is_copy:
            return  # The connections are the parent's.
        try:
            if was_open and self._client_id:
                await self._unregister()
        finally:
            try:
                await self._tasks.close()
            finally:
                await self._close_channels()

    async def _close_channels(self) -> None:
        """Send what is pending and close; cut off whoever does not take it.

        A connection that is not cut off would wait for its peer for ever, and with it everybody
        who waits for an answer.
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
        """Who we are to the brokers: ``address@process#time``."""
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

    def unique_keys(self) -> UniqueKeys:
        """The maker of message ids."""
        self.check_open()
        assert self._unique_keys is not None
        return self._unique_keys

    def _restart_keys(self) -> None:
        assert self._unique_keys is not None
        start_ms, self._keys_until_ms = month_around(time.time_ns() // 1_000_000)
        self._unique_keys.restart(start_ms)

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
        task = self._connecting.get(address)
        if task is None:
            task = self._tasks.start(f"connection to {address}", self._connect(address))
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        opened = await _shared(task)
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
            raise ConnectionFailed(
                f"topic {topic!r}: broker {broker_name!r} advertises {address}, which cannot be "
                f"reached from here ({error}); check that it runs and, if it does, set "
                "brokerIP1 in its configuration to an address that clients can reach"
            ) from error

    async def _connect(self, address: str) -> AsyncChannel | PymqError:
        # The exception is handed over as a value: it concerns those who wait, not the log.
        try:
            channel = await AsyncChannel.connect(
                address, self._connect_timeout_s, on_request=self._dispatch, on_ended=self._ended
            )
        except PymqError as error:
            return error
        if not self._open:
            channel.close()
            return ClientClosed("the client was closed while it connected")
        self._channels[address] = channel
        if address in self.broker_addresses():
            heard = channel.request_nowait(self._heartbeat().request, self.timeout_s)
            heard.add_done_callback(_ignore)
        return channel

    def _ended(self, channel: AsyncChannel) -> None:
        if self._channels.get(channel.address) is channel:
            del self._channels[channel.address]
        if self._all_ended is not None and not self._channels and not self._all_ended.done():
            self._all_ended.set_result(None)

    def _dispatch(self, channel: AsyncChannel, request: Command) -> None:
        handler = self._on_request.get(request.code)
        if handler is not None:
            handler(request)
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
        answer = await channel.request(
            operation.request, timeout_s or self.timeout_s, description=operation.description
        )
        return operation.result(answer, peer=channel.address)

    async def ask_name_server(self, ask: Callable[[], operations.Operation[T]]) -> T:
        """Return the answer of the first name server that gives one; see ``NameServers.ask``."""
        return await self._name_servers.ask(ask)

    # --- routes

    def known_route(self, topic: str) -> Route | None:
        """Return the route of a topic as last read, without asking."""
        return self._routes.find(topic)

    async def route(
        self,
        topic: str,
        *,
        refresh: bool = False,
        create_queue_count: int | None = None,
    ) -> Route:
        """Return the route of a topic, and keep it fresh from now on.

        Args:
            topic: which.
            refresh: ask again although it is known, unless that was done just now.
            create_queue_count: for a topic that does not exist, return the provisional route
                with which a send creates it, with at most so many queues per broker.

        Raises:
            RouteNotFound: no name server knows the topic.
            ConnectionFailed: no name server answers.
            ClientClosed: we are closed.
        """
        self.check_open()
        known = self._routes.find(topic)
        if known is not None and not (refresh and self._may_read(topic)):
            return known
        error = await self._refresh(topic)
        known = self._routes.find(topic)
        if known is None and isinstance(error, TopicNotExist) and create_queue_count is not None:
            known = await self._provisional_route(topic, create_queue_count)
        if known is not None:
            return known
        if error is None or isinstance(error, TopicNotExist):
            raise no_route(topic, self.name_servers, getattr(error, "__notes__", ()))
        raise error

    def doubt(self, topic: str) -> None:
        """A topic's route turned out wrong: read it again soon."""
        self._routes.doubt(topic)

    def _may_read(self, topic: str) -> bool:
        return self.clock.monotonic_s() - self._read_at.get(topic, -1e9) > ROUTE_READ_MIN_S

    async def _refresh(self, topic: str) -> PymqError | None:
        """Read one route; callers at the same time share the request."""
        task = self._refreshing.get(topic)
        if task is None:
            task = self._tasks.start(f"route of {topic}", self._read_route(topic))
            self._refreshing[topic] = task
            task.add_done_callback(lambda _: self._refreshing.pop(topic, None))
        return await _shared(task)

    async def _read_route(self, topic: str) -> PymqError | None:
        try:
            route = Route.of(topic, await self.ask_name_server(lambda: operations.route(topic)))
        except PymqError as error:
            # Also when the topic has no route any more the old one is kept, as official
            # clients do: a broker that restarts comes back to it.
            return error
        self._read_at[topic] = self.clock.monotonic_s()
        self._put_route(route)
        return None

    async def _provisional_route(self, topic: str, queue_count: int) -> Route | None:
        try:
            template = await self.ask_name_server(lambda: operations.route(DEFAULT_TOPIC))
        except TopicNotExist:
            return None
        if self._routes.find(topic) is None:
            self._put_route(Route.to_create(topic, template, queue_count))
        return self._routes.find(topic)

    def _put_route(self, route: Route) -> None:
        changed = self._routes.put(route, self.clock.monotonic_s())
        if changed and self._on_route is not None:
            self._on_route(route.topic)

    async def refresh_routes(self) -> int:
        """Read the routes that are old or doubted again; return how many."""
        if time.time_ns() // 1_000_000 >= self._keys_until_ms:
            self._restart_keys()
        stale = self._routes.stale(self.clock.monotonic_s())
        for topic in stale:
            error = await self._refresh(topic)
            if error is None or isinstance(error, TopicNotExist):
                self._troubles.over("routes", "routes are read again")
            else:
                self._troubles.warn(
                    "routes", "routes cannot be read again, the old ones stay in use: %s", error
                )
        if stale:
            self._close_unnamed()
        return len(stale)

    def _close_unnamed(self) -> None:
        """Close idle connections to addresses that no route names any more."""
        named = {*self.broker_addresses(), *self.name_servers}
        for address, channel in list(self._channels.items()):
            if address not in named and not channel.pending_count:
                channel.close()

    # --- heartbeats

    def broker_addresses(self) -> set[str]:
        """The brokers that get heartbeats: masters; with consumers, slaves, too."""
        slaves_too = self._consumers is not None
        return {
            address
            for known in self._routes.addresses().values()
            for broker_id, address in known.items()
            if slaves_too or broker_id == MASTER_ID
        }

    def _heartbeat(self) -> operations.Operation[int]:
        producers = [ProducerData(group=self._producer_group)] if self._producer_group else []
        consumers = self._consumers() if self._consumers is not None else []
        return operations.heartbeat(
            Heartbeat(client_id=self._client_id, producers=producers, consumers=consumers)
        )

    async def send_heartbeats(self) -> int:
        """Tell every broker in use that we live; return how many heard it."""
        addresses = sorted(self.broker_addresses())
        heard = await asyncio.gather(*(self.send_heartbeat(address) for address in addresses))
        return sum(heard)

    async def send_heartbeat(self, address: str) -> bool:
        """Tell one broker that we live; return whether it heard it."""
        try:
            await self.ask(await self.channel(address), self._heartbeat())
        except RequestTimeout as error:
            self._troubles.warn(address, "%s; the connection is given up", error)
            if silent := self.open_channel(address):
                silent.abort()
            return False
        except PymqError as error:
            _log.debug("no heartbeat: %s", error)  # Whoever needs the broker says that it is away.
            return False
        self._troubles.over(address, "%s answers heartbeats again", address)
        return True

    async def _unregister(self) -> None:
        """Tell the brokers that we go; those that do not hear it will notice."""
        consumers = self._consumers() if self._consumers is not None else []
        groups = [{"consumer_group": consumer.group} for consumer in consumers]
        if self._producer_group:
            groups.append({"producer_group": self._producer_group})
        channels = [self.open_channel(address) for address in self.broker_addresses()]
        waiting = [
            channel.request_nowait(
                operations.unregister(self._client_id, **group).request, self.timeout_s
            )
            for channel in channels
            if channel is not None
            for group in groups
        ]
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(answer, PymqError):
                _log.info("not unregistered: %s", answer)


async def _shared(task: asyncio.Task[T]) -> T:
    """Return the result of a task that others wait for, too: it survives when we are cancelled.

    Raises:
        ClientClosed: the task was cancelled, which is not to be taken for our own cancellation.
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise ClientClosed("the client was closed meanwhile")
    return task.result()


def _ignore(future: asyncio.Future[Command]) -> None:
    if not future.cancelled():
        future.exception()  # marks it as seen: the periodic heartbeat reports what lasts
