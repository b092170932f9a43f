"""Blocking faces of Producer and Consumer, for scripts and threads.

Each has one background thread with an event loop, in which the asyncio client lives. Methods
have the same names and arguments and may be called from any thread. Ctrl-C interrupts them.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
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
#: What was handled counts after this at the latest, when the handling of the next one begins.
SETTLE_S = 1.0


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_closed = False
        # What began before the end is told of it. Reentrant: close() may come from a signal.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:  # other threads wait for them
                self._loop.run_until_complete(asyncio.wait(left))
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
        """Start a coroutine in the loop; its future is cancelled when the thread ends before it.

        Raises:
            ClientClosed: the thread has ended.
        """
        with self._lock:
            if self._is_closed or threading.current_thread() is self._thread:
                work.close()
                raise ClientClosed(
                    "the client is closed, or was called from its own thread; use it inside `with`"
                )
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Stop the loop and wait for the thread. Harmless when done twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Threaded:
    """A client of asyncio whose loop runs in a thread while it is open."""

    def __init__(self) -> None:
        self._thread: LoopThread | None = None

    def _start(self, start: Callable[[], Coroutine[Any, Any, Any]], name: str) -> None:
        if self._thread is not None:
            return
        thread = LoopThread(name)
        try:
            thread.call(start())
        except BaseException:
            thread.close()
            raise
        self._thread = thread

    def _stop(self, close: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.call(close())
            finally:
                thread.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._running(work).call(work)

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return self._running(work).begin(work)

    def _running(self, work: Coroutine[Any, Any, Any]) -> LoopThread:
        if self._thread is None:
            work.close()
        return self._check_open()

    def _check_open(self) -> LoopThread:
        if self._thread is None:
            raise ClientClosed("the client is not open: use it inside `with`")
        return self._thread


class Producer(_Threaded):
    """``pymq.client.producer.Producer``, blocking; takes the same arguments.

    ::

        with Producer("127.0.0.1:9876") as producer:
            producer.send(Message("flights", b"..."))
    """

    def __init__(self, name_servers: str | Sequence[str], **options: Any) -> None:
        super().__init__()
        self._producer = _producer.Producer(name_servers, **options)

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

        Sends that are on their way at the same time may overtake each other.
        """
        return self._begin(self._producer.send(message, queue=queue, sharding_key=sharding_key))

    def send_one_way(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """See the asyncio Producer."""
        self._call(self._producer.send_one_way(message, queue=queue))

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None
    ) -> list[SendResult]:
        """See the asyncio Producer."""
        return self._call(self._producer.send_batch(messages, queue=queue))

    def flush(self) -> None:
        """See the asyncio Producer."""
        self._call(self._producer.flush())

    def queues(self, topic: str) -> list[MessageQueue]:
        """See the asyncio Producer."""
        return self._call(self._producer.queues(topic))


class Consumer(_Threaded):
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
        super().__init__()
        self._consumer = _consumer.Consumer(name_servers, group, **options)
        # Both change threads: one end belongs to the loop, the other to who takes messages.
        self._taken: deque[Delivery] = deque()
        self._finished: deque[Delivery] = deque()
        self._current: Delivery | None = None
        self._settle_at_s = 0.0

    def subscribe(self, topic: str, tags: str = "*") -> Self:
        """See the asyncio Consumer."""
        if self._thread is None:
            self._consumer.subscribe(topic, tags)
        else:
            self._thread.call(_soon(self._consumer.subscribe, topic, tags))
        return self

    def start(self) -> Self:
        """See the asyncio Consumer."""
        self._start(self._consumer.start, "pymq consumer")
        return self

    def close(self) -> None:
        """See the asyncio Consumer. Messages taken and not finished are delivered again."""
        self._stop(self._close)

    async def _close(self) -> None:
        await self._settle()
        await self._consumer.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
        """Return the next message, which finishes the one before; ``None``: none came in time.

        Raises:
            ClientClosed: the consumer is not open.
        """
        self._finish_current()
        self._check_open()
        now_s = time.monotonic()
        if not self._taken:
            self._call(self._take(timeout_s))
        elif now_s >= self._settle_at_s:
            self._begin(self._settle())
            self._settle_at_s = now_s + SETTLE_S
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
                self._call(self._consumer.give_back(failed))

    def _finish_current(self) -> None:
        if self._current is not None:
            self._finished.append(self._current)
            self._current = None

    async def _settle(self) -> None:
        """Let what was handled count, so that it is committed with the next turn."""
        while self._finished:
            self._consumer.inbox.finished(self._finished.popleft())

    async def _take(self, timeout_s: float | None) -> None:
        """Settle what was handled and wait for more; there is none when none comes in time.

        Straight into ``_taken``: a result would be lost when Ctrl-C comes just before it.
        """
        await self._settle()
        inbox = self._consumer.inbox
        try:
            async with asyncio.timeout(timeout_s):
                delivery = await inbox.take()
        except TimeoutError:
            return
        while delivery is not None:
            self._taken.append(delivery)
            delivery = inbox.take_nowait() if len(self._taken) < TAKE_COUNT else None


async def _soon(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)
