"""Who is elected: every rule, and random histories in which no invariant may break."""

import random
from dataclasses import replace

from pymq.controller.elections import elect, why_designation
from pymq.controller.groups import (
    GroupState,
    Member,
    Outcome,
    alter_sync_state_set,
    apply_broker_id,
    clean,
    next_broker_id,
    register,
)
from pymq.controller.reports import Report
from pymq.protocol.codes import ResponseCode
from pymq.protocol.controller import SyncStateSet

OK = ResponseCode.SUCCESS
STAYS = ResponseCode.CONTROLLER_MASTER_STILL_EXIST
FAILED = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
NONE_LEFT = ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
UNKNOWN = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED

MEMBERS = {number: Member(address=f"h:{number}") for number in (1, 2, 3)}
GROUP = GroupState(
    cluster="c",
    name="b",
    members=MEMBERS,
    next_id=4,
    master=1,
    master_epoch=5,
    in_sync=SyncStateSet(frozenset({1, 2}), 7),
)
NEW = GroupState(cluster="c", name="b", members=MEMBERS, next_id=4)


def alive(*broker_ids: int, epoch: int = 5) -> dict[int, Report]:
    return {one: Report(epoch=epoch, max_offset=100) for one in broker_ids}


def master_of(outcome: Outcome) -> tuple[int, int | None, int]:
    """Return code, master and epoch."""
    assert outcome.state is not None
    return outcome.code, outcome.state.master, outcome.state.master_epoch


# ----------------------------------------------------------------------------- the first master


def test_the_first_that_asks_is_the_first_master() -> None:
    outcome = elect(NEW, alive={}, asked=2)
    assert master_of(outcome) == (OK, 2, 1)
    assert outcome.state and outcome.state.in_sync == SyncStateSet(frozenset({2}), 1)


def test_nobody_is_the_first_master_without_being_asked() -> None:
    """RocketMQ would count an epoch, and then no broker could be elected ever again."""
    outcome = elect(NEW, alive=alive(1, 2, epoch=0))
    assert (outcome.state, outcome.code) == (NEW, FAILED)


def test_a_designated_first_master_has_to_be_alive() -> None:
    assert master_of(elect(NEW, alive={}, asked=2, is_designated=True)) == (FAILED, None, 0)
    outcome = elect(NEW, alive=alive(2, epoch=0), asked=2, is_designated=True)
    assert master_of(outcome) == (OK, 2, 1)


def test_strangers_are_not_elected() -> None:
    assert elect(None, alive=alive(1), asked=1).code == UNKNOWN
    assert elect(NEW, alive=alive(9), asked=9).code == UNKNOWN
    assert elect(GROUP, alive=alive(9), asked=9).code == UNKNOWN
    assert elect(GROUP, alive=alive(1, 9), asked=9, is_designated=True).code == FAILED


# ------------------------------------------------------------------------------ the next master


def test_a_living_master_stays() -> None:
    for asked in (None, 1, 2, 3):
        assert elect(GROUP, alive=alive(1, 2, 3), asked=asked).code == STAYS
    assert elect(GROUP, alive=alive(1, 2), asked=1, is_designated=True).code == STAYS


def test_a_member_in_sync_follows() -> None:
    for asked in (None, 2, 3):
        outcome = elect(GROUP, alive=alive(2, 3), asked=asked)
        assert master_of(outcome) == (OK, 2, 6)
        assert outcome.state and outcome.state.in_sync == SyncStateSet(frozenset({2}), 8)


def test_the_furthest_follows() -> None:
    group = replace(GROUP, in_sync=SyncStateSet(frozenset({1, 2, 3}), 7))
    for two, three, expected in (
        (Report(epoch=4, max_offset=900), Report(epoch=5, max_offset=100), 3),
        (Report(epoch=5, max_offset=101), Report(epoch=5, max_offset=100), 2),
        (Report(epoch=5, max_offset=1 << 40), Report(epoch=5, max_offset=1), 2),
        (Report(epoch=5, max_offset=9, priority=2), Report(epoch=5, max_offset=9, priority=1), 3),
        (Report(epoch=5, max_offset=9), Report(epoch=5, max_offset=9), 2),
        (Report(), Report(epoch=1), 3),
    ):
        assert master_of(elect(group, alive={2: two, 3: three})) == (OK, expected, 6)


def test_who_tells_no_offset_follows_last() -> None:
    """A learner, as a rule: it would not be the master, and has to be found gone for that."""
    lone = replace(GROUP, in_sync=SyncStateSet(frozenset({1}), 7))
    found = {2: Report(epoch=4, max_offset=900), 3: Report(epoch=5, max_offset=-1)}
    assert master_of(elect(lone, alive=found, unclean=True)) == (OK, 2, 6)
    assert master_of(elect(lone, alive={3: found[3]}, unclean=True)) == (OK, 3, 6)


def test_others_follow_only_when_that_is_allowed() -> None:
    outcome = elect(GROUP, alive=alive(3))
    assert master_of(outcome) == (NONE_LEFT, None, 6)
    assert outcome.state and outcome.state.in_sync == GROUP.in_sync
    assert master_of(elect(GROUP, alive=alive(3), asked=3)) == (FAILED, 1, 5)
    assert master_of(elect(GROUP, alive=alive(3), unclean=True)) == (OK, 3, 6)
    assert master_of(elect(GROUP, alive=alive(2, 3), unclean=True)) == (OK, 2, 6)
    assert master_of(elect(GROUP, alive={}, unclean=True)) == (NONE_LEFT, None, 6)


def test_no_master_is_recorded_once() -> None:
    first = elect(GROUP, alive={})
    assert first.state
    assert elect(first.state, alive={}).state == first.state


def test_who_is_in_sync_and_comes_back_is_elected() -> None:
    orphan = elect(GROUP, alive={}).state
    assert orphan
    assert master_of(elect(orphan, alive=alive(3), asked=3)) == (FAILED, None, 6)
    assert master_of(elect(orphan, alive=alive(2, 3))) == (OK, 2, 7)


def test_the_designated_one_is_elected_or_nobody() -> None:
    assert master_of(elect(GROUP, alive=alive(1, 2), asked=2, is_designated=True)) == (OK, 2, 6)
    for able, asked in ((alive(1, 2, 3), 3), (alive(1, 3), 2)):
        outcome = elect(GROUP, alive=able, asked=asked, is_designated=True)
        assert master_of(outcome) == (FAILED, 1, 5)
    for able, expected in ((alive(3), (OK, 3, 6)), (alive(2, 3), (FAILED, 1, 5))):
        outcome = elect(GROUP, alive=able, asked=3, is_designated=True, unclean=True)
        assert master_of(outcome) == expected


# ----------------------------------------------------------------- when an administrator decides


def test_an_old_copy_of_the_store_elects_nobody() -> None:
    """Brokers are ahead of the group: its sync state set is old, too."""
    ahead = {1: Report(epoch=9, max_offset=50), 2: Report(epoch=8, max_offset=90)}
    assert why_designation(GROUP, ahead)
    gone = {2: ahead[2]}
    for outcome in (elect(GROUP, alive=gone), elect(GROUP, alive=ahead, asked=2)):
        assert outcome.state and outcome.state.master != 2
        assert outcome.remark and "old copy" in outcome.remark and "electMaster" in outcome.remark
    wrong = elect(GROUP, alive=ahead, asked=2, is_designated=True)
    assert master_of(wrong) == (FAILED, 1, 5)
    assert master_of(elect(GROUP, alive=ahead, asked=1, is_designated=True)) == (OK, 1, 10)
    assert master_of(elect(NEW, alive=ahead, asked=1)) == (FAILED, None, 0)
    assert master_of(elect(NEW, alive=ahead, asked=1, is_designated=True)) == (OK, 1, 10)


def test_a_group_whose_members_in_sync_were_cleaned() -> None:
    left = clean(GROUP, name="b", broker_ids={1, 2}, even_living=True, alive={}).state
    assert left and not left.in_sync.broker_ids
    assert elect(left, alive=alive(3), asked=3).code == FAILED
    assert master_of(elect(left, alive=alive(3), asked=3, is_designated=True)) == (OK, 3, 7)


# ------------------------------------------------------------------------------ random histories

HISTORIES, STEPS = 200, 120


class World:
    """A group, and brokers that come, go, report and ask, in any order."""

    def __init__(self, chance: random.Random, *, unclean: bool) -> None:
        self.chance = chance
        self.unclean = unclean
        self.state: GroupState | None = None
        self.alive: dict[int, Report] = {}
        self.masters: dict[int, int] = {}  # epoch -> master
        self.was_there = False

    def step(self) -> None:
        before = self.state
        action = self.chance.choice(
            [self.join, self.join, self.beat, self.beat, self.beat, self.leave, self.ask, self.ask,
             self.elect, self.alter, self.alter, self.alter, self.designate, self.clean]
        )  # fmt: skip
        self.state = action().state
        self.check(before, action.__name__)

    def any_id(self) -> int:
        return self.chance.randint(1, 5)

    def join(self) -> Outcome:
        return apply_broker_id(
            self.state,
            cluster="c",
            name="b",
            broker_id=self.chance.choice([next_broker_id(self.state), self.any_id()]),
            check_code=f"h:{self.chance.randint(1, 9)};1",
        )

    def beat(self) -> Outcome:
        one = self.any_id()
        known = self.masters and max(self.masters) or 0
        self.alive[one] = Report(
            epoch=self.chance.randint(max(0, known - 2), known),
            max_offset=self.chance.randint(0, 1000),
        )
        return register(
            self.state,
            cluster="c",
            name="b",
            broker_id=one,
            address=f"h:{self.chance.random()}",
            alive=self.alive,
        )

    def leave(self) -> Outcome:
        self.alive.pop(self.any_id(), None)
        return Outcome(self.state)

    def ask(self) -> Outcome:
        return elect(self.state, alive=self.alive, asked=self.any_id(), unclean=self.unclean)

    def elect(self) -> Outcome:
        return elect(self.state, alive=self.alive, unclean=self.unclean)

    def designate(self) -> Outcome:
        one = self.any_id()
        return elect(
            self.state, alive=self.alive, asked=one, is_designated=True, unclean=self.unclean
        )

    def alter(self) -> Outcome:
        state = self.state or GroupState(cluster="c", name="b")
        exact = self.chance.random() < 0.8
        wanted = {one for one in range(1, 6) if self.chance.random() < 0.5}
        return alter_sync_state_set(
            self.state,
            master=(state.master if exact and state.master else self.any_id()),
            master_epoch=state.master_epoch if exact else self.chance.randint(0, 9),
            wanted=SyncStateSet(
                frozenset(wanted | {state.master} if state.master else wanted),
                state.in_sync.epoch if exact else self.chance.randint(0, 9),
            ),
            alive=self.alive,
        )

    def clean(self) -> Outcome:
        if self.chance.random() < 0.7:
            return Outcome(self.state)
        return clean(
            self.state, name="b", broker_ids={self.any_id()}, even_living=False, alive=self.alive
        )

    def check(self, before: GroupState | None, action: str) -> None:
        state = self.state
        if state is None:
            # Forgotten as a whole: only by an administrator.
            assert before is None or action == "clean"
            self.masters.clear()
            return
        assert state.in_sync.broker_ids <= state.members.keys()
        assert state.next_id > max(state.members)
        if state.master is not None:
            assert state.master in state.in_sync.broker_ids
            assert self.masters.setdefault(state.master_epoch, state.master) == state.master
        if before is None:
            return
        assert state.master_epoch >= before.master_epoch
        assert state.in_sync.epoch >= before.in_sync.epoch
        if state.in_sync.broker_ids != before.in_sync.broker_ids:
            assert state.in_sync.epoch > before.in_sync.epoch
        if state.master != before.master:
            assert state.master_epoch > before.master_epoch
            if state.master is not None:
                self.check_elected(before, state)

    def check_elected(self, before: GroupState, state: GroupState) -> None:
        assert state.master is not None
        assert state.in_sync.broker_ids == {state.master}
        if before.master_epoch == 0:
            return
        assert state.master in self.alive
        clean_one = state.master in before.in_sync.broker_ids
        nobody = before.in_sync.broker_ids.isdisjoint(self.alive)
        rescued = why_designation(before, self.alive) is not None
        assert clean_one or rescued or (self.unclean and nobody)


def test_random_histories(seed: int) -> None:
    elections = 0
    for number in range(HISTORIES):
        world = World(random.Random(f"{seed} {number}"), unclean=number % 4 == 0)
        try:
            for _ in range(STEPS):
                world.step()
        except AssertionError as error:
            raise AssertionError(f"history {number} of seed {seed}: {world.state}") from error
        elections += len(world.masters)
    assert elections > HISTORIES
