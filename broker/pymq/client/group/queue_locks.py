"""Locks on queues that one member reads in order: asked of their brokers, and kept alive.

A broker grants a queue to one member of a group at a time. The lock is renewed every 20 s and
is the next member's when its broker has not heard of it for 60 s. Its holder counts on it for
half of that, and only over the connection over which it was granted: a broker that was started
again has forgotten its locks, and may have given them to others. So may a new master, which knows
nothing of those of the one before, whose connection may stay. Until a lock in doubt is confirmed,
nothing of its queue is delivered.

::

              granted        30 s without an answer, connection lost, another master, or
    unlocked ---------> valid -------- all refused, as by a slave ------> in doubt
        ^                 ^   granted, and nobody else has read meanwhile    |
        |                 +--------------------------------------------------+
        +------------- refused: lost <---------------------------------------+

A slave that was the master refuses all locks, before name servers know of the new one. So does a
master when other members have all the queues: what is refused so is lost when a route that was read
later still names that master, and it refuses all the same. Who has no locks there yet has a route
read now and then (``LiveRoutes.doubt_master``), and asks again.

Source: RocketMQ RebalanceImpl.lock, lockAll, unlock; RebalanceLockManager.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

from pymq.client import operations
from pymq.client.cluster.pool import ClientPool
from pymq.client.cluster.routes import Route
from pymq.errors import PymqError, RouteNotFound
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue

_log = logging.getLogger(__name__)

#: rocketmq.client.rebalance.lockInterval
RENEW_S = 20.0
#: rocketmq.client.rebalance.lockMaxLiveTime
VALID_S = 30.0
#: Locks in doubt are asked about this often.
AGAIN_S = 1.0
#: Locks are refused for good when their broker has refused them all for so long, twice at least.
SURE_S = 1.5
#: How long a farewell waits for its answer.
UNLOCK_S = 1.0
#: Queues that have got another master when it is answered are asked for there, once.
ROUNDS = 2
#: A queue that is refused for longer than any broker keeps the lock of a member that is gone.
REFUSED_S = 90.0
#: A queue that is refused is asked for again in about a second; after so long it was not wanted.
UNWANTED_S = 60.0


@dataclass(slots=True)
class _Lock:
    channel: AsyncChannel
    #: Monotonic.
    valid_until_s: float

    @property
    def is_valid(self) -> bool:
        return self.channel.is_open and time.monotonic() < self.valid_until_s


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a broker says of locks; of queues in neither set it is not known whose they are."""

    lock: _Lock
    granted: set[MessageQueue]
    refused: set[MessageQueue]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A broker has refused all locks that we have there."""

    address: str
    #: Monotonic.
    since_s: float
    #: As it was known by then.
    route: Route | None


class QueueLocks:
    """The locks of one member of a group. For one event loop.

    Args:
        group: consumer group.
        pool: connections.
        confirm: called with a queue whose lock was in doubt and is granted again: may it be read
            on? ``False``: another member has read it meanwhile.
        on_valid: called when locks became valid.
        on_lost: called with a queue that was refused.
    """

    def __init__(
        self,
        group: str,
        pool: ClientPool,
        *,
        confirm: Callable[[MessageQueue], Awaitable[bool]],
        on_valid: Callable[[], None],
        on_lost: Callable[[MessageQueue], None],
    ) -> None:
        self._group = group
        self._pool = pool
        self._confirm = confirm
        self._on_valid = on_valid
        self._on_lost = on_lost
        self._locks: dict[MessageQueue, _Lock] = {}
        self._doubted = asyncio.Event()
        #: By broker name, until it grants something.
        self._refusals: dict[str, _Refusal] = {}
        self._troubles = SaidOnce(_log)
        #: Queue -> since when it is refused, and when it last was; monotonic.
        self._refused_s: dict[MessageQueue, tuple[float, float]] = {}

    def is_valid(self, queue: MessageQueue) -> bool:
        """Is a queue surely ours? For any thread."""
        lock = self._locks.get(queue)
        return lock is not None and lock.is_valid

    def renew_soon(self) -> None:
        """Ask again soon: something waits for locks in doubt."""
        self._doubted.set()

    def route_changed(self, topic: str) -> None:
        """Doubt the locks on a topic's queues that another broker has granted than the master."""
        for queue, lock in self._locks.items():
            if queue.topic == topic and not self._is_master_of(lock, queue):
                lock.valid_until_s = 0.0
                self._doubted.set()

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues that we do not have; return those that are granted."""
        wanted, granted = set(queues), set[MessageQueue]()
        for _ in range(ROUNDS):
            parts = self._by_master(wanted)
            found = await asyncio.gather(*(self._ask(part) for part in parts))
            wanted = set()
            for part, answer in zip(parts, found, strict=True):
                if answer is None:
                    continue
                moved = {queue for queue in part if not self._is_master_of(answer.lock, queue)}
                wanted |= moved
                granted |= answer.granted - moved
                self._locks.update(dict.fromkeys(answer.granted - moved, answer.lock))
            if not wanted:
                break
        return granted & self._locks.keys()

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Give queues free; a broker that does not hear it gives them to others after 60 s."""
        for queue in queues:
            self.forget(queue)
        work = (self._unlock(broker, part) for broker, part in _by_broker(queues).items())
        await asyncio.gather(*work)

    def unlock_nowait(self, queues: Collection[MessageQueue]) -> None:
        """Give queues free without waiting for an answer, as far as there is a connection."""
        for part in _by_broker(queues).values():
            held = (self._locks.pop(queue, None) for queue in part)
            channels = {lock.channel for lock in held if lock is not None}
            operation = operations.unlock_queues(self._group, self._pool.client_id, part)
            for channel in channels:
                if channel.is_open:
                    channel.send_one_way(operation.request)

    def forget(self, queue: MessageQueue) -> None:
        """A queue is ours no more, and its broker knows, or is away."""
        self._locks.pop(queue, None)

    async def run(self) -> None:
        """Renew the locks again and again."""
        while True:
            try:
                async with asyncio.timeout(RENEW_S):
                    await self._doubted.wait()
            except TimeoutError:
                pass
            self._doubted.clear()
            await self.renew()
            if not all(lock.is_valid for lock in self._locks.values()):
                await asyncio.sleep(AGAIN_S)
                self._doubted.set()

    async def renew(self) -> None:
        """Ask for all locks again; those that are refused are lost."""
        wanted = set(self._locks)
        for _ in range(ROUNDS):
            moved = await asyncio.gather(*map(self._renew, self._by_master(wanted)))
            wanted = set().union(*moved)
            if not wanted:
                break
        self._on_valid()

    async def _renew(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        """Ask a broker for locks that we have; return the queues that have another master now."""
        answer = await self._ask(queues, are_ours=True)
        moved = set[MessageQueue]()
        if answer is None:
            return moved
        for queue in queues:
            before = self._locks.get(queue)
            if before is None:
                continue  # It was given up meanwhile.
            try:
                may_go_on = queue in answer.granted and (
                    before.is_valid or await self._confirm(queue)
                )
            except PymqError as error:
                _log.debug("group %r: lock of %s stays in doubt: %s", self._group, queue, error)
                continue
            if not self._is_master_of(answer.lock, queue):
                before.valid_until_s = 0.0
                moved.add(queue)
            elif queue in answer.refused or (queue in answer.granted and not may_go_on):
                self._lose(queue, is_granted=queue in answer.granted)
            elif may_go_on and queue in self._locks:
                self._locks[queue] = answer.lock
        return moved

    def _lose(self, queue: MessageQueue, *, is_granted: bool) -> None:
        self.forget(queue)
        _log.warning(
            "group %r, topic %r, %s:%d: this member has lost its lock, %s; what its handler is "
            "working on is delivered again, to whoever reads the queue next",
            self._group,
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            "and another one has read the queue meanwhile"
            if is_granted
            else "because the broker has given the queue to another one",
        )
        self._on_lost(queue)

    async def _ask(self, queues: list[MessageQueue], *, are_ours: bool = False) -> _Answer | None:
        """Ask the broker of some queues for their locks; ``None``: it does not answer."""
        broker = queues[0].broker_name
        try:
            lock, granted = await self._ask_at(await self._master(queues[0]), queues)
            if granted:
                self._refusals.pop(broker, None)
            elif not are_ours:
                self._pool.routes.doubt_master(lock.channel.address)
            elif not await self._doubt_refused(queues, lock):
                _log.debug("group %r: %s grants no lock", self._group, lock.channel.peer)
                return _Answer(lock, set(), set())
        except PymqError as error:
            self._refusals.pop(broker, None)
            if self._pool.is_open:
                self._troubles.warn(
                    broker,
                    "group %r cannot lock its queues at broker %r, so nothing of them is "
                    "delivered, trying again: %s",
                    self._group,
                    broker,
                    error,
                )
            return None
        self._troubles.over(broker, "group %r: queues at broker %r are locked", self._group, broker)
        self._note_refused(queues, granted)
        return _Answer(lock, granted, set(queues) - granted)

    async def _doubt_refused(self, queues: list[MessageQueue], lock: _Lock) -> bool:
        """Doubt locks of ours, all of which their broker refuses, and look whether it is a master.

        Returns:
            Are they lost? It has refused them for a while, and is a master by a later route.

        Raises:
            PymqError: we are closed.
        """
        for queue in queues:
            if queue in self._locks:
                self._locks[queue].valid_until_s = 0.0
        broker, topic, address = queues[0].broker_name, queues[0].topic, lock.channel.address
        routes, now_s = self._pool.routes, time.monotonic()
        first = self._refusals.get(broker)
        if first is None or first.address != address:
            first = self._refusals[broker] = _Refusal(address, now_s, routes.find(topic))
        await routes.route(topic, refresh=True)
        # A route that was read is another one, also when it says the same.
        was_read = first.route is None or routes.find(first.route.topic) is not first.route
        return was_read and now_s - first.since_s >= SURE_S

    async def _ask_at(
        self, channel: AsyncChannel, queues: list[MessageQueue]
    ) -> tuple[_Lock, set[MessageQueue]]:
        asked_s = time.monotonic()
        operation = operations.lock_queues(self._group, self._pool.client_id, queues)
        granted = await self._pool.ask(channel, operation)
        return _Lock(channel, asked_s + VALID_S), set(granted) & set(queues)

    def _note_refused(self, asked: Iterable[MessageQueue], granted: set[MessageQueue]) -> None:
        """Say once of a queue that another member has had it for very long."""
        now_s = time.monotonic()
        unwanted = {one for one, (_, at_s) in self._refused_s.items() if now_s - at_s > UNWANTED_S}
        for queue in granted | unwanted:
            self._refused_s.pop(queue, None)
            self._troubles.over(("refused", queue))
        for queue in asked:
            if queue in granted:
                continue
            since_s, _ = self._refused_s.get(queue, (now_s, now_s))
            self._refused_s[queue] = (since_s, now_s)
            if now_s - since_s > REFUSED_S:
                self._troubles.warn(
                    ("refused", queue),
                    "group %r, topic %r, %s:%d: this queue should be ours, but another member has "
                    "had its lock for %.0f s: its handler hangs, or not all members divide the "
                    "queues in the same way (`allocation`)",
                    self._group,
                    queue.topic,
                    queue.broker_name,
                    queue.queue_id,
                    now_s - since_s,
                )

    async def _unlock(self, broker: str, queues: list[MessageQueue]) -> None:
        try:
            await self._pool.ask(
                await self._master(queues[0]),
                operations.unlock_queues(self._group, self._pool.client_id, queues),
                timeout_s=UNLOCK_S,
            )
        except PymqError as error:
            _log.info("%d queues of broker %r stay locked: %s", len(queues), broker, error)

    def _by_master(self, queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
        """Divide queues by their masters; routes of topics may differ for a moment."""
        found: dict[tuple[str, str | None], list[MessageQueue]] = {}
        for queue in sorted(queues):
            found.setdefault((queue.broker_name, self._address(queue)), []).append(queue)
        return list(found.values())

    def _is_master_of(self, lock: _Lock, queue: MessageQueue) -> bool:
        return self._address(queue) == lock.channel.address

    def _address(self, queue: MessageQueue) -> str | None:
        """Return where the master of a queue is, as it is known."""
        route = self._pool.routes.find(queue.topic)
        return None if route is None else route.masters().get(queue.broker_name)

    async def _master(self, queue: MessageQueue) -> AsyncChannel:
        """Return the connection to the broker that grants the locks of a queue.

        Raises:
            RouteNotFound: it has no master.
            ConnectionFailed: the master cannot be reached.
            ClientClosed: we are closed.
        """
        route = await self._pool.routes.route(queue.topic)
        try:
            address = route.address(queue.broker_name)
        except RouteNotFound:
            self._pool.routes.doubt(queue.topic)
            raise
        return await self._pool.broker_channel(queue.topic, queue.broker_name, address)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found
