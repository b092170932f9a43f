"""Which commits are of the time before a reset that a consumer was told of."""

from tests.unit.store.stores import FakeClock

from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.told_resets import TOLD_S, ToldResets

PLACE = ("T", "g"), 0


def test_until_the_group_commits_what_it_was_told() -> None:
    told = ToldResets(FakeClock())
    assert not told.overtake(PLACE, 3)
    told.note(PLACE, 1)
    assert told.overtake(PLACE, 3) and told.overtake(PLACE, 0)
    assert not told.overtake((PLACE[0], 1), 3), "another queue"
    assert not told.overtake(PLACE, 1)
    assert not told.overtake(PLACE, 3) and not told


def test_until_the_group_pulls_again() -> None:
    table = OffsetTable(FakeClock())
    table.reset("g", "T", 0, 1)
    assert table.is_overtaken("g", "T", 0, 3), "it is pending"
    assert table.take_reset("g", "T", 0) == 1
    assert table.is_overtaken("g", "T", 0, 3)
    assert table.take_reset("g", "T", 1) is None
    assert table.is_overtaken("g", "T", 0, 3)
    assert table.take_reset("g", "T", 0) is None
    assert not table.is_overtaken("g", "T", 0, 3)


def test_not_for_ever() -> None:
    clock = FakeClock()
    told = ToldResets(clock)
    told.note(PLACE, 1)
    clock.now_ms += int((TOLD_S - 1) * 1000)
    assert told.overtake(PLACE, 3)
    clock.now_ms += 2000
    assert not told.overtake(PLACE, 3)
    told.note(PLACE, 1)
    clock.now_ms += int((TOLD_S + 1) * 1000)
    told.note((PLACE[0], 1), 1)
    assert len(told) == 1, "those of who is gone are forgotten"
