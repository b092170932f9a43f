"""The blocking face of Batcher: any thread hands messages over, the loop of its producer sends."""

import asyncio
import concurrent.futures
import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable
from typing import Self, TypeAlias

from pymq.client.checks import check_producer
from pymq.client.sending import batcher as _batcher
from pymq.client.sending.gathering import own_error
from pymq.client.sending.placement import Placement, QueueSelector
from pymq.client.sending.producer import Producer as _Asyncio
from pymq.client.sending.receipts import SendReceipt
from pymq.client.sending.send_attempt import MessageSend
from pymq.client.threaded.futures import ThreadFuture
from pymq.client.threaded.handed_over import as_it_is
from pymq.client.threaded.producer import Producer
from pymq.client.threaded.thread_window import ThreadWindow
from pymq.errors import PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message

#: For so long at a time, and so many at a time, messages of threads are taken.
TURN_S = 0.01
TAKEN_COUNT = 100
_Future: TypeAlias = concurrent.futures.Future[SendReceipt]
#: What gives a message to the batcher, in the loop, and who waits for its receipt.
_Handed: TypeAlias = tuple[Callable[[_Future], None], _Future]


class Batcher:
    """``pymq.client.sending.batcher.Batcher``, blocking; takes the same arguments.

    ::

        with blocking.Producer("127.0.0.1:9876") as producer, blocking.Batcher(producer) as batcher:
            futures = [batcher.send_nowait(message) for message in messages]
            receipts = [future.result() for future in futures]
    """

    def __init__(
        self,
        producer: Producer,
        *,
        linger_s: float = _batcher.LINGER_S,
        count_max: int = _batcher.BATCH_COUNT_MAX,
        bytes_max: int = _batcher.BATCH_BYTES_MAX,
        unanswered_max: int = _batcher.UNANSWERED_MAX,
    ) -> None:
        check_producer(producer, Producer, name="pymq.blocking.Producer", other="pymq.Batcher")
        self._face = producer
        self._make = functools.partial(
            _batcher.Batcher,
            linger_s=linger_s,
            count_max=count_max,
            bytes_max=bytes_max,
            unanswered_max=unanswered_max,
        )
        self._unanswered_max = unanswered_max
        self._limit_s = producer._client._config.deadline_s
        self._begin(producer._client)

    def _begin(self, producer: _Asyncio) -> None:
        """Gather for a producer; in a child made by ``fork`` it is another one than before."""
        self._made = made = self._make(producer)
        self._room = ThreadWindow(self._unanswered_max, producer._config.in_flight_bytes_max)
        # The loop takes no lock that threads take: a signal's handler that closes the producer may
        # have interrupted the thread that holds it. The loop would wait for that thread, and the
        # handler for the loop.
        # Handed over together: to wake the loop for each message would cost more than to send it.
        self._handed: deque[_Handed] = deque()
        self._taken_count = 0
        #: Will the loop look at what is handed over?
        self._is_awaited = False
        made._feed_from(self)  # From now on the loop asks us, whatever interrupts this.
        #: Whose messages they are. Last: to other threads it says that the rest is of this process.
        self._producer = producer

    def _check_process(self) -> None:
        producer = self._face._client
        if producer is self._producer:
            return

        def begin() -> None:
            if producer is not self._producer:  # Else another thread was quicker.
                self._begin(producer)

        # A child made by ``fork``, whose threads may all come first.
        self._face._alone(begin)

    @property
    def _client(self) -> _batcher.Batcher:
        self._check_process()
        return self._made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """See the asyncio Batcher."""
        self._face._call(self._close(self._client))

    async def _close(self, client: _batcher.Batcher) -> None:
        await self._take_all()
        await client.close()

    @property
    def unanswered_count(self) -> int:
        """Messages that were taken and have no receipt yet."""
        return self._client.unanswered_count + len(self._handed)

    @property
    def _handed_count(self) -> int:
        """Messages that were handed over and that the loop has not taken yet."""
        return len(self._handed)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> SendReceipt:
        """See the asyncio Batcher."""
        return self.send_nowait(
            message, queue=queue, selector=selector, sharding_key=sharding_key
        ).result()

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> concurrent.futures.Future[SendReceipt]:
        """Take a message as it is now; waits only while too much is unanswered.

        See the asyncio Batcher.

        Raises:
            LocalProtocolError: the message cannot be sent; the text names the limit. With hooks,
                which may change it before, the future has the error.
            TooManyPending: there was no room until the deadline; nothing was sent.
            ClientClosed: batcher or producer are not open; or it is used for the first time in a
                child made by ``fork``, by a signal's handler that has interrupted just that.
        """
        self._face._check_caller()
        self._check_process()
        where = self._made._place(message, queue, selector, sharding_key)
        take, size = self._encode(message, where)
        room, ticket = self._room, object()
        # Made before it is counted: what is counted has a future that will be done.
        future: ThreadFuture[SendReceipt] = ThreadFuture()
        future.add_done_callback(lambda _: room.end(ticket))
        try:
            room.wait_begin(ticket, size, self._limit_s, self._face._check_open)
            self._handed.append((take, future))
            if not self._is_awaited:
                self._wake()
        except BaseException:
            room.end(ticket)
            raise
        return future

    def _wake(self) -> None:
        """Have the loop look at what is handed over."""
        self._is_awaited = True
        try:
            self._face._soon(self._take)
        except PymqError as error:
            self._refuse(error)
            raise
        except BaseException:  # of a signal's handler
            self._is_awaited = False  # Who comes next wakes the loop, if this does not.
            with contextlib.suppress(PymqError):
                self._face._soon(self._take)
            raise

    def _encode(
        self, message: Message, where: Placement | None
    ) -> tuple[Callable[[_Future], None], int]:
        """Return what gives a message to the batcher as it is now, and its bytes."""
        made, maker = self._made, self._face._thread_maker
        if maker.is_observed:
            message = as_it_is(message)
            size = len(message.body) if isinstance(message.body, bytes) else 0
            return functools.partial(made._take_message, message, where), size
        if made._goes_alone(message):
            send: MessageSend = maker.prepare(message, where, None)
            return functools.partial(made._take_alone, send), send.size_bytes
        part, message_id = maker.encode_in_batch(message, where)
        return functools.partial(made._take, message.topic, part, message_id, where), len(part)

    def flush(self) -> None:
        """See the asyncio Batcher."""
        self._face._call(self._client.flush())

    def _swap(self, count_max: int) -> list[_Handed]:
        """Return what is handed over, or some of it; none: who hands something over wakes us."""
        handed = self._handed
        if not handed:
            self._is_awaited = False  # before the next look, so that nothing is missed
        some: list[_Handed] = []
        with contextlib.suppress(IndexError):  # Who is refused takes what is his, and more, back.
            some.extend(handed.popleft() for _ in range(min(len(handed), count_max)))
        self._taken_count += len(some)
        return some

    def _take(self) -> None:
        """Give to the batcher what threads have handed over, and more in the loop's next turn.

        In the loop. A thread that does nothing else can hand over more in a second than the loop
        takes in one: heartbeats and answers must not wait for all of it.
        """
        until_s = time.monotonic() + TURN_S
        while some := self._swap(TAKEN_COUNT):
            self._give(some)
            if time.monotonic() >= until_s:
                asyncio.get_running_loop().call_soon(self._take)
                return

    def _give(self, some: list[_Handed]) -> None:
        at = 0
        try:
            for take, future in some:
                at += 1
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    take(future)
                except Exception as error:  # of a hook, for instance: for who sent the message
                    future.set_exception(error)
        except BaseException:  # sys.exit() there: the end of the loop refuses what is left
            self._handed.extendleft(reversed(some[at - 1 :]))
            raise

    async def _take_all(self) -> None:
        """Wait until the batcher has everything that was handed over before. In the loop."""
        until_count = self._taken_count + len(self._handed)
        if self._handed:
            self._take()  # Perhaps a signal interrupted who has handed it over and would wake us.
        while self._handed and self._taken_count < until_count:
            await asyncio.sleep(0)

    def _refuse(self, error: PymqError) -> None:
        """Fail what is handed over, each with an error like this one. In any thread."""
        # First: who looks at it after that wakes the loop himself, what was handed over before that
        # is refused here.
        self._is_awaited = False
        with contextlib.suppress(IndexError):  # There is nothing left.
            while True:
                _, future = self._handed.popleft()
                if future.done() and not future.cancelled():
                    continue  # It had come into a batch, which knew more of it.
                if future.running() or future.set_running_or_notify_cancel():
                    future.set_exception(own_error(error))
