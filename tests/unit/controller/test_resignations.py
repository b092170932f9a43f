"""Who follows a master that was elected, and never began its epoch."""

import random
from dataclasses import replace

from pymq.controller.elections import elect
from pymq.controller.groups import (
    GroupState,
    LastTerm,
    Member,
    Outcome,
    alter_sync_state_set,
    clean,
    without_master,
)
from pymq.controller.reports import Report
from pymq.controller.resignations import resign
from pymq.protocol import fastjson
from pymq.protocol.codes import ResponseCode
from pymq.protocol.controller import SyncStateSet

REFUSED = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
GROUP = GroupState(
    cluster="c",
    name="b",
    members={number: Member(address=f"h:{number}") for number in (1, 2, 3)},
    next_id=4,
    master=1,
    master_epoch=5,
    in_sync=SyncStateSet(frozenset({1, 2, 3}), 7),
)


def alive(*broker_ids: int) -> dict[int, Report]:
    return {one: Report(epoch=5, max_offset=100) for one in broker_ids}


def elected() -> GroupState:
    """Return the group with broker 2 as master of epoch 6, which others have heard of."""
    state = elect(GROUP, alive=alive(2, 3)).state
    assert state is not None and (state.master, state.master_epoch) == (2, 6)
    return state


def resigned(state: GroupState | None, *living: int, **changes: int) -> Outcome:
    of = {"master": 2, "master_epoch": 6, "set_epoch": 8, **changes}
    return resign(
        state,
        master=of["master"],
        master_epoch=of["master_epoch"],
        set_epoch=of["set_epoch"],
        alive=alive(*living),
    )


def check_refused(outcome: Outcome, state: GroupState | None) -> None:
    assert (outcome.state, outcome.code) == (state, REFUSED)
    assert outcome.remark and "never began" in outcome.remark


def test_another_one_in_sync_before_follows() -> None:
    state = resigned(elected(), 2, 3).state
    assert state is not None
    assert (state.master, state.master_epoch) == (3, 7)
    assert state.in_sync == SyncStateSet(frozenset({3}), 9)


def test_it_may_be_found_gone_before() -> None:
    gone = without_master(elected())
    for one in (elected(), gone):
        check_refused(resigned(one, 2), one)  # nobody else is there
    state = resigned(gone, 1).state
    assert state is not None and (state.master, state.master_epoch) == (1, 8)


def test_several_may_resign_one_after_the_other() -> None:
    state = resigned(elected(), 2, 3).state
    again = resigned(state, 2, 3, master=3, master_epoch=7, set_epoch=9).state
    assert again is not None and (again.master, again.master_epoch) == (2, 8)


def test_who_began_does_not_resign() -> None:
    state = elected()
    altered = alter_sync_state_set(
        state,
        master=2,
        master_epoch=6,
        wanted=SyncStateSet(frozenset({2, 3}), 8),
        alive=alive(2, 3),
    ).state
    assert altered is not None
    alone = alter_sync_state_set(
        altered, master=2, master_epoch=6, wanted=SyncStateSet(frozenset({2}), 9), alive={}
    ).state
    for one in (altered, alone):
        for epoch in (8, 9, 10):
            check_refused(resigned(one, 2, 3, set_epoch=epoch), one)
    kept = replace(state, last_terms={2: LastTerm(epoch=6, address="h:2")})
    check_refused(resigned(kept, 2, 3), kept)
    heard = {**alive(3), 2: Report(epoch=6, max_offset=100)}
    check_refused(resign(state, master=2, master_epoch=6, set_epoch=8, alive=heard), state)


def test_only_the_one_that_was_elected_last_resigns() -> None:
    state = elected()
    for changes in ({"master": 3}, {"master": 1, "master_epoch": 5}, {"master_epoch": 7}):
        check_refused(resigned(state, 2, 3, **changes), state)
    again = elect(without_master(state), alive=alive(2)).state
    assert again is not None and again.master_epoch == 8
    check_refused(resigned(again, 2, 3), again)
    check_refused(resigned(None, 2, 3), None)


def test_members_that_were_not_in_sync_or_are_gone_do_not_follow() -> None:
    two = replace(GROUP, in_sync=SyncStateSet(frozenset({1, 2}), 7))
    state = elect(two, alive=alive(2, 3)).state
    check_refused(resigned(state, 2, 3), state)
    cleaned = clean(elected(), name="b", broker_ids={3}, even_living=True, alive={}).state
    check_refused(resigned(cleaned, 2, 3), cleaned)
    behind = replace(elected(), last_terms={3: LastTerm(epoch=6, address="h:9")})
    check_refused(resigned(behind, 2, 3), behind)


def test_a_set_that_an_old_copy_has_says_nothing() -> None:
    ahead = {2: Report(epoch=9, max_offset=9), 3: Report(epoch=8, max_offset=9)}
    state = elect(GROUP, alive=ahead, asked=2, is_designated=True).state
    assert state is not None and (state.master, state.in_sync_before) == (2, None)


def test_the_set_before_is_kept_and_old_states_have_none() -> None:
    state = elected()
    assert GroupState.decode(state.encode()) == state
    old = fastjson.parse(state.encode())
    del old["inSyncBefore"]
    read = GroupState.from_json(old)
    assert read == replace(state, in_sync_before=None)
    assert "inSyncBefore" not in read.to_json()
    check_refused(resigned(read, 2, 3), read)


def test_nothing_that_was_acknowledged_is_lost(seed: int) -> None:
    """Masters acknowledge what all in sync have; those that never began resign, some late."""
    count = 0
    for number in range(200):
        world = _World(random.Random(f"{seed} {number}"))
        for _ in range(80):
            world.step()
        count += world.resigned_count
    assert count


class _World:
    """Three brokers whose logs are numbers of messages, the later one the longer one."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.state = GROUP
        self.ends = {1: 0, 2: 0, 3: 0}
        self.epochs = {1: 5, 2: 5, 3: 5}
        self.living = {1, 2, 3}
        self.acknowledged = 0
        #: Elected ones that have not begun: id, epoch, epoch of the set. They may say so late.
        self.unbegun: list[tuple[int, int, int]] = []
        self.resigned_count = 0

    def step(self) -> None:
        self.chance.choice([self.live, self.elect, self.begin, self.write, self.resign])()
        master = self.state.master
        if master is not None:
            assert self.ends[master] >= self.acknowledged, self.state

    def alive(self) -> dict[int, Report]:
        return {
            one: Report(epoch=self.epochs[one], max_offset=self.ends[one]) for one in self.living
        }

    def live(self) -> None:
        self.living ^= {self.chance.randint(1, 3)}

    def elect(self) -> None:
        if self.state.master not in self.living:
            self.take(elect(self.state, alive=self.alive()))

    def take(self, outcome: Outcome) -> None:
        assert outcome.state is not None
        self.state = state = outcome.state
        if outcome.is_success and state.master is not None:
            self.unbegun.append((state.master, state.master_epoch, state.in_sync.epoch))

    def begin(self) -> None:
        for one in self.unbegun:
            if one[:2] == (self.state.master, self.state.master_epoch) and one[0] in self.living:
                self.unbegun.remove(one)
                self.epochs[one[0]] = one[1]
                return

    def write(self) -> None:
        """Or others join, or leave."""
        state, master = self.state, self.state.master
        if master not in self.living or self.epochs[master] != state.master_epoch:
            return
        wanted = {master, *(one for one in self.living if self.chance.random() < 0.5)}
        for one in wanted:
            self.ends[one], self.epochs[one] = self.ends[master], self.epochs[master]
        asked = SyncStateSet(frozenset(wanted), state.in_sync.epoch)
        if asked.broker_ids != state.in_sync.broker_ids:
            self.take_set(
                alter_sync_state_set(
                    state,
                    master=master,
                    master_epoch=state.master_epoch,
                    wanted=asked,
                    alive=self.alive(),
                )
            )
        self.acknowledged = self.ends[master] = self.ends[master] + 1
        for one in self.state.in_sync.broker_ids:
            self.ends[one], self.epochs[one] = self.ends[master], self.epochs[master]

    def take_set(self, outcome: Outcome) -> None:
        assert outcome.is_success and outcome.state is not None
        self.state = outcome.state

    def resign(self) -> None:
        if not self.unbegun:
            return
        one = self.chance.choice(self.unbegun)
        master, epoch, set_epoch = one
        outcome = resign(
            self.state,
            master=master,
            master_epoch=epoch,
            set_epoch=set_epoch,
            alive=self.alive(),
        )
        if outcome.is_success:
            self.unbegun.remove(one)
            self.resigned_count += 1
            self.take(outcome)
