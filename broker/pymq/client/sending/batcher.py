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
from collections import deque
from typing import Self

from pymq.client.checks import check_count, check_producer, check_seconds
from pymq.client.operations import check_send_topic
from pymq.client.sending import gathering, send_encoding
from pymq.client.sending.gathering import Answer, Feeder, Gathering, Run
from pymq.client.sending.placement import Placement, QueueSelector, placement
from pymq.client.sending.producer import Producer
from pymq.client.sending.receipts import SendReceipt
from pymq.client.sending.send_attempt import BatchSend, MessageSend
from pymq.client.sending.send_window import SendWindow
from pymq.errors import ClientClosed, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message
from pymq.protocol.names import is_retry_topic

LINGER_S = 0.005
BATCH_COUNT_MAX = 1000
BATCH_BYTES_MAX = 256 << 10
#: Messages without a receipt.
UNANSWERED_MAX = 100_000
#: Where so many topics are known, those that nothing waits for are forgotten: they may be gone.
TOPIC_COUNT = 1_000


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
        check_producer(producer, Producer, name="pymq.Producer", other="pymq.blocking.Batcher")
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
        self._gathered: dict[tuple[str, bool], Gathering] = {}
        #: Those that were sent, and messages that went alone for threads; without an answer yet.
        self._sent: set[Run] = set()
        self._alone: set[Answer] = set()
        self._is_closed = False
        self._feeder: Feeder | None = None
        producer._parts.batchers.add(self)
        producer._window.gather(self._window, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what was gathered and wait for all answers; takes no more. Idempotent."""
        self._pool.check_home()
        self._is_closed = True
        await self.flush()

    def abandon(self) -> None:
        """Fail what was gathered and not sent: the producer is closed."""
        self._is_closed = True
        error = ClientClosed("the producer was closed before it was sent")
        for found in self._gathered.values():
            self._fail(found.take(), error)
        if self._feeder is not None:
            self._feeder._refuse(error)

    def _end(self) -> None:
        """Fail everything that has no answer. Call it again if the program raises SystemExit."""
        error = ClientClosed("the client's thread ended before it was answered", sent=True)
        while self._sent:
            self._fail(self._sent.pop(), error)
        while self._alone:
            answer = self._alone.pop()
            if not answer.done():
                answer.set_exception(gathering.own_error(error))
        self.abandon()

    def _feed_from(self, feeder: Feeder) -> None:
        """Leave limits to a face for threads, and have it hand over what it has before a flush."""
        self._window.end_limits()
        self._feeder = feeder

    @property
    def _handed_count(self) -> int:
        """Messages that threads have handed over and that are not taken yet."""
        return 0 if self._feeder is None else self._feeder._handed_count

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
        """Store a message with others; the arguments and errors are those of ``Producer.send``.

        But there is no ``deadline_s``: the messages of a batch have the producer's together.
        """
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
        if self._window.is_full:
            raise self._window.refusal()
        where = self._place(message, queue, selector, sharding_key)
        if self._goes_alone(message):
            return self._send_alone(self._maker.prepare(message, where, None))
        # First: it says so if the producer is not open, and may have no event loop.
        part, message_id = self._maker.encode_in_batch(message, where)
        told = message if self._maker.is_observed else None
        future: asyncio.Future[SendReceipt] = self._pool.loop.create_future()
        self._take(message.topic, part, message_id, where, future, told)
        return future

    async def wait_room(self) -> None:
        """Wait until another message may be taken.

        Raises:
            ClientClosed: the producer was closed meanwhile.
        """
        await self._window.wait_room(self._pool.check_open)

    async def flush(self) -> None:
        """Send what was gathered, and wait until no message is without an answer."""
        self._pool.check_home()  # Elsewhere it would wait for ever.
        if self._feeder is not None:
            await self._feeder._take_all()
        while self._window.count:
            for key in list(self._gathered):
                self._go(key)
            await self._window.wait_idle()

    # --- taking

    def _place(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        sharding_key: str | None,
    ) -> Placement | None:
        """Accept a message; return where it goes. For any thread."""
        self._check_open()
        send_encoding.check_message(message)
        if type(message.topic) is not str:
            check_send_topic(message.topic)
        return placement(queue, selector, sharding_key)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the batcher is closed; make another one of its producer")

    def _goes_alone(self, message: Message) -> bool:
        return bool(message.delay_level) or message.has_timer or is_retry_topic(message.topic)

    def _send_alone(self, send: MessageSend) -> asyncio.Future[SendReceipt]:
        alone = self._sender.begin(send)
        self._window.begin_alone(alone, send.size_bytes)
        return alone

    # --- from threads, which wait for room themselves, and have their own futures

    def _take_message(self, message: Message, where: Placement | None, answer: Answer) -> None:
        """Take one of which hooks are told."""
        self._check_open()
        if self._goes_alone(message):
            send: MessageSend = self._maker.prepare(message, where, None)
            self._take_alone(send, answer)
        else:
            part, message_id = self._maker.encode_in_batch(message, where)
            self._take(message.topic, part, message_id, where, answer, message)

    def _take_alone(self, send: MessageSend, answer: Answer) -> None:
        """Take one that no batch takes."""
        self._check_open()
        send.restart(self._pool.loop.time(), self._config.deadline_s)
        alone = self._send_alone(send)
        self._alone.add(answer)
        alone.add_done_callback(lambda done: self._answer_alone(done, answer))

    def _answer_alone(self, done: asyncio.Future[SendReceipt], answer: Answer) -> None:
        self._alone.discard(answer)
        gathering.copy_outcome(done, answer)

    # --- gathering

    def _take(
        self,
        topic: str,
        part: bytes,
        message_id: str,
        where: Placement | None,
        answer: Answer,
        message: Message | None = None,
    ) -> None:
        """Take a message that is encoded, perhaps by a thread; hooks are told of ``message``."""
        self._check_open()
        key = (topic, where is not None)
        found = self._gathered.get(key)
        if found is None:
            if len(self._gathered) % TOPIC_COUNT == 0:
                known = self._gathered.items()
                self._gathered = {one: some for one, some in known if some.run or some.busy}
            self._gathered[key] = found = Gathering()
        size_bytes = len(part)
        self._window.begin(size_bytes)
        if found.run.answers and found.run.size_bytes + size_bytes > self._bytes_max:
            self._go(key)
        run = found.run
        if not run.answers:
            found.since_s = self._pool.loop.time()
            found.timer = self._pool.loop.call_later(self._linger_s, self._go, key)
        run.add(part, message_id, where, answer, message)
        if len(run.answers) >= self._count_max or run.size_bytes >= self._bytes_max:
            self._go(key)

    def _go(self, key: tuple[str, bool]) -> None:
        """Send what was gathered for a topic, unless it has to wait for what was sent before."""
        found = self._gathered[key]
        topic, is_placed = key
        if found.busy:
            found.end_waiting()  # It goes when those before it are answered.
        if found.busy or not found.run:
            return
        since_s = found.since_s
        if not self._pool.is_open:
            self._fail(found.take(), ClientClosed("the producer was closed meanwhile"))
        elif is_placed:
            found.busy = True
            task = self._pool.spawn("batches", self._send_placed(topic, found, since_s))
            task.add_done_callback(lambda done: self._placed_sent(key, done))
        else:
            run = found.take()
            try:
                self._send(topic, run, None, since_s)
            except PymqError as error:  # The connection has no room for another request.
                self._fail(run, error)

    async def _send_placed(self, topic: str, found: Gathering, since_s: float) -> None:
        """Send messages to their queues, and wait until that is over."""
        try:
            queues = await self._sender.wait_queues(topic, since_s + self._config.deadline_s)
        except PymqError as error:
            self._fail(found.take(), error)
            return
        run = found.take()
        self._sent.add(run)  # until each message is elsewhere: a selector may end the loop
        by_queue, refused = run.sort(queues)
        unsent = {
            queue: deque(some.split(self._count_max, self._bytes_max))
            for queue, some in by_queue.items()
        }
        self._sent.discard(run)
        try:
            for some, why in refused:
                self._fail(some, why)
            await asyncio.gather(
                *(self._send_queue(topic, *one, since_s) for one in unsent.items())
            )
        finally:
            for runs in unsent.values():
                for some in runs:
                    self._fail(some, ClientClosed("the producer was closed before it was sent"))

    async def _send_queue(
        self, topic: str, queue: MessageQueue, runs: deque[Run], since_s: float
    ) -> None:
        """Send batches to one queue, one after the other; each error goes to its batch."""
        where = Placement(queue, None, None)
        while runs:
            some = runs.popleft()
            try:
                sent = self._send(topic, some, where, since_s)
            except PymqError as error:
                self._fail(some, error)
            else:
                await asyncio.wait([sent])

    def _placed_sent(self, key: tuple[str, bool], done: asyncio.Task[None]) -> None:
        found = self._gathered[key]
        found.busy = False
        is_due = found.timer is None or found.timer.when() <= self._pool.loop.time()
        if found.run and is_due and not done.cancelled():  # then it would go on for ever
            self._go(key)

    # --- sending

    def _send(
        self, topic: str, run: Run, where: Placement | None, since_s: float
    ) -> asyncio.Future[list[SendReceipt]]:
        self._sent.add(run)
        send = self._maker.batch(
            topic, b"".join(run.parts), run.message_ids, where, since_s, messages=run.messages
        )
        future = self._sender.begin(send)
        self._window.request_count += 1
        future.add_done_callback(lambda done: self._answer(run, send, done))
        return future

    def _answer(self, run: Run, send: BatchSend, done: asyncio.Future[list[SendReceipt]]) -> None:
        """Hand the outcome of a batch to its messages."""
        self._window.end_request(lost_count=len(run) if send.is_abandoned else 0)
        error = gathering.closed_meanwhile() if done.cancelled() else done.exception()
        if run not in self._sent:
            return  # The loop has ended meanwhile, and they know.
        if error is not None:
            self._fail(run, error)
            return
        try:
            run.answer(done.result())
        finally:
            self._end_run(run)

    def _fail(self, run: Run, error: BaseException) -> None:
        try:
            run.fail(error)
        finally:
            self._end_run(run)

    def _end_run(self, run: Run) -> None:
        """Make room. Together: a callback of each future would cost as much as sending it."""
        self._sent.discard(run)
        self._window.end(run.size_bytes, len(run))
