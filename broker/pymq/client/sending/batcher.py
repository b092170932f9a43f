"""Gathers single messages into batches: a little waiting for many more messages per second.

Messages of one topic are gathered until they are enough, or the first of them has waited for
``linger_s``; then they go out with one request.

* What may go to any queue is in batches that take turns over the topic's queues, several at a time.
* What has a place of its own (a queue, a selector, a sharding key) is sorted by queue when it goes
  out. The next ones of the topic wait until all of these are answered, so that nothing in a queue
  overtakes what was sent before.

Each message has its own receipt. A batch is stored as a whole or not at all, so its messages fail
together, each with an error of its own. Delayed messages, which no batch takes, go out alone.

Source: RocketMQ ProduceAccumulator.
"""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from pymq.client.checks import check_count, check_seconds
from pymq.client.operations import check_send_topic
from pymq.client.sending import send_encoding
from pymq.client.sending.placement import Placement, QueueSelector, placement
from pymq.client.sending.producer import Producer
from pymq.client.sending.receipts import SendReceipt
from pymq.client.sending.send_attempt import MessageSend
from pymq.client.sending.send_window import SendWindow
from pymq.errors import ClientClosed, PymqError, TooManyPending
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message
from pymq.protocol.names import is_retry_topic

LINGER_S = 0.005
BATCH_COUNT_MAX = 1000
BATCH_BYTES_MAX = 256 << 10
#: Messages without a receipt.
UNANSWERED_MAX = 100_000


@dataclass(slots=True)
class _Entry:
    """One message of a batch to be."""

    message: Message
    body: bytes
    message_id: str
    where: Placement | None
    future: asyncio.Future[SendReceipt]


class _Gathering:
    """What waits to be sent to one topic. ``busy``: placed messages of it are being sent."""

    __slots__ = ("busy", "entries", "since_s", "size_bytes", "timer")

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.size_bytes = 0
        self.since_s = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.busy = False

    def take(self) -> list[_Entry]:
        """Return what has been gathered; nothing is left."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        entries, self.entries, self.size_bytes = self.entries, [], 0
        return entries


class Batcher:
    """Sends messages of a producer in batches. For the event loop of the producer.

    ::

        async with Producer("127.0.0.1:9876") as producer, Batcher(producer) as batcher:
            futures = [batcher.send_nowait(message) for message in messages]
            receipts = await asyncio.gather(*futures)

    Leaving the block waits until everything is answered; so does closing the producer.

    Args:
        producer: whose messages they are; its settings apply.
        linger_s: longest time that a message waits for others.
        count_max: messages of one batch.
        bytes_max: bytes of one batch.
        unanswered_max: messages that were taken and have no receipt; ``in_flight_bytes_max`` of
            the producer limits their bytes.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        linger_s: float = LINGER_S,
        count_max: int = BATCH_COUNT_MAX,
        bytes_max: int = BATCH_BYTES_MAX,
        unanswered_max: int = UNANSWERED_MAX,
    ) -> None:
        check_seconds("linger_s", linger_s)
        check_count("count_max", count_max, 1)
        check_count("bytes_max", bytes_max, 1)
        check_count("unanswered_max", unanswered_max, 1)
        self._pool = producer._pool
        self._sender = producer._sender
        self._maker = producer._maker
        self._config = config = producer._config
        self._linger_s = linger_s
        self._count_max = count_max
        self._bytes_max = min(bytes_max, config.body_bytes_max)
        self._window = SendWindow(unanswered_max, config.in_flight_bytes_max)
        #: By topic, and whether they have places of their own.
        self._gathered: dict[tuple[str, bool], _Gathering] = {}
        self._is_closed = False
        producer._batchers.add(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what was gathered and wait for all answers; takes no more. Idempotent."""
        self._is_closed = True
        await self.flush()

    def abandon(self) -> None:
        """Fail what was gathered and not sent: the producer is closed."""
        self._is_closed = True
        for found in self._gathered.values():
            _fail(found.take(), ClientClosed("the producer was closed before it was sent"))

    def _unlimited(self) -> None:
        """Leave it to the caller to keep what is unanswered within limits."""
        self._window = SendWindow(sys.maxsize, sys.maxsize)

    @property
    def unanswered_count(self) -> int:
        """Messages that were taken and have no receipt yet."""
        return self._window.count

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> SendReceipt:
        """Store a message with others; the arguments and errors are those of ``Producer.send``."""
        if self._window.is_full:
            until_s = self._pool.loop.time() + self._config.deadline_s
            await self._window.wait_room(self._pool.check_open, until_s)
        return await self.send_nowait(
            message, queue=queue, selector=selector, sharding_key=sharding_key
        )

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Take a message; the future ends as ``send`` would. ``add_done_callback`` tells of that.

        Raises:
            LocalProtocolError: the message cannot be sent; the text names the limit.
            TooManyPending: too much is unanswered; ``await wait_room()``.
            ClientClosed: batcher or producer are not open.
        """
        if self._is_closed:
            raise ClientClosed("the batcher is closed; make another one of its producer")
        if self._window.is_full:
            raise self._window.refusal()
        send_encoding.check_message(message)
        where = placement(queue, selector, sharding_key)
        if message.delay_level or message.has_timer or is_retry_topic(message.topic):
            send: MessageSend = self._maker.prepare(message, where, None)
            alone = self._sender.begin(send)
            self._count(alone, len(message.body))
            return alone
        return self._gather(message, where)

    async def wait_room(self) -> None:
        """Wait until another message may be taken.

        Raises:
            ClientClosed: the producer was closed meanwhile.
        """
        await self._window.wait_room(self._pool.check_open)

    async def flush(self) -> None:
        """Send what was gathered, and wait until no message is without an answer."""
        while self._window.count:
            for key in list(self._gathered):
                self._go(key)
            await self._window.wait_idle()

    # --- gathering

    def _gather(self, message: Message, where: Placement | None) -> asyncio.Future[SendReceipt]:
        topic = message.topic
        check_send_topic(topic)
        (encoded,) = self._maker.encode_batches([message], where)
        future: asyncio.Future[SendReceipt] = self._pool.loop.create_future()
        entry = _Entry(message, encoded.body, encoded.unique_keys[0], where, future)
        self._count(future, len(entry.body))
        key = (topic, where is not None)
        found = self._gathered.get(key)
        if found is None:
            self._gathered[key] = found = _Gathering()
        if found.entries and found.size_bytes + len(entry.body) > self._bytes_max:
            self._go(key)
        if not found.entries:
            found.since_s = self._pool.loop.time()
            found.timer = self._pool.loop.call_later(self._linger_s, self._go, key)
        found.entries.append(entry)
        found.size_bytes += len(entry.body)
        if len(found.entries) >= self._count_max or found.size_bytes >= self._bytes_max:
            self._go(key)
        return future

    def _count(self, future: asyncio.Future[SendReceipt], size_bytes: int) -> None:
        self._window.begin(size_bytes)
        future.add_done_callback(lambda _: self._window.end(size_bytes))

    def _go(self, key: tuple[str, bool]) -> None:
        """Send what was gathered for a topic, unless it has to wait for what was sent before."""
        found = self._gathered[key]
        topic, is_placed = key
        if found.busy or not found.entries:
            return
        since_s = found.since_s
        if not is_placed:
            self._send(found.take(), None, since_s)
        elif self._pool.is_open:
            found.busy = True
            task = self._pool.spawn("batches", self._send_placed(topic, found, since_s))
            task.add_done_callback(lambda _: self._placed_sent(key))
        else:
            _fail(found.take(), ClientClosed("the producer was closed meanwhile"))

    async def _send_placed(self, topic: str, found: _Gathering, since_s: float) -> None:
        """Send messages to their queues, and wait until that is over."""
        entries: list[_Entry] = []
        try:
            async with asyncio.timeout_at(since_s + self._config.deadline_s):
                queues = await self._sender.topic_queues(topic)
            entries = found.take()
            by_queue: dict[MessageQueue, list[_Entry]] = {}
            for entry in entries:
                assert entry.where is not None
                try:
                    # A certain queue may be waited for; see ``TopicQueues.exactly``.
                    queue = entry.where.queue or entry.where.choose(queues).queue
                    by_queue.setdefault(queue, []).append(entry)
                except PymqError as error:
                    _fail([entry], error)
            await asyncio.gather(
                *(self._send_queue(queue, some, since_s) for queue, some in by_queue.items()),
            )
        except PymqError as error:
            _fail(entries or found.take(), error)
        except TimeoutError:
            _fail(found.take(), TooManyPending(f"topic {topic!r}: no route was found in time"))

    async def _send_queue(
        self, queue: MessageQueue, entries: list[_Entry], since_s: float
    ) -> None:
        """Send messages to one queue, one batch after the other; each error goes to its batch."""
        where = Placement(queue, None, None)
        for some in self._batches(entries):
            try:
                await asyncio.wait([self._send(some, where, since_s)])
            except PymqError as error:
                _fail(some, error)

    def _batches(self, entries: list[_Entry]) -> Iterator[list[_Entry]]:
        """Yield what fits in one batch: much may have been gathered while others were sent."""
        some: list[_Entry] = []
        size = 0
        for entry in entries:
            size += len(entry.body)
            if some and (size > self._bytes_max or len(some) >= self._count_max):
                yield some
                some, size = [], len(entry.body)
            some.append(entry)
        yield some

    def _placed_sent(self, key: tuple[str, bool]) -> None:
        found = self._gathered[key]
        found.busy = False
        if found.entries and (found.timer is None or found.timer.when() <= self._pool.loop.time()):
            self._go(key)

    # --- sending

    def _send(
        self, entries: list[_Entry], where: Placement | None, since_s: float
    ) -> asyncio.Future[list[SendReceipt]]:
        send = self._maker.batch(
            [entry.message for entry in entries],
            b"".join([entry.body for entry in entries]),
            [entry.message_id for entry in entries],
            where,
            since_s,
        )
        future = self._sender.begin(send)
        future.add_done_callback(lambda done: _answer(entries, done))
        return future


def _answer(entries: list[_Entry], done: asyncio.Future[list[SendReceipt]]) -> None:
    """Hand the outcome of a batch to its messages."""
    error = done.exception()
    if error is not None:
        _fail(entries, error)
        return
    for entry, receipt in zip(entries, done.result(), strict=True):
        if not entry.future.done():
            entry.future.set_result(receipt)


def _fail(entries: list[_Entry], error: BaseException) -> None:
    for entry in entries:
        if not entry.future.done():
            # Each its own: one exception raised in several places has all of their tracebacks.
            own = error.retold(str(error)) if isinstance(error, PymqError) else error
            entry.future.set_exception(own)
