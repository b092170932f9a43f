"""Who has confirmed what in a group with a controller: all members of the sync state set wait
for each other.

Source: RocketMQ AutoSwitchHAService.confirmOffset, GroupTransferService (allAckInSyncStateSet).
"""

from pymq.broker.ha.progress import ReplicaRules, refusing_alone
from pymq.broker.ha.replica_waiters import Replicated, ReplicaWaiters
from pymq.broker.ha.sync_states import SyncStates
from pymq.broker.log_writer import Append, Outcome
from pymq.clock import Clock


class GroupProgress:
    """Tells senders when a message is confirmed: when it survives the loss of the master.

    Args:
        rules: how many members the set must have for that.
        clock: for deadlines.
        states: the set, and what it has confirmed.
    """

    def __init__(self, rules: ReplicaRules, clock: Clock, states: SyncStates) -> None:
        self._rules = rules
        self._states = states
        self._waiters = ReplicaWaiters(clock, timeout_s=rules.timeout_s)

    def start(self) -> None:
        """Begin."""
        self._waiters.start()

    @property
    def in_sync_count(self) -> int:
        """How many members the set has, the master included."""
        return len(self._states.members.broker_ids)

    def guarded(self, append: Append) -> Append:
        """Return what appends, and refuses everything while the set is too small."""
        return refusing_alone(append, self._rules, lambda: self.in_sync_count)

    def update(self) -> None:
        """Tell senders what has been confirmed."""
        self._waiters.release(0, self._states.confirmed_end, *self._verdict())

    def wait(self, physical_end: int, done: Replicated) -> None:
        """Call ``done`` once the log is confirmed up to a physical offset, or will not be.

        It is called exactly once, on the event loop, perhaps before this returns.
        """
        if self._states.awaited and physical_end > self._states.confirmed_end:
            self._waiters.add(0, physical_end, done)
        else:
            done(*self._verdict())

    def _verdict(self) -> tuple[Outcome, str | None]:
        """Return what a message that all members have is called: they may be too few."""
        count = self.in_sync_count
        if count < self._rules.wanted_of(count):
            return Outcome.NO_SLAVE, self._rules.too_few(count)
        return Outcome.STORED, None

    async def close(self) -> None:
        """Stop; tell whoever still waits. Idempotent."""
        self._waiters.close()
