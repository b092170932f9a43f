"""How brokers know who is behind a connection: heartbeats, and a farewell.

Every broker of the routes in use gets a heartbeat every 30 s, and one first thing on a new
connection, or when it has become a master: it keeps its connections then, and forgets who was
behind them. The farewell waits for the heartbeats under way: RocketMQ brokers handle the two in
different threads, and after a heartbeat that comes last the group would have a member that is
not there, and leave a share of the queues to it for two minutes.
"""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import TypeAlias

from pymq.client import operations
from pymq.client.cluster.live_routes import LiveRoutes
from pymq.client.cluster.name_servers import Connections
from pymq.client.cluster.routes import MASTER_ID
from pymq.errors import ClientClosed, PymqError, RequestTimeout
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import ConsumerData, Heartbeat, ProducerData
from pymq.protocol.command import Command

_log = logging.getLogger(__name__)

HEARTBEAT_S = 30.0
#: A broker that has taken nothing for so long is not just slow to take a lot.
SILENT_S = 3.0

#: Done when it is answered, or when it is known that it will not be.
_Heartbeat: TypeAlias = asyncio.Future[Command] | asyncio.Future[None]


class Heartbeats:
    """Announces one client to its brokers. For one event loop.

    Args:
        connections: of the client.
        routes: name the brokers.
        client_id: returns who we are.
        producer_group: announced to masters.
        consumers: returns what to announce of consumers; with any, slaves get heartbeats, too.
    """

    def __init__(
        self,
        connections: Connections,
        routes: LiveRoutes,
        *,
        client_id: Callable[[], str],
        producer_group: str | None,
        consumers: Callable[[], list[ConsumerData]] | None,
    ) -> None:
        self._connections = connections
        self._routes = routes
        self._client_id = client_id
        self._producer_group = producer_group
        self._consumers = consumers
        self._troubles = SaidOnce(_log)
        #: Heartbeats that are not answered, by broker.
        self._under_way: dict[str, set[_Heartbeat]] = {}
        #: Since when a broker answers no heartbeats, on the loop's clock, by address.
        self._unanswered_s: dict[str, float] = {}
        #: What brokers say with each answer. Of a connection, because another broker may run at the
        #: address later.
        self._versions: weakref.WeakKeyDictionary[AsyncChannel, int] = weakref.WeakKeyDictionary()
        self._is_leaving = False

    def broker_addresses(self) -> set[str]:
        """Return the brokers that get heartbeats: masters; with consumers, slaves, too."""
        slaves_too = self._consumers is not None
        return {
            address
            for known in self._routes.addresses().values()
            for broker_id, address in known.items()
            if slaves_too or broker_id == MASTER_ID
        }

    def _operation(self) -> operations.Operation[int]:
        producers = [ProducerData(group=self._producer_group)] if self._producer_group else []
        consumers = self._consumers() if self._consumers is not None else []
        return operations.heartbeat(
            Heartbeat(client_id=self._client_id(), producers=producers, consumers=consumers)
        )

    def send_nowait(self, channel: AsyncChannel, timeout_s: float) -> None:
        """Send one, as before anything else on a connection that is new."""
        if self._is_leaving:
            return
        heard = channel.request_nowait(self._operation().request, timeout_s)
        heard.add_done_callback(_ignore)
        self._watch(channel.address, heard)

    def greet(self, address: str, timeout_s: float) -> None:
        """Send one to a broker that has become a master, if there is a connection."""
        channel = self._connections.open_channel(address)
        if channel is None:
            return
        try:
            self.send_nowait(channel, timeout_s)
        except PymqError as error:
            _log.debug("no heartbeat: %s", error)  # The next one does it.

    async def send_all(self) -> int:
        """Tell every broker in use that we live; return how many heard it."""
        addresses = sorted(self.broker_addresses())
        heard = await asyncio.gather(*(self.send(address) for address in addresses))
        return sum(heard)

    async def send(self, address: str) -> bool:
        """Tell one broker that we live; return whether it heard it."""
        if self._is_leaving:
            return False
        with self._watching(address):
            return await self._send(address)

    async def ask_version(self, channel: AsyncChannel) -> int:
        """Return the version of RocketMQ's protocol that a broker has, or acts as.

        It is asked with a heartbeat, unless one was answered on this connection before.

        Raises:
            PymqError: it does not say, or it was told that we go.
        """
        if channel not in self._versions:
            if self._is_leaving:
                raise ClientClosed(f"the client is closing; {channel.peer} is not asked any more")
            with self._watching(channel.address):
                await self._ask(channel)
        return self._versions[channel]

    async def _ask(self, channel: AsyncChannel) -> None:
        self._versions[channel] = await self._connections.ask(channel, self._operation())

    @contextlib.contextmanager
    def _watching(self, address: str) -> Iterator[None]:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watch(address, ended)
        try:
            yield
        finally:
            ended.set_result(None)

    def _watch(self, address: str, heartbeat: _Heartbeat) -> None:
        under_way = self._under_way.setdefault(address, set())
        under_way.add(heartbeat)
        heartbeat.add_done_callback(under_way.discard)

    async def _send(self, address: str) -> bool:
        connections = self._connections
        sent_s = asyncio.get_running_loop().time()
        try:
            await self._ask(await connections.channel(address))
        except RequestTimeout as error:
            channel = connections.open_channel(address)
            if channel is not None and (channel.read_at >= sent_s or channel.is_taking(SILENT_S)):
                self._say_unanswered(address, sent_s, error)
                return False
            self._troubles.warn(address, "%s; the connection is given up", error)
            if channel is not None:
                channel.abort()
            return False
        except PymqError as error:
            _log.debug("no heartbeat: %s", error)  # Whoever needs the broker says that it is away.
            return False
        self._unanswered_s.pop(address, None)
        self._troubles.over(address, "%s answers heartbeats again", address)
        return True

    def _say_unanswered(self, address: str, sent_s: float, error: RequestTimeout) -> None:
        """One may wait behind much that was sent before it; two in a row are a danger."""
        now_s = asyncio.get_running_loop().time()
        if sent_s < self._unanswered_s.setdefault(address, now_s):
            _log.debug("%s; the connection is in use, and is kept", error)
            return
        text = (
            "%s; nor was the one before answered. The connection is in use, and is kept, but a "
            "broker that hears no heartbeats for two minutes forgets the client, and a consumer "
            "gets no queues then"
        )
        self._troubles.warn(address, text, error)

    async def unregister(self, timeout_s: float) -> None:
        """Tell the brokers that we go, and send no more heartbeats.

        Those that do not hear it will notice.
        """
        self._is_leaving = True
        consumers = self._consumers() if self._consumers is not None else []
        groups = [{"consumer_group": consumer.group} for consumer in consumers]
        if self._producer_group:
            groups.append({"producer_group": self._producer_group})
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        leaving = (self._leave(one, groups, deadline_s) for one in self.broker_addresses())
        await asyncio.gather(*leaving)

    async def _leave(self, address: str, groups: list[dict[str, str]], deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        if under_way := self._under_way.get(address):
            await asyncio.wait(under_way, timeout=deadline_s - loop.time())
        channel = self._connections.open_channel(address)
        if channel is None:
            return
        left_s = max(deadline_s - loop.time(), 0.0)
        farewells = [operations.unregister(self._client_id(), **group).request for group in groups]
        waiting = [channel.request_nowait(farewell, left_s) for farewell in farewells]
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(answer, PymqError):
                _log.info("not unregistered: %s", answer)


def _ignore(future: asyncio.Future[Command]) -> None:
    if not future.cancelled():
        future.exception()  # marks it as seen: the periodic heartbeat reports what lasts
