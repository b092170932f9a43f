"""The blocking face of Consumer, for scripts and threads; ``threaded_producer`` has the other one.

Each has one background thread with an event loop, in which the asyncio client lives. Methods
have the same names and arguments and may be called from any thread. Ctrl-C interrupts them. A
client that is still open when the process ends is closed then.
"""

import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from typing import Self, cast, overload

from pymq.client import consumer as _consumer
from pymq.client.consumer import MAX_RECONSUME_TIMES
from pymq.client.handler import check_handler, check_result
from pymq.client.inbox import Delivery, FlowLimits
from pymq.client.loop_thread import Threaded, soon
from pymq.client.network import PLAIN, Network
from pymq.client.thread_inbox import ThreadInbox
from pymq.clock import Clock
from pymq.errors import ConfigurationError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.bodies import ConsumeFromWhere, MessageModel, MessageQueue
from pymq.protocol.message import ReceivedMessage

_log = logging.getLogger(__name__)

#: What was acknowledged counts after this at the latest.
SETTLE_S = 1.0


class Consumer(Threaded[_consumer.Consumer]):
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
        name_servers: str | Sequence[str] | None,
        group: str,
        *,
        from_where: str | datetime | ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        message_model: str = MessageModel.CLUSTERING,
        max_reconsume_times: int = MAX_RECONSUME_TIMES,
        limits: FlowLimits | None = None,
        timeout_s: float = 3.0,
        close_timeout_s: float = 10.0,
        clock: Clock | None = None,
        network: Network = PLAIN,
    ) -> None:
        super().__init__(
            _consumer.Consumer(
                name_servers,
                group,
                from_where=from_where,
                message_model=message_model,
                max_reconsume_times=max_reconsume_times,
                limits=limits,
                timeout_s=timeout_s,
                close_timeout_s=close_timeout_s,
                clock=clock,
                network=network,
            )
        )
        self._inbox = ThreadInbox(self._client._inbox)
        self._tasks = Tasks("blocking consumer")

    # --- subscriptions

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Self:
        """See the asyncio Consumer."""
        subscribe = functools.partial(self._client.subscribe, topic, tags, sql=sql)
        if self._thread is None:
            subscribe()
        else:
            self._thread.call(soon(subscribe))
        return self

    def unsubscribe(self, topic: str) -> None:
        """See the asyncio Consumer."""
        if self._thread is None:
            self._client.unsubscribe(topic)
        else:
            self._thread.call(soon(self._client.unsubscribe, topic))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours at the moment."""
        if self._thread is None:
            return []
        return self._thread.call(soon(lambda: self._client.assignment))

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
        self._start(self._open, "pymq consumer")
        return self

    async def _open(self) -> None:
        await self._client.start()
        self._tasks.repeat("settle", self._inbox.settle, SETTLE_S)

    def close(self) -> None:
        """See the asyncio Consumer. Messages taken and not acknowledged are delivered again."""
        self._stop(self._close)

    async def _close(self) -> None:
        await self._tasks.close()
        self._inbox.settle()
        await self._client.close()

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
        self._client.commit_nowait()

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
                self._call(self._client._failed_messages.handler_failed(failed, error))
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
