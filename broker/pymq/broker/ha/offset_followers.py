"""Which slaves have the consumer offsets of this master, and whom a commit waits for.

A consumer whose commit was acknowledged, and that reads after a failover where it is, must not be
told that it is further back: it would get messages that it has answered for. So a slave asks for
what has changed since the last change that it knows of, and the question is answered when there is
something; asking again says that it has that. A SYNC_MASTER acknowledges a commit when its slaves
have it. With a controller, these are the members of the sync state set, as for messages, and a
slave joins the set when it has all that was acknowledged. Without one, they are the slaves that
ask, while any follows the log.

RocketMQ's slaves do not ask, and are not waited for; they copy all offsets now and then.
"""

import asyncio
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from pymq.broker.ha.replica_waiters import Replicated, ReplicaWaiters
from pymq.broker.log_writer import Outcome
from pymq.broker.replication_config import ReplicationConfig, Role
from pymq.broker.state.offsets import OffsetTable
from pymq.clock import Clock
from pymq.net.tasks import Tasks
from pymq.net.waiting import happens
from pymq.protocol.bodies import DelayOffsetTable
from pymq.protocol.offset_changes import OffsetChanges

#: Between two answers to a slave: while commits wait for it, and otherwise. What changes meanwhile
#: goes together, and an answer without a pause before it goes at once.
REST_WAITED_S, REST_S = 0.005, 0.05
#: A slave that has not asked for so long is away. Less than ``slaveTimeout``.
AWAY_S = 2.0
#: A slave that is connected for so long and has not asked once is one of RocketMQ's.
GRACE_S = 2.0
_LOOK_INTERVAL_S = 0.25
#: How often it is looked whether delayed messages were delivered.
_DELAYS_INTERVAL_S = 0.2


@dataclass(slots=True)
class _Follower:
    """A slave that asks.

    Attributes:
        number: of the last change that it has; -1: it may lack any.
        asked_s: when it asked last, or a question of it was kept.
        complete_s: when it last had everything.
        told: the last change it was told, and when: it had everything then if it confirms that.
        delays, timers: what it was told of delayed messages, and of timers.
        repeats: set to have its question answered at once.
    """

    number: int = -1
    asked_s: float = -math.inf
    complete_s: float = -math.inf
    told: tuple[int, float] = (0, -math.inf)
    delays: DelayOffsetTable | None = None
    timers: bytes = b""
    repeats: asyncio.Event = field(default_factory=asyncio.Event)


class OffsetFollowers:
    """Answers the slaves' questions, and has commits wait for them.

    Args:
        offsets: those that are followed.
        clock: for deadlines.
        timeout_s: how long a commit waits (slaveTimeout); None: not at all.

    Attributes:
        is_waited_for: whether commits wait.
        awaited: returns the ids of those who must have a commit; None: all who ask. To be set by
            whoever knows.
        delays: returns how far the delayed messages are; to be set by whoever delivers them.
        timers: returns how far timers are, as GET_TIMER_CHECK_POINT tells it; set likewise.
        take_delays: takes over what a slave says of them, before any is delivered; set as well.
    """

    def __init__(self, offsets: OffsetTable, clock: Clock, *, timeout_s: float | None) -> None:
        self._offsets = offsets
        self.is_waited_for = timeout_s is not None
        self._waiters = ReplicaWaiters(clock, timeout_s=timeout_s or 0.0)
        self._known: dict[int, _Follower] = {}
        self._moved = asyncio.Event()
        #: The last change that was acknowledged to whoever made it.
        self._promised = 0
        self._seen_s: dict[int, float] = {}
        self._tasks = Tasks("offset followers")
        self.awaited: Callable[[], Collection[int] | None] = lambda: None
        self.delays: Callable[[], DelayOffsetTable] = DelayOffsetTable
        self.timers: Callable[[], bytes] = lambda: b""
        self.take_delays: Callable[[DelayOffsetTable], object] = lambda table: None
        offsets.on_change = self._changed

    def start(self) -> None:
        """Begin."""
        if self.is_waited_for:
            self._waiters.start()
            self._tasks.repeat("look", self.look, _LOOK_INTERVAL_S)

    def _changed(self) -> None:
        self._moved.set()

    # --- slaves

    async def wait_changes(
        self, broker_id: int, position: str, wait_s: float
    ) -> tuple[str, OffsetChanges | None]:
        """Return what a slave lacks, and the last change in it, once there is something.

        Args:
            broker_id: of the slave.
            position: the last change that it has; it has nothing if that is unknown here.
            wait_s: how long to wait; then None is returned.
        """
        now, moves = asyncio.get_running_loop().time, self._offsets.moves
        follower = self._known.setdefault(broker_id, _Follower())
        known = moves.number_of(position)
        self._heard(follower, known)
        if known is not None:
            deadline_s = now() + wait_s
            follower.repeats.clear()
            while moves.number == known and not self._has_delivered(follower):
                left_s = deadline_s - now()
                if left_s <= 0 or follower.repeats.is_set():
                    return position, None
                follower.asked_s = follower.complete_s = now()
                self._moved.clear()
                await happens(self._moved, min(left_s, _DELAYS_INTERVAL_S))
            while (rest_s := follower.told[1] + self._rest_s() - now()) > 0:
                self._moved.clear()  # a commit may come that waits
                await happens(self._moved, rest_s)
        follower.asked_s = now()
        follower.told = moves.number, now()
        changes = self._offsets.changes(known)
        changes.delays = follower.delays = self.delays()
        follower.timers = self.timers()
        changes.timers = follower.timers.hex() or None
        return moves.position, changes

    def _has_delivered(self, follower: _Follower) -> bool:
        """Return whether more messages were delivered that had waited than a slave knows of."""
        return self.delays() != follower.delays or self.timers() != follower.timers

    def _rest_s(self) -> float:
        return REST_WAITED_S if self._waiters.any(0) else REST_S

    def _heard(self, follower: _Follower, number: int | None) -> None:
        now_s = asyncio.get_running_loop().time()
        follower.asked_s = now_s
        follower.number = -1 if number is None else number
        if follower.number >= self._offsets.moves.number:
            follower.complete_s = now_s
        elif follower.number == follower.told[0]:
            follower.complete_s = follower.told[1]
        self.look()

    def connected(self, broker_id: int, *, asks: bool) -> None:
        """A slave has connected to follow the log: it may be another process than before.

        Args:
            broker_id: of the slave.
            asks: whether it is known to be one that asks, if later.
        """
        self._seen_s[broker_id] = asyncio.get_running_loop().time()
        if asks:
            self._known.setdefault(broker_id, _Follower())
        follower = self._known.get(broker_id)
        if follower is not None:
            follower.number, follower.complete_s = -1, -math.inf
            follower.repeats.set()
            self._moved.set()

    def has_promised(self, broker_id: int) -> bool:
        """Return whether a slave has all that was acknowledged, or never will."""
        follower = self._known.get(broker_id)
        if follower is not None:
            return follower.number >= self._promised
        seen_s = self._seen_s.get(broker_id, -math.inf)
        return asyncio.get_running_loop().time() - seen_s > GRACE_S

    def complete_s(self, broker_id: int) -> float:
        """Return when a slave last had everything; infinity: it has not asked."""
        follower = self._known.get(broker_id)
        return math.inf if follower is None else follower.complete_s

    # --- commits

    def wait(self, done: Replicated) -> None:
        """Call ``done`` once slaves have all offsets that there are now, or will not.

        It is called exactly once, on the event loop, perhaps before this returns.
        """
        number = self._offsets.moves.number
        if not self.is_waited_for or number <= self._followed_number():
            self._promised = max(self._promised, number)
            done(Outcome.STORED, None)
            return
        self._waiters.add(0, number, done)

    def look(self) -> None:
        """Acknowledge what can be."""
        if self._waiters.any(0):
            number = self._followed_number()
            self._promised = max(self._promised, min(number, self._offsets.moves.number))
            self._waiters.release(0, number, Outcome.STORED, None)

    def _followed_number(self) -> int:
        """Return the last change that everybody has who must have it."""
        awaited = self.awaited()
        latest_s = asyncio.get_running_loop().time() - AWAY_S
        return min(
            (
                one.number
                for broker_id, one in self._known.items()
                if (one.asked_s >= latest_s if awaited is None else broker_id in awaited)
            ),
            default=self._offsets.moves.number,
        )

    async def wait_followed(self, timeout_s: float) -> None:
        """Return when slaves have all offsets that there are now, or time is up."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome, reason: str | None) -> None:
            if not told.done():
                told.set_result(None)

        self.wait(done)
        await asyncio.wait([told], timeout=timeout_s)

    async def close(self) -> None:
        """Stop; tell whoever still waits. Idempotent."""
        await self._tasks.close()
        self._waiters.close()


def offset_followers_of(
    config: ReplicationConfig, offsets: OffsetTable, clock: Clock
) -> OffsetFollowers:
    """Return what a broker follows its slaves with; those of a SYNC_MASTER are waited for."""
    is_sync = config.role is Role.SYNC_MASTER
    timeout_s = config.slave_timeout_ms / 1000 if is_sync else None
    return OffsetFollowers(offsets, clock, timeout_s=timeout_s)
