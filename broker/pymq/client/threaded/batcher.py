"""The blocking face of Batcher: any thread hands messages over, the loop of its producer sends."""

import asyncio
import concurrent.futures
import functools
import threading
from typing import Any, Self, TypeAlias

from pymq.client.sending import batcher as _batcher
from pymq.client.sending.placement import QueueSelector
from pymq.client.sending.producer import Producer as _Asyncio
from pymq.client.sending.receipts import SendReceipt
from pymq.client.threaded.producer import Producer
from pymq.client.threaded.thread_window import ThreadWindow
from pymq.errors import ClientClosed, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message

_Future: TypeAlias = concurrent.futures.Future[SendReceipt]


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
        self._producer = producer
        self._made = made = self._make(producer)
        made._unlimited()
        self._room = ThreadWindow(self._unanswered_max, producer._config.in_flight_bytes_max)
        self._lock = threading.Lock()
        # Handed over together: to wake the loop for each message would cost more than to send it.
        self._handed: list[tuple[Message, dict[str, Any], _Future]] = []

    def _check_process(self) -> None:
        producer = self._face._client
        if producer is not self._producer:
            self._begin(producer)

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
        self._take()
        await client.close()

    @property
    def unanswered_count(self) -> int:
        """Messages that were taken and have no receipt yet."""
        return self._client.unanswered_count + len(self._handed)

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
        """Take a message; waits only while too much is unanswered. See the asyncio Batcher.

        Raises:
            TooManyPending: there was no room until the deadline; nothing was sent.
            ClientClosed: the producer is not open.
        """
        self._face._check_caller()
        body = message.body if isinstance(message, Message) else b""
        size = len(body) if isinstance(body, bytes | bytearray) else 0
        self._check_process()
        room = self._room
        room.wait_begin(size, self._limit_s, self._face._check_open)
        future: _Future = concurrent.futures.Future()
        future.add_done_callback(lambda _: room.end(size))
        where = {"queue": queue, "selector": selector, "sharding_key": sharding_key}
        with self._lock:
            is_first = not self._handed
            self._handed.append((message, where, future))
        if is_first:
            try:
                self._face._soon(self._take)
            except PymqError as error:
                self._refuse(error)
                raise
        return future

    def flush(self) -> None:
        """See the asyncio Batcher."""
        self._face._call(self._flush(self._client))

    async def _flush(self, client: _batcher.Batcher) -> None:
        self._take()
        await client.flush()

    def _swap(self) -> list[tuple[Message, dict[str, Any], _Future]]:
        with self._lock:
            handed, self._handed = self._handed, []
        return handed

    def _take(self) -> None:
        """Give to the batcher what threads have handed over. In the loop."""
        for message, where, future in self._swap():
            if not future.set_running_or_notify_cancel():
                continue
            try:
                inner = self._made.send_nowait(message, **where)
            except Exception as error:  # of a hook, for instance: it is for who sent the message
                future.set_exception(error)
            else:
                inner.add_done_callback(functools.partial(_copy, future=future))

    def _refuse(self, error: PymqError) -> None:
        for _, _, future in self._swap():
            future.set_exception(error)


def _copy(inner: asyncio.Future[SendReceipt], future: _Future) -> None:
    """Hand the outcome of a future of the loop to one of a thread."""
    if inner.cancelled():
        future.set_exception(ClientClosed("the producer was closed meanwhile", sent=True))
    elif (error := inner.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(inner.result())
