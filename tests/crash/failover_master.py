"""A simulated broker while it is the master, and its ends of its slaves' connections."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tests.crash.failover_parts import CONFIG, LOOK_S, Waiting
from tests.crash.failover_world import Connection, World

from pymq.broker.ha.caught_up import CaughtUp
from pymq.broker.ha.group_progress import GroupProgress
from pymq.broker.ha.in_sync import InSync
from pymq.broker.ha.progress import ReplicaRules
from pymq.broker.ha.sync_states import SyncStates
from pymq.broker.ha.talk import EpochTalk
from pymq.broker.ha.term import Term
from pymq.broker.log_writer import Outcome
from pymq.errors import PymqError
from pymq.protocol.epoch_replication import NO_EPOCH, EpochPush, Handshake, MasterEpochs

if TYPE_CHECKING:
    from tests.crash.failover_brokers import Broker

INTERVAL_S = CONFIG.sync_state_interval_ms / 1000


class _Clock:
    """For what takes a clock."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic_s(self) -> float:
        """Return the time."""
        return self._world.now_s


class MasterRun:
    """A broker while it is the master; what its parts ask for as replication, and as steering.

    Attributes:
        is_open: whether clients are answered.
    """

    def __init__(self, broker: Broker, term: Term) -> None:
        self.broker = broker
        self.term = term
        self.log = broker.disk.log
        self.epochs = broker.disk.epochs
        self.is_open, self.is_closed = True, False
        self.limit: int | None = None
        self.slaves: list[SlaveEnd] = []
        world = broker.world
        self.states = SyncStates(
            broker.id,
            self.epochs.entries[-1].first,
            term.members,
            world.now_s,
            lag_max_s=CONFIG.sync_state_lag_ms / 1000,
        )
        rules = ReplicaRules(broker.settings.in_sync_replicas, 1, False, 1 << 20, 3.0)
        clock: Any = _Clock(world)
        self.progress = GroupProgress(rules, clock, self.states)
        me: Any = self
        self.in_sync = InSync(
            self.states, me, me, self.progress, term=term.number, interval_s=INTERVAL_S
        )
        slaves: Any = self.slaves
        self.in_sync.slaves = lambda: slaves
        self._looking: Coroutine[Any, Any, None] | None = None

    def begin(self) -> None:
        """Begin."""
        self.broker.watch.began(self)
        self.broker.members_listener(self.in_sync, term=self.term.number)
        self.in_sync.update()
        self.broker.after(0, self._look_for_members)
        self.broker.after(LOOK_S, self._look)

    def close(self) -> None:
        """Stop; tell whoever waits that it is not known."""
        self.is_closed = True
        self.broker.members_listener(None, term=self.term.number)
        if self._looking is not None:
            self._looking.close()
        for slave in list(self.slaves):
            slave.abort()
        self.progress._waiters.close()

    # --- what parts ask for

    @property
    def readable_end(self) -> int:
        """The end of the log."""
        return len(self.log)

    @property
    def shown_end(self) -> int:
        """Up to where slaves may show the log (replication_feature)."""
        end, broker = self.in_sync.confirmed_end, self.broker
        return min(end, broker.disk.flushed) if broker.settings.is_sync_flush else end

    def show_up_to(self, end: int | None) -> None:
        """Make visible what is confirmed."""
        self.limit = end
        self.show()

    def show(self) -> None:
        """Show what may be shown."""
        broker = self.broker
        end = broker.disk.flushed if broker.settings.is_sync_flush else len(self.log)
        end = end if self.limit is None else min(end, self.limit)
        broker.watch.showed(broker, end)

    async def alter(self, broker_ids: frozenset[int], epoch: int, *, term: int) -> Any:
        """Ask for another set."""
        begin = lambda done: self.broker.alter(term, broker_ids, epoch, done)  # noqa: E731
        found = await Waiting(begin)
        if isinstance(found, PymqError):
            raise found
        return found

    def _look_for_members(self) -> None:
        if not self.is_closed:
            self._looking = self.in_sync.look()
            self._go_on(None)

    def _go_on(self, found: Any) -> None:
        if self.is_closed or self._looking is None:
            return
        try:
            waiting = self._looking.send(found)
        except StopIteration:
            self._looking = None
            self.broker.after(INTERVAL_S, self._look_for_members)
        else:
            waiting.begin(self._go_on)

    # --- messages

    def append(self, message: int) -> None:
        """Append a message; acknowledge it when that is due."""
        broker, offset = self.broker, len(self.log)
        self.log.append((self.term.number, message))
        end = offset + 1
        left, worst = 2, Outcome.STORED

        def told(outcome: Outcome, why: str | None) -> None:
            nonlocal left, worst
            left -= 1
            if outcome is not Outcome.STORED:
                worst = outcome
            if not left and worst is Outcome.STORED:
                broker.watch.acknowledged(self, offset, message)

        if broker.settings.is_sync_flush:
            broker.wait_flushed(end, lambda reason: told(Outcome.STORED, None))
        else:
            told(Outcome.STORED, None)
        self.progress.wait(end, told)
        self.show()
        for slave in list(self.slaves):
            slave.send()

    # --- slaves (ha.master)

    def _look(self) -> None:
        if self.is_closed:
            return
        now_s = self.broker.world.now_s
        for slave in list(self.slaves):
            slave.caught_up.look(slave.confirmed_end, len(self.log), now_s)
            slave.send()
            if now_s - slave.heard_s > CONFIG.silence_ms / 1000:
                slave.abort()
            elif now_s - slave.spoken_s > CONFIG.heartbeat_ms / 1000:
                slave.push(0)
        self.broker.after(LOOK_S, self._look)


class SlaveEnd:
    """A master's end of a slave's connection."""

    def __init__(self, run: MasterRun, connection: Connection) -> None:
        self._run = run
        self._connection = connection
        self._talk = EpochTalk(run.epochs, lambda: run.shown_end)
        self.handshake: Handshake | None = None
        self.sent_end: int | None = None
        self.confirmed_end = -1
        self.caught_up = CaughtUp()
        self.heard_s = self.spoken_s = run.broker.world.now_s
        connection.on_message[1] = self._heard
        connection.on_end[1] = self._ended

    def _heard(self, message: Handshake | int) -> None:
        run = self._run
        self.heard_s = run.broker.world.now_s
        if isinstance(message, int):
            self._take(message)
            return
        self.handshake = message
        for other in list(run.slaves):
            known = other.handshake
            if other is not self and known is not None and known.broker_id == message.broker_id:
                other.abort()
        self._connection.send(run.broker, MasterEpochs(run.epochs, len(run.log)))

    def _take(self, report: int) -> None:
        run = self._run
        if self.sent_end is None:
            if report > len(run.log):
                self.abort()
                return
            self.sent_end = self.confirmed_end = report
            run.in_sync.update()
            self.send()
        elif report > self.sent_end:
            run.broker.watch.broken(f"a slave confirms {report}, was sent {self.sent_end}")
        elif report > self.confirmed_end:
            self.confirmed_end = report
            self.caught_up.look(report, len(run.log), run.broker.world.now_s)
            run.in_sync.update()

    def send(self) -> None:
        """Send what is new."""
        run = self._run
        if self.sent_end is None:
            return
        while self.sent_end < len(run.log):
            end = self._talk.push_end(self.sent_end)
            self.push((len(run.log) if end is None else end) - self.sent_end)
        self.caught_up.look(self.confirmed_end, len(run.log), run.broker.world.now_s)

    def push(self, size: int) -> None:
        """Send a part of the log, or a heartbeat."""
        run, at = self._run, self.sent_end
        if at is None:
            return
        found = run.epochs.at(at)
        is_empty = found is None or (not size and not at)
        epoch = NO_EPOCH if found is None or is_empty else found[0]
        body: Any = run.log[at : at + size]
        push = EpochPush(at, epoch, run.shown_end, body)
        self._connection.send(run.broker, push)
        self.sent_end = at + size
        self.spoken_s = run.broker.world.now_s

    def abort(self) -> None:
        """Close it."""
        self._connection.end(self._run.broker)
        self._ended()

    def _ended(self) -> None:
        run = self._run
        if self in run.slaves:
            run.slaves.remove(self)
            if not run.is_closed:
                run.in_sync.update()
