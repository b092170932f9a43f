"""Who is alive, by a clock that tests move."""

from dataclasses import dataclass, field

import pytest

from pymq.controller.groups import GroupState, Member
from pymq.controller.liveness import (
    BEAT_COUNT,
    BROKER_COUNT_MAX,
    RIVAL_COUNT_MAX,
    TURN_COUNT,
    Liveness,
)
from pymq.controller.reports import Report

LIMIT_S, UNHEARD_S, LOOK_S = 2.0, 10.0, 0.1
KEY = ("b", 1)


@dataclass
class Watched:
    """A ``Liveness`` and its clock."""

    now_s: float = 100.0
    liveness: Liveness = field(init=False)

    def __post_init__(self) -> None:
        self.liveness = Liveness(limit_s=LIMIT_S, unheard_s=UNHEARD_S, now_s=self.now_s)

    def hear(
        self,
        broker_id: int = 1,
        *,
        connection: object = "c",
        silence_s: float | None = 10.0,
        report: Report | None = None,
    ) -> bool:
        return self.liveness.heard(
            "b",
            broker_id,
            connection=connection,
            silence_s=silence_s,
            report=report or Report(),
            now_s=self.now_s,
        )

    def beat(self, interval_s: float, count: int = BEAT_COUNT + 1) -> None:
        for _ in range(count):
            self.pass_time(interval_s)
            self.hear()

    def pass_time(self, seconds: float) -> list[tuple[str, int]]:
        """Let time pass, looking as often as the controller does; return who expired."""
        gone = []
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            self.now_s = min(self.now_s + LOOK_S, end_s)
            gone += self.liveness.expire(self.now_s, LOOK_S)
        return gone

    @property
    def alive(self) -> set[int]:
        return set(self.liveness.alive("b"))


def test_a_broker_is_alive_from_its_first_heartbeat_on() -> None:
    watched = Watched()
    assert watched.alive == set()
    assert watched.hear()
    assert not watched.hear()
    assert watched.alive == {1} and watched.liveness.alive("other") == {}


def test_a_broker_says_how_long_it_may_be_silent() -> None:
    watched = Watched()
    watched.hear(1, silence_s=5.0)
    watched.hear(2, silence_s=None)
    assert watched.pass_time(5.0) == []
    assert watched.pass_time(0.2) == [("b", 1)]
    assert watched.pass_time(4.7) == []
    assert watched.pass_time(0.2) == [("b", 2)]
    assert watched.hear(1) and watched.alive == {1}


@pytest.mark.parametrize(("interval_s", "silence_s"), [(0.3, 2.0), (0.5, 2.0), (1.0, 10.0)])
def test_the_limit_counts_for_brokers_that_beat_fast(interval_s: float, silence_s: float) -> None:
    watched = Watched()
    watched.beat(interval_s)
    assert watched.pass_time(silence_s) == []
    assert watched.pass_time(0.2) == [KEY]


def test_one_late_heartbeat_makes_no_slow_broker() -> None:
    watched = Watched()
    watched.beat(0.3)
    watched.beat(1.5, 1)
    watched.beat(0.3, 2)
    assert watched.pass_time(2.2) == [KEY]


def test_a_broker_that_waits_less_than_the_limit_is_not_granted_it() -> None:
    watched = Watched()
    for _ in range(BEAT_COUNT + 1):
        watched.pass_time(0.2)
        watched.hear(silence_s=1.0)
    assert watched.pass_time(1.2) == [KEY]


def test_the_end_of_a_connection_is_that_of_its_brokers() -> None:
    watched = Watched()
    watched.hear(1, connection="old")
    watched.hear(2, connection="other")
    watched.hear(1, connection="new")
    assert watched.liveness.connection_ended("old") == []  # it has another one by now
    assert watched.liveness.connection_ended("new") == [("b", 1)]
    assert watched.liveness.connection_ended("new") == []
    assert watched.alive == {2}


def test_the_furthest_report_counts() -> None:
    watched = Watched()
    for report, expected in (
        (Report(epoch=1, max_offset=100, priority=5), (1, 100, 5)),
        (Report(epoch=1, max_offset=90, priority=6), (1, 100, 6)),
        (Report(epoch=2, max_offset=10, priority=6), (2, 10, 6)),
        (Report(), (2, 10, Report().priority)),
    ):
        watched.hear(report=report)
        found = watched.liveness.alive("b")[1]
        assert (found.epoch, found.max_offset, found.priority) == expected


def test_another_broker_with_the_same_id_does_not_count() -> None:
    watched = Watched()
    mine, copy = Report(address="h:1"), Report(epoch=9, address="h:2")
    watched.hear(connection="mine", report=mine)
    watched.hear(connection="copy", report=copy)
    assert watched.liveness.alive("b")[1] == mine
    assert watched.liveness.connection_ended("copy") == []
    watched.hear(connection="mine again", report=mine)
    assert watched.liveness.connection_ended("mine again") == [KEY]
    assert watched.hear(connection="copy", report=copy)


def test_who_has_less_than_the_one_before_at_another_address() -> None:
    watched = Watched()

    def has_less(connection: object, address: str, epoch: int, end: int) -> bool:
        report = Report(epoch=epoch, max_offset=end, address=address)
        watched.hear(connection=connection, report=report)
        found = watched.liveness.alive("b")[1]
        assert (found.epoch, found.max_offset, found.address) == (epoch, end, address)
        return found.has_less

    assert not has_less("one", "h:1", 5, 100)
    watched.liveness.connection_ended("one")
    assert has_less("copy", "h:2", 5, 90)
    assert not has_less("copy", "h:2", 5, 100)  # it has caught up
    watched.liveness.connection_ended("copy")
    assert has_less("older", "h:3", 4, 900)
    watched.liveness.caught_up("b", 1)  # so says the master
    assert not watched.liveness.alive("b")[1].has_less
    watched.liveness.connection_ended("older")
    # At the same address it was started again, after its power was lost, perhaps.
    assert not has_less("again", "h:3", 4, 800)
    watched.liveness.connection_ended("again")
    # What counts is what the one had that had everything.
    assert has_less("less", "h:4", 3, 0)
    watched.liveness.connection_ended("less")
    assert has_less("less", "h:4", 3, 10)
    watched.liveness.registered("b", 1, "h:4")
    assert has_less("less", "h:4", 3, 0)


def test_who_says_no_offset_or_no_address_has_not_less() -> None:
    watched = Watched()
    watched.hear(report=Report(epoch=5, max_offset=100, address="h:1"))
    for report in (Report(epoch=5, address="h:2"), Report(epoch=4, max_offset=1)):
        watched.liveness.connection_ended("c")
        watched.hear(report=report)
        assert not watched.liveness.alive("b")[1].has_less


def test_who_has_lost_its_id_does_not_count_before_it_has_it_again() -> None:
    """It goes on beating until it knows."""
    watched = Watched()
    stale, whole = Report(epoch=3, address="h:1"), Report(epoch=5, address="h:2")
    watched.hear(connection="stale", report=stale)
    watched.liveness.admitted("b", 1, "h:2")
    assert watched.liveness.alive("b") == {}
    assert not watched.hear(connection="stale", report=stale)
    assert watched.alive == set()
    assert watched.hear(connection="whole", report=whole)
    watched.liveness.admitted("b", 1, "h:2")
    assert watched.alive == {1}
    watched.liveness.connection_ended("whole")
    watched.hear(connection="stale", report=stale)
    assert watched.alive == set()
    watched.liveness.admitted("b", 1, "h:1")
    assert watched.alive == {1}


def record(address: str) -> GroupState:
    """Return a group in which broker 1 is at an address."""
    return GroupState(cluster="c", name="b", members={1: Member(address=address)})


def test_the_one_on_record_counts_whoever_was_heard_first() -> None:
    """Another controller led, and has given the id away; nothing is waited for then."""
    watched = Watched()
    first, other = Report(epoch=1, address="h:1"), Report(epoch=3, address="h:2")
    watched.hear(connection="first", report=first)
    assert not watched.liveness.is_at_odds(record("h:1"))
    assert not watched.hear(connection="other", report=other)
    for address, counts in (("h:2", other), ("h:2", other), ("h:1", first), ("h:2", other)):
        watched.liveness.follow(record(address))
        assert watched.liveness.alive("b") == {1: counts}
        for connection, report in (("first", first), ("other", other)):
            assert not watched.hear(connection=connection, report=report)
        assert not watched.liveness.is_at_odds(record(address))
        assert watched.liveness.is_at_odds(record("h:1" if address == "h:2" else "h:2"))
    assert watched.liveness.connection_ended("first") == []
    assert watched.liveness.connection_ended("other") == [KEY]


def test_a_rival_that_is_gone_does_not_count_when_it_is_on_record() -> None:
    for end in ("its connection", "silence", "its process"):
        watched = Watched()
        watched.hear(connection="one", silence_s=100.0, report=Report(address="h:1"))
        watched.hear(connection="other", silence_s=1.0, report=Report(address="h:2"))
        if end == "its connection":
            assert watched.liveness.connection_ended("other") == []
        elif end == "silence":
            assert watched.pass_time(2.2) == []
        else:
            watched.liveness.registered("b", 1, "h:2")
        watched.liveness.follow(record("h:2"))
        assert watched.alive == set()


def test_a_stranger_with_the_id_of_a_master_that_was_not_heard_yet_does_not_stand_for_it() -> None:
    watched = Watched()
    watched.hear(report=Report(address="h:2"))
    watched.liveness.follow(record("h:1"))
    assert watched.alive == set()
    assert watched.liveness.may_be_alive("b", 1, watched.now_s)


def test_there_are_not_too_many_rivals() -> None:
    watched = Watched()
    watched.liveness.follow(record("h:0"))
    connections = [object() for _ in range(RIVAL_COUNT_MAX + 10)]
    for number, connection in enumerate(connections, 1):
        watched.hear(connection=connection, report=Report(address=f"h:{number}"))
    assert watched.liveness._rival_count == RIVAL_COUNT_MAX
    for connection in connections:
        watched.liveness.connection_ended(connection)
    assert (watched.liveness._rival_count, watched.liveness._rivals) == (0, {})


def test_after_a_restart_it_is_not_known_who_is_gone() -> None:
    watched = Watched()

    def may_be_alive() -> bool:
        return watched.liveness.may_be_alive("b", 1, watched.now_s)

    watched.hear(2)
    assert may_be_alive()
    watched.hear(1)
    watched.liveness.connection_ended("c")
    assert not may_be_alive()  # it was there
    watched = Watched()
    watched.pass_time(9.9)
    assert may_be_alive()
    watched.pass_time(0.2)
    assert not may_be_alive()


def test_our_own_standstill_is_no_silence_of_others() -> None:
    watched = Watched()
    watched.beat(0.3)
    watched.now_s += 60.0
    assert watched.liveness.expire(watched.now_s, LOOK_S) == []
    assert watched.pass_time(1.5) == []
    assert watched.pass_time(0.7) == [KEY]


def test_who_beats_over_two_connections_in_turns_is_two_brokers() -> None:
    watched = Watched()
    for number in range(TURN_COUNT + 2):
        assert not watched.liveness.are_two("b", 1)
        watched.hear(connection=("one", "other")[number % 2])
    assert watched.liveness.are_two("b", 1)
    watched.liveness.connection_ended("one")
    assert not watched.liveness.are_two("b", 1)
    for count in (3, 4):
        watched = Watched()
        for number in range(count * (TURN_COUNT + 1)):
            watched.hear(connection=number % count)
        assert watched.liveness.are_two("b", 1)
    # Not one that renews its connection, also if something over the old one comes late.
    watched = Watched()
    for number in range(3 * TURN_COUNT):
        for connection in (number, number, number - 1, number):
            watched.hear(connection=connection)
    assert not watched.liveness.are_two("b", 1)


def test_when_a_broker_was_heard_last_does_not_move_with_a_standstill() -> None:
    watched = Watched()
    watched.hear(report=Report(address="h:1"))
    heard_s = watched.now_s
    watched.pass_time(0.4)
    assert watched.liveness.awake_s(watched.now_s) == 100.0
    watched.now_s += 60.0
    # A request may be read before it is looked who is late.
    assert watched.liveness.awake_s(watched.now_s) == watched.now_s
    watched.pass_time(0.1)
    assert watched.liveness.awake_s(watched.now_s + 0.1) == watched.now_s
    assert watched.liveness.holder("b", 1) == ("h:1", heard_s)


def test_there_are_not_too_many() -> None:
    watched = Watched()
    for broker_id in range(BROKER_COUNT_MAX):
        watched.hear(broker_id)
    assert not watched.hear(BROKER_COUNT_MAX)
    assert len(watched.alive) == BROKER_COUNT_MAX
    assert not watched.hear(5)  # those that are known go on
