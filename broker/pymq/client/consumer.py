"""Consumer: a member of a consumer group that shares the messages (clustering).

``Rebalance`` finds out which queues are ours and has one ``QueueReader`` for each, which pulls
messages into the ``Inbox``; loops and handlers take them from there. Every second the brokers
are told how far each queue is.

A message is delivered at least once. It is finished when the handler returned, or when the
broker has taken it back for another try; until then the queue's committed offset stays
before it. If the broker cannot take it back, it stays here and is tried again.

Source: RocketMQ DefaultMQPushConsumerImpl.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Self, overload

from pymq.client.checks import check_count, check_seconds
from pymq.client.config import ClientConfig, connect_s, parse_name_servers
from pymq.client.handler import check_handler
from pymq.client.home import Home
from pymq.client.inbox import Delivery, FlowLimits, Inbox
from pymq.client.network import PLAIN, Network
from pymq.client.pool import ClientPool
from pymq.client.rebalance import Rebalance
from pymq.client.retry import FailedMessages
from pymq.client.start_policy import StartPolicy
from pymq.client.subscriptions import subscription_of
from pymq.client.workers import WorkerPool
from pymq.clock import Clock
from pymq.errors import ClientClosed, ConfigurationError
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
from pymq.protocol.names import check_group, retry_topic

_log = logging.getLogger(__name__)

COMMIT_S = 1.0
MAX_RECONSUME_TIMES = 16
#: Calls of a handler that may be under way at a time.
CONCURRENCY = 16


class Consumer:
    """Reads topics as a member of a group. For one event loop.

    ::

        async with Consumer("127.0.0.1:9876", "billing").subscribe("orders", "paid || sent") as c:
            async for message in c:
                await book(message.body)

    Moving on to the next message finishes the one before; so does leaving the ``async with``
    block without an exception. An exception does not: the message is delivered again, as is
    the one at which a loop was left (``break``) when the same task begins another loop, or any
    task when that one has ended. Several tasks may loop at a time. ``run`` calls a handler
    instead, and sends messages for which it fails back to the broker, which delivers them again
    later (10 s, 30 s, 1 min, ...) and makes dead letters of them in the end.

    Args:
        name_servers: ``host:port``, several separated by ``;`` or ``,`` or as a list.
        group: consumer group; its members share the messages.
        from_where: where a group begins in queues for which it has no committed offset:
            ``"latest"``, ``"earliest"``, a ``datetime``, or a ``ConsumeFromWhere``. In a queue
            that is found later than the others of its topic, because it or its broker was not
            there, ``"latest"`` is the time when those were found (less 10 s, as clocks differ).
            (A RocketMQ broker may begin at the first message also for ``"latest"``, in a queue
            so young that it still has that message in memory.)
        message_model: clustering; broadcasting is not supported yet.
        max_reconsume_times: after this many failed tries a message becomes a dead letter.
        limits: how much is pulled ahead.
        timeout_s: for one request.
        close_timeout_s: how long ``close`` waits for handlers; 0: not at all.
        clock: for subscriptions' versions.
        network: where brokers are reached, and who we say we are.

    Raises:
        ConfigurationError: an argument is wrong.
        LocalProtocolError: ``group`` is not a legal name.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None,
        group: str,
        *,
        from_where: str | datetime | ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        message_model: str = MessageModel.CLUSTERING,
        max_reconsume_times: int = MAX_RECONSUME_TIMES,
        limits: FlowLimits | None = None,
        timeout_s: float = 3.0,
        close_timeout_s: float = 10.0,
        clock: Clock | None = None,
        network: Network = PLAIN,
    ) -> None:
        check_group(group)
        if message_model != MessageModel.CLUSTERING:
            raise ConfigurationError(
                f"message_model={message_model!r}: only CLUSTERING is supported; for every "
                "process to get every message, give each a group of its own"
            )
        check_count("max_reconsume_times", max_reconsume_times, 0)
        if close_timeout_s != 0:
            check_seconds("close_timeout_s", close_timeout_s)
        if limits is not None and not isinstance(limits, FlowLimits):
            raise ConfigurationError(f"limits={limits!r:.80}: expected a FlowLimits")
        servers = parse_name_servers(name_servers)
        config = ClientConfig(name_servers=servers, timeout_s=timeout_s, network=network)
        self.group = group
        self._start_policy = StartPolicy.of(from_where)
        self._close_timeout_s = close_timeout_s
        self._clock = clock or Clock()
        self._subscriptions: dict[str, Subscription] = {}
        self._inbox = Inbox(limits or FlowLimits())
        self._worker_pools: list[WorkerPool] = []
        self._loops: list[MessageLoop] = []
        self._is_closing = False
        self._pool = ClientPool(
            config.name_servers,
            timeout_s=timeout_s, connect_timeout_s=connect_s(config), network=network,
            route_age_s=config.route_age_s,
            consumers=self._consumer_data,
            on_request={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed},
            on_route=self._route_changed,
            clock=self._clock,
        )
        # This and the inbox are also used by ``threaded``, which calls handlers in threads.
        self._failed_messages = FailedMessages(
            group=group,
            max_reconsume_times=max_reconsume_times,
            pool=self._pool,
            inbox=self._inbox,
            is_closing=lambda: self._is_closing,
        )
        self._rebalance = Rebalance(
            group,
            self._subscriptions,
            start=self._start_policy,
            pool=self._pool,
            inbox=self._inbox,
            on_undecodable=self._failed_messages.send_back_undecodable,
        )

    # --- subscriptions

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Self:
        """Read a topic from now on.

        All members of a group must subscribe to the same.

        Args:
            topic: which; one without a route yet is waited for.
            tags: ``*``, or the tags wanted, joined by ``||``.
            sql: an SQL92 expression over properties instead, such as ``amount > 100``, for brokers
                with ``enablePropertyFilter``.

        Raises:
            LocalProtocolError: the topic is not legal, or the tags are SQL or not an expression.
            FilterSyntaxError: ``sql`` does not parse.
            ClientMisplaced: it was started in another process, thread or event loop.
        """
        subscription = subscription_of(topic, tags, sql, self._clock.wall_ms())
        if self._pool.is_open:  # Elsewhere nothing would wake it.
            self._pool.check_open()
        self._subscriptions[topic] = subscription
        self._rebalance.subscriptions_changed()
        return self

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no more; its offsets are committed. Raises what ``subscribe`` does."""
        if self._pool.is_open:  # Elsewhere nothing would wake it.
            self._pool.check_open()
        self._subscriptions.pop(topic, None)
        self._rebalance.subscriptions_changed()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours at the moment."""
        return sorted(self._rebalance.readers)

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

        Idempotent.

        Raises:
            ConfigurationError: nothing is subscribed.
            ClientClosed: it was closed; make a new one.
            ConnectionFailed: no name server answers; the text names all and why.
        """
        if self._pool.is_open and not self._is_closing:
            self._pool.check_open()
            return self
        if not self._subscriptions:
            raise ConfigurationError("nothing is subscribed: call subscribe(topic) before start()")
        retry = retry_topic(self.group)
        self._subscriptions[retry] = Subscription.of_tags(retry, "*", self._clock.wall_ms())
        await self._pool.start()
        self._pool.spawn("rebalance", self._rebalance.run())
        self._pool.repeat("commit", self.commit_nowait, COMMIT_S)
        return self

    async def close(self) -> None:
        """Pull no more, let handlers finish, commit, leave the group. Idempotent.

        Handlers that are not done within ``close_timeout_s`` are cancelled; their messages
        are delivered again, to another member.
        """
        if self._is_closing or not self._pool.is_open:
            return
        self._pool.check_open()
        self._is_closing = True
        self._inbox.close()
        self._rebalance.stop()
        try:
            ends = [pool.close(self._close_timeout_s) for pool in self._worker_pools]
            await asyncio.gather(*ends)
            await self._rebalance.close()
        finally:
            await self._pool.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for loop in self._loops_of_this_task():
                loop._finish_current()
        await self.close()

    # --- use

    def __aiter__(self) -> "MessageLoop":
        self._check_open()
        task = asyncio.current_task()
        still = []
        for loop in self._loops:
            if loop._task is task or loop._task is None or loop._task.done():
                loop._put_back_current()
            elif loop._is_running:
                still.append(loop)
        self._loops = [*still, MessageLoop(self._inbox, self._pool.home)]
        return self._loops[-1]

    def _loops_of_this_task(self) -> list["MessageLoop"]:
        task = asyncio.current_task()
        return [loop for loop in self._loops if loop._task is task]

    @overload
    async def run(
        self,
        handler: Callable[[ReceivedMessage], object],
        *,
        concurrency: int = CONCURRENCY,
        batch_size: None = None,
    ) -> None: ...

    @overload
    async def run(
        self,
        handler: Callable[[list[ReceivedMessage]], object],
        *,
        concurrency: int = CONCURRENCY,
        batch_size: int,
    ) -> None: ...

    async def run(
        self,
        handler: Callable[[ReceivedMessage], object] | Callable[[list[ReceivedMessage]], object],
        *,
        concurrency: int = CONCURRENCY,
        batch_size: int | None = None,
    ) -> None:
        """Call a handler for each message until the consumer is closed.

        A message for which the handler raises is sent back to its broker. Cancelling
        ``run`` stops taking messages; handlers that are at work finish (see ``close``).

        Args:
            handler: ``async def handler(message)``; with ``batch_size``, of a list of messages.
            concurrency: how many calls may be under way at a time.
            batch_size: most messages of one call; it fails or succeeds as a whole.

        Raises:
            ConfigurationError: an argument is wrong, or ``handler`` is a generator function.
            ClientClosed: the consumer is not open.
            BaseException: what ``handler`` raised that is not an ``Exception``.
        """
        self._check_open()
        check_handler(handler, batch_size)
        check_count("concurrency", concurrency, 1)
        workers = WorkerPool(
            self._inbox,
            handler,
            concurrency,
            batch_size,
            self._failed_messages.handler_failed,
            self._pool.spawn,
        )
        self._worker_pools = [*(other for other in self._worker_pools if other.is_running), workers]
        try:
            await workers.wait_end()
        finally:
            workers.stop()

    def commit_nowait(self) -> None:
        """Tell the brokers how far the queues are, without waiting for an answer."""
        if self._pool.is_open:
            self._pool.check_open()
        for reader in self._rebalance.readers.values():
            reader.commit_nowait()

    def _check_open(self) -> None:
        self._pool.check_open()
        if self._is_closing:
            raise ClientClosed("the consumer is closing")

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

    def _members_changed(self, _: AsyncChannel, request: Command) -> None:
        if (request.fields or {}).get("consumerGroup") == self.group:
            self._rebalance.wake()

    def _route_changed(self, topic: str) -> None:
        self._rebalance.wake()


class MessageLoop:
    """One ``async for`` over a consumer's messages.

    What begins with an underscore is for ``Consumer``, which settles the current message of a loop
    that was left.
    """

    def __init__(self, inbox: Inbox, home: Home) -> None:
        self._inbox = inbox
        self._home = home
        self._current: Delivery | None = None
        self._task = asyncio.current_task()
        self._is_running = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        if self._home.is_forked:
            self._home.check_process()
        self._finish_current()
        self._current = delivery = await self._inbox.take_in_turn()
        if delivery is None:
            self._is_running = False
            raise StopAsyncIteration
        return delivery.message

    def _finish_current(self) -> None:
        """The body of the loop is done with its message."""
        delivery, self._current = self._current, None
        if delivery is not None:
            self._inbox.acknowledge(delivery)

    def _put_back_current(self) -> None:
        """The loop was left; whether its message was handled is not known."""
        delivery, self._current = self._current, None
        if delivery is not None:
            self._inbox.put_back(delivery)
