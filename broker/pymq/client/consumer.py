"""Consumer: a member of a consumer group that shares the messages (clustering).

Duties, each a ``step``-like method that the pool's tasks repeat:

* *rebalance*, every 20 s and when the broker says that members have changed: divide the
  queues of each topic among the members, begin to read those that became ours, commit and
  give up those that are not ours any more;
* *commit*, every 5 s: tell the brokers how far each queue is;
* one ``QueueReader`` for each queue of ours pulls messages into the inbox.

A message is delivered at least once. It is finished when the handler returned, or when the
broker has taken it back for another try; until then the queue's committed offset stays
before it. If the broker cannot take it back, it stays here and is tried again.

Source: RocketMQ DefaultMQPushConsumerImpl, RebalanceImpl.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from pymq.client import operations
from pymq.client.balance import allocate
from pymq.client.config import ClientConfig, parse_name_servers
from pymq.client.crew import Crew, Handler
from pymq.client.inbox import Delivery, FlowLimits, Inbox
from pymq.client.pool import ClientPool
from pymq.client.queue_reader import QueueReader, StartPolicy
from pymq.client.retry import SendBack
from pymq.client.routes import Route
from pymq.clock import Clock
from pymq.errors import (
    ClientClosed,
    ConfigurationError,
    LocalProtocolError,
    PymqError,
    RouteNotFound,
)
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    MessageQueue,
    Subscription,
)
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.names import check_group, check_topic, retry_topic

_log = logging.getLogger(__name__)

REBALANCE_S = 20.0
#: When a topic has no route yet, or something failed.
REBALANCE_SOON_S = 1.0
COMMIT_S = 5.0
#: A message that its broker could not take back is tried again here after this.
LOCAL_RETRY_S = 5.0
MAX_RECONSUME_TIMES = 16


class Consumer:
    """Reads topics as a member of a group. For one event loop.

    ::

        async with Consumer("127.0.0.1:9876", "billing").subscribe("orders", "paid || sent") as c:
            async for message in c:
                await book(message.body)

    Moving on to the next message finishes the one before; so does leaving the ``async with``
    block without an exception. An exception does not: the message is delivered again, as is
    the one at which a loop was left (``break``) when the same task begins another loop.
    Several tasks may loop at a time. ``run`` calls a handler instead, and gives messages for
    which it fails back to the broker, which delivers them again later (10 s, 30 s, 1 min, ...)
    and makes dead letters of them in the end.

    Args:
        name_servers: ``host:port``, several separated by ``;`` or ``,`` or as a list.
        group: consumer group; its members share the messages.
        from_where: where a group begins in queues for which it has no committed offset:
            ``"latest"``, ``"earliest"``, a ``datetime``, or a ``ConsumeFromWhere``.
            (A RocketMQ broker may begin at the first message also for ``"latest"``, when
            the queue is so young that it still has that message in memory.)
        message_model: clustering; broadcasting is not supported yet.
        max_reconsume_times: after so many failed tries a message becomes a dead letter.
        limits: how much is pulled ahead.
        timeout_s: for one request.
        close_timeout_s: how long ``close`` waits for handlers.
        clock: for subscriptions' versions.

    Raises:
        ConfigurationError: an argument is wrong.
        LocalProtocolError: ``group`` is no legal name.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str,
        *,
        from_where: str | datetime | ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        message_model: str = MessageModel.CLUSTERING,
        max_reconsume_times: int = MAX_RECONSUME_TIMES,
        limits: FlowLimits | None = None,
        timeout_s: float = 3.0,
        close_timeout_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        if message_model != MessageModel.CLUSTERING:
            raise ConfigurationError(
                f"message_model={message_model!r}: only CLUSTERING is supported; for every "
                "process to get every message, give each a group of its own"
            )
        config = ClientConfig(name_servers=parse_name_servers(name_servers), timeout_s=timeout_s)
        self.group = group
        self._start_policy = start_policy(from_where)
        self._max_reconsume_times = max_reconsume_times
        self._close_timeout_s = close_timeout_s
        self._clock = clock or Clock()
        self._subscriptions: dict[str, Subscription] = {}
        self._inbox = Inbox(limits or FlowLimits())
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._reading: dict[MessageQueue, asyncio.Task[None]] = {}
        self._routeless: set[str] = set()
        self._crews: list[Crew] = []
        self._loops: list[MessageLoop] = []
        self._is_closing = False
        #: Do the brokers know our subscriptions as they are?
        self._is_announced = False
        self._wake = asyncio.Event()
        self._pool = ClientPool(
            config.name_servers,
            timeout_s=timeout_s,
            connect_timeout_s=config.connect_timeout_s,
            route_age_s=config.route_age_s,
            consumers=self._consumer_data,
            on_request={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed},
            on_route=self._route_changed,
            clock=self._clock,
        )

    # --- subscriptions

    def subscribe(self, topic: str, tags: str = "*") -> Self:
        """Read a topic from now on.

        All members of a group must subscribe to the same.

        Args:
            topic: which; one without a route yet is waited for.
            tags: ``*``, or the tags wanted, joined by ``||``.

        Raises:
            LocalProtocolError: no legal topic, or no tag expression.
        """
        if not isinstance(topic, str) or not isinstance(tags, str):
            raise LocalProtocolError(
                f"subscription to {topic!r} with tags {tags!r}, expected two texts, such as "
                "'orders' and 'TagA || TagB'"
            )
        check_topic(topic)
        self._subscriptions[topic] = Subscription.of_tags(topic, tags, self._clock.wall_ms())
        for queue, reader in self._readers.items():
            if queue.topic == topic:
                reader.subscription = self._subscriptions[topic]
        self._is_announced = False
        self._wake.set()
        return self

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no more; its offsets are committed."""
        self._subscriptions.pop(topic, None)
        self._is_announced = False
        self._wake.set()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours at the moment."""
        return sorted(self._readers)

    @property
    def client_id(self) -> str:
        """Who we are to the brokers and the other members."""
        return self._pool.client_id

    @property
    def backlog_count(self) -> int:
        """Messages that were pulled and are not finished."""
        return self._inbox.message_count

    # --- life

    async def start(self) -> Self:
        """Reach a name server, announce us to the brokers, take our share of the queues.

        Raises:
            ConfigurationError: nothing is subscribed.
            ConnectionFailed: no name server answers; the text names all and why.
        """
        if not self._subscriptions:
            raise ConfigurationError("nothing is subscribed: call subscribe(topic) before start()")
        retry = retry_topic(self.group)
        self._subscriptions[retry] = Subscription.of_tags(retry, "*", self._clock.wall_ms())
        await self._pool.start()
        self._pool.spawn("rebalance", self._keep_balanced())
        self._pool.repeat("commit", self.commit_nowait, COMMIT_S)
        return self

    async def close(self) -> None:
        """Pull no more, let handlers finish, commit, leave the group. Harmless when done twice.

        Handlers that are not done within ``close_timeout_s`` are cancelled; their messages
        are delivered again, to another member.
        """
        if self._is_closing or not self._pool.is_open:
            return
        self._is_closing = True
        self._inbox.close()
        for task in self._reading.values():
            task.cancel()
        for crew in self._crews:
            await crew.close(self._close_timeout_s)
        await asyncio.gather(*(self._commit(reader) for reader in self._readers.values()))
        await self._pool.close()
        self._readers.clear()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            for loop in self._loops_of_this_task():
                loop.finish_current()
        await self.close()

    # --- use

    def __aiter__(self) -> "MessageLoop":
        self._check_open()
        for left in self._loops_of_this_task():
            left.put_back_current()
            self._loops.remove(left)
        self._loops = [loop for loop in self._loops if loop.is_running]
        self._loops.append(MessageLoop(self._inbox))
        return self._loops[-1]

    def _loops_of_this_task(self) -> list["MessageLoop"]:
        task = asyncio.current_task()
        return [loop for loop in self._loops if loop.task is task]

    async def run(
        self, handler: Handler, *, concurrency: int = 16, batch_size: int | None = None
    ) -> None:
        """Call a handler for each message until the consumer is closed.

        A message for which the handler raises is given back to its broker. Cancelling
        ``run`` stops taking messages; handlers that are at work finish (see ``close``).

        Args:
            handler: ``async def handler(message)``; with ``batch_size``, of a list of messages.
            concurrency: how many calls may be under way at a time.
            batch_size: most messages of one call; it fails or succeeds as a whole.

        Raises:
            ConfigurationError: an argument is wrong.
            ClientClosed: the consumer is not open.
        """
        self._check_open()
        if not callable(handler):
            raise ConfigurationError(f"handler {handler!r}: expected an async function")
        if concurrency < 1 or (batch_size is not None and batch_size < 1):
            raise ConfigurationError(
                f"concurrency={concurrency}, batch_size={batch_size}: expected at least 1"
            )
        crew = Crew(self._inbox, handler, concurrency, batch_size, self.give_back, self._pool.spawn)
        self._crews.append(crew)
        try:
            await crew.wait_end()
        finally:
            crew.stop()

    @property
    def inbox(self) -> Inbox:
        """Where messages wait, for other ways of handling them than those above."""
        return self._inbox

    def commit_nowait(self) -> None:
        """Tell the brokers how far the queues are, without waiting for an answer."""
        for reader in self._readers.values():
            reader.commit_nowait()

    def _check_open(self) -> None:
        self._pool.check_open()
        if self._is_closing:
            raise ClientClosed("the consumer is closing")

    # --- failed messages

    async def give_back(self, delivery: Delivery) -> None:
        """Let the broker deliver a message again, later; if it cannot, do it ourselves."""
        message, queue = delivery.message, delivery.process_queue.queue
        operation = SendBack(
            message, group=self.group, max_reconsume_times=self._max_reconsume_times
        )
        try:
            route = await self._pool.route(queue.topic)
            address = route.read_address(queue.broker_name)
            channel = await self._pool.broker_channel(queue.topic, queue.broker_name, address)
            await self._pool.ask(channel, operation)
        except PymqError as error:
            _log.warning(
                "message %s stays here and is tried again in %g s: %s",
                message.message_id,
                LOCAL_RETRY_S,
                error,
            )
            message.reconsume_times += 1
            again = self._give_back_soon if delivery.is_held else self._inbox.put_back
            self._pool.loop.call_later(LOCAL_RETRY_S, again, delivery)
        else:
            self._inbox.finished(delivery)

    def _give_back_soon(self, delivery: Delivery) -> None:
        if self._is_closing or delivery.process_queue.dropped:
            return
        self._pool.spawn("give back", self.give_back(delivery))

    # --- members and queues

    def _consumer_data(self) -> list[ConsumerData]:
        return [
            ConsumerData(
                group=self.group,
                consume_type=ConsumeType.PUSH,
                message_model=MessageModel.CLUSTERING,
                consume_from_where=self._start_policy.where,
                subscriptions=list(self._subscriptions.values()),
            )
        ]

    def _members_changed(self, request: Command) -> None:
        if (request.fields or {}).get("consumerGroup") == self.group:
            self._wake.set()

    def _route_changed(self, topic: str) -> None:
        self._wake.set()

    async def _keep_balanced(self) -> None:
        while not self._is_closing:
            self._wake.clear()
            try:
                settled = await self.rebalance()
            except Exception:
                _log.exception("group %r: rebalance failed", self.group)
                settled = False
            try:
                async with asyncio.timeout(REBALANCE_S if settled else REBALANCE_SOON_S):
                    await self._wake.wait()
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
            await self._pool.send_heartbeats()
        for topic, route in routes.items():
            settled &= await self._rebalance_topic(topic, route)
        for queue in [q for q in self._readers if q.topic not in self._subscriptions]:
            await self._give_up(queue)
        return settled

    async def _route(self, topic: str) -> Route | None:
        try:
            route = await self._pool.route(topic)
        except RouteNotFound as error:
            if topic not in self._routeless and topic != retry_topic(self.group):
                _log.warning("group %r waits for a route: %s", self.group, error)
            self._routeless.add(topic)
        except ClientClosed:
            pass
        except PymqError as error:
            _log.warning("group %r: %s", self.group, error)
        else:
            self._routeless.discard(topic)
            return route
        return None

    async def _rebalance_topic(self, topic: str, route: Route) -> bool:
        try:
            members = await self._members(topic, route)
        except PymqError as error:
            _log.info("group %r, topic %r keeps its queues: %s", self.group, topic, error)
            return False
        if not members:
            return False
        ours = set(allocate(route.read_queues, members, self.client_id))
        held = {queue for queue in self._readers if queue.topic == topic}
        if ours != held and topic != retry_topic(self.group):
            _log.info(
                "group %r, topic %r: %d of %d queues are ours, %d members",
                self.group,
                topic,
                len(ours),
                len(route.read_queues),
                len(members),
            )
        await asyncio.gather(*(self._give_up(queue) for queue in held - ours))
        if not self._is_closing:
            for queue in sorted(ours - held):
                self._take_over(queue)
        return True

    async def _members(self, topic: str, route: Route) -> list[str]:
        """Return the client ids of the group's members, from whichever broker answers."""
        failure: PymqError | None = None
        for name in sorted(route.addresses):
            address = route.read_address(name)
            try:
                channel = await self._pool.broker_channel(topic, name, address)
                members = await self._ask_members(channel)
                if self.client_id not in members and await self._pool.send_heartbeat(address):
                    members = await self._ask_members(channel)
                return members
            except PymqError as error:
                failure = error
        raise failure or RouteNotFound(f"topic {topic!r} has no broker")

    async def _ask_members(self, channel: AsyncChannel) -> list[str]:
        return await self._pool.ask(channel, operations.consumer_ids(self.group))

    def _take_over(self, queue: MessageQueue) -> None:
        reader = QueueReader(
            queue,
            group=self.group,
            subscription=self._subscriptions[queue.topic],
            start=self._start_policy,
            pool=self._pool,
            inbox=self._inbox,
            on_undecodable=self._give_back_soon,
        )
        self._readers[queue] = reader
        self._reading[queue] = self._pool.spawn(f"read {queue}", self._read(reader))

    async def _read(self, reader: QueueReader) -> None:
        try:
            await reader.run()
        except PymqError as error:
            # Where to begin is not known, and guessing would skip messages or repeat all.
            _log.warning(
                "group %r cannot read %r yet, trying again: %s", self.group, reader.queue, error
            )
        finally:
            if self._readers.get(reader.queue) is reader and not self._is_closing:
                del self._readers[reader.queue]
                self._reading.pop(reader.queue, None)
                if reader.process_queue is not None:
                    self._inbox.drop(reader.process_queue)
        await asyncio.sleep(REBALANCE_SOON_S)
        self._wake.set()

    async def _give_up(self, queue: MessageQueue) -> None:
        """Stop reading a queue and commit it, so that its next reader goes on where we were."""
        reader = self._readers.pop(queue, None)
        task = self._reading.pop(queue, None)
        if reader is None:
            return
        if task is not None:
            task.cancel()
        if reader.process_queue is not None:
            self._inbox.drop(reader.process_queue)
        await self._commit(reader)

    async def _commit(self, reader: QueueReader) -> None:
        try:
            await reader.commit()
        except PymqError as error:
            _log.warning(
                "%r not committed, its last messages will be delivered again: %s",
                reader.queue,
                error,
            )


class MessageLoop:
    """One ``async for`` over a consumer's messages."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._current: Delivery | None = None
        self.task = asyncio.current_task()
        self.is_running = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        self.finish_current()
        self._current = delivery = await self._inbox.take()
        if delivery is None:
            self.is_running = False
            raise StopAsyncIteration
        return delivery.message

    def finish_current(self) -> None:
        """The body of the loop is done with its message."""
        delivery, self._current = self._current, None
        if delivery is not None:
            self._inbox.finished(delivery)

    def put_back_current(self) -> None:
        """The loop was left; whether its message was handled is not known."""
        delivery, self._current = self._current, None
        if delivery is not None:
            self._inbox.put_back(delivery)


def start_policy(value: Any) -> StartPolicy:
    """Return where a group begins.

    Raises:
        ConfigurationError: the value is none of those that ``Consumer`` takes.
    """
    if isinstance(value, datetime):
        return StartPolicy(ConsumeFromWhere.TIMESTAMP, int(value.timestamp() * 1000))
    if value == "latest":
        return StartPolicy(ConsumeFromWhere.LAST_OFFSET)
    if value == "earliest":
        return StartPolicy(ConsumeFromWhere.FIRST_OFFSET)
    if value in (ConsumeFromWhere.LAST_OFFSET, ConsumeFromWhere.FIRST_OFFSET):
        return StartPolicy(ConsumeFromWhere(value))
    raise ConfigurationError(f"from_where={value!r}, expected 'latest', 'earliest' or a datetime")
