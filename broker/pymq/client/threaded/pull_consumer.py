"""The blocking face of PullConsumer, for scripts and threads."""

from collections.abc import Iterable, Iterator
from typing import Any, Self

from pymq.client.pulling import pull_consumer as _pull_consumer
from pymq.client.pulling.column_batch import ColumnBatch
from pymq.client.pulling.pull_consumer import MESSAGES_MAX
from pymq.client.threaded.blocking_face import blocking, constructor, in_loop
from pymq.client.threaded.threaded_client import Threaded
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage

_Asyncio = _pull_consumer.PullConsumer


class PullConsumer(Threaded[_pull_consumer.PullConsumer]):
    """``pymq.client.pulling.pull_consumer.PullConsumer``, blocking; takes the same arguments.

    ::

        with PullConsumer("127.0.0.1:9876", "billing").subscribe("orders") as consumer:
            while messages := consumer.poll(timeout_s=30):
                for message in messages:
                    book(message.body)
                consumer.commit()

    Any thread may call it, one at a time: a poll of another thread counts what this one holds as
    consumed. Ctrl-C loses nothing: what it keeps a poll from returning comes with the next one.
    """

    @constructor(_pull_consumer.PullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: _pull_consumer.PullConsumer(*args, **kwargs))

    # --- which queues

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Self:
        """See the asyncio PullConsumer."""
        self._set(topic, lambda client: client.subscribe(topic, tags, sql=sql))
        return self

    def assign(
        self, queues: Iterable[MessageQueue], tags: str = "*", *, sql: str | None = None
    ) -> Self:
        """See the asyncio PullConsumer."""
        wanted = list(queues)
        self._set(None, lambda client: client.assign(wanted, tags, sql=sql))
        return self

    def unsubscribe(self, topic: str) -> None:
        """See the asyncio PullConsumer."""
        self._set(topic, lambda client: client.unsubscribe(topic))

    queues = blocking(_Asyncio.queues)
    pause = in_loop(_Asyncio.pause)
    resume = in_loop(_Asyncio.resume)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._client.group

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours at the moment."""
        return self._in_loop(lambda: self._made.assignment)

    @property
    def client_id(self) -> str:
        """Who we are to the brokers and the other members."""
        return self._client.client_id

    # --- life

    def start(self) -> Self:
        """See the asyncio PullConsumer."""
        self._start(self._client.start, "pymq pull consumer")
        return self

    def close(self) -> None:
        """See the asyncio PullConsumer."""
        self._stop(lambda client: client.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._is_open and not self._process.is_forked:
            self._in_loop(self._made._consume_polled)
        self.close()

    # --- messages and offsets

    def poll(
        self, max_count: int = MESSAGES_MAX, timeout_s: float | None = 1.0
    ) -> list[ReceivedMessage]:
        """See the asyncio PullConsumer."""
        client = self._client
        taken = self._call(client._take(max_count, timeout_s))
        # Not in the loop: an exception of a signal may come before the result. No call, after which
        # one may come.
        client._is_claimed = True
        return taken

    def batches(self, *, timeout_s: float | None = None) -> Iterator[ColumnBatch]:
        """See the asyncio PullConsumer."""
        self._in_loop(lambda: self._made._check_batches(timeout_s))

        def batches() -> Iterator[ColumnBatch]:
            client = self._client
            while (batch := self._call(client._take_batch(timeout_s))) is not None:
                client._is_claimed = True
                yield batch

        return batches()

    seek = blocking(_Asyncio.seek)
    position = blocking(_Asyncio.position)
    commit = blocking(_Asyncio.commit)
    committed = blocking(_Asyncio.committed)
    begin_offsets = blocking(_Asyncio.begin_offsets)
    end_offsets = blocking(_Asyncio.end_offsets)
    offsets_for_time = blocking(_Asyncio.offsets_for_time)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while messages := self.poll(1, None):
            yield messages[0]
