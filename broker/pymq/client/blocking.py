"""BlockingClient: request and response over plain sockets, for Spark, administration, scripts.

No thread, no event loop, no heartbeat. For one thread of one process; make it after forking.

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

import datetime
import itertools
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from pymq.client import operations
from pymq.client.config import ClientConfig, parse_name_servers, split_address
from pymq.client.operations import (
    SEND_RETRY_CODES,
    Operation,
    PreparedMessage,
    Pull,
    PullResult,
    Send,
    SendResult,
    check_send_topic,
)
from pymq.client.ranges import Joiner, PullChunk, RangePlan
from pymq.client.routes import (
    Route,
    RouteTable,
    no_read_queue,
    no_route,
    no_write_queue,
    pick_queue,
)
from pymq.client.sending import encode_batches, prepare_body
from pymq.clock import Clock
from pymq.errors import (
    BrokerError,
    ClientClosed,
    ConnectionFailed,
    LocalProtocolError,
    PymqError,
    RemoteProtocolError,
    RequestTimeout,
    RouteNotFound,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotExist,
)
from pymq.net.blocking import BlockingChannel
from pymq.protocol.bodies import ClusterInfo, MessageQueue, Subscription
from pymq.protocol.message import Message, UniqueKeys
from pymq.protocol.names import DEFAULT_PRODUCER_GROUP, DEFAULT_TOPIC, TOOLS_GROUP, check_topic

T = TypeVar("T")

#: Small requests that are on their way to all brokers together.
PIPELINE_COUNT = 256
#: Batches, and bytes of them, that are on their way unacknowledged.
BATCHES_IN_FLIGHT = 8
BATCH_BYTES_IN_FLIGHT = 16 << 20
#: Pause between two tries: first, and longest.
PAUSE_S = 0.05
PAUSE_S_MAX = 1.0

#: What a read survives: another try, perhaps elsewhere, can succeed.
_PASSING = (
    ConnectionFailed,
    RequestTimeout,
    RouteNotFound,
    TopicNotExist,
    SystemBusy,
    ServiceNotAvailable,
)


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
        config: ClientConfig | None = None,
    ) -> None:
        """Prepare a client; nothing is connected yet.

        Args:
            name_servers: ``host:port``, one or more; texts may hold several, separated by
                ``;`` or ``,``.
            timeout_s: for each answer.
            read_deadline_s: how long reads are tried again without any progress.
            send_retries: how often a failed send is tried again, see the module's text.
            producer_group: the group sends are made in.
            config: takes the place of all these but ``name_servers``.

        Raises:
            ConfigurationError: an argument is wrong.
        """
        self._config = config or ClientConfig(
            name_servers=parse_name_servers(name_servers),
            timeout_s=timeout_s,
            read_deadline_s=read_deadline_s,
            send_retries=send_retries,
            producer_group=producer_group,
        )
        self._name_servers = parse_name_servers(name_servers)
        self._first_name_server = 0
        self._channels: dict[str, BlockingChannel] = {}
        self._routes = RouteTable(self._config.route_age_s)
        self._turn = itertools.count(secrets.randbelow(1 << 16))
        self._message_ids = MessageIds()
        self._clock = Clock()
        self._closed = threading.Event()  # set by close(), which may come from a signal handler

    def close(self) -> None:
        """Close all connections. Harmless when done twice."""
        self._closed.set()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def __enter__(self) -> "BlockingClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The name servers' addresses."""
        return self._name_servers

    # --- routes

    def route(self, topic: str) -> Route:
        """Return the route of an existing topic.

        Raises:
            RouteNotFound: no name server knows it.
            ConnectionFailed: no name server could be asked.
        """
        now_s = self._clock.monotonic_s()
        route = self._routes.fresh(topic, now_s)
        if route is None or route.is_provisional:
            check_topic(topic)
            found = self.ask_name_servers(operations.route(topic), topic)
            route = Route.of(topic, found)
            self._routes.put(route, now_s)
        return route

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
        return list(self._write_route(topic).write_queues)

    def _write_route(self, topic: str) -> Route:
        now_s = self._clock.monotonic_s()
        route = self._routes.fresh(topic, now_s)
        if route is None:
            check_send_topic(topic)
            try:
                route = self.route(topic)
            except RouteNotFound as missing:
                try:
                    template = self.ask_name_servers(operations.route(DEFAULT_TOPIC), topic)
                except RouteNotFound:
                    raise missing from None
                route = Route.to_create(topic, template, self._config.default_queue_count)
                self._routes.put(route, now_s)
        if not route.write_queues:
            raise no_write_queue(route)
        return route

    def forget_route(self, topic: str) -> None:
        """Ask for a topic's route again when it is needed next, because we changed the topic."""
        self._routes.forget(topic)

    def cluster_info(self) -> ClusterInfo:
        """Return all clusters and brokers that a name server knows.

        Raises:
            ConnectionFailed: no name server could be asked.
        """
        return self.ask_name_servers(operations.cluster_info())

    def ask_name_servers(self, operation: Operation[T], topic: str | None = None) -> T:
        """Return the answer of the first name server that has one.

        Name servers know nothing of each other: when one does not know a topic, the others are
        asked, too.

        Args:
            operation: what to ask.
            topic: the topic it is about, for the error's text.

        Raises:
            RouteNotFound: those that answered do not know the topic.
            ConnectionFailed: none answered.
            BrokerError: the name server refused.
        """
        unknown, failures = 0, []
        count = len(self._name_servers)
        for step in range(count):
            index = (self._first_name_server + step) % count
            address = self._name_servers[index]
            try:
                answer = self.ask(address, operation, hint="it was given as a name server")
            except TopicNotExist:
                unknown += 1
            except (ConnectionFailed, RequestTimeout, RemoteProtocolError) as error:
                failures.append(str(error))
            else:
                self._first_name_server = index
                return answer
        if unknown:
            missing = no_route(topic or "?", self._name_servers)
            if failures:
                missing.add_note(f"not all of them could be asked: {'; '.join(failures)}")
            raise missing
        raise ConnectionFailed(
            f"no name server answered: {'; '.join(failures)}. Is it running, and is the address "
            "right?"
        )

    # --- one request

    def ask(
        self,
        address: str,
        operation: Operation[T],
        *,
        timeout_s: float | None = None,
        hint: str = "",
    ) -> T:
        """Send one request to an address and return its result; once, without a retry.

        Args:
            address: ``host:port`` of a broker or name server.
            operation: what to ask.
            timeout_s: for the answer; the client's own unless given.
            hint: where the address is from, for the text when it cannot be reached.

        Raises:
            PymqError: whatever went wrong.
        """
        channel = self._channel(address, hint)
        wait_s = self._config.timeout_s if timeout_s is None else timeout_s
        try:
            response = channel.request(operation.request, wait_s)
        except RequestTimeout as error:
            raise _timed_out(address, operation, wait_s) from error
        return operation.result(response, peer=address)

    def _channel(self, address: str, hint: str) -> BlockingChannel:
        if self._closed.is_set():
            raise ClientClosed("the client is closed; make another one")
        channel = self._channels.get(address)
        if channel is None or not channel.check_alive():
            host, port = split_address(address)
            channel = BlockingChannel.connect(
                host,
                port,
                timeout_s=self._config.connect_timeout_s,
                hint=hint,
                frame_bytes_max=self._config.frame_bytes_max,
            )
            self._channels[address] = channel
        return channel

    def _read_channel(self, queue: MessageQueue) -> BlockingChannel:
        """Return the connection to a broker that has the queue."""
        address = self.route(queue.topic).read_address(queue.broker_name)
        return self._channel(address, _advertised(queue.broker_name))

    # --- reading

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """Return (first offset kept, end) of each queue, in the order given.

        Raises:
            RouteNotFound: there is no such topic, or its broker is away.
            PymqError: a broker could not be asked until the deadline.
        """
        wanted = list(dict.fromkeys(queues))
        found: dict[MessageQueue, tuple[int, int]] = {}
        patience = self._patience()
        while len(found) < len(wanted):
            missing = [queue for queue in wanted if queue not in found]
            some = missing[: PIPELINE_COUNT // 2]
            try:
                firsts = self._pipelined([(queue, operations.min_offset(queue)) for queue in some])
                ends = self._pipelined([(queue, operations.max_offset(queue)) for queue in some])
            except _PASSING as error:
                patience.bear(error, {queue.topic for queue in some})
                continue
            patience.progressed()
            for queue, first, end in zip(some, firsts, ends, strict=True):
                found[queue] = (first, max(first, end))
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
            PymqError: no answer until the deadline, or the broker refused.
        """
        operation = Pull(
            queue,
            offset,
            group=group,
            count_max=count_max,
            subscription=Subscription.of_tags(queue.topic, tags, 0),
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

        Raises:
            OffsetOutOfRange: part of the range is not there; the text has what is. Chunks
                before it may have been yielded.
            PymqError: no progress until the deadline, or the broker refused.
        """
        subscription = Subscription.of_tags(queue.topic, tags, 0)
        plan = RangePlan(queue, first, end, is_filtered=subscription.expression != "*")
        joiner = Joiner()
        patience = self._patience()
        channel: BlockingChannel | None = None
        ready: list[PullChunk] = []
        try:
            while True:
                try:
                    if channel is None:
                        channel = self._read_channel(queue)
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
                        span.opaque = channel.send(pull.request, self._deadline_s())
                    yield from ready
                    ready = []
                    if plan.is_done:
                        yield from joiner.flush()
                        return
                    ready = joiner.add(plan.accept(self._answer(channel, plan)))
                    patience.progressed()
                except _PASSING as error:
                    _forget(channel, plan)
                    channel = None
                    patience.bear(error, {queue.topic})
        finally:
            _forget(channel, plan)

    def _answer(self, channel: BlockingChannel, plan: RangePlan) -> PullResult:
        span = plan.spans[0]
        assert span.opaque is not None and span.operation is not None
        try:
            response = channel.receive(span.opaque, self._deadline_s())
        except RequestTimeout as error:
            raise _timed_out(channel.peer, span.operation, self._config.timeout_s) from error
        return span.operation.result(response, peer=channel.peer)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._config.timeout_s

    def _read(
        self, queue: MessageQueue, operation: Operation[T], *, timeout_s: float | None = None
    ) -> T:
        """Ask a broker that has the queue, again and again until the deadline."""
        patience = self._patience()
        while True:
            try:
                address = self.route(queue.topic).read_address(queue.broker_name)
                hint = _advertised(queue.broker_name)
                return self.ask(address, operation, timeout_s=timeout_s, hint=hint)
            except _PASSING as error:
                patience.bear(error, {queue.topic})

    def _pipelined(self, asked: Sequence[tuple[MessageQueue, Operation[T]]]) -> list[T]:
        """Send all requests, then take all answers; ``PIPELINE_COUNT`` at most."""
        deadline_s = self._deadline_s()
        sent: list[tuple[BlockingChannel, int]] = []
        results: list[T] = []
        try:
            for queue, operation in asked:
                channel = self._read_channel(queue)
                sent.append((channel, channel.send(operation.request, deadline_s)))
            for (channel, opaque), (_, operation) in zip(sent, asked, strict=True):
                try:
                    response = channel.receive(opaque, deadline_s)
                except RequestTimeout as error:
                    raise _timed_out(channel.peer, operation, self._config.timeout_s) from error
                results.append(operation.result(response, peer=channel.peer))
        finally:
            for channel, opaque in sent[len(results) :]:
                channel.forget(opaque)
        return results

    def _patience(self) -> "Patience":
        return Patience(self._config.read_deadline_s, self._routes, self._closed)

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
        body, sys_flag = prepare_body(message.body, message.topic, self._config)
        message_id = self._message_ids.next(self._clock.wall_ms())
        properties = message.encode_properties(message_id).decode()
        return self._send(
            PreparedMessage(message.topic, body, properties, message_id, message.flag, sys_flag),
            queue,
        )

    def send_batch(self, queue: MessageQueue | None, messages: Iterable[Message]) -> SendResult:
        """Send messages of one topic as one batch: stored together, or not at all.

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
        topics = {message.topic for message in batch}
        if len(topics) != 1:
            raise LocalProtocolError(
                f"batch of {len(batch)} messages for topics {sorted(topics)}, expected one topic"
            )
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
            topics.pop(), encoded[0].body, "", ",".join(encoded[0].unique_keys), batch=True
        )
        return self._send(prepared, queue)

    def _send(self, prepared: PreparedMessage, queue: MessageQueue | None) -> SendResult:
        avoid: set[str] = set()
        left = self._config.send_retries
        while True:
            route = self._write_route(prepared.topic)
            target = queue or pick_queue(route.write_queues, next(self._turn), avoid=avoid)
            try:
                address = route.address(target.broker_name)
                operation = self._send_operation(prepared, target)
                return self.ask(address, operation, hint=_advertised(target.broker_name))
            except (BrokerError, ConnectionFailed, RequestTimeout) as error:
                self._routes.doubt(prepared.topic)
                if left == 0 or not _may_send_again(error, elsewhere=queue is None):
                    raise
            left -= 1
            avoid.add(target.broker_name)

    def _send_operation(self, prepared: PreparedMessage, queue: MessageQueue) -> Send:
        return Send(
            prepared,
            queue,
            group=self._config.producer_group,
            now_ms=self._clock.wall_ms(),
            default_queue_count=self._config.default_queue_count,
        )

    def send_batches(
        self,
        queue: MessageQueue,
        bodies: Iterable[bytes | bytearray | memoryview],
        *,
        in_flight_max: int = BATCHES_IN_FLIGHT,
    ) -> list[SendResult]:
        """Send SEND_BATCH bodies that the caller encoded, several on their way at a time.

        A pymq broker stores them in their order, unless one had to be sent again. RocketMQ
        handles the requests of one connection on several threads: there, only
        ``in_flight_max=1`` keeps the order.

        Args:
            queue: where all go.
            bodies: each at most ``body_bytes_max``; must not change until this returns.
            in_flight_max: batches on their way at a time.

        Returns:
            One result per body, in their order. All are acknowledged.

        Raises:
            LocalProtocolError: a body is too large.
            PymqError: one was refused, or could not be sent ``send_retries`` times in a row;
                a note says how many were acknowledged. Those on their way then may have been
                stored, too.
        """
        return _BatchRun(self, queue, in_flight_max).run(bodies)


class _BatchRun:
    """One call of ``send_batches``: what is on its way, and what has to be sent again."""

    def __init__(self, client: BlockingClient, queue: MessageQueue, in_flight_max: int) -> None:
        self._client = client
        self._queue = queue
        self._in_flight_max = in_flight_max
        self._waiting: deque[tuple[int, PreparedMessage, Send, int]] = deque()
        self._again: deque[tuple[int, PreparedMessage]] = deque()
        self._waiting_bytes = 0
        self._results: dict[int, SendResult] = {}

    def run(self, bodies: Iterable[bytes | bytearray | memoryview]) -> list[SendResult]:
        client, queue = self._client, self._queue
        source = enumerate(bodies)
        retries = left = client._config.send_retries
        channel: BlockingChannel | None = None
        more = True
        try:
            while more or self._again or self._waiting:
                try:
                    if channel is None:
                        address = client._write_route(queue.topic).address(queue.broker_name)
                        channel = client._channel(address, _advertised(queue.broker_name))
                    while (more or self._again) and self._has_room():
                        task = self._again.popleft() if self._again else self._next(source)
                        if task is None:
                            more = False
                        else:
                            self._begin(channel, *task)
                    if self._waiting:
                        self._finish(channel)
                        left = retries
                except (BrokerError, ConnectionFailed, RequestTimeout) as error:
                    if left == 0 or not _may_send_again(error, elsewhere=False, again=True):
                        raise
                    if not isinstance(error, BrokerError):
                        self._take_back(channel)
                        channel = None
                    client._routes.doubt(queue.topic)
                    client._closed.wait(PAUSE_S * 2 ** (retries - left))
                    left -= 1
        except PymqError as error:
            error.add_note(f"{len(self._results)} batches were acknowledged before")
            raise
        finally:
            self._take_back(channel)
        return [self._results[index] for index in range(len(self._results))]

    def _has_room(self) -> bool:
        waiting = len(self._waiting)
        return waiting == 0 or (
            waiting < self._in_flight_max and self._waiting_bytes < BATCH_BYTES_IN_FLIGHT
        )

    def _next(
        self, source: Iterator[tuple[int, bytes | bytearray | memoryview]]
    ) -> tuple[int, PreparedMessage] | None:
        for index, body in source:
            limit = self._client._config.body_bytes_max
            view = memoryview(body).cast("B")
            if not 0 < len(view) <= limit:
                raise LocalProtocolError(
                    f"batch {index} to topic {self._queue.topic!r} has {len(view)} B, expected "
                    f"1..{limit} (body_bytes_max); send fewer messages at once"
                )
            return index, PreparedMessage(self._queue.topic, view, "", None, batch=True)
        return None

    def _begin(self, channel: BlockingChannel, index: int, prepared: PreparedMessage) -> None:
        send = self._client._send_operation(prepared, self._queue)
        try:
            opaque = channel.send(send.request, self._client._deadline_s())
        except (ConnectionFailed, RequestTimeout):
            self._again.appendleft((index, prepared))
            raise
        self._waiting.append((index, prepared, send, opaque))
        self._waiting_bytes += len(prepared.body)

    def _finish(self, channel: BlockingChannel) -> None:
        index, prepared, send, opaque = self._waiting[0]
        try:
            response = channel.receive(opaque, self._client._deadline_s())
        except RequestTimeout as error:
            raise _timed_out(channel.peer, send, self._client._config.timeout_s) from error
        self._waiting.popleft()
        self._waiting_bytes -= len(prepared.body)
        try:
            self._results[index] = send.result(response, peer=channel.peer)
        except BrokerError:
            self._again.append((index, prepared))
            raise

    def _take_back(self, channel: BlockingChannel | None) -> None:
        """Give up what is on its way, and queue it to be sent again."""
        for index, prepared, _, opaque in reversed(self._waiting):
            if channel is not None:
                channel.forget(opaque)
            self._again.appendleft((index, prepared))
        self._waiting.clear()
        self._waiting_bytes = 0


class Patience:
    """How long failures are borne: until a deadline has passed without progress."""

    def __init__(self, deadline_s: float, routes: RouteTable, closed: threading.Event) -> None:
        self._limit_s = deadline_s
        self._routes = routes
        self._closed = closed
        self.progressed()

    def progressed(self) -> None:
        """Start anew: something succeeded."""
        self._failed_at: float | None = None
        self._pause_s = PAUSE_S

    def bear(self, error: PymqError, topics: Iterable[str]) -> None:
        """Wait a little before the next try, or raise the error when it is time to give up.

        A topic that never had a route is nobody's broker restarting, but a mistake: it is
        raised at once.
        """
        now = time.monotonic()
        if self._failed_at is None:
            self._failed_at = now
        known = all(self._routes.find(topic) is not None for topic in topics)
        if self._closed.is_set() or not known:
            raise error
        if now + self._pause_s > self._failed_at + self._limit_s:
            raise error
        for topic in topics:
            self._routes.doubt(topic)
        self._closed.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)


class MessageIds:
    """Client message ids of this process, without knowing an address of ours."""

    def __init__(self) -> None:
        # An address of the loopback net, random: ids of processes must differ, and nothing
        # else is read from it.
        address = b"\x7f" + secrets.token_bytes(3)
        self._keys = UniqueKeys(
            address=address, pid=os.getpid(), salt=secrets.randbits(32), start_ms=0
        )
        self._until_ms = 0

    def next(self, now_ms: int) -> str:
        """Return a new id."""
        if now_ms >= self._until_ms:
            # Tools read a message's time out of its id: ms since the month began, local time.
            now = datetime.datetime.fromtimestamp(now_ms / 1000).astimezone()
            start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            following = (start + datetime.timedelta(days=32)).replace(day=1)
            self._until_ms = int(following.timestamp() * 1000)
            self._keys.restart(int(start.timestamp() * 1000))
        return self._keys.next(now_ms)


def _may_send_again(error: PymqError, *, elsewhere: bool, again: bool = False) -> bool:
    """Is another try allowed: on another queue, on the same by agreement, or at all?"""
    if elsewhere or again:
        return not isinstance(error, BrokerError) or error.code in SEND_RETRY_CODES
    # One queue was asked for: only what surely did not take effect there.
    return isinstance(error, ConnectionFailed) and error.outcome_known


def _forget(channel: BlockingChannel | None, plan: RangePlan) -> None:
    """Give up the pulls on their way."""
    if channel is not None:
        for span in plan.spans:
            if span.opaque is not None:
                channel.forget(span.opaque)
    plan.restart()


def _advertised(broker_name: str) -> str:
    return (
        f"broker {broker_name!r} advertises that address; can this machine reach it, and is "
        "brokerIP1 in the broker's configuration right?"
    )


def _timed_out(peer: str, operation: Operation[T], timeout_s: float) -> RequestTimeout:
    return RequestTimeout(
        f"{peer} did not answer {operation.asked} within {timeout_s:g} s; whether it was done is "
        "unknown"
    )
