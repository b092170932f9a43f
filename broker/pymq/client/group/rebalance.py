"""A member of a consumer group: which queues are ours.

Every 20 s, when the broker says that members have come or gone, and when a route changes, the
queues of each topic are divided among the members again. A queue that became ours is read; one
that is not ours any more is committed first, so that its next reader goes on where we were. In a
broadcasting group all queues are ours.

What cannot be found out (no route, no list of members, no committed offset) changes nothing
and is tried again soon: guessing would skip messages or repeat all of them.

Source: RocketMQ RebalanceImpl, RebalanceService.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping

from pymq.client.cluster.namespaces import wrapped_queue
from pymq.client.cluster.pool import ClientPool
from pymq.client.cluster.routes import Route
from pymq.client.group.allocation import (
    Allocation,
    averagely,
    goes_by_whole_names,
    name_of,
    own_share,
)
from pymq.client.group.group_members import GroupMembers
from pymq.client.group.held_queues import HeldQueues
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.subscribed_routes import SubscribedRoutes
from pymq.errors import ConfigurationError, PymqError
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue, Subscription
from pymq.protocol.names import retry_topic

_log = logging.getLogger(__name__)

REBALANCE_S = 20.0
#: When a topic has no route yet, or something failed.
REBALANCE_SOON_S = 1.0


class Rebalance:
    """Our part of a group's queues. For one event loop.

    Args:
        group: consumer group.
        subscriptions: topic -> subscription; the owner changes it and calls ``wake``.
        start: where to begin in a queue without a committed offset.
        allocation: how queues are divided; ``None``: they are not, all are ours.
        pool: connections.
        held: reads the queues.
    """

    def __init__(
        self,
        group: str,
        subscriptions: Mapping[str, Subscription],
        *,
        start: StartPolicy,
        allocation: Allocation | None,
        pool: ClientPool,
        held: HeldQueues,
    ) -> None:
        self._group = group
        self._subscriptions = subscriptions
        self._start = start
        self._allocation = allocation
        self._pool = pool
        self._held = held
        self._routes = SubscribedRoutes(group, subscriptions, pool)
        self._members = GroupMembers(group, pool)
        self._troubles = SaidOnce(_log)
        #: Do the brokers know our subscriptions as they are?
        self._is_announced = False
        self._is_closing = False
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Something changed: rebalance now."""
        self._woken.set()

    def route_changed(self, topic: str) -> None:
        """A topic has other queues, or a broker of it another master: go on there now."""
        for queue, reader in self._held.readers.items():
            if queue.topic == topic:
                reader.route_changed()
        if self._held.locks is not None:
            self._held.locks.route_changed(topic)
        self.wake()

    def subscriptions_changed(self) -> None:
        """Tell the brokers, and rebalance now."""
        self._is_announced = False
        self._held.subscribed(self._subscriptions.get)
        self._woken.set()

    def stop(self) -> None:
        """Take no more queues, and pull no more. Those that are ours stay, to be committed."""
        self._is_closing = True
        self._woken.set()
        self._held.stop()

    async def close(self) -> None:
        """Commit all queues and give them up; call ``stop`` before, and end the handlers."""
        await self._held.close()

    async def run(self) -> None:
        """Rebalance again and again."""
        while not self._is_closing:
            self._woken.clear()
            try:
                settled = await self.rebalance()
            except Exception:
                _log.exception("group %r: rebalance failed", self._group)
                settled = False
            try:
                async with asyncio.timeout(REBALANCE_S if settled else REBALANCE_SOON_S):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def rebalance(self) -> bool:
        """Take and give up queues as the division says; return whether all topics are settled.

        A topic whose members or queues cannot be found out keeps what it has.
        """
        topics = set(self._subscriptions)
        routes = await self._routes.find()
        settled = topics <= routes.keys()
        if routes and not self._is_announced:
            # Brokers must know us and our subscriptions before they name the members.
            self._is_announced = True
            await self._pool.heartbeats.send_all()
        members_by_channel: dict[AsyncChannel, frozenset[str]] = {}
        for topic, route in routes.items():
            ours = await self._ours(topic, route, members_by_channel)
            if ours is None:
                self._routes.late(topic)
            settled &= ours is not None and await self._hold(topic, route, ours)
        await self._held.give_up(
            [queue for queue in self._held.readers if queue.topic not in self._subscriptions]
        )
        for channel, members in members_by_channel.items():
            if len(members) > 1 and self._is_announced:
                await self._members.compare(channel, members, self._subscriptions)
        return settled

    async def _ours(
        self, topic: str, route: Route, members_by_channel: dict[AsyncChannel, frozenset[str]]
    ) -> set[MessageQueue] | None:
        """Return which queues of a topic are ours; ``None``: that cannot be found out.

        Adds to ``members_by_channel`` who named whom.
        """
        if self._allocation is None:
            return set(route.read_queues)
        try:
            channel, members = await self._members.of(topic, route)
        except PymqError as error:
            self._say_unknown(topic, error)
            return None
        if not members:
            return None
        self._troubles.over(
            ("members", topic), "group %r, topic %r: members are known again", self._group, topic
        )
        members_by_channel[channel] = frozenset(members)
        own_id = self._pool.client_id
        try:
            network = self._pool.network
            queues = {queue: queue for queue in route.read_queues}
            if goes_by_whole_names(self._allocation):
                queues = {wrapped_queue(network, queue): queue for queue in queues}
            found = own_share(self._allocation, queues, members, own_id)
            ours = {queues[queue] for queue in found}
        except ConfigurationError as error:
            self._troubles.warn(
                ("division", topic), "group %r, topic %r: %s", self._group, topic, error
            )
            return None
        self._troubles.over(
            ("division", topic), "group %r, topic %r is divided again", self._group, topic
        )
        if own_id in members:
            self._members.watch.shared(
                topic,
                queue_count=len(route.read_queues),
                member_count=len(members),
                own_count=len(ours),
                allocation=None if self._allocation is averagely else name_of(self._allocation),
            )
        return ours

    async def _hold(self, topic: str, route: Route, ours: set[MessageQueue]) -> bool:
        """Take and give up queues of a topic; return whether all of ours could be had."""
        held = {queue for queue in self._held.readers if queue.topic == topic}
        if ours != held and topic != retry_topic(self._group):
            _log.info(
                "group %r, topic %r: %d of %d queues are ours",
                self._group,
                topic,
                len(ours),
                len(route.read_queues),
            )
        readable = {queue for queue in held - ours if queue.broker_name in route.addresses}
        await self._lose_away(held - ours - readable)
        await self._held.give_up(readable)
        is_settled = await self._held.take(
            ours - held,
            lambda: self._subscriptions.get(topic),
            lambda queue: self._routes.start_in(queue, self._start),
        )
        for name in {queue.broker_name for queue in (ours - held) & self._held.readers.keys()}:
            self._troubles.over(
                name, "group %r reads broker %r again: it is back in the route", self._group, name
            )
        return is_settled

    async def _lose_away(self, queues: Collection[MessageQueue]) -> None:
        """Stop reading queues of brokers that have left the route: they cannot be committed."""
        await self._held.lose(queues)
        for name in sorted({queue.broker_name for queue in queues}):
            self._troubles.warn(
                name,
                "group %r does not read broker %r any more, which has left the route: is it "
                "running? When it is back, what was finished and not committed comes again",
                self._group,
                name,
            )

    def _say_unknown(self, topic: str, error: PymqError) -> None:
        """Say why the members cannot be found out, unless readers of the topic say it anyway."""
        if self._is_closing or not self._pool.is_open:
            return
        if topic == retry_topic(self._group) or any(q.topic == topic for q in self._held.readers):
            _log.info("group %r, topic %r keeps its queues: %s", self._group, topic, error)
            return
        self._troubles.warn(
            ("members", topic),
            "group %r, topic %r: this member gets no messages, because no broker of the topic says "
            "who the members are, trying again: %s",
            self._group,
            topic,
            error,
        )
