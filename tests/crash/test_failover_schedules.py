"""Random schedules of a group of brokers and its controller, with a virtual clock and network.

What must hold is in ``failover_model``. That the simulator would see it if it did not: each rule
that is taken away here, one at a time, breaks something within a few schedules.

To go through one schedule again: ``PYMQ_TEST_SEED=SEED`` of the run, and ``Schedule`` of
``random.Random(f"{SEED}/{NUMBER}")`` with the number that is in the error.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import ROUNDS_OF_A_TEST
from tests.crash import failover_controller, failover_master, failover_slave
from tests.crash.failover_brokers import Broker
from tests.crash.failover_controller import Controller
from tests.crash.failover_model import Broken, Schedule

from pymq.broker.ha import group_progress, in_sync
from pymq.broker.ha.sync_states import SyncStates
from pymq.broker.log_writer import Outcome
from pymq.controller import liveness
from pymq.controller.groups import GroupState, register
from pymq.protocol.controller import SyncStateSet
from pymq.protocol.epochs import Epochs

pytestmark = pytest.mark.crash

#: For each round of a crash test: 1,000 and 100,000 with those of ``test`` and ``crash``.
SCHEDULES_OF_A_ROUND, MANY_OF_A_ROUND = 40, 100
#: Of which one has to break when a rule is missing.
TRIES, RARE_TRIES = 3_000, 20_000
LONG_ROUNDS = 1_000


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="pymq")


def test_nothing_is_lost_whatever_happens(seed: int, crash_rounds: int) -> None:
    of_a_round = MANY_OF_A_ROUND if crash_rounds >= LONG_ROUNDS else SCHEDULES_OF_A_ROUND
    acknowledged = 0
    for number in range(of_a_round * crash_rounds):
        schedule = Schedule(random.Random(f"{seed}/{number}"))
        try:
            schedule.live()
        except Broken as error:
            told = "\n".join(schedule.world.told)
            pytest.fail(f"{error}\nPYMQ_TEST_SEED={seed}, schedule {number}:\n{told}")
        acknowledged += schedule.acknowledged_count
    print(f"PYMQ_TEST_SEED={seed}: {number + 1} schedules, {acknowledged} acknowledged")
    assert acknowledged > 10 * number


# ------------------------------------------------------------------------- what bites without rules


def _asked_are_not_awaited(patch: pytest.MonkeyPatch) -> None:
    known = property(lambda self: self.members.broker_ids - {self._own_id})
    patch.setattr(SyncStates, "awaited", known)


def _unknown_is_refused(patch: pytest.MonkeyPatch) -> None:
    true_alter = Broker.alter

    def alter(self: Broker, term: int, ids: frozenset[int], epoch: int, done: Any) -> None:
        as_refused = lambda found: done(found if isinstance(found, SyncStateSet) else None)  # noqa: E731
        true_alter(self, term, ids, epoch, as_refused)

    patch.setattr(Broker, "alter", alter)


def _errors_of_the_store_are_refusals(patch: pytest.MonkeyPatch) -> None:
    true_altered = Broker.altered

    def altered(self: Broker, answer: Any) -> Any:
        found = true_altered(self, answer)
        return found if isinstance(found, SyncStateSet) else None

    patch.setattr(Broker, "altered", altered)


def _epochs_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Epochs, "common_end", lambda self, own_end, other, other_end: min(own_end, other_end)
    )


def _cut_epochs_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Epochs, "cut", lambda self, end: self)


def _one_is_enough(patch: pytest.MonkeyPatch) -> None:
    verdict = lambda self: (Outcome.STORED, None)  # noqa: E731
    patch.setattr(group_progress.GroupProgress, "_verdict", verdict)


def _masters_go_on_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Broker, "_is_ours", lambda self, state: False)
    patch.setattr(failover_controller, "register", _registered_before)


def _registered_before(state: GroupState | None, **given: Any) -> Any:
    outcome = register(state, **given)
    return failover_controller.Outcome(state, outcome.code, outcome.remark)


def _what_was_said_before_a_restart_counts(patch: pytest.MonkeyPatch) -> None:
    true_heard = liveness.Liveness.heard

    def heard(self: liveness.Liveness, name: str, broker_id: int, **given: Any) -> bool:
        if (name, broker_id) in self._brokers:
            self._brokers[name, broker_id].connection = given["connection"]
        return true_heard(self, name, broker_id, **given)

    patch.setattr(liveness.Liveness, "heard", heard)
    patch.setattr(liveness.Liveness, "registered", lambda self, name, broker_id: None)


def _slaves_join_wherever_they_are(patch: pytest.MonkeyPatch) -> None:
    def wanted(self: SyncStates, now_s: float) -> frozenset[int] | None:
        found = frozenset({*self._positions, self._own_id})
        return found if found != self.members.broker_ids else None

    patch.setattr(SyncStates, "wanted", wanted)


def _changes_are_made_when_they_are_asked_for(patch: pytest.MonkeyPatch) -> None:
    def ask(self: SyncStates, broker_ids: frozenset[int]) -> None:
        self.members = SyncStateSet(broker_ids, self.members.epoch)

    patch.setattr(SyncStates, "ask", ask)


def _slaves_confirm_what_is_not_flushed(patch: pytest.MonkeyPatch) -> None:
    def flushed(self: Any, end: int, done: Callable[[str | None], None]) -> None:
        done(None)

    patch.setattr(failover_slave.SlaveRun, "_flushed", flushed)


def _slaves_show_what_their_master_has_not_flushed(patch: pytest.MonkeyPatch) -> None:
    end = property(lambda self: self.in_sync.confirmed_end)
    patch.setattr(failover_master.MasterRun, "shown_end", end)


def _anybody_may_be_elected(patch: pytest.MonkeyPatch) -> None:
    true_elect = failover_controller.elect
    patch.setattr(
        failover_controller,
        "elect",
        lambda *state, **given: true_elect(*state, **(given | {"unclean": True})),
    )
    lacks = lambda self, state: state.master not in self._liveness.alive("g")  # noqa: E731
    patch.setattr(Controller, "_lacks_master", lacks)


def _old_sets_are_believed(patch: pytest.MonkeyPatch) -> None:
    true_alter = failover_controller.alter_sync_state_set

    def alter(state: GroupState, *, wanted: SyncStateSet, **given: Any) -> Any:
        wanted = SyncStateSet(wanted.broker_ids, state.in_sync.epoch)
        return true_alter(state, wanted=wanted, **given)

    patch.setattr(failover_controller, "alter_sync_state_set", alter)


def _old_masters_are_believed(patch: pytest.MonkeyPatch) -> None:
    true_alter = failover_controller.alter_sync_state_set

    def alter(state: GroupState, *, wanted: SyncStateSet, **given: Any) -> Any:
        wanted = SyncStateSet(wanted.broker_ids, state.in_sync.epoch)
        given |= {"master_epoch": state.master_epoch, "master": state.master}
        return true_alter(state, wanted=wanted, **given)

    patch.setattr(failover_controller, "alter_sync_state_set", alter)


def _old_runs_ask_for_the_new_term(patch: pytest.MonkeyPatch) -> None:
    true_alter = Broker.alter

    def alter(self: Broker, term: int, *more: Any) -> None:
        assert self.term is not None
        true_alter(self, self.term.number, *more)

    def take_members(self: Broker, number: int, members: SyncStateSet) -> None:
        if self._members is not None:
            self._members[1].told(members)

    patch.setattr(Broker, "alter", alter)
    patch.setattr(Broker, "take_members", take_members)


def _reads_overtake_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(in_sync, "FORGOTTEN_S", 0.5)  # otherwise it takes a store that hangs for as long
    patch.setattr(Controller, "read", lambda self, done: done(self.disk.state))


#: What breaks without them.
RULES = [
    _asked_are_not_awaited,
    _unknown_is_refused,
    _epochs_are_not_compared,
    _one_is_enough,
    _slaves_join_wherever_they_are,
    _changes_are_made_when_they_are_asked_for,
    _slaves_confirm_what_is_not_flushed,
    _slaves_show_what_their_master_has_not_flushed,
    _anybody_may_be_elected,
    _old_masters_are_believed,
]


#: The same, once in thousands of schedules.
RARE_RULES = [
    _masters_go_on_after_a_restart,
    _errors_of_the_store_are_refusals,
    _cut_epochs_stay,
    _what_was_said_before_a_restart_counts,
    _old_sets_are_believed,
    _old_runs_ask_for_the_new_term,
    _reads_overtake_changes,
]


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__.strip("_"))
def test_each_rule_is_needed(
    take_away: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    crash_rounds: int,
) -> None:
    if crash_rounds <= ROUNDS_OF_A_TEST:
        seed = 0  # always the same schedules: of others, too many may be harmless
    look_for_trouble(take_away, monkeypatch, seed, TRIES)


@pytest.mark.parametrize("take_away", RARE_RULES, ids=lambda rule: rule.__name__.strip("_"))
def test_each_rule_is_needed_now_and_then(
    take_away: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    crash_rounds: int,
) -> None:
    if crash_rounds < LONG_ROUNDS:
        pytest.skip("it takes thousands of schedules: ./build.sh crash")
    look_for_trouble(take_away, monkeypatch, seed, RARE_TRIES)


def look_for_trouble(
    take_away: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    tries: int,
) -> None:
    """Go through schedules without a rule until something breaks."""
    take_away(monkeypatch)
    for number in range(tries):
        try:
            Schedule(random.Random(f"{seed}/{number}")).live()
        except (Broken, ValueError) as error:
            print(f"schedule {number}: {error}")
            return
    pytest.fail(f"PYMQ_TEST_SEED={seed}: nothing breaks in {tries} schedules")
