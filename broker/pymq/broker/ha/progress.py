"""Who has confirmed what: how far the slaves of a master are, and who waits for them.

A message counts as replicated when as many brokers have it as ``inSyncReplicas`` says, its master
included. If fewer slaves than that follow closely, nobody waits for them: the sender is told at
once that there are none.

Source: RocketMQ GroupTransferService, HAService.inSyncReplicasNums (4.x: isSlaveOK).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from pymq.broker.ha.replica_waiters import Replicated, ReplicaWaiters
from pymq.broker.log_writer import Append, Outcome, WaitFlushed
from pymq.broker.replication_config import ReplicationConfig, Role
from pymq.clock import Clock
from pymq.store import Put, PutResult, PutStatus


@dataclass(frozen=True, slots=True)
class ReplicaRules:
    """How many brokers must have a message.

    Attributes:
        wanted: so many, the master included (inSyncReplicas).
        least: messages are refused while fewer follow closely (minInSyncReplicas).
        is_automatic: whether as many as follow closely are enough, down to ``least``
            (enableAutoInSyncReplicas).
        gap_max: a slave that lacks fewer bytes of the log follows closely (haMaxGapNotInSync).
        timeout_s: how long a message waits (slaveTimeout).
    """

    wanted: int
    least: int
    is_automatic: bool
    gap_max: int
    timeout_s: float

    @classmethod
    def of(cls, config: ReplicationConfig) -> Self:
        """Return the rules that a broker is configured with."""
        return cls(
            wanted=config.in_sync_replicas,
            least=config.in_sync_replicas_min,
            is_automatic=config.in_sync_replicas_auto,
            gap_max=config.gap_max_bytes,
            timeout_s=config.slave_timeout_ms / 1000,
        )

    def wanted_of(self, in_sync: int) -> int:
        """Return how many brokers must have a message while some number follow closely."""
        return max(self.least, min(self.wanted, in_sync)) if self.is_automatic else self.wanted

    def too_few(self, in_sync: int) -> str:
        """Return why nobody waits for slaves."""
        return (
            f"stored by this broker, but {in_sync - 1} slaves follow closely, and "
            f"{self.wanted_of(in_sync) - 1} are to have it (inSyncReplicas={self.wanted})"
        )


class Replicas(Protocol):
    """Says when enough brokers have a message; the other one is ``GroupProgress``."""

    def start(self) -> None:
        """Begin."""

    @property
    def in_sync_count(self) -> int:
        """How many brokers follow closely, the master included."""

    def guarded(self, append: Append) -> Append:
        """Return what appends, and refuses everything while too few brokers follow closely."""

    def wait(self, physical_end: int, done: Replicated) -> None:
        """Call ``done`` once enough brokers have the log up to a physical offset, or will not.

        It is called exactly once, on the event loop, perhaps before this returns.
        """

    async def close(self) -> None:
        """Stop; tell whoever still waits. Idempotent."""


class ReplicaProgress:
    """Counts the slaves that have a message.

    Args:
        rules: how many there must be.
        clock: for deadlines.
        log_end: returns where the log ends.
    """

    def __init__(
        self, rules: ReplicaRules, clock: Clock, log_end: Callable[[], int]
    ) -> None:
        self._rules = rules
        self._log_end = log_end
        #: Up to where each slave has the log, those that have most first.
        self._ends: list[int] = []
        #: The same, as they claim it: what follows closely is asked before anything is sent.
        self._claims: list[int] = []
        #: By how many slaves they wait for.
        self._waiters = ReplicaWaiters(clock, timeout_s=rules.timeout_s)

    def start(self) -> None:
        """Begin."""
        self._waiters.start()

    @property
    def in_sync_count(self) -> int:
        """How many brokers follow closely, the master included."""
        least = self._log_end() - self._rules.gap_max
        return 1 + sum(end > least for end in self._claims)

    def guarded(self, append: Append) -> Append:
        """Return what appends, and refuses everything while too few brokers follow closely."""
        return refusing_alone(append, self._rules, lambda: self.in_sync_count)

    def update(self, ends: Sequence[int], claims: Sequence[int] | None = None) -> None:
        """Take up to which physical offset each connected slave has the log.

        Args:
            claims: up to which it says to have it; None: that is the same.
        """
        self._ends = sorted(ends, reverse=True)
        self._claims = self._ends if claims is None else list(claims)
        for count in self._waiters.kinds():
            self._waiters.release(count, self._end_of(count), Outcome.STORED, None)

    def _end_of(self, slave_count: int) -> int:
        """Return the physical offset up to which this many slaves have the log; -1: nowhere."""
        return self._ends[slave_count - 1] if len(self._ends) >= slave_count else -1

    def wait(self, physical_end: int, done: Replicated) -> None:
        """Call ``done`` once enough brokers have the log up to a physical offset, or will not.

        It is called exactly once, on the event loop, perhaps before this returns.
        """
        rules, in_sync = self._rules, self.in_sync_count
        wanted = rules.wanted_of(in_sync)
        if wanted <= 1:
            done(Outcome.STORED, None)
        elif in_sync < wanted:
            done(Outcome.NO_SLAVE, rules.too_few(in_sync))
        elif physical_end <= self._end_of(wanted - 1) and not self._waiters.any(wanted - 1):
            done(Outcome.STORED, None)
        else:
            self._waiters.add(wanted - 1, physical_end, done)

    async def close(self) -> None:
        """Stop; tell whoever still waits. Idempotent."""
        self._waiters.close()


def refusing_alone(append: Append, rules: ReplicaRules, count_in_sync: Callable[[], int]) -> Append:
    """Return what appends, and refuses everything while too few brokers follow closely."""

    def guarded(puts: Sequence[Put]) -> list[PutResult]:
        count = count_in_sync()
        if count >= rules.least:
            return append(puts)
        reason = (
            f"in-sync replicas not enough: {count} of at least {rules.least} brokers "
            "(minInSyncReplicas) have what was sent before; start the missing slaves, or look "
            "why they do not follow: mqadmin haStatus"
        )
        return [PutResult(PutStatus.NOT_REPLICATED, remark=reason) for _ in puts]

    return guarded


def secured(wait_flushed: WaitFlushed, replicas: Replicas | None) -> WaitFlushed:
    """Return what waits for the disk and then, at a SYNC_MASTER, for the slaves."""
    if replicas is None:
        return wait_flushed

    def wait(physical_end: int, done: Callable[[str | None], None]) -> None:
        def flushed(reason: str | None) -> None:
            if reason is not None:
                done(reason)
            else:
                replicas.wait(physical_end, lambda outcome, why: done(why))

        wait_flushed(physical_end, flushed)

    return wait


def progress_of(
    config: ReplicationConfig, clock: Clock, log_end: Callable[[], int]
) -> ReplicaProgress | None:
    """Return what a broker waits for its slaves with; None if it does not wait."""
    if config.role is not Role.SYNC_MASTER:
        return None
    return ReplicaProgress(ReplicaRules.of(config), clock, log_end)
