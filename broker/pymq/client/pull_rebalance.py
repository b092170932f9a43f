"""The queues of a pull consumer: its share of a group's, or those that it was told to read."""

import asyncio
from collections.abc import Iterable, Mapping

from pymq.client.pool import ClientPool
from pymq.client.pull_buffer import PullBuffer
from pymq.client.pull_reader import PullReader
from pymq.client.queue_reader import QueueReader
from pymq.client.rebalance import Rebalance
from pymq.client.start_policy import StartPolicy
from pymq.protocol.bodies import MessageQueue, Subscription


class PullRebalance(Rebalance):
    """The share of one member of a group. For one event loop.

    Args:
        group, subscriptions, start, pool: as for ``Rebalance``.
        buffer: gets what is pulled.
        auto_commit: whether readers commit without being told.
    """

    def __init__(
        self,
        group: str,
        subscriptions: Mapping[str, Subscription],
        *,
        start: StartPolicy,
        pool: ClientPool,
        buffer: PullBuffer,
        auto_commit: bool,
    ) -> None:
        super().__init__(
            group,
            subscriptions,
            start=start,
            pool=pool,
            inbox=buffer,
            on_undecodable=lambda _: None,
        )
        self._buffer = buffer
        self._auto_commit = auto_commit
        self._sought: dict[MessageQueue, int] = {}
        self._paused: set[MessageQueue] = set()
        self._begun = asyncio.Event()

    @property
    def assignment(self) -> set[MessageQueue]:
        """The queues that are ours."""
        return set(self.readers)

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

    def pause(self, queue: MessageQueue) -> None:
        """Hand out nothing of a queue, as long as it is ours."""
        self._paused.add(queue)
        if reader := self.reader(queue):
            reader.pause()

    def resume(self, queue: MessageQueue) -> None:
        """Go on after ``pause``."""
        self._paused.discard(queue)
        if reader := self.reader(queue):
            reader.resume()

    async def wait_position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue, once it is known."""
        while True:
            reader = self.reader(queue)
            if reader is not None and reader.pulled is not None:
                return reader.pulled.position
            self._begun.clear()
            await self._begun.wait()

    def _new_reader(
        self, queue: MessageQueue, subscription: Subscription, start: StartPolicy
    ) -> QueueReader:
        return PullReader(
            queue,
            group=self._group,
            subscription=subscription,
            start=start,
            left_at=self._left_at.get(queue),
            pool=self._pool,
            troubles=self._troubles,
            buffer=self._buffer,
            begin=self._sought.pop(queue, None),
            is_paused=queue in self._paused,
            auto_commit=self._auto_commit,
            on_begin=self._begun.set,
            queue_count=self.readers.__len__,
        )

    async def _give_up(self, queue: MessageQueue) -> None:
        self._paused.discard(queue)
        await super()._give_up(queue)


class AssignedQueues(PullRebalance):
    """Queues that nobody divides: the consumer was told which. Takes the same arguments."""

    #: What was assigned, with or without a reader at the moment.
    _assigned: frozenset[MessageQueue] = frozenset()

    @property
    def assignment(self) -> set[MessageQueue]:
        """The queues that were assigned."""
        return set(self._assigned)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues and no others; the owner has subscribed to their topics."""
        self._assigned = frozenset(queues)
        self.subscriptions_changed()

    async def rebalance(self) -> bool:
        """Read what is assigned; return whether all of it has a route."""
        settled = True
        gone = self.readers.keys() - self._assigned
        await asyncio.gather(*(self._give_up(queue) for queue in gone))
        topics = set()
        for topic in sorted({queue.topic for queue in self._assigned}):
            if await self._route(topic) is None:
                settled = False
            else:
                topics.add(topic)
        if topics and not self._is_announced:
            # Brokers of 5.x take commits only of groups that they know.
            self._is_announced = True
            await self._pool.heartbeats.send_all()
        for queue in sorted(self._assigned - self.readers.keys()):
            subscription = self._subscriptions.get(queue.topic)
            if queue.topic in topics and subscription is not None and not self._is_closing:
                self._take_over(queue, subscription)
        return settled

    def _take_over(self, queue: MessageQueue, subscription: Subscription) -> None:
        # Whoever assigns a queue knows it: it is no queue that has come later.
        since_ms, known = self._first_found[queue.topic]
        self._first_found[queue.topic] = since_ms, known | {queue}
        super()._take_over(queue, subscription)
