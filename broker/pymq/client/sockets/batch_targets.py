"""Which queue a batch goes to next: turns, order, and keeping away from brokers that failed. Pure.

A batch is for a certain queue, for the queue of a number on whichever broker has it, or for any
queue of a topic. The last kind stays at one queue for some MiB, then goes on to the next.

**Order.** A queue gets batches in the order of their numbers, as long as there is a choice:

* A pymq broker handles the requests of one connection in their order, so several for one queue may
  be in flight. RocketMQ handles them on a pool of threads: one for each queue, but several queues.
* A batch that comes back is never put behind a later one, unless all brokers that are left have
  such in all their queues. As such a batch goes alone, and up to N are in flight else, N queues
  are enough.

Times are monotonic seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pymq.errors import LocalProtocolError, RouteNotFound
from pymq.protocol.bodies import MessageQueue

#: What one queue gets before the turn passes to the next.
TURN_BYTES = 8 << 20
#: Pause before a broker that failed is asked again: first, and longest.
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0
#: How long batches that may go elsewhere keep away from a broker that failed.
AVOID_S = 30.0


@dataclass(frozen=True, slots=True)
class BatchTarget:
    """Where a batch may go: any queue of the topic, or only those that fit what else is given."""

    topic: str
    queue_id: int | None = None
    broker_name: str | None = None

    @classmethod
    def of(cls, queue: MessageQueue) -> "BatchTarget":
        """Return the target that is this queue alone."""
        return cls(queue.topic, queue.queue_id, queue.broker_name)

    def fits(self, queue: MessageQueue) -> bool:
        """May a batch go to a queue of the topic?"""
        return self.queue_id in (None, queue.queue_id) and self.broker_name in (
            None,
            queue.broker_name,
        )


@dataclass(slots=True)
class BrokerHealth:
    """How one broker fares.

    Attributes:
        retry_at_s: not to be tried before.
        avoid_until_s: nothing goes there before that could go elsewhere.
        depth: batches for one of its queues that may be in flight.
    """

    retry_at_s: float = 0.0
    avoid_until_s: float = 0.0
    depth: int = 1
    _pause_s: float = PAUSE_FIRST_S

    def failed(self, now_s: float) -> None:
        """A request to it failed."""
        self.retry_at_s = now_s + self._pause_s
        self.avoid_until_s = now_s + AVOID_S
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def succeeded(self) -> None:
        """It stored a batch."""
        self.retry_at_s = self.avoid_until_s = 0.0
        self._pause_s = PAUSE_FIRST_S


@dataclass(slots=True)
class _Lane:
    """Attributes: in_flight: batches for one queue; newest: the highest number it ever got."""

    in_flight: int = 0
    newest: int = -1


@dataclass(slots=True)
class _Turn:
    queue: MessageQueue
    sent_bytes: int = 0


@dataclass(slots=True)
class QueueChooser:
    """Chooses queues for batches, which are numbered in the order in which they are to be stored.

    Args:
        first_turn: which of a topic's queues comes first; senders should differ.
        depth: batches for one queue that may be in flight, at a broker that keeps their order.
    """

    first_turn: int = 0
    depth: int = 1
    _brokers: dict[str, BrokerHealth] = field(default_factory=dict)
    _lanes: dict[MessageQueue, _Lane] = field(default_factory=dict)
    _turns: dict[str, _Turn] = field(default_factory=dict)

    def broker(self, name: str) -> BrokerHealth:
        """Return what is known of a broker."""
        return self._brokers.setdefault(name, BrokerHealth())

    def _lane(self, queue: MessageQueue) -> _Lane:
        return self._lanes.setdefault(queue, _Lane())

    def has_room(self, queue: MessageQueue, number: int) -> bool:
        """May a batch be sent to a queue now, with regard to what is in flight?"""
        lane = self._lane(queue)
        if not lane.in_flight:
            return True
        depth = min(self.depth, self.broker(queue.broker_name).depth)
        return lane.in_flight < depth and lane.newest < number

    def sent(self, queue: MessageQueue, number: int, size_bytes: int) -> None:
        """A batch was sent to a queue."""
        lane = self._lane(queue)
        lane.in_flight += 1
        lane.newest = max(lane.newest, number)
        turn = self._turns.setdefault(queue.topic, _Turn(queue))
        if turn.queue != queue:
            turn = self._turns[queue.topic] = _Turn(queue)
        turn.sent_bytes += size_bytes

    def ended(self, queue: MessageQueue) -> None:
        """A batch is no longer in flight."""
        self._lane(queue).in_flight -= 1

    def choose(
        self,
        target: BatchTarget,
        number: int,
        queues: Sequence[MessageQueue],
        now_s: float,
        *,
        last: MessageQueue | None = None,
    ) -> MessageQueue:
        """Return the queue for a batch; it may have to wait for room or for its broker there.

        Args:
            target: of the batch.
            number: of the batch.
            queues: at least one that fits the target, in their order.
            now_s: the time.
            last: where the batch went before, if it came back.
        """
        if target.queue_id is not None:
            return queues[0]
        usable = [q for q in queues if self.broker(q.broker_name).avoid_until_s <= now_s]
        if not usable:
            soonest = min(queues, key=lambda queue: self.broker(queue.broker_name).retry_at_s)
            usable = [queue for queue in queues if queue.broker_name == soonest.broker_name]
        usable = self._from_turn(target.topic, usable)
        in_order = [q for q in usable if q == last or self._lane(q).newest <= number] or usable
        for queue in in_order:
            if self.has_room(queue, number):
                return queue
        return in_order[0]

    def _from_turn(self, topic: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Return queues beginning with the one whose turn it is."""
        turn = self._turns.get(topic)
        if turn is None:
            start = self.first_turn % len(queues)
        elif turn.queue in queues and turn.sent_bytes < TURN_BYTES:
            start = queues.index(turn.queue)
        else:
            start = next((n for n, queue in enumerate(queues) if queue > turn.queue), 0)
        return queues[start:] + queues[:start]


def fitting(
    target: BatchTarget,
    queues: Sequence[MessageQueue],
    seen: set[MessageQueue],
) -> list[MessageQueue]:
    """Return the queues that fit a target, sorted; of a queue without a broker's name, one.

    Without a name the first broker decides: always the same as long as it is there.

    Args:
        target: of a batch.
        queues: that can be written to now, at least one.
        seen: all that ever could.

    Raises:
        LocalProtocolError: there is no such queue.
        RouteNotFound: there may be one: its broker is away.
    """
    found = sorted(filter(target.fits, queues))
    if found:
        return found if target.queue_id is None else found[:1]
    there = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in sorted(queues))
    if target.queue_id is None:
        raise RouteNotFound(
            f"topic {target.topic!r}: no queue of {target.broker_name} can be written, there are "
            f"{there}. That broker is away, or it or its topic lacks the permission W: start it, "
            "or give the permission"
        )
    brokers = {queue.broker_name for queue in queues}
    name = () if target.broker_name is None else (target.broker_name,)
    wanted = "/".join((*name, str(target.queue_id)))
    if any(map(target.fits, seen)) or target.broker_name not in {None, *brokers}:
        raise RouteNotFound(
            f"topic {target.topic!r}: queue {wanted} has no route, there are {there}; is its "
            "broker running, and have topic and broker the permission W?"
        )
    raise LocalProtocolError(f"topic {target.topic} has no queue {wanted}; there are {there}")
