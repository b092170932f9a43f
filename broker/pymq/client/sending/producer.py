"""Producer: sends messages.

A message is checked, gets an id and is encoded here; ``Sender`` makes the attempts to send it, as
many as there is time for until the deadline of the send. ``send_retry`` has the rules.

What a retry means: an attempt whose outcome is unknown (time-out, connection lost) may have
stored the message. The retry then stores it twice, with the same message id.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from pymq.client.cluster.config import parse_name_servers
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.operations import BODY_BYTES_MAX, DEFAULT_QUEUE_COUNT, check_send_topic
from pymq.client.sending import send_encoding
from pymq.client.sending.column_sends import ColumnSends
from pymq.client.sending.hooks import SendHook
from pymq.client.sending.placement import QueueSelector, placement
from pymq.client.sending.producer_config import (
    DEADLINE_S,
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    ProducerConfig,
)
from pymq.client.sending.producer_parts import ProducerParts
from pymq.client.sending.recalls import Recalls
from pymq.client.sending.receipts import SendReceipt
from pymq.client.sending.requests import Reply, reply_message
from pymq.client.sending.transactions import TransactionCheck
from pymq.client.sending.unclosed import watch_unclosed
from pymq.clock import Clock
from pymq.errors import PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.compression import COMPRESS_BYTES_MIN, Compression
from pymq.protocol.message import Message, ReceivedMessage
from pymq.protocol.names import DEFAULT_PRODUCER_GROUP


class Producer(ColumnSends, Recalls):
    """Sends messages, with route discovery, retries and back-pressure. For one event loop.

    ::

        async with Producer("127.0.0.1:9876") as producer:
            await producer.send(Message("flights", b"...", tags="UA", keys="N14228"))

    Args:
        name_servers: ``host:port``, several separated by ``;`` or ``,`` or as a list; or the URL
            at which they are looked up. ``None``: what ``NAMESRV_ADDR`` says.
        group: producer group; matters for transactions and in consoles.
        deadline_s: for a whole send: waiting for room, the route, all attempts and the pauses
            between them. A send that ends there raises the error of its last attempt, which tells
            what became of all of them.
        timeout_s: for the answer to one attempt, from a broker that does nothing meanwhile; one
            that takes or answers what was sent before is waited for longer.
        retries: how often a failed send is tried again at most, on another queue and if possible
            another broker; ``None``: as often as there is time for. After a time-out or a lost
            connection the attempt may have stored the message, so a retry may duplicate it (with
            the same message id).
        in_flight_max: sends that may be unanswered; ``send`` waits, ``send_nowait`` refuses.
        in_flight_bytes_max: likewise, bytes of bodies and properties.
        avoid_slow_brokers: keep away, for 2 to 30 s, from brokers that take longer than 0.55 s to
            answer, while there are others.
        compress_bytes_min: bodies from this size on are compressed; ``None``: none is.
        compression: how.
        body_bytes_max: largest body or batch; the broker has a limit, too.
        default_queue_count: queues of a topic that the first send creates.
        wait_stored: ``False``: the broker answers before its disk and slaves have confirmed.
        check_transaction: says what became of a transaction of the group; needed for any.
        check_topics: brokers of these topics are told at the start that this producer answers
            checks; those of topics that are sent to are told anyway.
        hooks: called before and after each send.
        trace_topic: where to write the message trace, which consoles read, usually
            ``RMQ_SYS_TRACE_TOPIC``; ``None``: nowhere.
        clock: for timestamps.
        network: where brokers are reached, and who we say we are.

    Raises:
        ConfigurationError: an argument is wrong.
        LocalProtocolError: ``group`` is not a legal name.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str = DEFAULT_PRODUCER_GROUP,
        deadline_s: float = DEADLINE_S,
        timeout_s: float = 3.0,
        retries: int | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
        avoid_slow_brokers: bool = False,
        compress_bytes_min: int | None = COMPRESS_BYTES_MIN,
        compression: Compression = Compression.ZLIB,
        body_bytes_max: int = BODY_BYTES_MAX,
        default_queue_count: int = DEFAULT_QUEUE_COUNT,
        wait_stored: bool = True,
        check_transaction: TransactionCheck | None = None,
        check_topics: Sequence[str] = (),
        hooks: Sequence[SendHook] = (),
        trace_topic: str | None = None,
        clock: Clock | None = None,
        network: Network = PLAIN,
    ) -> None:
        self._config = config = ProducerConfig(
            name_servers=parse_name_servers(name_servers),
            producer_group=group,
            deadline_s=deadline_s,
            timeout_s=timeout_s,
            retries=retries,
            in_flight_max=in_flight_max,
            in_flight_bytes_max=in_flight_bytes_max,
            avoid_slow_brokers=avoid_slow_brokers,
            compress_bytes_min=compress_bytes_min,
            compression=compression,
            body_bytes_max=body_bytes_max,
            default_queue_count=default_queue_count,
            wait_stored=wait_stored,
            network=network,
        )
        self._parts = parts = ProducerParts(
            config, check_transaction, hooks, trace_topic, clock or Clock()
        )
        self._pool = parts.pool
        self._sender = parts.sender
        self._window = parts.sender.window
        self._maker = parts.maker
        self._transactions = parts.transactions
        self._check_topics = tuple(check_topics)
        self._forget_end: Callable[[], object] | None = None
        self._is_closing = False

    # --- life

    async def start(self) -> Self:
        """Reach a name server; ``Network(start_deadline_s=...)`` waits for one.

        Raises:
            ClientClosed: it was closed; make a new one.
            ClientMisplaced: it was started in another process or event loop.
            ConnectionFailed: none answers; the text names all and why.
            RouteNotFound: one of ``check_topics``, or every broker, is unknown.
        """
        await self._pool.start()
        if self._forget_end is None:
            self._forget_end = watch_unclosed(self, self._window)
        try:
            await self._transactions.announce(self._check_topics)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self, timeout_s: float = 10.0) -> None:
        """Wait for the sends in flight, unregister, close. Idempotent; cancelled, it does not wait.

        Who closes it while somebody else does waits for that.

        Raises:
            ClientMisplaced: it was started in another event loop.
        """
        if self._pool.is_open:
            self._pool.check_open()
        if self._is_closing:
            await self._pool.closing.wait_ended()
            return
        self._is_closing = True
        with self._pool.closing:
            try:
                if self._pool.is_open:
                    await self._parts.finish(self.flush, timeout_s)
            finally:
                try:
                    await self._pool.close()
                    if self._forget_end is not None:
                        self._forget_end()
                finally:
                    self._window.wake_all()
                    for batcher in self._parts.batchers:
                        batcher.abandon()

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
        return self._window.count

    # --- sending

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
        deadline_s: float | None = None,
    ) -> SendReceipt:
        """Store a message.

        Args:
            message: what.
            queue: exactly where to; no other queue is tried.
            selector: gets the topic's queues, and returns the one for this message; see
                ``pymq.selectors``. It is called again for another attempt.
            sharding_key: messages of one key go to one queue (as long as the topic keeps its
                number of queues). They are stored in the order of their sends when each send
                is awaited before the next one of its key begins; sends that are in flight at the
                same time may overtake each other.
            deadline_s: in place of the producer's.

        Raises:
            PymqError: its ``outcome_known`` is false when any attempt may have stored it.
            LocalProtocolError: the message cannot be sent; the text names the limit.
            BrokerError: the broker refused it, and so did the retries.
            ConnectionFailed: no broker can be reached.
            RequestTimeout: no answer; it may be stored.
            RouteNotFound: no broker is known for the topic.
            TooManyPending: there was no room (``in_flight_max``) until the deadline.
            ClientClosed: the producer is not open.
            ClientMisplaced: it was started in another process, thread or event loop.
        """
        where = None
        if not (queue is None and selector is None and sharding_key is None):
            where = placement(queue, selector, sharding_key)
        if self._window.is_full:
            deadline_s = await self._maker.wait_room(deadline_s)
        return await self._sender.begin(self._maker.prepare(message, where, deadline_s))

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
        deadline_s: float | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Begin to store a message; the future ends as ``send`` would.

        Raises:
            LocalProtocolError: the message cannot be sent; the text names the limit.
            TooManyPending: too much is unanswered, or others wait for room; ``await wait_room()``.
            ClientClosed: the producer is not open.
        """
        if self._window.is_full:
            raise self._window.refusal()
        where = None
        if not (queue is None and selector is None and sharding_key is None):
            where = placement(queue, selector, sharding_key)
        return self._sender.begin(self._maker.prepare(message, where, deadline_s))

    async def send_one_way(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> None:
        """Send a message without asking whether it arrived: it may be lost silently.

        Raises:
            LocalProtocolError: the message cannot be sent; the text names the limit.
            ConnectionFailed: no connection; nothing was sent.
            RouteNotFound: no broker is known for the topic.
            ClientClosed: the producer is not open.
        """
        where = placement(queue, selector, sharding_key)
        await self._sender.send_one_way(self._maker.prepare(message, where, None))

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        deadline_s: float | None = None,
    ) -> list[SendReceipt]:
        """Store messages of one topic with one request, or few above the size limit.

        The messages of a request are stored next to each other in one queue. The broker takes
        all of them or refuses all; only when it is killed before it answered, a first part of
        them may be there afterwards, as with every RocketMQ broker. The messages and their buffers
        may be used again when it returns: it may wait for room before it reads them.

        Returns:
            One receipt per message, in their order.

        Raises:
            PymqError: as for ``send``. When requests before were stored, a note says how
                many messages they held.
        """
        several = send_encoding.batch_messages(messages)
        where = placement(queue, selector, None)
        send_encoding.batch_topic(several)
        self._pool.check_open()
        started_s, limit_s = self._pool.loop.time(), self._maker.limit_s(deadline_s)
        # Each is encoded when there is room for it: many that wait would be far more than the room.
        sends = self._maker.prepare_batches(several, where, started_s, limit_s)
        receipts: list[SendReceipt] = []
        while len(receipts) < len(several):
            try:
                await self._window.wait_room(self._pool.check_open, started_s + limit_s)
                stored = await self._sender.begin(next(sends))
            except PymqError as error:
                if receipts:
                    count = len(receipts)
                    error.add_note(f"the first {count} of {len(several)} messages were stored")
                raise
            receipts += stored
        return receipts

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Send a message and return what its consumer replies.

        Args:
            message, queue, selector, sharding_key: as for ``send``.
            deadline_s: for all of it, the reply included; in place of the producer's.

        Raises:
            RequestTimeout: it was sent, and no reply came in time.
            PymqError: it was not sent; as for ``send``.
        """
        where = placement(queue, selector, sharding_key)
        return await self._parts.requests.request(message, where, deadline_s)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str | None = None,
        properties: dict[str, str] | None = None,
        deadline_s: float | None = None,
    ) -> SendReceipt:
        """Answer a message that was sent with ``request``.

        Args:
            request: as it was received.
            body, tags, properties: of the answer.
            deadline_s: in place of the producer's.

        Raises:
            LocalProtocolError: the message is not a request, or the answer cannot be sent.
            BrokerSystemError: whoever asked has gone, or does not take the answer.
            PymqError: as for ``send``.
        """
        answer = reply_message(request, body, tags, properties)
        return await self._parts.requests.reply(request, answer, deadline_s)

    async def flush(self) -> None:
        """Wait until no send is unanswered.

        Raises:
            ClientMisplaced: it was started in another process or event loop.
        """
        self._pool.check_home()  # Elsewhere it would wait for ever.
        for batcher in self._parts.batchers:
            await batcher.flush()
        await self._window.wait_idle()

    async def wait_room(self) -> None:
        """Wait until another send may begin.

        Raises:
            ClientClosed: the producer was closed meanwhile.
        """
        await self._window.wait_room(self._pool.check_open)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic can be sent to.

        Raises:
            RouteNotFound: no broker is known for the topic.
        """
        check_send_topic(topic)
        return [template.queue for template in (await self._sender.topic_queues(topic)).templates]
