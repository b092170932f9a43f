"""Locks on queues for orderly consumption: one client of a group at a time.

Source: RocketMQ RebalanceLockManager. A lock that its holder does not refresh for a minute
may be taken by another member. Locks live in memory only, as in RocketMQ.
"""

from dataclasses import dataclass

from pymq.clock import Clock
from pymq.protocol.bodies import MessageQueue

#: RocketMQ ``rocketmq.broker.rebalance.lockMaxLiveTime``.
LOCK_S = 60.0


@dataclass(slots=True)
class _Lock:
    client_id: str
    refreshed_s: float


class QueueLocks:
    """Which client of which group holds which queues."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Lock free queues for a client and refresh its own; return those it holds."""
        now = self._clock.monotonic_s()
        table = self._locks.setdefault(group, {})
        held = []
        for queue in queues:
            lock = table.get(queue)
            if lock is None or lock.client_id == client_id or now - lock.refreshed_s > LOCK_S:
                table[queue] = _Lock(client_id, now)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Release those of the queues that the client holds."""
        table = self._locks.get(group, {})
        for queue in queues:
            lock = table.get(queue)
            if lock is not None and lock.client_id == client_id:
                del table[queue]
        if not table:
            self._locks.pop(group, None)

    def is_held(self, group: str) -> bool:
        """Does any client of the group hold an unexpired lock? (Then it consumes orderly.)"""
        now = self._clock.monotonic_s()
        return any(now - lock.refreshed_s <= LOCK_S for lock in self._locks.get(group, {}).values())

    def expire(self) -> int:
        """Forget locks that are no longer refreshed; return how many."""
        now = self._clock.monotonic_s()
        count = 0
        for group, table in list(self._locks.items()):
            for queue, lock in list(table.items()):
                if now - lock.refreshed_s > LOCK_S:
                    del table[queue]
                    count += 1
            if not table:
                del self._locks[group]
        return count
