"""Producer: sends messages.

A message is checked, gets an id and is encoded here; ``Sender`` makes the attempts to send it.

What a retry means: an attempt whose outcome is unknown (time-out, connection lost) may have
stored the message. The retry then stores it twice, with the same message id.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Self

from pymq.client import send_encoding
from pymq.client.checks import check_count
from pymq.client.config import ClientConfig, connect_s, parse_name_servers
from pymq.client.operations import (
    BODY_BYTES_MAX,
    DEFAULT_QUEUE_COUNT,
    SendResult,
    check_send_topic,
)
from pymq.client.pool import ClientPool
from pymq.client.send_attempt import SendAttempt
from pymq.client.sender import Sender
from pymq.clock import Clock
from pymq.errors import PymqError, TooManyPending
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.compression import COMPRESS_BYTES_MIN, Compression
from pymq.protocol.message import Message
from pymq.protocol.names import DEFAULT_PRODUCER_GROUP

_log = logging.getLogger(__name__)

#: Unanswered sends of one producer.
IN_FLIGHT_MAX = 10_000
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
        LocalProtocolError: ``group`` is not a legal name.
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
        check_count("in_flight_max", in_flight_max, 1)
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
        self._wait_stored = wait_stored
        self._clock = clock or Clock()
        self._pool = ClientPool(
            config.name_servers,
            timeout_s=timeout_s,
            connect_timeout_s=connect_s(config),
            route_age_s=config.route_age_s,
            producer_group=group,
            on_route=self._route_changed,
            clock=self._clock,
        )
        self._sender = Sender(self._pool, config, clock=self._clock, in_flight_max=in_flight_max)
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
                _log.warning(
                    "%d sends were unanswered when the producer closed", self.in_flight_count
                )
        await self._pool.close()
        self._sender.wake_all()

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
        return self._sender.in_flight_count

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
                is awaited before the next one of its key begins; sends that are in flight at the
                same time may overtake each other.

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
        sender = self._sender
        if sender.in_flight_count >= sender.in_flight_max:
            await sender.wait_room()
        return await sender.begin(self._prepare(message, queue, sharding_key))

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
        sender = self._sender
        if sender.in_flight_count >= sender.in_flight_max:
            raise TooManyPending(
                f"{sender.in_flight_count} sends are unanswered, expected at most "
                f"{sender.in_flight_max} (in_flight_max); await wait_room() before sending more"
            )
        return sender.begin(self._prepare(message, queue, sharding_key))

    async def send_one_way(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message without asking whether it arrived: it may be lost silently.

        Raises:
            LocalProtocolError: the message cannot be sent; the text names the limit.
            ConnectionFailed: no connection; nothing was sent.
            RouteNotFound: no broker is known for the topic.
            ClientClosed: the producer is not open.
        """
        send = self._prepare(message, queue, None)
        template = await self._sender.choose(send)
        channel = await self._sender.channel(template)
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
        sender = self._sender
        several = send_encoding.batch_messages(messages)
        batches = self._prepare_batches(several, queue)
        results: list[SendResult] = []
        stored = 0
        for send, count in batches:
            if sender.in_flight_count >= sender.in_flight_max:
                await sender.wait_room()
            try:
                results.append(await sender.begin(send))
            except PymqError as error:
                if stored:
                    error.add_note(f"the first {stored} of {len(several)} messages were stored")
                raise
            stored += count
        return results

    async def flush(self) -> None:
        """Wait until no send is unanswered."""
        await self._sender.flush()

    async def wait_room(self) -> None:
        """Wait until another send may begin.

        Raises:
            ClientClosed: the producer was closed meanwhile.
        """
        await self._sender.wait_room()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic can be sent to.

        Raises:
            RouteNotFound: no broker is known for the topic.
        """
        check_send_topic(topic)
        return [template.queue for template in (await self._sender.topic_queues(topic)).templates]

    # --- a send

    def _prepare(
        self, message: Message, queue: MessageQueue | None, sharding_key: str | None
    ) -> SendAttempt:
        if not isinstance(message, Message):
            send_encoding.check_message(message)
        if sharding_key is not None:
            send_encoding.check_sharding_key(sharding_key)
        topic = message.topic
        if topic not in self._sender.topics:
            check_send_topic(topic)
        born_ms = self._clock.wall_ms()
        key = self._pool.unique_keys().next(born_ms)
        body = message.body
        sys_flag = 0
        if type(body) is not bytes or not 0 < len(body) < self._plain_bytes:
            body, sys_flag = send_encoding.prepare_body(body, topic, self._config)
        if message.flag != 0:
            send_encoding.check_flag(message.flag)
        properties = send_encoding.properties_json(
            message, key, sharding_key=sharding_key, wait_stored=self._wait_stored
        )
        return SendAttempt(
            self._sender,
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
        sender = self._sender
        outer = '""' if self._wait_stored else '"WAIT\\u0001false\\u0002"'
        sends = []
        for batch in batches:
            future = self._pool.loop.create_future()
            ids = ",".join(batch.unique_keys)
            send = SendAttempt(
                sender, future, topic, batch.body, outer, ids, born_ms, 0, 0, True, queue, None
            )
            sends.append((send, len(batch.unique_keys)))
        return sends

    def _route_changed(self, topic: str) -> None:
        self._sender.route_changed(topic)
