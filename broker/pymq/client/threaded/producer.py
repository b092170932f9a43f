"""The blocking face of Producer, for scripts and threads."""

import concurrent.futures
from collections.abc import Iterable
from typing import Any, Self

from pymq.client.sending import producer as _producer
from pymq.client.sending.placement import QueueSelector, placement
from pymq.client.sending.producer_config import MOMENT_S
from pymq.client.sending.receipts import SendReceipt
from pymq.client.sending.send_attempt import MessageSend
from pymq.client.sending.send_encoding import batch_messages
from pymq.client.sending.send_maker import SendMaker
from pymq.client.threaded.blocking_face import blocking, constructor
from pymq.client.threaded.calls import CallFuture
from pymq.client.threaded.handed_over import as_it_is
from pymq.client.threaded.loop_thread import soon
from pymq.client.threaded.thread_window import ThreadWindow
from pymq.client.threaded.threaded_client import Threaded
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message

_Asyncio = _producer.Producer


class Producer(Threaded[_producer.Producer]):
    """``pymq.client.sending.producer.Producer``, blocking; takes the same arguments.

    ::

        with Producer("127.0.0.1:9876") as producer:
            producer.send(Message("flights", b"..."))
    """

    @constructor(_producer.Producer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: _producer.Producer(*args, **kwargs))
        #: A client, and what encodes its messages in threads.
        self._maker: tuple[_Asyncio, SendMaker] | None = None
        self._renewed()

    def _renewed(self) -> None:
        config = self._made._config
        self._room = ThreadWindow(config.in_flight_max, config.in_flight_bytes_max)

    # --- life

    def start(self) -> Self:
        """See the asyncio Producer."""
        self._start(self._client.start, "pymq producer")
        return self

    def close(self, timeout_s: float = 10.0) -> None:
        """See the asyncio Producer."""
        self._stop(lambda client: client.close(timeout_s), timeout_s)

    def _thread_ended(self, client: _Asyncio) -> None:
        for batcher in client._parts.batchers:
            batcher._end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def client_id(self) -> str:
        """Who we are to the brokers."""
        return self._client.client_id

    @property
    def in_flight_count(self) -> int:
        """Sends without an answer yet."""
        return self._client.in_flight_count

    # --- sending

    send = blocking(_Asyncio.send)
    send_one_way = blocking(_Asyncio.send_one_way)
    send_columns = blocking(_Asyncio.send_columns)
    recall = blocking(_Asyncio.recall)
    flush = blocking(_Asyncio.flush)
    queues = blocking(_Asyncio.queues)
    request = blocking(_Asyncio.request)
    reply = blocking(_Asyncio.reply)

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
        deadline_s: float | None = None,
    ) -> concurrent.futures.Future[SendReceipt]:
        """Begin to store a message; waits only while too much is unanswered (``in_flight_max``).

        It is sent as it is now, whatever becomes of the object. Sends that are in flight at the
        same time may overtake each other.

        Raises:
            LocalProtocolError: the message cannot be sent; the text names the limit. With hooks,
                which may change it before, the future has the error.
            TooManyPending: there was no room until the deadline; nothing was sent.
            ClientClosed: the producer is not open.
        """
        self._check_caller()
        maker = self._thread_maker
        limit_s = maker.limit_s(deadline_s)
        where = placement(queue, selector, sharding_key)
        send: MessageSend | None = None
        if maker.is_observed:
            message = as_it_is(message)
            size = len(message.body) if isinstance(message.body, bytes) else 0
        else:
            send = maker.prepare(message, where, limit_s)
            size = send.size_bytes
        room, ticket = self._room, object()
        # Made before the send is counted: what is counted has a future that will be done.
        future: CallFuture[SendReceipt] = CallFuture()
        future.add_done_callback(lambda _: room.end(ticket))
        try:
            waited_s = room.wait_begin(ticket, size, limit_s, self._check_open)
            if waited_s:
                limit_s = max(limit_s - waited_s, MOMENT_S)
            if send is None:
                work = self._client.send(
                    message,
                    queue=queue,
                    selector=selector,
                    sharding_key=sharding_key,
                    deadline_s=limit_s,
                )
            else:
                work = _send(self._client, send, limit_s)
            return self._begin(work, future)
        except BaseException:
            room.end(ticket)
            raise

    @property
    def _thread_maker(self) -> SendMaker:
        """Encodes messages in the thread that hands them over."""
        client, known = self._client, self._maker
        if known is None or known[0] is not client:  # in a child it is another one
            self._maker = known = client, self._call(soon(client._maker.for_threads))
        return known[1]

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        deadline_s: float | None = None,
    ) -> list[SendReceipt]:
        """See the asyncio Producer."""
        # Here, not in the loop: making them may take a while, or use this producer.
        several = batch_messages(messages)
        return self._call(
            self._client.send_batch(
                several, queue=queue, selector=selector, deadline_s=deadline_s
            )
        )


async def _send(client: _Asyncio, send: MessageSend, limit_s: float) -> SendReceipt:
    """Begin what a thread has made; its time runs from now on."""
    client._pool.check_open()
    send.restart(client._pool.loop.time(), limit_s)
    await client._window.wait_room(client._pool.check_open, send.deadline_s)
    return await client._sender.begin(send)
