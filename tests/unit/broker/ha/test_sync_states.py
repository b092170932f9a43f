"""Whom a master waits for, when the set changes, and when a slave last had everything."""

import math

import pytest

from pymq.broker.ha.caught_up import CaughtUp
from pymq.broker.ha.sync_states import Position, SyncStates
from pymq.protocol.controller import SyncStateSet

LAG_S = 2.0


class Bed:
    """The set of master 1, whose term began at 100, at second 50."""

    def __init__(self, *members: int, epoch: int = 7) -> None:
        self.now_s = 50.0
        of = SyncStateSet(frozenset(members), epoch)
        self.states = SyncStates(1, 100, of, self.now_s, lag_max_s=LAG_S)

    def update(self, log_end: int, **ends: int) -> int:
        """Take the ends of slaves (``s2=...``) that had everything just now."""
        positions = {int(name[1:]): Position(end, self.now_s) for name, end in ends.items()}
        return self.states.update(positions, log_end)

    def wanted(self) -> set[int] | None:
        found = self.states.wanted(self.now_s)
        return None if found is None else set(found)

    def changed(self, *members: int, epoch: int) -> bool:
        return self.states.changed(SyncStateSet(frozenset(members), epoch))


def test_alone_a_master_confirms_what_it_has() -> None:
    bed = Bed(1)
    assert bed.states.awaited == frozenset()
    assert bed.update(120) == 120
    assert bed.wanted() is None


def test_all_members_are_waited_for_and_nobody_else() -> None:
    bed = Bed(1, 2, 3)
    assert bed.update(200, s2=150) == 0  # 3 has not said anything yet
    assert bed.update(200, s2=150, s3=120, s4=10) == 120
    assert bed.update(200, s2=150, s3=200, s4=10) == 150


def test_what_is_confirmed_stays_confirmed() -> None:
    bed = Bed(1, 2)
    assert bed.update(200, s2=180) == 180
    assert bed.update(200, s2=90) == 180
    assert bed.update(200) == 180


def test_a_member_that_is_away_counts_with_what_it_had() -> None:
    bed = Bed(1, 2, 3)
    bed.update(200, s2=150, s3=120)
    assert bed.update(200, s3=200) == 150  # 2 is away


def test_a_slave_joins_that_has_what_is_confirmed() -> None:
    bed = Bed(1)
    bed.update(150)
    bed.update(160, s2=155)
    assert bed.wanted() is None  # alone, 160 is confirmed
    bed.update(160, s2=160)
    assert bed.wanted() == {1, 2}


def test_a_slave_has_to_be_in_the_term_to_join() -> None:
    bed = Bed(1, 3)
    bed.update(160, s2=99, s3=50)
    assert bed.states.confirmed_end == 50
    assert bed.wanted() is None
    bed.update(160, s2=100, s3=50)
    assert bed.wanted() == {1, 2, 3}


def test_who_is_about_to_join_is_waited_for() -> None:
    bed = Bed(1)
    bed.update(150)
    bed.update(160, s2=155)
    bed.wanted()
    assert bed.states.awaited == {2}
    assert bed.update(200, s2=158) == 160  # and not 200
    assert bed.update(200, s2=170) == 170
    assert bed.wanted() == {1, 2}


def test_a_slave_that_is_far_behind_is_not_waited_for() -> None:
    bed = Bed(1)
    bed.states.update({2: Position(10, bed.now_s - LAG_S - 0.1)}, 150)
    assert bed.wanted() is None
    assert bed.states.awaited == frozenset()


def test_learners_never_join_nor_are_they_waited_for() -> None:
    bed = Bed(1)
    bed.states.update({2: Position(150, bed.now_s, is_learner=True)}, 150)
    assert bed.wanted() is None
    assert bed.states.awaited == frozenset()


def test_a_member_leaves_that_has_become_a_learner() -> None:
    bed = Bed(1, 2)
    bed.states.update({2: Position(150, bed.now_s, is_learner=True)}, 150)
    assert bed.wanted() == {1}


def test_a_member_leaves_that_has_not_had_everything_for_long() -> None:
    bed = Bed(1, 2)
    bed.update(150, s2=150)
    bed.now_s += LAG_S
    assert bed.wanted() is None
    bed.now_s += 0.1
    assert bed.wanted() == {1}
    assert bed.states.awaited == {2}  # until the controller has agreed


def test_a_member_that_has_not_come_yet_is_given_time() -> None:
    bed = Bed(1, 2)
    assert bed.wanted() is None
    bed.now_s += LAG_S + 0.1
    assert bed.wanted() == {1}


def test_a_member_leaves_at_once_that_has_less_than_it_had() -> None:
    bed = Bed(1, 2, 3)
    bed.update(200, s2=200, s3=200)
    bed.update(200, s2=200, s3=199)
    assert bed.wanted() == {1, 2}


def test_whoever_may_be_in_the_set_is_waited_for() -> None:
    bed = Bed(1, 2)
    bed.states.ask(frozenset({1, 3}))
    assert bed.states.awaited == {2, 3}
    bed.states.ask(frozenset({1, 4}))
    assert bed.states.awaited == {2, 3, 4}
    bed.states.refused()
    assert bed.states.awaited == {2}


def test_only_a_later_set_is_taken() -> None:
    bed = Bed(1, 2, epoch=7)
    bed.states.ask(frozenset({1, 3}))
    assert not bed.changed(1, 3, epoch=7)
    assert not bed.changed(1, 3, epoch=6)
    assert bed.states.awaited == {2, 3}
    assert bed.changed(1, 3, epoch=8)
    assert bed.states.awaited == {3}
    assert bed.wanted() == {1}  # nothing is known of 3


@pytest.mark.parametrize(
    ("wanted", "instead"),
    [
        ((1, 2), [(1,)]),  # 2 may be unknown to the controller
        ((1,), []),
        ((1, 2, 3, 4), []),
        ((1, 2, 3, 4, 5), [(1, 2, 3, 4), (1, 2, 3, 5)]),
        ((1, 2, 4), [(1, 2), (1,)]),
    ],
)
def test_what_is_asked_for_instead_of_a_set_that_was_refused(
    wanted: tuple[int, ...], instead: list[tuple[int, ...]]
) -> None:
    found = Bed(1, 2, 3).states.instead(frozenset(wanted))
    assert found == [frozenset(one) for one in instead]


def test_who_stays_is_tried_one_by_one_before_this_broker_is_alone() -> None:
    found = Bed(1, 2, 3, 4).states.instead(frozenset({1, 2, 3, 5}))
    assert found == [frozenset(one) for one in ((1, 2, 3), (1, 3), (1, 2), (1,))]


def test_when_a_slave_had_everything() -> None:
    one = CaughtUp()
    assert one.at_s == -math.inf
    one.look(0, 100, 10.0)
    one.look(99, 200, 11.0)
    assert one.at_s == -math.inf
    one.look(100, 200, 12.0)  # what there was at 10 s
    assert one.at_s == 10.0
    one.look(150, 300, 13.0)
    assert one.at_s == 10.0
    one.look(200, 300, 14.0)  # what there was at 12 s
    assert one.at_s == 12.0
    one.look(300, 300, 15.0)
    assert one.at_s == 15.0
    one.look(300, 400, 20.0)
    assert one.at_s == 15.0
