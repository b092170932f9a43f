"""Which queues a pull consumer reads: its share of a group's, or those that it was told."""

from collections.abc import Iterable, Mapping
from functools import partial

from pymq.client.cluster.pool import ClientPool
from pymq.client.group.allocation import averagely
from pymq.client.group.rebalance import Rebalance
from pymq.client.group.start_policy import StartPolicy
from pymq.client.pulling.pull_buffer import PullBuffer
from pymq.client.pulling.pull_queues import PullQueues
from pymq.protocol.bodies import MessageQueue, Subscription


class PullRebalance(Rebalance):
    """The share of one member of a group. For one event loop.

    Args:
        group, subscriptions, start, pool: as for ``Rebalance``.
        buffer: gets what is pulled.
        auto_commit: whether readers commit without being told.

    Attributes:
        held: the queues that are read.
    """

    #: Do the members of the group divide the queues?
    _is_divided = True

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
        self.held = PullQueues(
            group,
            pool=pool,
            buffer=buffer,
            auto_commit=auto_commit,
            is_divided=self._is_divided,
            wake=self.wake,
        )
        super().__init__(
            group, subscriptions, start=start, allocation=averagely, pool=pool, held=self.held
        )

    @property
    def assignment(self) -> set[MessageQueue]:
        """The queues that are ours."""
        return set(self.held.readers)


class AssignedQueues(PullRebalance):
    """Queues that nobody divides: the consumer was told which. Takes the same arguments."""

    _is_divided = False
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
        await self.held.give_up([one for one in self.held.readers if one not in self._assigned])
        routes = await self._routes.find()
        if routes and not self._is_announced:
            # Brokers of 5.x take commits only of groups that they know.
            self._is_announced = True
            await self._pool.heartbeats.send_all()
        settled = self._subscriptions.keys() <= routes.keys()
        for topic in sorted(routes):
            unread = self._assigned - self.held.readers.keys()
            wanted = {queue for queue in unread if queue.topic == topic}
            subscription = partial(self._subscriptions.get, topic)
            settled &= await self.held.take(wanted, subscription, self._start_in)
        return settled

    def _start_in(self, queue: MessageQueue) -> StartPolicy:
        # Whoever assigns a queue knows it: it is no queue that has come later.
        return self._routes.start_in(queue, self._start, is_known=True)
