"""Who the members of a consumer group are: asked of one broker, and compared with what they want.

The brokers of a topic each know the members that have sent them a heartbeat. Any of them does;
one that has just come back does not know all yet.
"""

import logging
from collections.abc import Mapping

from pymq.client import operations
from pymq.client.cluster.pool import ClientPool
from pymq.client.cluster.routes import Route
from pymq.client.group.group_watch import GroupWatch
from pymq.errors import PymqError, RouteNotFound
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import Subscription

_log = logging.getLogger(__name__)


class GroupMembers:
    """Asks brokers who the members of a group are. For one event loop.

    Args:
        group: consumer group.
        pool: connections.
    """

    def __init__(self, group: str, pool: ClientPool) -> None:
        self._group = group
        self._pool = pool
        self.watch = GroupWatch(group)
        #: Topic -> name of the broker that named the members.
        self._named_by: dict[str, str] = {}

    async def of(self, topic: str, route: Route) -> tuple[AsyncChannel, list[str]]:
        """Return the client ids of the group's members, and the broker that named them.

        Raises:
            PymqError: no broker of the topic says it.
        """
        failure: PymqError | None = None
        addresses = {name: route.read_address(name) for name in route.addresses}
        pool = self._pool

        def turn(name: str) -> tuple[bool, bool, str]:
            # One that was silent just now has lost its connection. One that has just come back
            # does not know all members yet, so we stay with the one that named them last.
            is_open = pool.open_channel(addresses[name]) is not None
            return not is_open, name != self._named_by.get(topic), name

        for name in sorted(addresses, key=turn):
            address = addresses[name]
            try:
                channel = await pool.broker_channel(topic, name, address)
                members = await self._ask(channel)
                if pool.client_id not in members and await pool.heartbeats.send(address):
                    members = await self._ask(channel)
                self._named_by[topic] = name
                return channel, members
            except PymqError as error:
                failure = error
        raise failure or RouteNotFound(f"topic {topic!r} has no broker")

    async def _ask(self, channel: AsyncChannel) -> list[str]:
        return await self._pool.ask(channel, operations.consumer_ids(self._group))

    async def compare(
        self,
        channel: AsyncChannel,
        members: frozenset[str],
        subscriptions: Mapping[str, Subscription],
    ) -> None:
        """Look whether all members subscribe to the same; a broker may refuse to tell.

        Args:
            channel: to a broker that knows our subscriptions.
            members: client ids.
            subscriptions: ours, by topic.
        """
        try:
            known = await self._pool.ask(channel, operations.consumer_connections(self._group))
        except PymqError as error:
            _log.debug("group %r: subscriptions not compared: %s", self._group, error)
            return
        if known.subscriptions:
            self.watch.compared(members, subscriptions, known.subscriptions)
