"""The masters of other groups, which store what this one cannot.

Source: RocketMQ TopicRouteInfoManager, EscapeBridge.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from pymq.broker.ha.acting import MASTER_ID
from pymq.broker.topic_routes import ask_name_server, ask_route
from pymq.clock import Clock
from pymq.errors import PymqError
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import BrokerData, ClusterInfo
from pymq.protocol.codes import Permission, RequestCode
from pymq.protocol.names import is_retry_topic

#: A route is asked for again after this time, and after a failure.
FRESH_S = 10.0
CONNECT_TIMEOUT_S = 1.0
#: Routes that are remembered.
_COUNT_MAX = 10_000


class Place(NamedTuple):
    """A queue at another broker; ``address`` is its ``host:port``."""

    broker_name: str
    address: str
    queue_id: int


class _Target(NamedTuple):
    broker_name: str
    address: str
    queue_count: int


class OtherBrokers:
    """Finds a queue for a message, and keeps a connection to each broker.

    Args:
        broker_name, cluster: ours.
        name_servers: their addresses.
    """

    def __init__(
        self, broker_name: str, cluster: str, name_servers: Sequence[str], clock: Clock
    ) -> None:
        self._broker_name = broker_name
        self._cluster = cluster
        self._name_servers = name_servers
        self._clock = clock
        #: Topic -> when it was asked for, and who has it.
        self._known: dict[str, tuple[float, list[_Target]]] = {}
        #: Changes after each failure, so that the next attempt goes elsewhere.
        self._turn = 0
        self._channels: dict[str, AsyncChannel] = {}

    async def place(self, topic: str, queue_id: int) -> Place:
        """Return where a message of a queue of this group goes: all of one queue to one, if it can.

        Raises:
            PymqError: nobody else has the topic, or no name server answers.
        """
        now_s = self._clock.monotonic_s()
        known = self._known.get(topic)
        if known is None or now_s - known[0] >= FRESH_S:
            if len(self._known) >= _COUNT_MAX:
                self._known.clear()
            known = self._known[topic] = now_s, await self._ask(topic)
        targets = known[1]
        if not targets:
            del self._known[topic]  # it may be created at any time
            raise PymqError(
                f"no other group of the cluster takes messages of topic {topic}; create it there "
                "(pymq topic create), or start the master of this group"
            )
        target = targets[(queue_id + self._turn) % len(targets)]
        return Place(target.broker_name, target.address, queue_id % target.queue_count)

    def failed(self, topic: str) -> None:
        """Have the next message go elsewhere, and the route asked for again."""
        self._turn += 1
        self._known.pop(topic, None)

    async def _ask(self, topic: str) -> list[_Target]:
        """Return who takes messages of a topic, by name.

        Whoever is known to any name server: one that was just started does not know all yet.

        Raises:
            PymqError: no name server answers.
        """
        answers = await asyncio.gather(
            *(self._ask_one(server, topic) for server in self._name_servers),
            return_exceptions=True,
        )
        found: dict[str, _Target] = {}
        failure = PymqError("there is no name server (namesrvAddr)")
        for answer in answers:
            if isinstance(answer, PymqError):
                failure = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.update((one.broker_name, one) for one in answer)
        if all(isinstance(answer, PymqError) for answer in answers):
            raise failure
        return sorted(found.values())

    async def _ask_one(self, server: str, topic: str) -> list[_Target]:
        route = await ask_route(server, topic)
        masters = _masters([] if route is None else route.brokers)
        targets = [
            _Target(one.broker_name, masters[one.broker_name], one.write_queue_count)
            for one in ([] if route is None else route.queues)
            if one.perm & Permission.WRITE
            and one.write_queue_count > 0
            and one.broker_name in masters
            and one.broker_name != self._broker_name
        ]
        if not targets and is_retry_topic(topic):
            targets = await self._any(server)  # brokers make it when the first message comes
        return targets

    async def _any(self, server: str) -> list[_Target]:
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        body = await ask_name_server(server, code, None, name="cluster")
        info = ClusterInfo.decode(body or b"{}")
        names = info.clusters.get(self._cluster, frozenset())
        masters = _masters([one for one in info.brokers.values() if one.broker_name in names])
        return [
            _Target(name, address, 1)
            for name, address in masters.items()
            if name != self._broker_name
        ]

    async def channel(self, address: str) -> AsyncChannel:
        """Return a connection to a broker.

        Raises:
            PymqError: there is none.
        """
        channel = self._channels.get(address)
        if channel is None or not channel.is_open:
            channel = await AsyncChannel.connect(address, CONNECT_TIMEOUT_S)
            known = self._channels.get(address)
            if known is not None and known.is_open:  # made meanwhile
                channel.close()
                return known
            self._channels[address] = channel
        return channel

    def close(self) -> None:
        """Close the connections; idempotent."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


def _masters(brokers: Sequence[BrokerData]) -> dict[str, str]:
    return {
        one.broker_name: one.addresses[MASTER_ID] for one in brokers if MASTER_ID in one.addresses
    }
