"""BlockingClient: request and response over plain sockets, for Spark, administration, scripts.

No thread, no event loop, no heartbeat. For one thread. A copy in a child made by ``fork`` opens
connections of its own and gives message ids of its own.

**Pulls need no registration.** They carry their subscription with them (as mqadmin and the
lite pull consumer do) and use the group ``TOOLS_CONSUMER``, which every broker has from the
start. Another group works where it exists, or where ``autoCreateSubscriptionGroup`` is on.
Nothing is committed for the group.

**Retries.** Reads are tried again, over new routes and connections, until ``read_deadline_s``
has passed without progress. Sends are tried again on another queue, ``send_retries`` times,
after the codes that RocketMQ retries (17, 14, 1, 16, 204, 205, 2), after a broken connection
and after a timeout. In the last two cases the first try may have been stored: then the message
is there twice, with the same message id (property ``UNIQ_KEY``), by which readers can tell.
"""

import itertools
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from pymq.client import operations
from pymq.client.batch_pipeline import BATCHES_IN_FLIGHT, BatchPipeline
from pymq.client.batch_request import Batch
from pymq.client.batch_targets import BatchTarget
from pymq.client.blocking_pool import PASSING, BlockingPool, advertised, timed_out
from pymq.client.config import ClientConfig, parse_name_servers
from pymq.client.message_ids import MessageIds
from pymq.client.operations import (
    SEND_RETRY_CODES,
    Operation,
    PreparedMessage,
    Pull,
    PullResult,
    Send,
    SendResult,
)
from pymq.client.preencoded_records import RecordsBody, send_records
from pymq.client.queue_bounds import BoundsAnswer, ask_bounds
from pymq.client.ranges import Joiner, PullChunk, RangePlan
from pymq.client.routes import Route, no_read_queue, pick_queue
from pymq.client.send_encoding import (
    batch_topic,
    check_flag,
    check_message,
    encode_batches,
    encode_properties,
    prepare_body,
)
from pymq.clock import Clock
from pymq.errors import (
    BrokerError,
    ConnectionFailed,
    LocalProtocolError,
    PymqError,
    RequestTimeout,
    RouteNotFound,
)
from pymq.filter.tags import check_tags
from pymq.net.blocking import BlockingChannel
from pymq.protocol.bodies import ClusterInfo, MessageQueue, Subscription
from pymq.protocol.message import Message
from pymq.protocol.names import DEFAULT_PRODUCER_GROUP, TOOLS_GROUP

T = TypeVar("T")


class BlockingClient:
    """A client for one thread; connects when first used.

    Use it in a ``with`` statement, or call ``close``.
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        *,
        timeout_s: float = 3.0,
        read_deadline_s: float = 15.0,
        send_retries: int = 2,
        producer_group: str = DEFAULT_PRODUCER_GROUP,
        awaits_routes: bool = False,
        config: ClientConfig | None = None,
        routes: Iterable[Route] = (),
    ) -> None:
        """Prepare a client; nothing is connected yet.

        Args:
            name_servers: ``host:port``, one or more; texts may hold several, separated by
                ``;`` or ``,``.
            timeout_s: for each answer.
            read_deadline_s: how long reads are tried again without any progress.
            send_retries: how often a failed send is tried again, see the module's text.
            producer_group: the group sends are made in.
            awaits_routes: all topics exist, and a missing route is a passing failure, see
                ``ClientConfig``.
            config: takes the place of all these but ``name_servers``.
            routes: what another client knows of topics (``known_routes``): name servers are not
                asked before these are old, or turn out wrong.

        Raises:
            ConfigurationError: an argument is wrong.
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
            )
        self._config = replace(config, name_servers=servers)
        self._pool = BlockingPool(self._config, routes)
        self._turn = itertools.count(secrets.randbelow(1 << 16))
        self._message_ids = MessageIds()
        self._clock = Clock()

    def close(self) -> None:
        """Close all connections. Harmless when done twice."""
        self._pool.close()

    def __enter__(self) -> "BlockingClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The name servers' addresses."""
        return self._config.name_servers

    # --- routes and single requests

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

    def doubt_route(self, topic: str) -> None:
        """Ask for a topic's route again when it is used next; the old one serves until then."""
        self._pool.routes.doubt(topic)

    def forget_route(self, topic: str) -> None:
        """Ask for a topic's route again when it is needed next, because we changed the topic."""
        self._pool.routes.forget(topic)

    def cluster_info(self) -> ClusterInfo:
        """Return all clusters and brokers that a name server knows.

        Raises:
            ConnectionFailed: no name server could be asked.
        """
        return self.ask_name_servers(operations.cluster_info())

    def ask_name_servers(self, operation: Operation[T], topic: str | None = None) -> T:
        """Return the answer of the first name server that has one.

        Args:
            operation: what to ask.
            topic: the topic it is about, for the error's text.

        Raises:
            RouteNotFound: those that answered do not know the topic.
            ConnectionFailed: none answered.
            BrokerError: one refused, and no other did it.
        """
        return self._pool.ask_name_servers(operation, topic)

    def ask(self, address: str, operation: Operation[T]) -> T:
        """Send one request to a broker or name server; once, without a retry.

        Args:
            address: its ``host:port``.
            operation: what to ask.

        Raises:
            PymqError: whatever went wrong.
        """
        return self._pool.ask(address, operation)

    # --- reading

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """Return (first offset kept, end) of each queue, in the order given.

        Raises:
            RouteNotFound: there is no such topic, or its broker is away.
            PymqError: a broker could not be asked until the deadline; ``try_bounds`` returns what
                the others say.
        """
        wanted = list(dict.fromkeys(queues))
        found: dict[MessageQueue, tuple[int, int]] = {}
        patience = self._pool.patience()
        while missing := [queue for queue in wanted if queue not in found]:
            answer = self.try_bounds(missing)
            if answer.found:
                patience.progressed()
                found |= answer.found
            for error in answer.failed.values():
                patience.bear(error, {queue.topic for queue in missing})
                break
        return {queue: found[queue] for queue in wanted}

    def try_bounds(
        self, queues: Iterable[MessageQueue], *, timeout_s: float | None = None
    ) -> BoundsAnswer:
        """Ask once for the bounds of queues; a broker that is away keeps no other's answer back.

        Args:
            queues: of any topics and brokers.
            timeout_s: for the answers, which are awaited together; the client's own unless given.

        Raises:
            PymqError: a broker refused, and not because it is busy or the topic unknown.
        """
        wanted = list(dict.fromkeys(queues))
        return ask_bounds(self._pool, wanted, timeout_s=timeout_s or self._config.timeout_s)

    def asks_master(self, queue: MessageQueue) -> bool:
        """Say whether reads of a queue go to a master, as far as the route here tells.

        Otherwise they go to a slave, which may lag: what its master has acknowledged, and what
        was read from it, may be missing there for a while.
        """
        route = self._pool.routes.find(queue.topic)
        return route is not None and queue.broker_name in route.masters()

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
        """Commit an offset of a group; doing it again does no harm, so it is retried as a read.

        Raises:
            PymqError: no answer until the deadline, or the broker refused.
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
            suspend_ms: how long the broker may wait for a message.

        Raises:
            LocalProtocolError: ``tags`` is SQL, or names no tag.
            PymqError: no answer until the deadline, or the broker refused.
        """
        operation = Pull(
            queue,
            offset,
            group=group,
            count_max=count_max,
            subscription=_subscription(queue, tags),
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
        bytes_max: int = 8 << 20,
        passes_gaps: bool = False,
    ) -> Iterator[PullChunk]:
        """Yield the messages with ``first <= offset < end``, in order, exactly once.

        The last chunk's ``next_offset`` is ``end``. While a chunk is in the caller's hands the
        next pull is on its way. Leave the loop early as you like.

        Args:
            queue: where from.
            first: queue offset of the first message.
            end: queue offset behind the last one.
            group: consumer group; nothing is committed for it.
            tags: ``*``, or tags joined by ``||``. The broker compares hashes only: compare the
                tags of what comes.
            bytes_max: largest answer asked of a pymq broker.
            passes_gaps: go on behind offsets at which the queue has nothing; the caller looks
                which offsets came. Otherwise they are an error.

        Raises:
            LocalProtocolError: ``tags`` is SQL, or names no tag.
            OffsetOutOfRange: part of the range is not there; the text has what is. Chunks
                before it may have been yielded.
            PymqError: no progress until the deadline, or the broker refused.
        """
        subscription = _subscription(queue, tags)
        plan = RangePlan(
            queue,
            first,
            end,
            is_filtered=subscription.expression != "*",
            passes_gaps=passes_gaps,
        )
        joiner = Joiner()
        patience = self._pool.patience()
        channel: BlockingChannel | None = None
        ready: list[PullChunk] = []
        try:
            while True:
                try:
                    if channel is None:
                        channel = self._pool.read_channel(queue)
                    for span in plan.unsent():
                        pull = Pull(
                            queue,
                            span.offset,
                            group=group,
                            count_max=span.count,
                            subscription=subscription,
                            bytes_max=bytes_max,
                        )
                        span.operation = pull
                        span.opaque = channel.send(pull.request, self._pool.deadline_s())
                    yield from ready
                    ready = []
                    if plan.is_done:
                        yield from joiner.flush()
                        return
                    ready = joiner.add(plan.accept(self._answer(channel, plan)))
                    patience.progressed()
                except PASSING as error:
                    _forget(channel, plan)
                    channel = None
                    patience.bear(error, {queue.topic})
        finally:
            _forget(channel, plan)

    def _answer(self, channel: BlockingChannel, plan: RangePlan) -> PullResult:
        span = plan.spans[0]
        assert span.opaque is not None and span.operation is not None
        try:
            response = channel.receive(span.opaque, self._pool.deadline_s())
        except RequestTimeout as error:
            raise timed_out(channel.peer, span.operation, self._config.timeout_s) from error
        return span.operation.result(response, peer=channel.peer)

    def _read(
        self, queue: MessageQueue, operation: Operation[T], *, timeout_s: float | None = None
    ) -> T:
        """Ask a broker that has the queue, again and again until the deadline."""
        patience = self._pool.patience()
        while True:
            try:
                address = self.route(queue.topic).read_address(queue.broker_name)
                hint = advertised(queue.broker_name)
                return self._pool.ask(address, operation, timeout_s=timeout_s, hint=hint)
            except PASSING as error:
                patience.bear(error, {queue.topic})

    # --- sending

    def send(self, message: Message, queue: MessageQueue | None = None) -> SendResult:
        """Send one message and wait until the broker has stored it.

        Args:
            message: what to send.
            queue: where to; unless given each send takes the next queue of the topic, and
                another one after a failure.

        Returns:
            Where it is. Mind ``durability_unknown``.

        Raises:
            LocalProtocolError: the message cannot be sent.
            RouteNotFound: nobody has the topic.
            PymqError: the last of the failures.
        """
        check_message(message)
        body, sys_flag = prepare_body(message.body, message.topic, self._config)
        check_flag(message.flag)
        message_id = self._message_ids.next(self._clock.wall_ms())
        properties = encode_properties(message, message_id).decode()
        return self._send(
            PreparedMessage(message.topic, body, properties, message_id, message.flag, sys_flag),
            queue,
        )

    def send_batch(self, queue: MessageQueue | None, messages: Iterable[Message]) -> SendResult:
        """Send messages of one topic as one batch: all are taken, or all refused.

        Args:
            queue: where to; ``None`` as in ``send``.
            messages: at least one, none delayed; together at most ``body_bytes_max``.

        Returns:
            Where the first one is; the others follow it.

        Raises:
            LocalProtocolError: the messages cannot be sent together.
            RouteNotFound: nobody has the topic.
            PymqError: the last of the failures.
        """
        batch = list(messages)
        topic = batch_topic(batch)
        now_ms = self._clock.wall_ms()
        ids = [self._message_ids.next(now_ms) for _ in batch]
        encoded = encode_batches(batch, ids, self._config.body_bytes_max)
        if len(encoded) != 1:
            raise LocalProtocolError(
                f"batch of {len(batch)} messages takes {sum(len(part.body) for part in encoded)} B,"
                f" expected at most {self._config.body_bytes_max} (body_bytes_max); send fewer at "
                "once"
            )
        prepared = PreparedMessage(
            topic, encoded[0].body, "", ",".join(encoded[0].unique_keys), batch=True
        )
        return self._send(prepared, queue)

    def _send(self, prepared: PreparedMessage, queue: MessageQueue | None) -> SendResult:
        if queue is not None and not isinstance(queue, MessageQueue):
            raise LocalProtocolError(f"queue={queue!r:.80}, expected one of write_queues(topic)")
        if queue is not None and queue.topic != prepared.topic:
            raise LocalProtocolError(
                f"message to topic {prepared.topic!r} for a queue of topic {queue.topic!r}"
            )
        unknown: PymqError | None = None
        avoid: set[str] = set()
        left = self._config.send_retries
        try:
            while True:
                route = self._pool.write_route(prepared.topic)
                target = queue or pick_queue(route.write_queues, next(self._turn), avoid=avoid)
                try:
                    address = route.address(target.broker_name)
                    operation = self._send_operation(prepared, target)
                    return self._pool.ask(address, operation, hint=advertised(target.broker_name))
                except (BrokerError, ConnectionFailed, RequestTimeout, RouteNotFound) as error:
                    self._pool.routes.doubt(prepared.topic)
                    if left == 0 or not _may_send_elsewhere(error, queue):
                        raise
                    if not error.outcome_known:
                        unknown = error
                left -= 1
                avoid.add(target.broker_name)
        except PymqError as error:
            failure = error.after_unknown(unknown)
            raise failure from failure.__cause__

    def _send_operation(self, prepared: PreparedMessage, queue: MessageQueue) -> Send:
        return Send(
            prepared,
            queue,
            group=self._config.producer_group,
            now_ms=self._clock.wall_ms(),
            default_queue_count=self._config.default_queue_count,
        )

    def takes_records(self, queue: MessageQueue) -> bool:
        """Say whether a queue's broker takes finished records, as pymq brokers do.

        Raises:
            RouteNotFound: the topic or its broker is not known.
            PymqError: the broker did not answer, or refused to.
        """
        address = self._pool.write_route(queue.topic).address(queue.broker_name)
        return self._pool.takes_records(address, advertised(queue.broker_name))

    def send_batches(
        self,
        queue: MessageQueue,
        bodies: Iterable[Batch],
        *,
        in_flight_max: int = BATCHES_IN_FLIGHT,
    ) -> list[SendResult]:
        """Send batches that the caller encoded to one queue, in their order.

        Several are in flight at a pymq broker. RocketMQ handles the requests of one connection on
        several threads, and gets one at a time.

        Args:
            queue: where all go.
            bodies: of SEND_BATCH, or finished records; each at most ``body_bytes_max``; must not
                change until this returns.
            in_flight_max: batches in flight at a time.

        Returns:
            One result per body, in their order. All are acknowledged. Of finished records, it
            has the id of the first.

        Raises:
            LocalProtocolError: a body is too large.
            PymqError: one was refused, or could not be sent ``send_retries`` times in a row;
                a note says how many were acknowledged. Those in flight then may have been
                stored, too.
        """
        results: dict[int, SendResult] = {}
        pipeline = BatchPipeline(
            self._pool,
            self._batch_operation,
            results.__setitem__,
            in_flight_max=in_flight_max,
            retries_max=self._config.send_retries,
            awaits_routes=self._config.awaits_routes,
        )
        target = BatchTarget.of(queue)
        try:
            for body in bodies:
                pipeline.send(target, body)
            pipeline.flush()
        finally:
            pipeline.abandon()
        return [results[number] for number in range(len(results))]

    def batch_pipeline(
        self, *, in_flight_max: int, retry_s: float, first_turn: int = 0
    ) -> BatchPipeline:
        """Return what sends batches to wherever they may go, until they are secured.

        A topic or broker without a route is taken for one that is away for the moment.

        Args:
            in_flight_max: batches in flight at a time.
            retry_s: a batch that has failed for so long is given up.
            first_turn: which of a topic's queues comes first; senders should differ.
        """
        return BatchPipeline(
            self._pool,
            self._batch_operation,
            in_flight_max=in_flight_max,
            retry_s=retry_s,
            awaits_routes=True,
            wants_secured=True,
            first_turn=first_turn,
        )

    def _batch_operation(self, queue: MessageQueue, batch: Batch) -> Send:
        def prepare(body: bytes | memoryview) -> Send:
            return self._send_operation(
                PreparedMessage(queue.topic, body, "", None, batch=True), queue
            )

        if isinstance(batch, RecordsBody):
            return send_records(prepare, batch)
        return prepare(memoryview(batch).cast("B"))


def _subscription(queue: MessageQueue, tags: str) -> Subscription:
    check_tags(queue.topic, tags)
    return Subscription.of_tags(queue.topic, tags, 0)


def may_send_again(error: PymqError) -> bool:
    """Does RocketMQ's rule allow another try? It may make a second copy of the message."""
    if isinstance(error, BrokerError):
        return error.code in SEND_RETRY_CODES
    return isinstance(error, (ConnectionFailed, RequestTimeout))


def never_sent(error: PymqError) -> bool:
    """Is it certain that nothing reached the broker?"""
    return isinstance(error, ConnectionFailed) and error.outcome_known


def _may_send_elsewhere(error: PymqError, queue: MessageQueue | None) -> bool:
    """May a send be tried again? To one queue that was asked for: only what surely did not happen.

    Args:
        error: of the last attempt.
        queue: the one asked for; ``None``: any will do.
    """
    if queue is not None:
        return never_sent(error)
    # No route: an order topic, one of whose masters is away.
    return may_send_again(error) or isinstance(error, RouteNotFound)


def _forget(channel: BlockingChannel | None, plan: RangePlan) -> None:
    """Give up the pulls on their way."""
    if channel is not None:
        for span in plan.spans:
            if span.opaque is not None:
                channel.forget(span.opaque)
    plan.restart()
