"""The queues that a pull consumer reads: they can be moved, and paused before they are read."""

import asyncio
from collections.abc import Callable, Collection, Iterable

from pymq.client.cluster.pool import ClientPool
from pymq.client.group.broker_offsets import BrokerOffsets
from pymq.client.group.held_queues import HeldQueues
from pymq.client.group.queue_reader import QueueReader
from pymq.client.group.rebalance_listener import ListenerCalls
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.told_offsets import ToldOffsets
from pymq.client.pulling.pull_buffer import PullBuffer
from pymq.client.pulling.pull_reader import PullReader
from pymq.protocol.bodies import MessageQueue, Subscription


class PullQueues(HeldQueues):
    """Readers of a pull consumer by queue. For one event loop.

    Args:
        group, pool, wake: as for ``HeldQueues``.
        buffer: gets what is pulled.
        auto_commit: whether readers commit without being told.
        is_divided: do the members of the group divide the queues?
    """

    def __init__(
        self,
        group: str,
        *,
        pool: ClientPool,
        buffer: PullBuffer,
        auto_commit: bool,
        is_divided: bool,
        wake: Callable[[], None],
    ) -> None:
        kept = BrokerOffsets if auto_commit else ToldOffsets
        super().__init__(
            group,
            pool=pool,
            inbox=buffer,
            offsets=lambda queue: kept(group, queue, pool),
            on_undecodable=lambda _: None,
            listener=ListenerCalls(group, None),
            wake=wake,
        )
        self._buffer = buffer
        self._is_divided = is_divided
        self._sought: dict[MessageQueue, int] = {}
        self._paused: set[MessageQueue] = set()
        self._begun = asyncio.Event()

    def reader(self, queue: MessageQueue) -> PullReader | None:
        """Return what reads a queue, if it is read."""
        reader = self.readers.get(queue)
        assert reader is None or isinstance(reader, PullReader)
        return reader

    def pull_readers(self) -> list[PullReader]:
        """Return what reads our queues."""
        return [one for one in self.readers.values() if isinstance(one, PullReader)]

    def move(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue from another offset on."""
        reader = self.reader(queue)
        if reader is None:  # It could not be read yet.
            self._sought[queue] = offset
        else:
            reader.move(offset)

    def pause(self, queues: Iterable[MessageQueue] | None) -> None:
        """Hand out nothing of queues, as long as they are ours; they may not be read yet."""
        wanted = list(self.readers if queues is None else queues)
        self._paused.update(wanted)
        super().pause([queue for queue in wanted if queue in self.readers])

    def resume(self, queues: Iterable[MessageQueue] | None) -> None:
        """Go on after ``pause``."""
        wanted = list(self.readers if queues is None else queues)
        self._paused.difference_update(wanted)
        super().resume([queue for queue in wanted if queue in self.readers])

    async def wait_position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue, once it is known."""
        while True:
            reader = self.reader(queue)
            if reader is not None and reader.pulled is not None:
                return reader.pulled.polled_offset
            self._begun.clear()
            await self._begun.wait()

    async def give_up(self, queues: Collection[MessageQueue]) -> None:
        """Stop reading queues and commit them."""
        self._paused.difference_update(queues)
        await super().give_up(queues)

    def _new_reader(
        self, queue: MessageQueue, subscription: Subscription, start: StartPolicy
    ) -> QueueReader:
        reader = PullReader(
            queue,
            self._reader_parts,
            subscription=subscription,
            start=start,
            left_at=self._left_at.get(queue),
            buffer=self._buffer,
            begin_at=self._sought.pop(queue, None),
            on_begin=self._begun.set,
            queue_count=self.readers.__len__,
            is_divided=self._is_divided,
        )
        if queue in self._paused:
            reader.pause()
        return reader
