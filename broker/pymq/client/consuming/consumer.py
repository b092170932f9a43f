"""Consumer: a member of a consumer group.

``Rebalance`` finds out which queues are ours, and ``HeldQueues`` has one ``QueueReader`` for each,
which pulls messages into the ``Inbox``; loops and handlers take them from there. Every second the
brokers are told how far each queue is.

A message is delivered at least once. It is finished when it is done, or when the broker has taken
it back, for another try or as a dead letter; until then the queue's committed offset stays before
it. If the broker cannot take it back, it stays here and is tried again. ``outcomes`` has the rules.

Source: RocketMQ DefaultMQPushConsumerImpl.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, overload

from pymq.client.checks import Moment, check_count, check_seconds
from pymq.client.cluster.config import parse_name_servers
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.consuming.consume_hooks import ConsumeHook
from pymq.client.consuming.consumer_config import (
    CLOSE_TIMEOUT_S,
    CONSUME_TIMEOUT_S,
    SUSPEND_S,
    ConsumerConfig,
)
from pymq.client.consuming.consumer_parts import ConsumerParts
from pymq.client.consuming.handler import check_handler, is_async
from pymq.client.consuming.message_loop import MessageLoop, MessageLoops
from pymq.client.consuming.queue_control import QueueControl
from pymq.client.consuming.thread_workers import ThreadWorkers
from pymq.client.consuming.workers import Calls, WorkerPool
from pymq.client.group.allocation import Allocation, averagely
from pymq.client.group.inbox import FlowLimits
from pymq.client.group.rebalance_listener import RebalanceListener
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.subscriptions import subscription_of
from pymq.clock import Clock
from pymq.errors import ClientClosed, ConfigurationError
from pymq.protocol.bodies import ConsumeFromWhere, MessageModel, Subscription
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.names import retry_topic

COMMIT_S = 1.0
#: How often is looked for messages that stand for too long, at least.
EXPIRE_S = 30.0
#: Calls of a handler that may be under way at a time.
CONCURRENCY = 16
CONCURRENCY_MAX = 1_000


class Consumer(QueueControl):
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
    later (10 s, 30 s, 1 min, ...) and makes dead letters of them in the end. In both, and from
    any thread, ``ack``, ``retry`` and ``reject`` of a message say what becomes of it.

    Args:
        name_servers: ``host:port``, several separated by ``;`` or ``,`` or as a list.
        group: consumer group; its members share the messages.
        from_where: where a group begins in queues for which it has no committed offset:
            ``"latest"``, ``"earliest"``, a ``datetime`` (local if it has no zone), or a
            ``ConsumeFromWhere``. In a queue found later than the others of its topic, or silent
            then, ``"latest"`` is the time when those were found (less 10 s, as clocks differ).
            (Brokers may begin at the first message all the same, while they have it in memory.)
        message_model: ``"CLUSTERING"``: the members share the messages. ``"BROADCASTING"``: each
            member gets all; it keeps its offsets in a file (see ``local_offsets_dir``), and what
            fails is logged and dropped, whatever ``max_reconsume_times``; in order as elsewhere.
        orderly: handle the messages of each queue, so those of each sharding key, one after the
            other in their order, also within this process and while members come and go. (The
            name is RocketMQ's: MessageListenerOrderly.) A failure holds its queue back, see
            ``suspend_s``. As many handlers work at a time as there are queues, at most.
        suspend_s: in order, how long a queue waits before a message that failed is tried again.
        max_reconsume_times: so often at most a message that failed is tried again before it becomes
            a dead letter; 0: not at all, ``math.inf``: without limit. ``None``: as the group's
            setting at the broker says (``retry_max_times``, 16); in order: without limit.
        allocation: how the queues are divided among the members, which must all do it in the same
            way: one of ``pymq.allocation``, or a function.
        rebalance_listener: told of queues that are assigned, revoked and lost.
        limits: how much is pulled ahead.
        local_offsets_dir: where members that get everything keep their offsets; ``None``:
            ``~/.rocketmq_offsets``, as in Java.
        consume_timeout_s: a message that a handler or a loop has had for longer goes back to its
            broker, which delivers it again after 10 s (RocketMQ consumeTimeout).
        timeout_s: for one request.
        close_timeout_s: how long ``close`` waits for handlers; 0: not at all.
        hooks: called before and after messages are handled.
        trace_topic: where to write the message trace, which consoles read, usually
            ``RMQ_SYS_TRACE_TOPIC``; ``None``: nowhere.
        clock: for subscriptions' versions.
        network: where brokers are reached, and who we say we are. Members that get everything are
            instance ``DEFAULT`` unless this names another, so that they find their offsets again.

    Raises:
        ConfigurationError: an argument is wrong.
        LocalProtocolError: ``group`` is not a legal name.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None,
        group: str,
        *,
        from_where: str | Moment | ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        message_model: str = MessageModel.CLUSTERING,
        orderly: bool = False,
        suspend_s: float = SUSPEND_S,
        max_reconsume_times: float | None = None,
        allocation: Allocation = averagely,
        rebalance_listener: RebalanceListener | None = None,
        limits: FlowLimits | None = None,
        local_offsets_dir: str | Path | None = None,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        timeout_s: float = 3.0,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
        hooks: Sequence[ConsumeHook] = (),
        trace_topic: str | None = None,
        clock: Clock | None = None,
        network: Network = PLAIN,
    ) -> None:
        self._config = config = ConsumerConfig(
            name_servers=parse_name_servers(name_servers),
            group=group,
            start=StartPolicy.of(from_where),
            message_model=message_model,
            orderly=orderly,
            suspend_s=suspend_s,
            max_reconsume_times=max_reconsume_times,
            allocation=allocation,
            rebalance_listener=rebalance_listener,
            limits=FlowLimits() if limits is None else limits,
            local_offsets_dir=local_offsets_dir,
            consume_timeout_s=consume_timeout_s,
            timeout_s=timeout_s,
            close_timeout_s=close_timeout_s,
            network=network,
        )
        self.group = group
        self._clock = clock or Clock()
        self._parts = parts = ConsumerParts(config, hooks, trace_topic, self._clock)
        self._pool = parts.pool
        self._inbox = parts.inbox
        self._rebalance = parts.rebalance
        self._outcomes = parts.outcomes
        self._thread_inbox = parts.thread_inbox  # for ``threaded``, too
        self._subscriptions = parts.subscriptions
        self._observer = parts.observer
        self._loops = MessageLoops(self._inbox, self._outcomes, self._observer)
        self._worker_pools: list[WorkerPool | ThreadWorkers] = []

    # --- subscriptions

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Self:
        """Read a topic from now on.

        All members of a group must subscribe to the same. Another call for the topic replaces
        this one, for what has not been pulled yet.

        Args:
            topic: which; one without a route yet is waited for.
            tags: ``*``, or the tags wanted, joined by ``||``.
            sql: an SQL92 expression over properties; the broker needs ``enablePropertyFilter``.

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
        if not self._subscriptions:
            raise ConfigurationError("nothing is subscribed: call subscribe(topic) before start()")
        if not self._config.is_broadcasting:
            retry = retry_topic(self.group)
            own = Subscription.of_tags(retry, "*", self._clock.wall_ms())
            self._subscriptions.setdefault(retry, own)
        if not await self._pool.start():
            return self
        self._pool.spawn("rebalance", self._rebalance.run())
        self._pool.repeat("commit", self.commit_nowait, COMMIT_S)
        limit_s = self._config.consume_timeout_s
        self._pool.repeat("consume time-out", self._outcomes.expire, min(limit_s / 10, EXPIRE_S))
        self._parts.start_duties()
        return self

    async def close(self) -> None:
        """Pull no more, let handlers finish, commit, leave the group. Idempotent.

        Coroutines that are late (``close_timeout_s``) are cancelled; their messages are delivered
        again, to another member. What handlers sent back is waited for as long. Each queue's
        commit is answered, or the log says that it is not; one that is cancelled waits for none.
        What was only pulled is left to other members. Who closes it meanwhile waits for that, too.
        """
        if self._parts.is_closing or not self._pool.is_open:
            await self._pool.closing.wait_ended()
            return
        self._pool.check_open()
        self._parts.is_closing = True
        self._inbox.close()
        self._rebalance.stop()
        with self._pool.closing:
            try:
                await self._finish(self._config.close_timeout_s)
            finally:
                self._thread_inbox.settle()
                self._parts.held.close_nowait()
                await self._pool.close()
                self._parts.say_left()
                for pool in self._worker_pools:
                    pool.cancel_left()

    async def _finish(self, limit_s: float) -> None:
        until_s, closer = time.monotonic() + limit_s, asyncio.current_task()
        await asyncio.gather(*(pool.close(limit_s, closer) for pool in self._worker_pools))
        await self._parts.failed_messages.wait_sent(until_s - time.monotonic())
        self._thread_inbox.settle()
        self._outcomes.close()
        await self._rebalance.close()
        if self._parts.tracer is not None:
            await self._parts.tracer.wait_written(until_s)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._loops.finish_those_of_this_task()
        await self.close()

    # --- use

    def __aiter__(self) -> MessageLoop:
        self._check_open()
        return self._loops.begin(self._pool.home)

    @overload
    async def run(
        self,
        handler: Callable[[ReceivedMessage], object],
        *,
        concurrency: int = CONCURRENCY,
        batch_size: None = None,
        timeout_s: float | None = None,
    ) -> None: ...

    @overload
    async def run(
        self,
        handler: Callable[[list[ReceivedMessage]], object],
        *,
        concurrency: int = CONCURRENCY,
        batch_size: int,
        timeout_s: float | None = None,
    ) -> None: ...

    async def run(
        self,
        handler: Callable[[ReceivedMessage], object] | Callable[[list[ReceivedMessage]], object],
        *,
        concurrency: int = CONCURRENCY,
        batch_size: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Call a handler for each message until the consumer is closed.

        A coroutine function (``async def``) is called in the event loop, a plain function in
        ``concurrency`` threads of its own, where it may block.

        What this promises:

        * A handler that returns is done with its message, whatever it returns; the message of one
          that raises is delivered again, later after each try, and is a dead letter in the end.
          ``message.ack()``, ``.retry()`` and ``.reject()`` say it otherwise.
        * Each message is handled at least once. It comes again, perhaps to another member, if the
          process ends, or its queue goes to another member, before it is finished and committed;
          or if it is not finished within ``consume_timeout_s``.
        * With ``orderly``, calls for a queue do not overlap and keep its order. Otherwise messages
          are handed out in that order, and up to ``concurrency`` calls overlap.
        * A message that is not finished is not passed by what is committed, however many behind
          it are finished.

        Cancelling ``run`` stops taking messages; handlers that are at work finish (see
        ``close``). Several may run at a time.

        Args:
            handler: of one message; with ``batch_size``, of a list of messages.
            concurrency: how many calls may be under way at a time.
            batch_size: most messages of one call; those without an outcome of their own have that
                of the call.
            timeout_s: end when no message has come for so long; ``None``: never.

        Raises:
            ConfigurationError: an argument is wrong, or ``handler`` is a generator function.
            ClientClosed: the consumer is not open.
            BaseException: what ``handler`` raised that is not an ``Exception``; its messages are
                delivered again.
        """
        self._check_open()
        check_handler(handler, batch_size)
        check_count("concurrency", concurrency, 1, CONCURRENCY_MAX)
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        calls = Calls(handler, batch_size, self._outcomes, self._observer)
        workers: WorkerPool | ThreadWorkers
        if is_async(handler):
            workers = WorkerPool(self._inbox, calls, concurrency, self._pool.spawn)
        else:
            workers = ThreadWorkers(self._thread_inbox, calls, concurrency, self.group)
        self._worker_pools = [*(other for other in self._worker_pools if other.is_running), workers]
        try:
            with self._parts.direct_calls.during(calls):
                await workers.wait_end(timeout_s)
        finally:
            workers.stop()

    async def commit(self) -> None:
        """Tell the brokers how far the queues are, and wait for their answers.

        It is done anyway, every second without waiting, and by ``close``.

        Raises:
            PymqError: a broker does not answer, or refused; its queues stay as they were.
            ClientClosed: the consumer is not open.
        """
        self._check_open()
        self._thread_inbox.settle()
        await self._parts.held.commit()

    def commit_nowait(self) -> None:
        """Tell the brokers how far the queues are, without waiting for an answer."""
        if self._pool.is_open:
            self._pool.check_open()
        self._thread_inbox.settle()
        self._parts.held.commit_nowait()

    def _check_open(self) -> None:
        self._pool.check_open()
        if self._parts.is_closing:
            raise ClientClosed("the consumer is closing")
