"""Blocking faces of Producer and Consumer, for scripts and threads.

Each has one background thread with an event loop, in which the asyncio client lives. Methods
have the same names and arguments and may be called from any thread. Ctrl-C interrupts them.
"""

import asyncio
import concurrent.futures
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from pymq.client import consumer as _consumer
from pymq.client import producer as _producer
from pymq.client.inbox import Delivery
from pymq.client.operations import SendResult
from pymq.errors import ClientClosed
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message, ReceivedMessage

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Messages that change threads at a time.
TAKE_COUNT = 64


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result.

        Raises:
            ClientClosed: the thread has ended.
        """
        future = self.begin(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise ClientClosed("the client was closed meanwhile") from error
        except BaseException:
            future.cancel()  # KeyboardInterrupt: nobody waits for it any more
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine in the loop.

        Raises:
            ClientClosed: the thread has ended.
        """
        if self._is_closed or threading.current_thread() is self._thread:
            work.close()
            raise ClientClosed(
                "the client is closed, or was called from its own thread; use it inside `with`"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Stop the loop and wait for the thread. Harmless when done twice."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


class Producer:
    """``pymq.client.producer.Producer``, blocking; takes the same arguments.

    ::

        with Producer("127.0.0.1:9876") as producer:
            producer.send(Message("flights", b"..."))
    """

    def __init__(self, name_servers: str | Sequence[str], **options: Any) -> None:
        self._producer = _producer.Producer(name_servers, **options)
        self._thread: LoopThread | None = None

    def start(self) -> Self:
        """See the asyncio Producer."""
        self._thread = _started(self._producer.start, "pymq producer")
        return self

    def close(self, timeout_s: float = 10.0) -> None:
        """See the asyncio Producer."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.call(self._producer.close(timeout_s))
            finally:
                thread.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def client_id(self) -> str:
        """Who we are to the brokers."""
        return self._producer.client_id

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
    ) -> SendResult:
        """See the asyncio Producer."""
        work = self._producer.send(message, queue=queue, sharding_key=sharding_key)
        return _running(self._thread, work).call(work)

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Begin to store a message. Above ``in_flight_max`` the send begins later."""
        work = self._producer.send(message, queue=queue, sharding_key=sharding_key)
        return _running(self._thread, work).begin(work)

    def send_one_way(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """See the asyncio Producer."""
        work = self._producer.send_one_way(message, queue=queue)
        _running(self._thread, work).call(work)

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None
    ) -> list[SendResult]:
        """See the asyncio Producer."""
        work = self._producer.send_batch(messages, queue=queue)
        return _running(self._thread, work).call(work)

    def flush(self) -> None:
        """See the asyncio Producer."""
        work = self._producer.flush()
        _running(self._thread, work).call(work)

    def queues(self, topic: str) -> list[MessageQueue]:
        """See the asyncio Producer."""
        work = self._producer.queues(topic)
        return _running(self._thread, work).call(work)


class Consumer:
    """``pymq.client.consumer.Consumer``, blocking; takes the same arguments.

    ::

        consumer = Consumer("127.0.0.1:9876", "billing", from_where="earliest")
        with consumer.subscribe("orders"):
            for message in consumer.messages(timeout_s=10):
                book(message.body)

    Moving on to the next message finishes the one before; so does leaving the ``with`` block
    without an exception. Only one thread takes messages.
    """

    def __init__(self, name_servers: str | Sequence[str], group: str, **options: Any) -> None:
        self._consumer = _consumer.Consumer(name_servers, group, **options)
        self._thread: LoopThread | None = None
        self._taken: deque[Delivery] = deque()
        self._current: Delivery | None = None
        self._finished: list[Delivery] = []

    def subscribe(self, topic: str, tags: str = "*") -> Self:
        """See the asyncio Consumer."""
        if self._thread is None:
            self._consumer.subscribe(topic, tags)
        else:
            self._thread.call(_soon(self._consumer.subscribe, topic, tags))
        return self

    def start(self) -> Self:
        """See the asyncio Consumer."""
        self._thread = _started(self._consumer.start, "pymq consumer")
        return self

    def close(self) -> None:
        """See the asyncio Consumer. Messages taken and not finished are delivered again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.call(self._close())
            finally:
                thread.close()

    async def _close(self) -> None:
        for delivery in self._finished:
            self._consumer.inbox.finished(delivery)
        await self._consumer.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish_current()
        self.close()

    @property
    def client_id(self) -> str:
        """Who we are to the brokers and the other members."""
        return self._consumer.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours at the moment."""
        if self._thread is None:
            return []
        return self._thread.call(_soon(lambda: self._consumer.assignment))

    def receive(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """Return the next message, which finishes the one before; ``None``: none came in time."""
        self._finish_current()
        if not self._taken:
            work = self._take(timeout_s)
            self._taken.extend(_running(self._thread, work).call(work))
        if not self._taken:
            return None
        self._current = self._taken.popleft()
        return self._current.message

    def messages(self, timeout_s: float | None = None) -> Iterator[ReceivedMessage]:
        """Yield messages; end when none comes for ``timeout_s`` seconds, or never."""
        while True:
            message = self.receive(timeout_s)
            if message is None:
                return
            yield message

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self.messages()

    def run(
        self, handler: Callable[[ReceivedMessage], object], *, timeout_s: float | None = None
    ) -> None:
        """Call ``handler`` for each message, in this thread.

        A message for which it raises is given back to its broker, which delivers it again
        later. Ends when none comes for ``timeout_s`` seconds, or never.
        """
        for message in self.messages(timeout_s):
            try:
                handler(message)
            except Exception:
                _log.warning(
                    "the handler failed for %s; the broker will deliver it again",
                    message.message_id,
                    exc_info=True,
                )
                failed, self._current = self._current, None
                assert failed is not None
                work = self._consumer.give_back(failed)
                _running(self._thread, work).call(work)

    def _finish_current(self) -> None:
        if self._current is not None:
            self._finished.append(self._current)
            self._current = None

    async def _take(self, timeout_s: float | None) -> list[Delivery]:
        """Finish what was handled and wait for more; empty when there is none in time."""
        inbox = self._consumer.inbox
        finished, self._finished = self._finished, []
        for delivery in finished:
            inbox.finished(delivery)
        try:
            async with asyncio.timeout(timeout_s):
                first = await inbox.take()
        except TimeoutError:
            return []
        taken = [] if first is None else [first]
        while taken and len(taken) < TAKE_COUNT:
            more = inbox.take_nowait()
            if more is None:
                break
            taken.append(more)
        return taken


def _started(start: Callable[[], Coroutine[Any, Any, Any]], name: str) -> LoopThread:
    thread = LoopThread(name)
    try:
        thread.call(start())
    except BaseException:
        thread.close()
        raise
    return thread


def _running(thread: LoopThread | None, work: Coroutine[Any, Any, Any]) -> LoopThread:
    if thread is None:
        work.close()
        raise ClientClosed("the client is not open: use it inside `with`")
    return thread


async def _soon(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)
