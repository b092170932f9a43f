"""BlockingClient: request and response over plain sockets, for Spark, administration, scripts.

No thread, no event loop, no heartbeat. For one thread. A copy in a child made by ``fork`` opens
connections of its own and gives message ids of its own.

**Pulls need no registration.** They carry their subscription with them (as mqadmin and the
lite pull consumer do) and use the group ``TOOLS_CONSUMER``, which every broker has from the
start. Another group works where it exists, or where ``autoCreateSubscriptionGroup`` is on.
Nothing is committed for the group.

**Retries.** Reads are tried again, over new routes and connections, until ``read_deadline_s``
has passed without progress. Sends are tried again on another queue, ``send_retries`` times or
until a deadline, after the codes that RocketMQ retries (17, 14, 1, 16, 204, 205, 2), a broken
connection or a timeout. In the last two cases the first try may have been stored: then the message
is there twice, with the same message id (property ``UNIQ_KEY``), by which readers can tell.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

from pymq.client import operations
from pymq.client.cluster.config import ClientConfig, parse_name_servers
from pymq.client.cluster.namespaces import refuse_namespace
from pymq.client.cluster.network import PLAIN, Network, advertised
from pymq.client.cluster.routes import Route, no_read_queue
from pymq.client.group.subscriptions import subscription_of
from pymq.client.operations import Operation, PreparedMessage, Pull, PullResult, SendResult
from pymq.client.ranges import PullChunk, RangePlan
from pymq.client.sending.send_encoding import (
    batch_messages,
    batch_topic,
    check_flag,
    check_message,
    check_no_timer,
    encode_batch,
    encode_properties,
    prepare_body,
)
from pymq.client.sockets.blocking_pool import PASSING, BlockingPool
from pymq.client.sockets.blocking_sender import BlockingSender
from pymq.client.sockets.message_ids import MessageIds
from pymq.client.sockets.queue_bounds import ask_bounds
from pymq.client.sockets.range_reader import read_range
from pymq.client.sockets.read_sources import ReadSources
from pymq.clock import Clock
from pymq.protocol.bodies import ClusterInfo, MessageQueue
from pymq.protocol.message import Message
from pymq.protocol.names import DEFAULT_PRODUCER_GROUP, TOOLS_GROUP

T = TypeVar("T")


class BlockingClient:
    """A client for one thread at a time, to use in ``with`` or close; connects when first used."""

    def __init__(
        self,
        name_servers: Sequence[str] | str | None = None,
        *,
        timeout_s: float = 3.0,
        read_deadline_s: float = 15.0,
        send_retries: int = 2,
        producer_group: str = DEFAULT_PRODUCER_GROUP,
        awaits_routes: bool = False,
        network: Network = PLAIN,
        config: ClientConfig | None = None,
        routes: Iterable[Route] = (),
    ) -> None:
        """Prepare a client; nothing is connected yet.

        Args:
            name_servers: ``host:port``, one or more; a string may hold several, separated by
                ``;`` or ``,``; or the URL at which they are looked up. ``None``: what
                ``NAMESRV_ADDR`` says.
            timeout_s: for each answer, from a peer that does nothing meanwhile.
            read_deadline_s: how long reads are tried again without any progress.
            send_retries: how often a failed send is tried again, see the module's docstring.
            producer_group: the group sends are made in.
            awaits_routes: all topics exist, and a missing route is a transient failure, see
                ``ClientConfig``.
            network: where brokers are reached.
            config: takes the place of all these but ``name_servers``.
            routes: what another client knows of topics (``known_routes``): name servers are not
                asked before these are old, or turn out wrong.

        Raises:
            ConfigurationError: an argument is wrong, or ``network`` has a namespace.
        """
        servers = parse_name_servers(name_servers)
        if config is None:
            config = ClientConfig(
                name_servers=servers,
                timeout_s=timeout_s,
                read_deadline_s=read_deadline_s,
                send_retries=send_retries,
                producer_group=producer_group,
                awaits_routes=awaits_routes,
                network=network,
            )
        self._config = replace(config, name_servers=servers)
        refuse_namespace(self._config.network)
        self._pool = BlockingPool(self._config, routes)
        self._message_ids = MessageIds()
        self._clock = Clock()
        self._sender = BlockingSender(self._pool, self._clock)
        self._read_sources = ReadSources(self._pool)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The name servers' addresses."""
        return self._pool.name_servers()

    # --- routes

    def route(self, topic: str) -> Route:
        """Return the route of an existing topic; the old one while no name server has a new one.

        Raises:
            RouteNotFound: no name server knows it, and has not for a minute.
            ConnectionFailed: no name server could be asked, and none ever was about this topic.
            BrokerError: likewise, but a name server refused.
        """
        return self._pool.route(topic)

    def read_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read, sorted by broker and number.

        Raises:
            RouteNotFound: no name server knows the topic, or nothing of it can be read.
            ConnectionFailed: no name server could be asked.
        """
        route = self.route(topic)
        if not route.read_queues:
            raise no_read_queue(route)
        return list(route.read_queues)

    def write_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be written, sorted by broker and number.

        Of a topic that does not exist: those it will have when a send creates it, if some
        broker creates topics by itself (``autoCreateTopicEnable``).

        Raises:
            LocalProtocolError: the topic is illegal, or the broker's own.
            RouteNotFound: no name server knows the topic, or nothing of it can be written.
            ConnectionFailed: no name server could be asked.
        """
        return list(self._pool.write_route(topic).write_queues)

    def known_routes(self) -> list[Route]:
        """Return the routes of existing topics that this client has, without asking anybody.

        They can be handed to other clients, also of other processes.
        """
        routes = map(self._pool.routes.find, self._pool.routes.topics)
        return [route for route in routes if route is not None and not route.is_provisional]

    def forget_route(self, topic: str) -> None:
        """Ask for a topic's route again when it is needed next, because we changed the topic."""
        self._pool.routes.forget(topic)

    def cluster_info(self) -> ClusterInfo:
        """Return all clusters and brokers that a name server knows.

        Raises:
            ConnectionFailed: no name server could be asked.
        """
        return self._pool.ask_name_servers(operations.cluster_info())

    # --- reading

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """Return (first offset kept, end) of each queue, in the order given.

        Raises:
            RouteNotFound: there is no such topic, or its broker is away.
            PymqError: a broker could not be asked until the deadline.
        """
        wanted = list(dict.fromkeys(queues))
        found: dict[MessageQueue, tuple[int, int]] = {}
        backoff = self._pool.backoff()
        while missing := [queue for queue in wanted if queue not in found]:
            answer = ask_bounds(self._pool, missing, timeout_s=self._config.timeout_s)
            if answer.found:
                backoff.progressed()
                found |= answer.found
            for error in answer.failed.values():
                backoff.wait(error, {queue.topic for queue in missing})
                break
        return {queue: found[queue] for queue in wanted}

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at a moment or later.

        When there is none, the queue's end (4.9 brokers: the last message's offset).

        Raises:
            PymqError: no answer until the deadline, or the broker refused.
        """
        return self._read(queue, operations.offset_by_time(queue, timestamp_ms))

    def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset a group committed in a queue, ``None`` for none.

        Raises:
            PymqError: no answer until the deadline, or the broker refused.
        """
        return self._read(queue, operations.query_offset(group, queue))

    def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit an offset of a group. Idempotent, and so retried like a read.

        Raises:
            PymqError: no answer until the deadline, or the broker refused: from 5.0 on the group
                must exist there, created by an administrator or by its first consumer.
        """
        self._read(queue, operations.update_offset(group, queue, offset))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int = 32,
        bytes_max: int | None = None,
        group: str = TOOLS_GROUP,
        tags: str = "*",
        sql: str | None = None,
        suspend_ms: int = 0,
    ) -> PullResult:
        """Pull once; see ``PullResult`` for what the statuses mean.

        Args:
            queue: where from.
            offset: first offset wanted.
            count_max: messages wanted; RocketMQ gives 32 at most.
            bytes_max: lifts RocketMQ's limits at a pymq broker; others ignore it.
            group: consumer group; nothing is committed for it.
            tags: ``*``, or tags joined by ``||``. The broker compares hashes only: compare the
                tags of what comes.
            sql: an SQL92 expression over properties instead of tags. A RocketMQ broker needs
                ``enablePropertyFilter=true`` for it.
            suspend_ms: how long the broker may wait for a message.

        Raises:
            LocalProtocolError: ``tags`` is SQL, or names no tag, or there is ``sql``, too.
            FilterSyntaxError: ``sql`` does not parse.
            PymqError: no answer until the deadline, or the broker refused.
        """
        operation = Pull(
            queue,
            offset,
            group=group,
            count_max=count_max,
            subscription=subscription_of(queue.topic, tags, sql, 0),
            suspend_ms=suspend_ms,
            bytes_max=bytes_max,
        )
        timeout_s = self._config.timeout_s + suspend_ms / 1000
        return self._read(queue, operation, timeout_s=timeout_s)

    def pull_range(
        self,
        queue: MessageQueue,
        first: int,
        end: int,
        *,
        group: str = TOOLS_GROUP,
        tags: str = "*",
        sql: str | None = None,
        bytes_max: int = 8 << 20,
        passes_gaps: bool = False,
        reads_replicas: bool = True,
    ) -> Iterator[PullChunk]:
        """Yield the messages with ``first <= offset < end``, in order, exactly once.

        The last chunk's ``next_offset`` is ``end``. While a chunk is in the caller's hands the
        next pull is in flight. Leave the loop early as you like.

        They come from the queue's master; from a replica while its broker suggests that, and
        while the route has no master.

        Args:
            queue: where from.
            first: queue offset of the first message.
            end: queue offset behind the last one.
            group: consumer group; nothing is committed for it.
            tags: ``*``, or tags joined by ``||``. The broker compares hashes only: compare the
                tags of what comes.
            sql: an SQL92 expression over properties instead of tags. A RocketMQ broker needs
                ``enablePropertyFilter=true`` for it.
            bytes_max: largest answer that a pymq broker may give; others ignore it.
            passes_gaps: continue after offsets at which the queue has no message; the caller checks
                which offsets came. Otherwise they are an error.
            reads_replicas: follow the broker's suggestions. What a replica fails at, or lacks,
                the master is asked for; a gap that is passed over it is not.

        Raises:
            LocalProtocolError: ``tags`` is SQL, or names no tag, or there is ``sql``, too.
            FilterSyntaxError: ``sql`` does not parse.
            OffsetOutOfRange: part of the range is not there; the text says what is. Chunks
                before it may have been yielded.
            PymqError: no progress until the deadline, or the broker refused.
        """
        subscription = subscription_of(queue.topic, tags, sql, 0)
        plan = RangePlan(
            queue,
            first,
            end,
            is_filtered=subscription.expression != "*",
            passes_gaps=passes_gaps,
        )
        pull = partial(Pull, queue, group=group, subscription=subscription, bytes_max=bytes_max)
        yield from read_range(
            self._pool, self._read_sources, plan, pull, reads_replicas=reads_replicas
        )

    def _read(
        self, queue: MessageQueue, operation: Operation[T], *, timeout_s: float | None = None
    ) -> T:
        """Ask a broker that has the queue, again and again until the deadline."""
        backoff = self._pool.backoff()
        while True:
            try:
                address = self.route(queue.topic).read_address(queue.broker_name)
                hint = advertised(queue.broker_name)
                return self._pool.ask(address, operation, timeout_s=timeout_s, hint=hint)
            except PASSING as error:
                backoff.wait(error, {queue.topic})

    # --- sending

    def send(
        self, message: Message, queue: MessageQueue | None = None, deadline_s: float | None = None
    ) -> SendResult:
        """Send one message, and return where it is stored; see its ``durability_unknown``.

        Args:
            message: what to send.
            queue: where to; by default the next one of the topic, and another after a failure.
            deadline_s: a failed send is tried again, after pauses, in place of ``send_retries``
                times, as long as an attempt can begin before this has passed.

        Raises:
            LocalProtocolError: the message cannot be sent.
            RouteNotFound: no broker has the topic.
            PymqError: the last of the failures.
        """
        check_message(message)
        check_no_timer(message)
        body, sys_flag = prepare_body(message.body, message.topic, self._config)
        check_flag(message.flag)
        message_id = self._message_ids.next(self._clock.wall_ms())
        properties = encode_properties(message, message_id).decode()
        return self._sender.send(
            PreparedMessage(message.topic, body, properties, message_id, message.flag, sys_flag),
            queue,
            deadline_s,
        )

    def send_batch(
        self,
        queue: MessageQueue | None,
        messages: Iterable[Message],
        deadline_s: float | None = None,
    ) -> SendResult:
        """Send messages of one topic as one batch: all are taken, or all refused.

        Args:
            messages: at least one, none delayed; together at most ``body_bytes_max``.
            queue, deadline_s: as in ``send``.

        Returns:
            Where the first one is; the others follow it.

        Raises:
            LocalProtocolError: the messages cannot be sent together.
            RouteNotFound: no broker has the topic.
            PymqError: the last of the failures.
        """
        batch = batch_messages(messages)
        topic = batch_topic(batch)
        now_ms = self._clock.wall_ms()
        ids = [self._message_ids.next(now_ms) for _ in batch]
        encoded = encode_batch(batch, ids, self._config.body_bytes_max)
        keys = ",".join(encoded.unique_keys)
        prepared = PreparedMessage(topic, encoded.body, "", keys, batch=True)
        return self._sender.send(prepared, queue, deadline_s)
