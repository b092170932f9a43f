"""The blocking face of Consumer, for scripts and threads; ``producer`` has the other one.

Each has one background thread with an event loop, in which the asyncio client lives. Methods
have the same names and arguments and may be called from any thread. Ctrl-C interrupts them. A
client that is still open when the process ends is closed then.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Self, overload

from pymq.client.consuming import consumer as _consumer
from pymq.client.consuming.consumer import CONCURRENCY
from pymq.client.consuming.thread_inbox import Held, ThreadInbox
from pymq.client.group.inbox import Delivery
from pymq.client.group.rebalance_listener import InThreads
from pymq.client.threaded.blocking_face import blocking, constructor
from pymq.client.threaded.loop_thread import soon
from pymq.client.threaded.threaded_client import Threaded
from pymq.errors import ClientClosed
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage


class Consumer(Threaded[_consumer.Consumer]):
    """``pymq.client.consuming.consumer.Consumer``, blocking; takes the same arguments.

    ::

        consumer = Consumer("127.0.0.1:9876", "billing", from_where="earliest")
        with consumer.subscribe("orders"):
            for message in consumer.messages(timeout_s=10):
                book(message.body)

    Moving on to the next message acknowledges the one before; so does leaving the ``with`` block
    without an exception. Several threads may take messages, each of them its own: a thread
    acknowledges what it has taken itself and nothing else, but any thread may call ``ack``,
    ``retry`` and ``reject`` of a message. What a thread holds when it ends is delivered again, to
    another one; a thread that ends after a message that it has handled calls ``acknowledge``
    before. A message at which a loop was left (``break``, an exception) is
    delivered again when the same thread begins another loop; so is one that Ctrl-C kept a call from
    returning, with the next call.
    """

    @constructor(_consumer.Consumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("rebalance_listener") is not None:
            kwargs["rebalance_listener"] = InThreads(kwargs["rebalance_listener"])
        super().__init__(lambda: _consumer.Consumer(*args, **kwargs))

    @property
    def _inbox(self) -> ThreadInbox:
        return self._client._thread_inbox

    # --- subscriptions

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Self:
        """See the asyncio Consumer."""
        self._set(topic, lambda client: client.subscribe(topic, tags, sql=sql))
        return self

    def unsubscribe(self, topic: str) -> None:
        """See the asyncio Consumer."""
        self._set(topic, lambda client: client.unsubscribe(topic))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours at the moment."""
        return self._in_loop(lambda: self._made.assignment) if self._is_open else []

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """See the asyncio Consumer. Threads keep what they have taken."""
        self._call(soon(self._client.pause, queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """See the asyncio Consumer."""
        self._call(soon(self._client.resume, queues))

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues of ours that are paused."""
        return self._in_loop(lambda: self._made.paused) if self._is_open else []

    @property
    def client_id(self) -> str:
        """Who we are to the brokers and the other members."""
        return self._client.client_id

    @property
    def backlog_count(self) -> int:
        """Messages that were pulled and are not finished."""
        return self._client.backlog_count

    # --- life

    def start(self) -> Self:
        """See the asyncio Consumer."""
        self._start(self._client.start, "pymq consumer")
        return self

    def close(self) -> None:
        """See the asyncio Consumer. Messages taken and not acknowledged are delivered again.

        A plain handler that calls it waits ``close_timeout_s`` for itself; end ``run`` elsewhere.
        """
        self._stop(lambda client: client.close(), self._made._config.close_timeout_s)

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
        if not taken:
            return None
        message = taken[0].message
        self._inbox.held.is_claimed = True  # Nothing after that: no signal's handler runs either.
        return message

    def messages(self, timeout_s: float | None = None) -> Iterator[ReceivedMessage]:
        """Yield messages; end when none comes for ``timeout_s`` seconds, or never."""
        loop = object()
        while taken := self._take(1, timeout_s, loop):
            message = taken[0].message
            self._inbox.held.is_claimed = True
            yield message

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self.messages()

    def acknowledge(self) -> None:
        """What this thread has taken was handled. Moving on to the next message does it, too."""
        if not self._process.is_forked:  # Otherwise the parent has it.
            self._finish(self._inbox.held)

    commit = blocking(_consumer.Consumer.commit)

    def commit_nowait(self) -> None:
        """Tell the brokers how far the queues are, without waiting for an answer."""
        self._call(soon(self._client.commit_nowait))

    @overload
    def run(
        self,
        handler: Callable[[ReceivedMessage], object],
        *,
        concurrency: int = CONCURRENCY,
        batch_size: None = None,
        timeout_s: float | None = None,
    ) -> None: ...

    @overload
    def run(
        self,
        handler: Callable[[list[ReceivedMessage]], object],
        *,
        concurrency: int = CONCURRENCY,
        batch_size: int,
        timeout_s: float | None = None,
    ) -> None: ...

    def run(
        self,
        handler: Callable[[ReceivedMessage], object] | Callable[[list[ReceivedMessage]], object],
        *,
        concurrency: int = CONCURRENCY,
        batch_size: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """See the asyncio Consumer: plain functions are called in threads of their own.

        So they are here, and not in the thread that calls this. Ctrl-C ends it; handlers at work
        finish, see ``close``.
        """
        self._check_open()
        work = self._client.run(
            handler,  # type: ignore[arg-type]  # of messages or lists, as batch_size says
            concurrency=concurrency,
            batch_size=batch_size,  # type: ignore[arg-type]
            timeout_s=timeout_s,
        )
        error = self._call(_error_of(work))
        if error is not None:
            raise error

    def _put_back(self) -> None:
        held = self._inbox.held
        _tell_hooks(held, is_left=True)
        inbox = self._inbox
        self._call(soon(lambda: inbox.put_back(held.release())))

    def _finish(self, held: Held) -> None:
        """What a thread has taken was handled, unless a signal kept it from getting it."""
        if held.is_claimed:
            _tell_hooks(held, is_left=False)
            self._inbox.acknowledge(held)
        elif held.deliveries:
            with contextlib.suppress(ClientClosed):  # Then another member gets it.
                self._put_back()

    def _take(
        self, count_max: int, timeout_s: float | None, loop: object | None = None
    ) -> list[Delivery]:
        """Acknowledge what this thread holds and take the next; none: none came in time."""
        inbox = self._inbox
        held = inbox.held
        if held.loop is loop or held.loop is None or loop is None:
            self._finish(held)
        elif held.deliveries:  # That loop was left: whether they were handled is not known.
            self._put_back()
        held.loop = loop
        self._check_open()
        held.is_claimed = False
        taken = inbox.take_nowait(held, count_max)
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not taken:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not self._call(inbox.fetch(left_s)):
                break
            taken = inbox.take_nowait(held, count_max)  # none: other threads were quicker
        observer = self._client._observer
        if taken and observer is not None:
            seen = observer.begin(taken)
            try:
                seen.before()
            except BaseException:
                self._put_back()
                raise
            held.seen = seen
        return taken


def _tell_hooks(held: Held, *, is_left: bool) -> None:
    seen, held.seen = held.seen, None
    if seen is not None:
        seen.after(None, is_left=is_left)


async def _error_of(work: Coroutine[Any, Any, None]) -> BaseException | None:
    """Return what a coroutine raises: KeyboardInterrupt, raised there, would end the loop."""
    try:
        await work
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return error
    return None
