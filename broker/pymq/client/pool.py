"""What a producer or a consumer has one of: connections, routes, heartbeats.

* One connection per address, opened when first used, shared by everything of this client.
* Several name servers that know nothing of each other: any of them answers for all; the one
  that answered last is asked first.
* Routes of the topics in use are read anew every 30 s, at once when a send or a pull finds
  them stale, and every second for topics that have none yet.
* Every broker of these routes gets a heartbeat every 30 s, and one first thing on a new
  connection: it is how the broker knows who is behind it.
"""

import asyncio
import datetime
import ipaddress
import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from pymq.clock import Clock
from pymq.errors import (
    BrokerError,
    ClientClosed,
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    RouteNotFound,
    TopicNotExist,
)
from pymq.net.channel import AsyncChannel, split_address
from pymq.net.tasks import Tasks
from pymq.protocol.bodies import ConsumerData, Heartbeat, ProducerData, TopicRoute
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.headers.clients import UnregisterClientRequest
from pymq.protocol.headers.routes import RouteRequest
from pymq.protocol.message import UniqueKeys

_log = logging.getLogger(__name__)

ROUTE_REFRESH_S = 30.0
HEARTBEAT_S = 30.0
#: How often a topic without a route is looked for again.
MISSING_ROUTE_S = 1.0
#: Routes found stale are not read again within this.
STALE_ROUTE_S = 0.2
MASTER = 0

_client_numbers = itertools.count()

OnRequest = Callable[[Command], None]


class ClientPool:
    """Connections and routes of one client. For one event loop.

    Args:
        name_servers: ``host:port`` of each.
        timeout_s: for connecting, and for each request of its own.
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
        timeout_s: float,
        producer_group: str | None = None,
        consumers: Callable[[], list[ConsumerData]] | None = None,
        on_request: dict[int, OnRequest] | None = None,
        on_route: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name_servers = tuple(name_servers)
        self.timeout_s = timeout_s
        self.clock = clock or Clock()
        self._producer_group = producer_group
        self._consumers = consumers
        self._on_request = on_request or {}
        self._on_route = on_route
        self._name_server_index = 0
        self._channels: dict[str, AsyncChannel] = {}
        self._connecting: dict[str, asyncio.Task[AsyncChannel | PymqError]] = {}
        #: topic -> its route, of topics that have one.
        self._routes: dict[str, TopicRoute] = {}
        self._missing: set[str] = set()
        self._read_at: dict[str, float] = {}
        self._refreshing: dict[str, asyncio.Task[PymqError | None]] = {}
        self._tasks = Tasks("client")
        self._open = False
        self._client_id = ""
        self._unique_keys: UniqueKeys | None = None
        self._keys_until_s = 0.0

    # --- life

    async def start(self) -> None:
        """Reach a name server and begin the periodic duties.

        Raises:
            ConnectionFailed: no name server can be reached; the text names all and why.
        """
        self._open = True
        try:
            channel = await self._any_name_server()
        except BaseException:
            await self.close()
            raise
        address = ipaddress.ip_address((channel.local_host or "127.0.0.1").partition("%")[0])
        number = next(_client_numbers)
        self._client_id = f"{address}@{os.getpid()}#{time.time_ns()}{number}"
        self._unique_keys = UniqueKeys(
            address=address.packed, pid=os.getpid(), salt=secrets.randbits(32), start_ms=0
        )
        self._restart_keys()
        self._tasks.repeat("routes", self.refresh_routes, ROUTE_REFRESH_S)
        self._tasks.repeat("missing routes", self.refresh_missing, MISSING_ROUTE_S)
        self._tasks.repeat("heartbeats", self.send_heartbeats, HEARTBEAT_S)

    async def close(self) -> None:
        """Unregister at the brokers and close all connections. Harmless when done twice."""
        was_open, self._open = self._open, False
        if was_open and self._client_id:
            await self._unregister()
        await self._tasks.close()
        for channel in list(self._channels.values()):
            channel.close()
        self._channels.clear()

    @property
    def is_open(self) -> bool:
        """Was it started, and not closed?"""
        return self._open

    @property
    def client_id(self) -> str:
        """Who we are to the brokers: ``address@process#time``."""
        return self._client_id

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` in a task that ends with the client at the latest."""
        return self._tasks.start(name, work)

    def check_open(self) -> None:
        """Raise ClientClosed unless it was started and not closed."""
        if not self._open:
            raise ClientClosed(
                "the client is closed, or was never started; use it inside `async with`, or "
                "between start() and close()"
            )

    # --- message ids

    def unique_keys(self) -> UniqueKeys:
        """The maker of message ids."""
        self.check_open()
        assert self._unique_keys is not None
        return self._unique_keys

    def _restart_keys(self) -> None:
        # Tools read a message's time out of its id: ms since the month began, local time.
        now = datetime.datetime.now().astimezone()
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = (start + datetime.timedelta(days=32)).replace(day=1)
        self._keys_until_s = following.timestamp()
        assert self._unique_keys is not None
        self._unique_keys.restart(int(start.timestamp() * 1000))

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
        opened = await asyncio.shield(task)
        if isinstance(opened, PymqError):
            raise opened
        return opened

    def open_channel(self, address: str) -> AsyncChannel | None:
        """Return the connection to an address if it is open."""
        channel = self._channels.get(address)
        return channel if channel is not None and channel.is_open else None

    async def broker_channel(
        self, topic: str, broker_name: str, address: str
    ) -> AsyncChannel:
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
        except ConnectionFailed as error:
            raise ConnectionFailed(
                f"topic {topic!r}: broker {broker_name!r} advertises {address}, which cannot be "
                f"reached from here ({error}); check that it runs and, if it does, set "
                "brokerIP1 in its configuration to an address that clients can reach"
            ) from error

    async def _connect(self, address: str) -> AsyncChannel | PymqError:
        # The exception is handed over as a value: it concerns those who wait, not the log.
        try:
            channel = await AsyncChannel.connect(
                address, self.timeout_s, on_request=self._dispatch, on_ended=self._ended
            )
        except PymqError as error:
            return error
        if not self._open:
            channel.close()
            return ClientClosed("the client was closed while it connected")
        self._channels[address] = channel
        if address in self.broker_addresses():
            channel.request_nowait(self._heartbeat(), self.timeout_s).add_done_callback(_ignore)
        return channel

    def _ended(self, channel: AsyncChannel) -> None:
        if self._channels.get(channel.address) is channel:
            del self._channels[channel.address]

    def _dispatch(self, channel: AsyncChannel, request: Command) -> None:
        handler = self._on_request.get(request.code)
        if handler is not None:
            handler(request)
        else:
            remark = f" request type {request.code} not supported"
            channel.respond(request, request.reply(3, remark))

    # --- name servers

    async def _any_name_server(self) -> AsyncChannel:
        """Return a connection to a name server, beginning with the one that last answered."""
        failures = []
        for _ in self.name_servers:
            address = self.name_servers[self._name_server_index]
            try:
                return await self.channel(address)
            except ConnectionFailed as error:
                failures.append(str(error))
                self._next_name_server()
        raise no_name_server(self.name_servers, failures)

    def _next_name_server(self) -> None:
        self._name_server_index = (self._name_server_index + 1) % len(self.name_servers)

    async def ask_name_server(self, command: Command) -> Command:
        """Return the answer of the first name server that gives one, whatever its code.

        Raises:
            ConnectionFailed: none answers; the text names all and why.
            ClientClosed: we are closed.
        """
        failures = []
        for _ in self.name_servers:
            address = self.name_servers[self._name_server_index]
            try:
                channel = await self.channel(address)
                return await channel.request(command, self.timeout_s)
            except RequestTimeout as error:
                failures.append(str(error))
                if silent := self.open_channel(address):
                    silent.abort()  # What does not answer a route request is no name server.
            except ConnectionFailed as error:
                failures.append(str(error))
            self._next_name_server()
        raise no_name_server(self.name_servers, failures)

    # --- routes

    def known_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic as last read, without asking."""
        return self._routes.get(topic)

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return the route of a topic, and keep it fresh from now on.

        Args:
            topic: which.
            refresh: ask again although it is known, unless that was done just now.

        Raises:
            RouteNotFound: no name server knows the topic.
            ConnectionFailed: no name server answers and none ever did for this topic.
            ClientClosed: we are closed.
        """
        self.check_open()
        known = self._routes.get(topic)
        if known is not None and not (refresh and self._is_stale(topic)):
            return known
        error = await self._refresh(topic)
        known = self._routes.get(topic)
        if known is not None:
            return known
        raise error or route_not_found(topic)

    def _is_stale(self, topic: str) -> bool:
        return self.clock.monotonic_s() - self._read_at.get(topic, -1e9) > STALE_ROUTE_S

    async def _refresh(self, topic: str) -> PymqError | None:
        """Read one route; callers at the same time share the request."""
        task = self._refreshing.get(topic)
        if task is None:
            task = self._tasks.start(f"route of {topic}", self._read_route(topic))
            self._refreshing[topic] = task
            task.add_done_callback(lambda _: self._refreshing.pop(topic, None))
        return await asyncio.shield(task)

    async def _read_route(self, topic: str) -> PymqError | None:
        fields = RouteRequest(topic=topic, accept_standard_json_only=True).to_fields()
        try:
            command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
            answer = await self.ask_name_server(command)
            if answer.code != 0:
                peer = self.name_servers[self._name_server_index]
                raise BrokerError.of(
                    answer.code, answer.remark, peer=peer, asked=f"the route of {topic!r}"
                )
            route = TopicRoute.decode(answer.body)
        except TopicNotExist:
            # A topic whose brokers are all gone has no route either: keep the old one, as
            # official clients do, because a broker that restarts comes back to it.
            if topic not in self._routes:
                self._missing.add(topic)
            return route_not_found(topic)
        except PymqError as error:
            if topic not in self._routes:
                self._missing.add(topic)
            return error
        self._read_at[topic] = self.clock.monotonic_s()
        self._missing.discard(topic)
        route.queues.sort(key=lambda queue: queue.broker_name)
        route.brokers.sort(key=lambda broker: broker.broker_name)
        if route != self._routes.get(topic):
            self._routes[topic] = route
            if self._on_route is not None:
                self._on_route(topic)
        return None

    async def refresh_routes(self) -> None:
        """Read all routes in use again, and forget connections that none of them names."""
        if time.time() >= self._keys_until_s:
            self._restart_keys()
        for topic in list(self._routes):
            error = await self._refresh(topic)
            if error is not None:
                _log.warning("route of %r not refreshed, the old one stays: %s", topic, error)
        named = {*self.broker_addresses(), *self.name_servers}
        for address in list(self._channels):
            channel = self._channels[address]
            if address not in named and not channel.pending_count:
                channel.close()

    async def refresh_missing(self) -> None:
        """Look again for the topics that have no route yet."""
        for topic in list(self._missing):
            await self._refresh(topic)

    def forget_topic(self, topic: str) -> None:
        """Stop keeping a topic's route."""
        self._routes.pop(topic, None)
        self._missing.discard(topic)

    # --- heartbeats

    def broker_addresses(self) -> set[str]:
        """The brokers that get heartbeats: masters; with consumers, slaves, too."""
        slaves_too = self._consumers is not None
        return {
            address
            for route in self._routes.values()
            for broker in route.brokers
            for broker_id, address in broker.addresses.items()
            if slaves_too or broker_id == MASTER
        }

    def _heartbeat(self) -> Command:
        producers = [ProducerData(group=self._producer_group)] if self._producer_group else []
        consumers = self._consumers() if self._consumers is not None else []
        body = Heartbeat(client_id=self._client_id, producers=producers, consumers=consumers)
        return Command(RequestCode.HEART_BEAT, body=body.encode())

    async def send_heartbeats(self) -> int:
        """Tell every broker in use that we live; return how many heard it."""
        addresses = sorted(self.broker_addresses())
        heard = await asyncio.gather(*(self.send_heartbeat(address) for address in addresses))
        return sum(heard)

    async def send_heartbeat(self, address: str) -> bool:
        """Tell one broker that we live; return whether it heard it."""
        try:
            channel = await self.channel(address)
            answer = await channel.request(self._heartbeat(), self.timeout_s, asked="a heartbeat")
        except RequestTimeout as error:
            _log.warning("%s; the connection is given up", error)
            if silent := self.open_channel(address):
                silent.abort()
            return False
        except PymqError as error:
            _log.info("no heartbeat to %s: %s", address, error)
            return False
        if answer.code != 0:
            _log.warning("%s refused a heartbeat: %d, %s", address, answer.code, answer.remark)
        return answer.code == 0

    async def _unregister(self) -> None:
        """Tell the brokers that we go; those that do not hear it will notice."""
        requests = []
        if self._producer_group:
            requests.append(
                UnregisterClientRequest(
                    client_id=self._client_id, producer_group=self._producer_group
                )
            )
        for consumer in self._consumers() if self._consumers is not None else ():
            requests.append(
                UnregisterClientRequest(client_id=self._client_id, consumer_group=consumer.group)
            )
        waiting = []
        for address in self.broker_addresses():
            channel = self.open_channel(address)
            for request in requests if channel else ():
                assert channel is not None
                command = Command(RequestCode.UNREGISTER_CLIENT, request.to_fields())
                waiting.append(channel.request_nowait(command, self.timeout_s))
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(answer, PymqError):
                _log.info("not unregistered: %s", answer)


def _ignore(future: asyncio.Future[Command]) -> None:
    if not future.cancelled():
        future.exception()  # marks it as seen: the periodic heartbeat reports what lasts


def parse_name_servers(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return the addresses in ``host:port;host:port`` (or with commas), or in several texts.

    Raises:
        ConfigurationError: there is none, or one is no address.
    """
    texts = [value] if isinstance(value, str) else list(value)
    addresses: list[str] = []
    for text in texts:
        if not isinstance(text, str):
            raise ConfigurationError(
                f"name server {text!r} is a {type(text).__name__}, expected host:port"
            )
        addresses += [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    for address in addresses:
        split_address(address)
    if not addresses:
        raise ConfigurationError("no name server given, expected host:port, such as 127.0.0.1:9876")
    return tuple(dict.fromkeys(addresses))


def no_name_server(name_servers: Sequence[str], failures: Sequence[str]) -> ConnectionFailed:
    """Return what to raise when no name server answers."""
    return ConnectionFailed(
        f"no name server of {', '.join(name_servers)} answers: {'; '.join(failures)}"
    )


def route_not_found(topic: str) -> RouteNotFound:
    """Return what to raise for a topic that no name server knows."""
    return RouteNotFound(
        f"no name server knows a route of topic {topic!r}; check the spelling, create the topic, "
        "and see that a broker is registered with these name servers"
    )
