"""The controller of the simulator of failover: the product's pure parts, with what is around them.

``Controller`` does what ``controller.handlers``, ``failover``, ``notices`` and ``registry`` do, in
callbacks. Its store takes time, stalls, and fails with and without an effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.crash.failover_world import Connection, Process, World

from pymq.controller.config import ControllerConfig
from pymq.controller.elections import elect
from pymq.controller.failover import EXPIRY_INTERVAL_S
from pymq.controller.groups import (
    GroupState,
    Outcome,
    alter_sync_state_set,
    apply_broker_id,
    register,
)
from pymq.controller.handlers import HEARTBEAT_WAIT_S
from pymq.controller.liveness import Liveness
from pymq.controller.notices import ATTEMPT_COUNT, RETRY_S
from pymq.controller.reports import Report
from pymq.controller.two_of_one_id import with_last_term
from pymq.protocol.codes import ResponseCode
from pymq.protocol.controller import SyncStateSet

CLUSTER, GROUP = "c", "g"
CONFIG = ControllerConfig()
#: What a write of the store takes, and what it takes now and then.
WRITE_S, SLOW_S, STALL_S = 0.01, 4.0, 45.0
#: How often it fails, and how often it is slow, when there is no trouble.
FAILS = 0.06

Decide = Callable[[GroupState | None], Outcome]


@dataclass(slots=True)
class Answer:
    """What a controller answers: a code, and the group as it was then."""

    code: int
    state: GroupState | None = None
    #: Whether the master is certainly not gone; of registrations only.
    has_master: bool = False


@dataclass(slots=True)
class Disk:
    """What outlives the controller's process.

    Attributes:
        state: the group.
        stalls, fails: whether the next writes take very long, or fail, perhaps with an effect.
    """

    state: GroupState | None = None
    stalls: bool = False
    fails: bool = False


class Controller(Process):
    """One controller; ``disk`` outlives it.

    Args:
        brokers: by id; to be told.
        on_changed: called with each new state of the group.
    """

    def __init__(
        self,
        world: World,
        brokers: dict[int, Process],
        on_changed: Callable[[GroupState], None],
    ) -> None:
        super().__init__(world, "controller")
        self.disk = Disk()
        self._brokers = brokers
        self._on_changed = on_changed

    def first_ids(self) -> None:
        """Give the brokers their ids."""
        for broker_id in sorted(self._brokers):
            self.disk.state = apply_broker_id(
                self.disk.state,
                cluster=CLUSTER,
                name=GROUP,
                broker_id=broker_id,
                check_code=f"h:{broker_id};0",
            ).state

    def begin(self) -> None:
        """Start, without memory."""
        super().begin()
        self._liveness = Liveness(
            limit_s=CONFIG.heartbeat_timeout_ms / 1000,
            unheard_s=CONFIG.patience_ms / 1000,
            now_s=self.world.now_s,
        )
        self._told_epoch: int | None = None
        self._changes: deque[Callable[[], None]] = deque()
        self._is_busy = False
        self._writing: Callable[[], None] = lambda: None
        self._notices: dict[int, tuple[int, int]] = {}
        self.after(0, self._expire)
        self.after(0, self._scan)

    def die(self, *, loses_power: bool = False) -> None:
        """End; what is being written is there or not."""
        if self.is_up and self.world.dice.random() < 0.5:
            self._writing()
        super().die(loses_power=loses_power)

    def heard(self) -> set[int]:
        """Return who is alive, as far as it knows."""
        return set(self._liveness.alive(GROUP))

    # --- the store: one change at a time

    def change(self, decide: Decide, done: Callable[[Outcome | None], None]) -> None:
        """Decide, keep what was decided, and tell; None: it is not known whether it was kept."""
        self._in_turn(lambda: self._change(decide, done))

    def read(self, done: Callable[[GroupState | None], None]) -> None:
        """Tell the state, after the changes that were begun before."""
        self._in_turn(lambda: self._end_turn(lambda: done(self._followed())))

    def _followed(self) -> GroupState | None:
        """Return the state, after the brokers count that it says."""
        if self.disk.state is not None:
            self._liveness.follow(self.disk.state)
        return self.disk.state

    def _in_turn(self, begin: Callable[[], None]) -> None:
        self._changes.append(begin)
        self._next_turn()

    def _next_turn(self) -> None:
        if self._changes and not self._is_busy:
            self._is_busy = True
            self._changes.popleft()()

    def _end_turn(self, action: Callable[[], None]) -> None:
        action()
        self._is_busy = False
        self._next_turn()

    def _change(self, decide: Decide, done: Callable[[Outcome | None], None]) -> None:
        disk, dice = self.disk, self.world.dice
        before = self._followed()
        outcome = decide(before)
        if outcome.state == before:
            self._end_turn(lambda: done(outcome))
            return

        def write() -> None:
            assert outcome.state is not None
            disk.state = after = outcome.state
            self.world.note(
                f"controller: epoch {after.master_epoch}, master {after.master}, in sync "
                f"{set(after.in_sync.broker_ids)}"
            )
            self._on_changed(after)

        self._writing = write
        pause_s = dice.random() * (STALL_S if disk.stalls else WRITE_S)
        if dice.random() < FAILS:
            pause_s = dice.random() * SLOW_S

        def written() -> None:
            self._writing = lambda: None
            fails = disk.fails or dice.random() < FAILS
            if not fails or dice.random() < 0.5:
                write()
            if not fails:
                self._followed()
            self._end_turn(lambda: done(None if fails else outcome))

        self.after(pause_s, written)

    # --- brokers come and go

    def accepted(self, connection: Connection) -> None:
        """Take a broker's connection."""
        connection.on_message[1] = lambda message: self._received(connection, *message)
        connection.on_end[1] = lambda: self._lost(connection)

    def _lost(self, connection: Connection) -> None:
        for _ in self._liveness.connection_ended(connection):
            self._review(CONFIG.election_attempt_count)

    def _expire(self) -> None:
        for _ in self._liveness.expire(self.world.now_s, EXPIRY_INTERVAL_S):
            self._review(CONFIG.election_attempt_count)
        self.after(EXPIRY_INTERVAL_S, self._expire)

    def _scan(self) -> None:
        def look(state: GroupState | None) -> None:
            if state is None:
                return
            if self._lacks_master(state) and self._liveness.alive(GROUP):
                self._review(CONFIG.election_attempt_count)
            elif self._told_epoch != state.master_epoch:
                self._announce(state)

        look(self.disk.state)  # ``read_all`` does not wait
        self.after(CONFIG.scan_interval_ms / 1000, self._scan)

    def _review(self, attempts: int, came: int | None = None) -> None:
        """Elect a master if there is none."""

        def look(state: GroupState | None) -> None:
            if state is None:
                return
            if self._lacks_master(state):
                self.change(self._elect_if_none, elected)
                return
            if with_last_term(state, self._liveness.alive(GROUP)) != state:
                self.change(self._keep_last_term, lambda _: None)
            tell(state)

        def elected(outcome: Outcome | None) -> None:
            if outcome is not None and outcome.state is not None:
                tell(outcome.state)
            elif attempts > 1:
                self.after(RETRY_S, lambda: self._review(attempts - 1, came))

        def tell(state: GroupState) -> None:
            if self._told_epoch != state.master_epoch:
                self._announce(state)
            elif came is not None and came != state.master:
                self._tell(state, came, ATTEMPT_COUNT)

        self.read(look)

    def _lacks_master(self, state: GroupState) -> bool:
        if state.master_epoch == 0:
            return False
        alive = self._liveness.alive(GROUP)
        if state.master is None:
            return not alive.keys().isdisjoint(state.in_sync.broker_ids)
        if state.master in alive:
            return False
        return not self._liveness.may_be_alive(GROUP, state.master, self.world.now_s)

    def _elect_if_none(self, state: GroupState | None) -> Outcome:
        if state is None or not self._lacks_master(state):
            return Outcome(state, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        return elect(state, alive=self._liveness.alive(GROUP))

    def _keep_last_term(self, state: GroupState | None) -> Outcome:
        return Outcome(state and with_last_term(state, self._liveness.alive(GROUP)))

    def _announce(self, state: GroupState) -> None:
        self._told_epoch = state.master_epoch
        for broker_id in self._liveness.alive(GROUP):
            self._tell(state, broker_id, ATTEMPT_COUNT)

    def _tell(self, state: GroupState, broker_id: int, attempts: int) -> None:
        """Notify a broker, which may miss it, hear it late, and twice."""
        if state.master is None or not attempts:
            return
        world, broker = self.world, self._brokers[broker_id]
        if self._notices.get(broker_id, (0, 0))[0] > state.master_epoch:
            return
        self._notices[broker_id] = state.master_epoch, attempts

        def arrive() -> None:
            if not world.is_cut(self, broker) and broker.is_up:
                broker.do(lambda: broker.notified(state))  # type: ignore[attr-defined]

        world.after(world.latency_s(), None, arrive)
        if world.is_cut(self, broker) or not broker.is_up or world.dice.random() < 0.05:
            self.after(RETRY_S, lambda: self._tell(state, broker_id, attempts - 1))

    # --- requests

    def _received(self, connection: Connection, number: int, kind: str, given: Any) -> None:
        if kind == "heartbeat":
            self._heartbeat(connection, *given)
            return

        def answer(code: int, state: GroupState | None, has_master: bool = False) -> None:
            connection.send(self, (number, Answer(code, state, has_master)))

        getattr(self, "_do_" + kind)(answer, *given)

    def _heartbeat(self, connection: Connection, broker_id: int, report: Report) -> None:
        epoch_before = self._liveness.epoch_of(GROUP, broker_id)
        is_new = self._liveness.heard(
            GROUP,
            broker_id,
            connection=connection,
            silence_s=2.0,
            report=report,
            now_s=self.world.now_s,
        )
        if is_new:
            self._review(CONFIG.election_attempt_count, broker_id)
        elif self._liveness.epoch_of(GROUP, broker_id) != epoch_before:
            self._review(CONFIG.election_attempt_count)

    def _do_register(self, answer: Callable[..., None], broker_id: int) -> None:
        def done(outcome: Outcome | None) -> None:
            if outcome is None or outcome.state is None:
                answer(ResponseCode.SYSTEM_ERROR, None)
                return
            state = outcome.state
            has = state.master is not None and not self._lacks_master(state)
            answer(outcome.code, state, has)

        address = f"h:{broker_id}"
        self._liveness.registered(GROUP, broker_id, address)
        self.change(
            lambda state: register(
                state,
                cluster=CLUSTER,
                name=GROUP,
                broker_id=broker_id,
                address=address,
                alive=self._liveness.alive(GROUP),
            ),
            done,
        )

    def _do_elect(self, answer: Callable[..., None], broker_id: int) -> None:
        deadline_s = self.world.now_s + HEARTBEAT_WAIT_S

        def wait() -> None:
            if broker_id in self._liveness.alive(GROUP) or self.world.now_s >= deadline_s:
                self.change(decide, done)
            else:
                self.after(0.1, wait)

        def decide(state: GroupState | None) -> Outcome:
            alive = self._liveness.alive(GROUP)
            if (
                state is not None
                and state.master is not None
                and state.master not in alive
                and self._liveness.may_be_alive(GROUP, state.master, self.world.now_s)
            ):
                return Outcome(state, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
            return elect(state, alive=alive, asked=broker_id)

        def done(outcome: Outcome | None) -> None:
            if outcome is None:
                answer(ResponseCode.SYSTEM_ERROR, None)
                return
            if outcome.is_success and outcome.state is not None:
                self._announce(outcome.state)
            answer(outcome.code, outcome.state)

        wait()

    def _do_look(self, answer: Callable[..., None]) -> None:
        self.read(lambda state: answer(ResponseCode.SUCCESS, state))

    def _do_alter(
        self, answer: Callable[..., None], master: int, epoch: int, wanted: SyncStateSet
    ) -> None:
        def done(outcome: Outcome | None) -> None:
            if outcome is None:
                answer(ResponseCode.SYSTEM_ERROR, None)
            else:
                answer(outcome.code, outcome.state)

        self.change(
            lambda state: alter_sync_state_set(
                state,
                master=master,
                master_epoch=epoch,
                wanted=wanted,
                alive=self._liveness.alive(GROUP),
            ),
            done,
        )
