"""PullConsumer: reads queues at the pace of the caller, who asks for messages and commits.

``PullRebalance`` knows which queues are ours, a ``PullReader`` for each pulls ahead into the
``PullBuffer``, and polls take messages, or whole chunks of them, from there.

Source: RocketMQ DefaultLitePullConsumerImpl, and MQPullConsumer for what is asked of brokers.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Self

from pymq.client.checks import check_count
from pymq.client.pulling.column_batch import ColumnBatch, check_columns, column_batch
from pymq.client.pulling.pull_offsets import PullOffsets
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage

MESSAGES_MAX = 32


class PullConsumer(PullOffsets):
    """Reads queues when it is asked to. For one event loop, and in it for one task at a time.

    ::

        async with PullConsumer("127.0.0.1:9876", "billing").subscribe("orders") as consumer:
            while messages := await consumer.poll(timeout_s=30):
                for message in messages:
                    await book(message.body)
                await consumer.commit()

    ``subscribe`` takes a share of the topic's queues, which the members of the group divide among
    them; ``assign`` takes the queues that it is given, and divides nothing.

    **What counts as consumed.** With ``auto_commit`` what a poll has returned counts as consumed
    when the next one begins, as with Java's lite pull consumer; so does leaving the ``async with``
    block without an exception. It is committed within a second, when a queue goes to another
    member, and by ``close``. Without ``auto_commit`` nothing is ever committed but by ``commit``,
    and a group without a commit begins each time as ``from_where`` says. Either way a message is
    delivered at least once: what was polled and not committed comes again, to whoever has the
    queue next.

    Args:
        name_servers: ``host:port``, several separated by ``;`` or ``,`` or as a list.
        group: consumer group, whose offsets are committed.
        from_where: where to begin in queues for which the group has no committed offset:
            ``"latest"``, ``"earliest"``, a ``datetime`` (local time, if it has no zone; a
            ``numpy.datetime64`` is UTC), or a ``ConsumeFromWhere``.
        auto_commit: see above.
        limits: how much is pulled ahead and not polled.
        timeout_s: for one request.
        clock: for subscriptions' versions.
        network: where brokers are reached, and who we say we are.

    Raises:
        ConfigurationError: an argument is wrong.
        LocalProtocolError: ``group`` is not a legal name.
    """

    # --- messages

    async def poll(
        self, max_count: int = MESSAGES_MAX, timeout_s: float | None = 1.0
    ) -> list[ReceivedMessage]:
        """Return the next messages, of one queue after the other; those of a queue in their order.

        Args:
            max_count: most messages.
            timeout_s: how long to wait for the first one; 0: not at all; ``None``: for ever.

        Returns:
            An empty list, if none came in time, or the consumer was closed meanwhile.

        Raises:
            RemoteProtocolError: the next message cannot be decompressed; the text says where it
                is and how to pass it over. The other queues go on with the next poll.
            ConfigurationError: a package is missing to decompress it; or an argument is wrong.
            ClientClosed: the consumer is not open.
        """
        taken = await self._take(max_count, timeout_s)
        self._claim()
        return taken

    async def _take(self, max_count: int, timeout_s: float | None) -> list[ReceivedMessage]:
        """``poll``, whose caller claims the messages when he has got them."""
        self._check_open()
        check_count("max_count", max_count, 1)
        _check_wait(timeout_s)
        self._begin_poll()
        taken = await self._buffer.wait_messages(max_count, timeout_s)
        self._is_claimed = not taken
        return taken

    def __aiter__(self) -> Self:
        self._check_open()
        return self

    async def __anext__(self) -> ReceivedMessage:
        if self._is_closing:
            raise StopAsyncIteration
        for message in await self.poll(1, None):
            return message
        raise StopAsyncIteration

    def batches(self, *, timeout_s: float | None = None) -> AsyncIterator[ColumnBatch]:
        """Yield messages as columns; a batch has messages of one queue.

        Asking for the next batch is a poll: with ``auto_commit`` the one before is consumed then.
        Polls and batches may alternate.

        Args:
            timeout_s: end when no messages come for this long; ``None``: when it is closed.

        Raises:
            ConfigurationError: numpy is not installed; the text says what to install.
            ClientClosed: the consumer is not open.
            CorruptRecord: while iterating: what a broker sent does not consist of records. The
                next poll, or iteration, asks for it again.
        """
        self._check_batches(timeout_s)

        async def batches() -> AsyncIterator[ColumnBatch]:
            while (batch := await self._take_batch(timeout_s)) is not None:
                self._claim()
                yield batch

        return batches()

    def _check_batches(self, timeout_s: float | None) -> None:
        """Accept a call of ``batches``. Raises what that does."""
        self._check_open()
        _check_wait(timeout_s)
        check_columns()

    async def _take_batch(self, timeout_s: float | None) -> ColumnBatch | None:
        """Return the next batch, which the caller claims when he has got it; ``None``: the end."""
        while not self._is_closing:
            self._check_open()
            self._begin_poll()
            taken = await self._buffer.wait_chunk(timeout_s)
            if taken is None:
                break
            self._is_claimed = False
            queue, chunk = taken
            batch = column_batch(queue, chunk, self._tags_of(queue.topic))
            if len(batch):
                return batch
            self._claim()  # It has nothing that anybody wants.
        return None

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return nothing of some queues until ``resume``; they stay ours.

        Raises:
            ConfigurationError: a queue is not ours.
        """
        held = self._held()
        held.pause(self._ours(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with queues that were paused. Raises what ``pause`` does."""
        held = self._held()
        held.resume(self._ours(queues))

    def _tags_of(self, topic: str) -> frozenset[str]:
        subscription = self._subscriptions.get(topic)
        return subscription.tags if subscription is not None else frozenset()


def _check_wait(timeout_s: object) -> None:
    """Accept a time to wait.

    Raises:
        ConfigurationError: it is not one.
    """
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (is_number and timeout_s >= 0):  # type: ignore[operator]
        raise ConfigurationError(f"timeout_s={timeout_s!r:.80}: expected seconds, or None")
