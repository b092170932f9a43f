"""Blocking faces of Producer and Consumer, for scripts and threads.

Each has one background thread with an event loop, in which the asyncio client lives. Methods
have the same names and arguments and may be called from any thread. Ctrl-C interrupts them. A
client that is still open when the process ends is closed then.
"""

import concurrent.futures
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Self, cast, overload

from pymq.client import consumer as _consumer
from pymq.client import producer as _producer
from pymq.client.consumer import MAX_RECONSUME_TIMES
from pymq.client.handler import check_handler, check_result
from pymq.client.inbox import Delivery, FlowLimits
from pymq.client.loop_thread import Threaded, soon
from pymq.client.operations import BODY_BYTES_MAX, DEFAULT_QUEUE_COUNT, SendResult
from pymq.client.producer import IN_FLIGHT_MAX
from pymq.client.send_encoding import batch_messages
from pymq.client.thread_inbox import ThreadInbox
from pymq.clock import Clock
from pymq.errors import ConfigurationError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.bodies import ConsumeFromWhere, MessageModel, MessageQueue
from pymq.protocol.compression import COMPRESS_BYTES_MIN, Compression
from pymq.protocol.message import Message, ReceivedMessage
from pymq.protocol.names import DEFAULT_PRODUCER_GROUP

_log = logging.getLogger(__name__)

#: What was acknowledged counts after this at the latest.
SETTLE_S = 1.0


class Producer(Threaded):
    """``pymq.client.producer.Producer``, blocking; takes the same arguments.

    ::

        with Producer("127.0.0.1:9876") as producer:
            producer.send(Message("flights", b"..."))
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
        super().__init__()
        self._producer = _producer.Producer(
            name_servers,
            group=group,
            timeout_s=timeout_s,
            retries=retries,
            in_flight_max=in_flight_max,
            compress_bytes_min=compress_bytes_min,
            compression=compression,
            body_bytes_max=body_bytes_max,
            default_queue_count=default_queue_count,
            wait_stored=wait_stored,
            clock=clock,
        )

    def start(self) -> Self:
        """See the asyncio Producer."""
        self._start(self._producer.start, "pymq producer")
        return self

    def close(self, timeout_s: float = 10.0) -> None:
        """See the asyncio Producer."""
        self._stop(lambda: self._producer.close(timeout_s))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def client_id(self) -> str:
        """Who we are to the brokers."""
        return self._producer.client_id

    @property
    def in_flight_count(self) -> int:
        """Sends without an answer yet."""
        return self._producer.in_flight_count

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
    ) -> SendResult:
        """See the asyncio Producer."""
        return self._call(self._producer.send(message, queue=queue, sharding_key=sharding_key))

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Begin to store a message. Above ``in_flight_max`` the send begins later.

        Sends that are in flight at the same time may overtake each other.
        """
        return self._begin(self._producer.send(message, queue=queue, sharding_key=sharding_key))

    def send_one_way(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """See the asyncio Producer."""
        self._call(self._producer.send_one_way(message, queue=queue))

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None
    ) -> list[SendResult]:
        """See the asyncio Producer."""
        # Here, not in the loop: making them may take a while, or use this producer.
        several = batch_messages(messages)
        return self._call(self._producer.send_batch(several, queue=queue))

    def flush(self) -> None:
        """See the asyncio Producer."""
        self._call(self._producer.flush())

    def queues(self, topic: str) -> list[MessageQueue]:
        """See the asyncio Producer."""
        return self._call(self._producer.queues(topic))


class Consumer(Threaded):
    """``pymq.client.consumer.Consumer``, blocking; takes the same arguments.

    ::

        consumer = Consumer("127.0.0.1:9876", "billing", from_where="earliest")
        with consumer.subscribe("orders"):
            for message in consumer.messages(timeout_s=10):
                book(message.body)

    Moving on to the next message acknowledges the one before; so does leaving the ``with`` block
    without an exception. Several threads may take messages, each of them its own: a thread
    acknowledges what it has taken itself and nothing else. What a thread holds when it ends is
    delivered again, to another one; a thread that ends after a message that it has handled calls
    ``acknowledge`` before. A message at which a loop was left (``break``, an exception) is
    delivered again when the same thread begins another loop.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str,
        *,
        from_where: str | datetime | ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        message_model: str = MessageModel.CLUSTERING,
        max_reconsume_times: int = MAX_RECONSUME_TIMES,
        limits: FlowLimits | None = None,
        timeout_s: float = 3.0,
        close_timeout_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self._consumer = _consumer.Consumer(
            name_servers,
            group,
            from_where=from_where,
            message_model=message_model,
            max_reconsume_times=max_reconsume_times,
            limits=limits,
            timeout_s=timeout_s,
            close_timeout_s=close_timeout_s,
            clock=clock,
        )
        self._inbox = ThreadInbox(self._consumer._inbox)
        self._tasks = Tasks("blocking consumer")

    # --- subscriptions

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Self:
        """See the asyncio Consumer."""
        subscribe = functools.partial(self._consumer.subscribe, topic, tags, sql=sql)
        if self._thread is None:
            subscribe()
        else:
            self._thread.call(soon(subscribe))
        return self

    def unsubscribe(self, topic: str) -> None:
        """See the asyncio Consumer."""
        if self._thread is None:
            self._consumer.unsubscribe(topic)
        else:
            self._thread.call(soon(self._consumer.unsubscribe, topic))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours at the moment."""
        if self._thread is None:
            return []
        return self._thread.call(soon(lambda: self._consumer.assignment))

    @property
    def client_id(self) -> str:
        """Who we are to the brokers and the other members."""
        return self._consumer.client_id

    @property
    def backlog_count(self) -> int:
        """Messages that were pulled and are not finished."""
        return self._consumer.backlog_count

    # --- life

    def start(self) -> Self:
        """See the asyncio Consumer."""
        self._start(self._open, "pymq consumer")
        return self

    async def _open(self) -> None:
        await self._consumer.start()
        self._tasks.repeat("settle", self._inbox.settle, SETTLE_S)

    def close(self) -> None:
        """See the asyncio Consumer. Messages taken and not acknowledged are delivered again."""
        self._stop(self._close)

    async def _close(self) -> None:
        await self._tasks.close()
        self._inbox.settle()
        await self._consumer.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.acknowledge()
        self.close()

    # --- use

    def receive(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """Return the next message, which acknowledges the one before; ``None``: none came in time.

        Raises:
            ClientClosed: the consumer is not open.
        """
        taken = self._take(1, timeout_s)
        return taken[0].message if taken else None

    def messages(self, timeout_s: float | None = None) -> Iterator[ReceivedMessage]:
        """Yield messages; end when none comes for ``timeout_s`` seconds, or never."""
        loop = object()
        while taken := self._take(1, timeout_s, loop):
            yield taken[0].message

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self.messages()

    def acknowledge(self) -> None:
        """What this thread has taken was handled. Moving on to the next message does it, too."""
        self._inbox.acknowledge(self._inbox.held)

    def commit_nowait(self) -> None:
        """Tell the brokers how far the queues are, without waiting for an answer."""
        self._call(soon(self._commit))

    def _commit(self) -> None:
        self._inbox.settle()
        self._consumer.commit_nowait()

    @overload
    def run(
        self,
        handler: Callable[[ReceivedMessage], object],
        *,
        batch_size: None = None,
        timeout_s: float | None = None,
    ) -> None: ...

    @overload
    def run(
        self,
        handler: Callable[[list[ReceivedMessage]], object],
        *,
        batch_size: int,
        timeout_s: float | None = None,
    ) -> None: ...

    def run(
        self,
        handler: Callable[[ReceivedMessage], object] | Callable[[list[ReceivedMessage]], object],
        *,
        batch_size: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Call ``handler`` for each message, in this thread; several threads may run one each.

        A message for which it raises is sent back to its broker, which delivers it again
        later.

        Args:
            handler: of one message; with ``batch_size``, of a list of messages.
            batch_size: most messages of one call; it fails or succeeds as a whole.
            timeout_s: end when no message comes for this long; ``None``: never.

        Raises:
            ConfigurationError: an argument is wrong.
            ClientClosed: the consumer is not open.
        """
        check_handler(handler, batch_size)
        call = cast(Callable[[ReceivedMessage | list[ReceivedMessage]], object], handler)
        loop, said = object(), SaidOnce(_log)
        while taken := self._take(batch_size or 1, timeout_s, loop):
            messages = [delivery.message for delivery in taken]
            try:
                done = call(messages[0] if batch_size is None else messages)
            except Exception as error:
                failed = self._inbox.held.release()
                self._call(self._consumer._failed_messages.handler_failed(failed, error))
            except BaseException:  # Ctrl-C: whether it was handled is not known
                self._put_back()
                raise
            else:
                try:
                    _check_plain(handler, done)
                    check_result(handler, done, said)
                except ConfigurationError:
                    self._put_back()
                    raise

    def _put_back(self) -> None:
        self._call(soon(self._inbox.put_back, self._inbox.held.release()))

    def _take(
        self, count_max: int, timeout_s: float | None, loop: object | None = None
    ) -> list[Delivery]:
        """Acknowledge what this thread holds and take the next; none: none came in time."""
        inbox = self._inbox
        held = inbox.held
        if held.loop is loop or held.loop is None or loop is None:
            inbox.acknowledge(held)
        elif held.deliveries:  # That loop was left: whether they were handled is not known.
            self._put_back()
        held.loop = loop
        self._check_open()
        taken = inbox.take_nowait(held, count_max)
        if taken:
            return taken
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not taken:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not self._call(inbox.fetch(left_s)):
                break
            taken = inbox.take_nowait(held, count_max)  # none: other threads were quicker
        return taken


def _check_plain(handler: object, result: object) -> None:
    """Accept what a handler returned unless there is something to await in it.

    Raises:
        ConfigurationError: there is, and nobody would.
    """
    if isinstance(result, Awaitable):
        if isinstance(result, Coroutine):
            result.close()  # or Python warns that it was never awaited
        raise ConfigurationError(
            f"handler {handler!r} returned {result!r}, which nobody awaits here: "
            "expected a plain function; asyncio's pymq.Consumer takes this one"
        )
