"""Producer: sends messages.

A first attempt with a known route and an open connection is plain function calls: choose a
queue, write a frame; later the response is read and the future completed. No task and no
timer is made for it. Everything else (no route yet, a connection to be opened, a retry) runs
in a task of its own, which is the same work with waiting in between.

What a retry means: an attempt whose outcome is unknown (time-out, connection lost) may have
stored the message. The retry then stores it twice, with the same message id.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Self

from pymq.client import send_encoding
from pymq.client.config import ClientConfig, parse_name_servers
from pymq.client.operations import (
    BODY_BYTES_MAX,
    DEFAULT_QUEUE_COUNT,
    SendResult,
    check_send_topic,
    read_send,
)
from pymq.client.pool import ClientPool
from pymq.client.queue_selection import AvoidedBrokers, TopicQueues
from pymq.client.routes import Route, no_write_queue
from pymq.client.send_attempt import SendAttempt
from pymq.client.send_template import SendTemplate
from pymq.clock import Clock
from pymq.errors import (
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    RouteNotFound,
    TooManyPending,
    TopicNotExist,
)
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.command import Command
from pymq.protocol.compression import COMPRESS_BYTES_MIN, Compression
from pymq.protocol.message import Message
from pymq.protocol.names import DEFAULT_PRODUCER_GROUP

_log = logging.getLogger(__name__)

#: Unanswered sends of one producer.
IN_FLIGHT_MAX = 10_000
#: A broker that failed gets no new message for this long while another can take it.
AVOID_BROKER_S = 5.0
#: How often is looked whether a broker's time is over, while there is one.
FORGIVE_CHECK_S = 0.5
#: Pause before a retry when no other broker is there to take it.
RETRY_PAUSE_S = 0.1
_ONE_WAY = 2


class Producer:
    """Sends messages, with route discovery, retries and back-pressure. For one event loop.

    ::

        async with Producer("127.0.0.1:9876") as producer:
            await producer.send(Message("flights", b"...", tags="UA", keys="N14228"))

    Args:
        name_servers: ``host:port``, several separated by ``;`` or ``,`` or as a list.
        group: producer group; matters for transactions and in consoles.
        timeout_s: for one attempt; ``retries`` more may follow.
        retries: how often a failed send is tried again, on another queue and if possible
            another broker. After a time-out or a lost connection the first attempt may have
            stored the message, so a retry may duplicate it (with the same message id).
        in_flight_max: sends that may be unanswered; ``send`` waits, ``send_nowait`` refuses.
        compress_bytes_min: bodies from this size on are compressed; ``None``: none is.
        compression: how.
        body_bytes_max: largest body or batch; the broker has a limit, too.
        default_queue_count: queues of a topic that the first send creates.
        wait_stored: ``False``: the broker answers before its disk and slaves have confirmed.
        clock: for timestamps.

    Raises:
        ConfigurationError: an argument is wrong.
        LocalProtocolError: ``group`` is no legal name.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str = DEFAULT_PRODUCER_GROUP,
        timeout_s: float = 3.0,
        retries: int = 2,
        in_flight_max: int = IN_FLIGHT_MAX,
        compress_bytes_min: int | None = COMPRESS_BYTES_MIN,
        compression: Compression = Compression.ZLIB,
        body_bytes_max: int = BODY_BYTES_MAX,
        default_queue_count: int = DEFAULT_QUEUE_COUNT,
        wait_stored: bool = True,
        clock: Clock | None = None,
    ) -> None:
        if in_flight_max < 1:
            raise ConfigurationError(f"in_flight_max={in_flight_max}: expected at least 1")
        self._config = config = ClientConfig(
            name_servers=parse_name_servers(name_servers),
            producer_group=group,
            timeout_s=timeout_s,
            send_retries=retries,
            compress_bytes_min=compress_bytes_min,
            compression=compression,
            body_bytes_max=body_bytes_max,
            default_queue_count=default_queue_count,
        )
        self._in_flight_max = in_flight_max
        self._wait_stored = wait_stored
        self._clock = clock or Clock()
        self._pool = ClientPool(
            config.name_servers,
            timeout_s=timeout_s,
            connect_timeout_s=config.connect_timeout_s,
            route_age_s=config.route_age_s,
            producer_group=group,
            on_route=self._route_changed,
            clock=self._clock,
        )
        self._topics: dict[str, TopicQueues] = {}
        self._avoided = AvoidedBrokers()
        self._forgiving: asyncio.TimerHandle | None = None
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        # Bodies below this go out as they are.
        self._plain_bytes = min(
            config.body_bytes_max + 1,
            config.body_bytes_max + 1 if compress_bytes_min is None else compress_bytes_min,
        )

    # --- life

    async def start(self) -> Self:
        """Reach a name server.

        Raises:
            ClientClosed: it was closed; make a new one.
            ClientMisplaced: it was started in another process or event loop.
            ConnectionFailed: none answers; the text names all and why.
        """
        await self._pool.start()
        return self

    async def close(self, timeout_s: float = 10.0) -> None:
        """Wait for the sends in flight, unregister, close. Idempotent.

        Raises:
            ClientMisplaced: it was started in another event loop.
        """
        if self._pool.is_open:
            self._pool.check_open()
            try:
                async with asyncio.timeout(timeout_s):
                    await self.flush()
            except TimeoutError:
                _log.warning("%d sends were unanswered when the producer closed", self._in_flight)
        await self._pool.close()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """Who we are to the brokers."""
        return self._pool.client_id

    @property
    def in_flight_count(self) -> int:
        """Sends without an answer yet."""
        return self._in_flight

    # --- sending

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
    ) -> SendResult:
        """Store a message.

        Args:
            message: what.
            queue: exactly where to; no other queue is tried.
            sharding_key: messages of one key go to one queue (as long as the topic keeps its
                number of queues). They are stored in the order of their sends when each send
                is awaited before the next one of its key begins; sends that are on their way at
                the same time may overtake each other.

        Raises:
            PymqError: its ``outcome_known`` is false when any attempt may have stored it.
            LocalProtocolError: the message cannot be sent; the text names the limit.
            BrokerError: the broker refused it, and so did the retries.
            ConnectionFailed: no broker can be reached.
            RequestTimeout: no answer; it may be stored.
            RouteNotFound: no broker is known for the topic.
            ClientClosed: the producer is not open.
            ClientMisplaced: it was started in another process, thread or event loop.
        """
        if self._in_flight >= self._in_flight_max:
            await self.wait_room()
        return await self._begin(self._prepare(message, queue, sharding_key))

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
    ) -> asyncio.Future[SendResult]:
        """Begin to store a message; the future ends as ``send`` would.

        Raises:
            LocalProtocolError: the message cannot be sent; the text names the limit.
            TooManyPending: ``in_flight_max`` sends are unanswered; ``await wait_room()``.
            ClientClosed: the producer is not open.
        """
        if self._in_flight >= self._in_flight_max:
            raise TooManyPending(
                f"{self._in_flight} sends are unanswered, expected at most {self._in_flight_max} "
                "(in_flight_max); await wait_room() before sending more"
            )
        return self._begin(self._prepare(message, queue, sharding_key))

    async def send_one_way(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message without asking whether it arrived: it may be lost silently.

        Raises:
            LocalProtocolError: the message cannot be sent; the text names the limit.
            ConnectionFailed: no connection; nothing was sent.
            RouteNotFound: no broker is known for the topic.
            ClientClosed: the producer is not open.
        """
        send = self._prepare(message, queue, None)
        template = await self._choose(send)
        channel = await self._channel(template)
        await channel.wait_writable()
        send.write(channel, template, 0, _ONE_WAY)

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None
    ) -> list[SendResult]:
        """Store messages of one topic with one request, or few above the size limit.

        The messages of a request are stored next to each other in one queue. The broker takes
        all of them or refuses all; only when it is killed before it answered, a first part of
        them may be there afterwards, as with every RocketMQ broker.

        Returns:
            One result per request, in order; its ids are those of its messages, joined by
            ``,``; its offset that of its first.

        Raises:
            PymqError: as for ``send``. When requests before were stored, a note says how
                many messages they held.
        """
        several = list(messages)
        batches = self._prepare_batches(several, queue)
        results: list[SendResult] = []
        stored = 0
        for send, count in batches:
            if self._in_flight >= self._in_flight_max:
                await self.wait_room()
            try:
                results.append(await self._begin(send))
            except PymqError as error:
                if stored:
                    error.add_note(f"the first {stored} of {len(several)} messages were stored")
                raise
            stored += count
        return results

    async def flush(self) -> None:
        """Wait until no send is unanswered."""
        while self._in_flight:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    async def wait_room(self) -> None:
        """Wait until another send may begin.

        Raises:
            ClientClosed: the producer was closed meanwhile.
        """
        while self._in_flight >= self._in_flight_max:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                if waiter.done() and not waiter.cancelled() and self._has_room:
                    self._wake_one()  # Somebody else's turn, should we be cancelled just now.
            self._pool.check_open()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic can be sent to.

        Raises:
            RouteNotFound: no broker is known for the topic.
        """
        check_send_topic(topic)
        return [template.queue for template in (await self._topic_queues(topic)).templates]

    # --- a send

    def _prepare(
        self, message: Message, queue: MessageQueue | None, sharding_key: str | None
    ) -> SendAttempt:
        if not isinstance(message, Message):
            send_encoding.check_message(message)
        if sharding_key is not None:
            send_encoding.check_sharding_key(sharding_key)
        topic = message.topic
        if topic not in self._topics:
            check_send_topic(topic)
        born_ms = self._clock.wall_ms()
        key = self._pool.unique_keys().next(born_ms)
        body = message.body
        sys_flag = 0
        if type(body) is not bytes or not 0 < len(body) < self._plain_bytes:
            body, sys_flag = send_encoding.prepare_body(body, topic, self._config)
        if message.flag:
            send_encoding.check_flag(message.flag)
        properties = send_encoding.properties_json(
            message, key, sharding_key=sharding_key, wait_stored=self._wait_stored
        )
        return SendAttempt(
            self,
            self._pool.loop.create_future(),
            topic,
            body,
            properties,
            key,
            born_ms,
            sys_flag,
            message.flag,
            False,
            queue,
            sharding_key,
        )

    def _prepare_batches(
        self, messages: list[Message], queue: MessageQueue | None
    ) -> list[tuple[SendAttempt, int]]:
        """Return (send, number of its messages) for each request that is needed."""
        topic = send_encoding.batch_topic(messages)
        born_ms = self._clock.wall_ms()
        make = self._pool.unique_keys().next
        keys = [make(born_ms) for _ in messages]
        batches = send_encoding.encode_batches(messages, keys, self._config.body_bytes_max)
        outer = '""' if self._wait_stored else '"WAIT\\u0001false\\u0002"'
        sends = []
        for batch in batches:
            future = self._pool.loop.create_future()
            ids = ",".join(batch.unique_keys)
            send = SendAttempt(
                self, future, topic, batch.body, outer, ids, born_ms, 0, 0, True, queue, None
            )
            sends.append((send, len(batch.unique_keys)))
        return sends

    def _begin(self, send: SendAttempt) -> asyncio.Future[SendResult]:
        """Make the first attempt: at once if route and connection are there."""
        queues = self._topics.get(send.topic)
        if queues is not None:
            template = send.choose(queues, self._avoided.names)
            channel = self._pool.open_channel(template.address)
            if channel is not None:
                send.attempt(channel, template, self._config.timeout_s)
                send.attempts_left = self._config.send_retries
                self._in_flight += 1
                return send.future
        send.attempts_left = self._config.send_retries + 1
        self._in_flight += 1
        self._pursue(send, None)
        return send.future

    def retry(self, send: SendAttempt, error: PymqError) -> None:
        """Go on with a send whose first attempt failed."""
        send.attempt_failed(error)
        if send.attempts_left and self._pool.is_open and send.may_retry(error):
            self._pursue(send, error)
        else:
            send.failed(error)

    def _pursue(self, send: SendAttempt, error: PymqError | None) -> None:
        task = self._pool.spawn("send", self._attempt_again(send, error))
        task.add_done_callback(send.abandoned)

    async def _attempt_again(self, send: SendAttempt, error: PymqError | None) -> None:
        """Make attempts with waiting in between, until one succeeds or none is left."""
        while send.attempts_left and not send.future.done():
            if error is not None:
                await self._recover(send, error)
            send.attempts_left -= 1
            try:
                result = await self._attempt(send)
            except PymqError as failure:
                error = failure
                send.attempt_failed(failure)
                if not send.may_retry(failure):
                    break
            else:
                send.succeeded(result)
                return
        if error is not None:
            send.failed(error)

    async def _attempt(self, send: SendAttempt) -> SendResult:
        template = await self._choose(send)
        channel = await self._channel(template)
        future: asyncio.Future[Command] = self._pool.loop.create_future()

        def on_answer(answer: Command | PymqError) -> None:
            if future.done():
                return
            if isinstance(answer, PymqError):
                self.note_failure(template, answer)
                future.set_exception(answer)
            else:
                future.set_result(answer)

        send.request(channel, template, self._config.timeout_s, on_answer)
        return read_send(await future, template, send.message_id, peer=template.address)

    async def _recover(self, send: SendAttempt, error: PymqError) -> None:
        """Before a retry: read the route again if it may be wrong; pause if nothing else helps."""
        if isinstance(error, (TopicNotExist, ConnectionFailed)):
            try:
                await self._pool.route(
                    send.topic, refresh=True, create_queue_count=self._config.default_queue_count
                )
            except PymqError as failure:
                _log.debug("route of %r not read again: %s", send.topic, failure)
        queues = self._topics.get(send.topic)
        if queues is None or send.is_bound or not queues.has_other(self._avoided.names):
            await asyncio.sleep(RETRY_PAUSE_S)

    # --- queues and connections

    async def _topic_queues(self, topic: str) -> TopicQueues:
        queues = self._topics.get(topic)
        if queues is None:
            route = await self._pool.route(
                topic, create_queue_count=self._config.default_queue_count
            )
            self._topics[topic] = queues = self._make_queues(route)
        return queues

    def _make_queues(self, route: Route) -> TopicQueues:
        masters = route.masters()
        templates = [
            SendTemplate(
                queue,
                masters.get(queue.broker_name),
                group=self._config.producer_group,
                default_topic_queue_count=self._config.default_queue_count,
            )
            for queue in route.write_queues
        ]
        if not templates:
            raise no_write_queue(route)
        # Or each of many producers that live for one message would choose the same queue.
        return TopicQueues(templates, turn=random.randrange(len(templates)))

    def _route_changed(self, topic: str) -> None:
        self._topics.pop(topic, None)

    async def _choose(self, send: SendAttempt) -> SendTemplate:
        queues = await self._topic_queues(send.topic)
        return send.choose(queues, self._avoided.names)

    async def _channel(self, template: SendTemplate) -> AsyncChannel:
        queue = template.queue
        try:
            address = template.address
            if address is None:
                address = (await self._pool.route(queue.topic)).address(queue.broker_name)
            return await self._pool.broker_channel(queue.topic, queue.broker_name, address)
        except (ConnectionFailed, RouteNotFound) as error:
            self.note_failure(template, error)
            raise

    def note_failure(self, template: SendTemplate, error: PymqError) -> None:
        """Keep away from a broker that does not answer, and doubt what its route says."""
        if not isinstance(error, (ConnectionFailed, RequestTimeout, RouteNotFound)):
            return
        until_s = self._clock.monotonic_s() + AVOID_BROKER_S
        self._avoided.add(template.queue.broker_name, until_s)
        self._pool.doubt(template.queue.topic)
        if self._forgiving is None:
            self._forgiving = self._pool.loop.call_later(AVOID_BROKER_S, self._forgive)

    def _forgive(self) -> None:
        self._forgiving = None
        self._avoided.expire(self._clock.monotonic_s())
        if self._avoided.names and self._pool.is_open:
            self._forgiving = self._pool.loop.call_later(FORGIVE_CHECK_S, self._forgive)

    def ended(self) -> None:
        """Count a send as answered and let the next one begin."""
        self._in_flight -= 1
        if self._waiting:
            self._wake_one()
        if not self._in_flight and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    @property
    def _has_room(self) -> bool:
        return self._in_flight < self._in_flight_max

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
