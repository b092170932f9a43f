"""Reads one queue of a pull consumer into its buffer; can be moved, and commits when it is told."""

import asyncio
from collections.abc import Callable

from pymq.client import operations
from pymq.client.group.process_queue import ProcessQueue
from pymq.client.group.queue_reader import QueueReader
from pymq.client.group.reader_parts import ReaderParts
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.subscriptions import wants_the_same
from pymq.client.operations import PullResult
from pymq.client.pulling.pull_buffer import PullBuffer
from pymq.client.pulling.pulled_queue import PulledQueue
from pymq.client.ranges import PullChunk
from pymq.errors import CommitFailed, RemoteProtocolError
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import MessageQueue, Subscription
from pymq.protocol.record import decode_records

#: Most messages that a pymq broker is asked for at a time; others give 32.
PULL_COUNT_MAX = 32_768
#: RocketMQ brokers handle commits on many threads: one before may be handled later.
COMMIT_TRIES = 3


class PullReader(QueueReader):
    """Pulls one queue into a buffer.

    Args:
        queue, parts, subscription, start, left_at: as for ``QueueReader``.
        buffer: gets what is pulled.
        begin_at: where to begin, whatever was committed.
        on_begin: called when it is known where to begin.
        queue_count: returns how many queues are read.
        is_divided: is the queue ours because no other member of the group has it?
    """

    def __init__(
        self,
        queue: MessageQueue,
        parts: ReaderParts,
        *,
        subscription: Subscription,
        start: StartPolicy,
        left_at: int | None,
        buffer: PullBuffer,
        begin_at: int | None,
        on_begin: Callable[[], None],
        queue_count: Callable[[], int],
        is_divided: bool,
    ) -> None:
        super().__init__(queue, parts, subscription=subscription, start=start, left_at=left_at)
        self._count_max = PULL_COUNT_MAX
        self._buffer = buffer
        self._begin_at = begin_at
        self._on_begin = on_begin
        self._queue_count = queue_count
        self._is_divided = is_divided
        #: Is it where its program has sent it, and may not be committed yet?
        self._is_chosen = begin_at is not None
        #: Over which connection it pulled when that was committed, without an answer; ``None``:
        #: it was not, or a pull was begun since.
        self._told_over: AsyncChannel | None = None

    @property
    def pulled(self) -> PulledQueue | None:
        """What is there of the queue; ``None`` until it is known where to begin."""
        queue = self.process_queue
        assert queue is None or isinstance(queue, PulledQueue)
        return queue

    async def run(self) -> None:
        """Read until cancelled; from another place on whenever it is moved.

        Raises:
            PymqError: it cannot be found out where to begin; nothing was assumed.
        """
        while True:
            try:
                async with asyncio.timeout(None) as self._step_scope:
                    if self.process_queue is None:
                        offset = self._begin_at
                        if offset is None:
                            offset = await self._first_offset()
                            if self._begin_at is not None:  # moved meanwhile
                                offset = self._begin_at
                        self._begin(offset)
                        self._on_begin()
                    assert self.process_queue is not None
                    await self._pace.pause(await self._step(self.process_queue))
            except TimeoutError:
                continue  # It was moved, or is in doubt.
            finally:
                self._step_scope = None

    def subscribe(self, subscription: Subscription) -> None:
        """Want something else of the queue, from the next message that was not polled on."""
        before, self.subscription = self.subscription, subscription
        pulled = self.pulled
        if pulled is None or wants_the_same(before, subscription):
            return
        self._pull_again(pulled, pulled.position)

    def take_again(self) -> None:
        """Go back to what was taken and has not reached the caller, if there is something."""
        pulled = self.pulled
        if pulled is not None and pulled.polled_offset != pulled.position:
            self._pull_again(pulled, pulled.polled_offset)

    def _pull_again(self, pulled: PulledQueue, offset: int) -> None:
        self._go_to(offset)
        again = self.pulled
        assert again is not None
        again.polled_offset = pulled.polled_offset
        again.consumed_offset = pulled.consumed_offset

    def move(self, offset: int) -> None:
        """Go on from another offset; what was pulled and not polled is dropped."""
        self._is_chosen, self._told_over = True, None
        self._go_to(offset)

    def _go_to(self, offset: int) -> None:
        self._begin_at = offset
        if self.process_queue is not None:
            self._buffer.drop(self.process_queue)
            self._begin(offset)
        self._interrupt()

    # --- commits

    @property
    def is_in_doubt(self) -> bool:
        """May another member have read on?

        Not where the program has sent us: the group may be further because it was so before.
        """
        return self._is_divided and not self._is_chosen and super().is_in_doubt

    def commit_nowait(self) -> bool:
        """Commit without waiting, if need be; return whether the broker has been told all."""
        is_told = super().commit_nowait()
        self._told_over = self._pulled_over if is_told else None
        return is_told

    async def commit_offset(self, offset: int) -> None:
        """Commit an offset, and see that the broker has taken it.

        Raises:
            PymqError: there is no answer, or the broker refused.
            CommitFailed: it did not refuse, and keeps another offset.
        """
        if self.pulled is not None:
            self.pulled.consumed_offset = offset
        channel = await self._pool.read_channel(self.queue)
        committed: int | None = None
        for _ in range(COMMIT_TRIES):
            update = operations.update_offset(self._group, self.queue, offset)
            await self._pool.ask(channel, update)
            query = operations.query_offset(self._group, self.queue)
            committed = await self._pool.ask(channel, query)
            if committed == offset:
                self._is_chosen = False
                return
        raise CommitFailed(
            f"{self._named}: {channel.peer} accepted the commit of {offset} and keeps {committed}; "
            "does another client commit for this group, or was the group's offset reset?"
        )

    # --- pulls

    def _begin(self, offset: int) -> None:
        self.process_queue = PulledQueue(self.queue, offset, self._pool.network)
        self.process_queue.is_paused = self.is_paused

    async def _wait_room(self, process_queue: ProcessQueue) -> int:
        return await self._buffer.wait_room(process_queue)  # Who polls decides on the pace.

    async def _pull(self, process_queue: ProcessQueue, room: int) -> PullResult:
        # One that fails says nothing of the commit, which may have been lost with it.
        told_over, self._told_over = self._told_over, None
        result = await super()._pull(process_queue, room)
        if told_over is not None and not told_over.is_open:
            self.offsets.doubt()  # The commit may have been lost with it.
        # Else it was sent before the pull, and over its connection unless a slave is read. It is
        # not of where we are if that was chosen while the pull was under way.
        elif told_over is not None and not process_queue.dropped:
            self._is_chosen = False
        return result

    def _pull_bytes(self) -> int:
        return self._buffer.pull_bytes(self._queue_count())

    async def _move(self, process_queue: ProcessQueue, result: PullResult) -> None:
        if not process_queue.dropped:
            await super()._move(process_queue, result)

    def _take(self, process_queue: ProcessQueue, result: PullResult) -> None:
        if process_queue.dropped:
            return  # It was moved while the answer came.
        if result.next_offset < process_queue.next_offset:
            raise RemoteProtocolError(
                f"{self._named}: a pull at {process_queue.next_offset} answered that the next one "
                f"begins at {result.next_offset}"
            )
        assert isinstance(process_queue, PulledQueue)
        process_queue.tags = self.subscription.tags
        for record in decode_records(result.body):
            self._newest_ms = record.store_timestamp  # Of the first: the others are not decoded.
            break
        self._buffer.keep(
            process_queue,
            PullChunk(memoryview(result.body), process_queue.next_offset, result.next_offset),
        )
