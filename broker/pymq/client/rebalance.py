"""A member of a consumer group: which queues are ours, and one reader for each.

Every 20 s, when the broker says that members have come or gone, and when a route changes, the
queues of each topic are divided among the members again. A queue that became ours is read; one
that is not ours any more is committed first, so that its next reader goes on where we were.

What cannot be found out (no route, no list of members, no committed offset) changes nothing
and is tried again soon: guessing would skip messages or repeat all of them.

Source: RocketMQ RebalanceImpl, RebalanceService.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from pymq.client import operations
from pymq.client.group_watch import GroupWatch
from pymq.client.inbox import Delivery, Inbox
from pymq.client.pool import ClientPool
from pymq.client.queue_reader import QueueReader, say_unread
from pymq.client.routes import Route
from pymq.client.start_policy import StartPolicy
from pymq.errors import ClientClosed, PymqError, RouteNotFound
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.protocol.allocation import allocate
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
        pool: connections.
        inbox: gets the messages.
        on_undecodable: gets messages whose body cannot be decompressed.
    """

    def __init__(
        self,
        group: str,
        subscriptions: Mapping[str, Subscription],
        *,
        start: StartPolicy,
        pool: ClientPool,
        inbox: Inbox,
        on_undecodable: Callable[[Delivery], None],
    ) -> None:
        self._group = group
        self._subscriptions = subscriptions
        self._start = start
        self._pool = pool
        self._inbox = inbox
        self._on_undecodable = on_undecodable
        self.readers: dict[MessageQueue, QueueReader] = {}
        self._reading: dict[MessageQueue, asyncio.Task[None]] = {}
        self._watch = GroupWatch(group)
        self._troubles = SaidOnce(_log)
        #: Topics that name servers could not be asked about.
        self._unanswered: set[str] = set()
        #: Topic -> name of the broker that named the members.
        self._named_by: dict[str, str] = {}
        #: Topic -> when it was first looked for, ms since 1970, and the queues it had then.
        self._first_found: dict[str, tuple[int, frozenset[MessageQueue]]] = {}
        #: Up to where we had finished the queues that we do not read any more.
        self._left_at: dict[MessageQueue, int] = {}
        #: Do the brokers know our subscriptions as they are?
        self._is_announced = False
        self._is_closing = False
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Something changed: rebalance now."""
        self._woken.set()

    def subscriptions_changed(self) -> None:
        """Tell the brokers, and rebalance now."""
        self._is_announced = False
        for queue, reader in self.readers.items():
            reader.subscription = self._subscriptions.get(queue.topic, reader.subscription)
        self._woken.set()

    def stop(self) -> None:
        """Pull no more. The readers stay, to be committed."""
        self._is_closing = True
        self._woken.set()
        for task in self._reading.values():
            task.cancel()

    async def close(self) -> None:
        """Commit all queues and give them up; call ``stop`` before."""
        await asyncio.gather(*(self._commit(reader) for reader in self.readers.values()))
        self.readers.clear()

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
        settled = True
        routes: dict[str, Route] = {}
        for topic in list(self._subscriptions):
            route = await self._route(topic)
            if route is None:
                settled = False
            else:
                routes[topic] = route
        if routes and not self._is_announced:
            # Brokers must know us and our subscriptions before they name the members.
            self._is_announced = True
            await self._pool.heartbeats.send_all()
        members_by_channel: dict[AsyncChannel, frozenset[str]] = {}
        for topic, route in routes.items():
            settled &= await self._rebalance_topic(topic, route, members_by_channel)
        for queue in [q for q in self.readers if q.topic not in self._subscriptions]:
            await self._give_up(queue)
        for topic in self._first_found.keys() - self._subscriptions.keys():
            del self._first_found[topic]
        for channel, members in members_by_channel.items():
            if len(members) > 1:
                await self._compare(channel, members)
        return settled

    async def _compare(self, channel: AsyncChannel, members: frozenset[str]) -> None:
        """Look whether all members subscribe to the same; a broker may refuse to tell."""
        try:
            known = await self._pool.ask(channel, operations.consumer_connections(self._group))
        except PymqError as error:
            _log.debug("group %r: subscriptions not compared: %s", self._group, error)
            return
        if known.subscriptions and self._is_announced:
            self._watch.compared(members, self._subscriptions, known.subscriptions)

    async def _route(self, topic: str) -> Route | None:
        try:
            route = await self._pool.routes.route(topic)
        except RouteNotFound as error:
            self._answered(topic)
            self._found(topic, ())
            if topic != retry_topic(self._group):
                self._troubles.warn(
                    ("route", topic), "group %r waits for a route: %s", self._group, error
                )
        except ClientClosed:
            pass
        except PymqError as error:
            self._unanswered.add(topic)
            self._troubles.warn(
                "routes",
                "group %r waits for a route of topic %r, trying again: %s",
                self._group,
                topic,
                error,
            )
        else:
            self._answered(topic)
            self._found(topic, route.read_queues)
            self._troubles.over(("route", topic))
            return route
        return None

    def _answered(self, topic: str) -> None:
        """Name servers answered about a topic; that of others may be known from before."""
        self._unanswered.discard(topic)
        if not self._unanswered & self._subscriptions.keys():
            self._troubles.over("routes")

    def _found(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        if topic not in self._first_found:
            self._first_found[topic] = (self._pool.clock.wall_ms(), frozenset(queues))

    async def _rebalance_topic(
        self, topic: str, route: Route, members_by_channel: dict[AsyncChannel, frozenset[str]]
    ) -> bool:
        """Take and give up queues of one topic; add to ``members_by_channel`` who named whom."""
        try:
            channel, members = await self._members(topic, route)
        except PymqError as error:
            self._say_unknown(topic, error)
            return False
        if not members:
            return False
        self._troubles.over(
            ("members", topic), "group %r, topic %r: members are known again", self._group, topic
        )
        members_by_channel[channel] = frozenset(members)
        ours = set(allocate(route.read_queues, members, self._pool.client_id))
        held = {queue for queue in self.readers if queue.topic == topic}
        if ours != held and topic != retry_topic(self._group):
            _log.info(
                "group %r, topic %r: %d of %d queues are ours, %d members",
                self._group,
                topic,
                len(ours),
                len(route.read_queues),
                len(members),
            )
        if self._pool.client_id in members:
            self._watch.shared(
                topic,
                queue_count=len(route.read_queues),
                member_count=len(members),
                own_count=len(ours),
            )
        readable = {queue for queue in held - ours if queue.broker_name in route.addresses}
        self._drop_away(held - ours - readable)
        await asyncio.gather(*(self._give_up(queue) for queue in readable))
        subscription = self._subscriptions.get(topic)
        if subscription is not None and not self._is_closing:
            for queue in sorted(ours - held):
                self._take_over(queue, subscription)
        return True

    def _say_unknown(self, topic: str, error: PymqError) -> None:
        """Say why the members cannot be found out, unless readers of the topic say it anyway."""
        if self._is_closing or not self._pool.is_open:
            return
        if topic == retry_topic(self._group) or any(q.topic == topic for q in self.readers):
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

    async def _members(self, topic: str, route: Route) -> tuple[AsyncChannel, list[str]]:
        """Return the client ids of the group's members, and the broker that named them."""
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
                members = await self._ask_members(channel)
                if pool.client_id not in members and await pool.heartbeats.send(address):
                    members = await self._ask_members(channel)
                self._named_by[topic] = name
                return channel, members
            except PymqError as error:
                failure = error
        raise failure or RouteNotFound(f"topic {topic!r} has no broker")

    async def _ask_members(self, channel: AsyncChannel) -> list[str]:
        return await self._pool.ask(channel, operations.consumer_ids(self._group))

    def _take_over(self, queue: MessageQueue, subscription: Subscription) -> None:
        since_ms, first = self._first_found[queue.topic]
        start = self._start if queue in first else self._start.for_later_queues(since_ms)
        reader = self._new_reader(queue, subscription, start)
        self.readers[queue] = reader
        self._reading[queue] = self._pool.spawn(f"read {queue}", self._read(reader))

    def _new_reader(
        self, queue: MessageQueue, subscription: Subscription, start: StartPolicy
    ) -> QueueReader:
        return QueueReader(
            queue,
            group=self._group,
            subscription=subscription,
            start=start,
            left_at=self._left_at.get(queue),
            pool=self._pool,
            inbox=self._inbox,
            on_undecodable=self._on_undecodable,
            troubles=self._troubles,
        )

    async def _read(self, reader: QueueReader) -> None:
        try:
            await reader.run()
        except PymqError as error:
            # Where to begin is not known, and guessing would skip messages or repeat all.
            say_unread(self._troubles, self._group, reader.queue, error)
        finally:
            if self.readers.get(reader.queue) is reader and not self._is_closing:
                del self.readers[reader.queue]
                self._reading.pop(reader.queue, None)
                self._drop(reader)
        await asyncio.sleep(REBALANCE_SOON_S)
        self._woken.set()

    def _drop(self, reader: QueueReader) -> None:
        """Deliver nothing more of a queue, and remember how far it was finished.

        A broker that is killed may forget what was committed in its last seconds.
        """
        if reader.process_queue is not None:
            self._left_at[reader.queue] = reader.process_queue.commit_offset
            self._inbox.drop(reader.process_queue)

    def _remove(self, queue: MessageQueue) -> QueueReader | None:
        reader = self.readers.pop(queue, None)
        task = self._reading.pop(queue, None)
        if task is not None:
            task.cancel()
        if reader is not None:
            self._drop(reader)
        return reader

    def _drop_away(self, queues: Collection[MessageQueue]) -> None:
        """Stop reading queues of brokers that have left the route: they cannot be committed."""
        for queue in queues:
            self._remove(queue)
        for name in sorted({queue.broker_name for queue in queues}):
            self._troubles.warn(
                name,
                "group %r does not read broker %r any more, which has left the route: is it "
                "running? When it is back, what was finished and not committed comes again",
                self._group,
                name,
            )

    async def _give_up(self, queue: MessageQueue) -> None:
        """Stop reading a queue and commit it, so that its next reader goes on where we were."""
        reader = self._remove(queue)
        if reader is not None:
            await self._commit(reader)

    async def _commit(self, reader: QueueReader) -> None:
        try:
            await reader.commit()
        except PymqError as error:
            self._troubles.warn(
                ("commit", reader.queue.broker_name),
                "group %r: queues of broker %r are not committed, their last messages will be "
                "delivered again: %s",
                self._group,
                reader.queue.broker_name,
                error,
            )
        else:
            self._troubles.over(("commit", reader.queue.broker_name))
