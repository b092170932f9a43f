"""Queues that cannot be read are said once for all queues of a broker, where that is the reason."""

import logging
from types import SimpleNamespace

import pytest

from pymq.client.group.pull_pace import FAILURE_PAUSE_S
from pymq.client.group.queue_reader import PULL_TIMEOUT_S
from pymq.client.group.unread import LAPSE_S, UnreadQueues
from pymq.errors import (
    ConnectionFailed,
    NoPermission,
    PymqError,
    ServiceNotAvailable,
    SystemBusy,
)
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue

QUEUES = [MessageQueue("T", "a", number) for number in range(3)]
AWAY = ConnectionFailed("it is away")
BUSY = SystemBusy("a slave that nobody may read from", code=2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, which stands still until it is moved."""
    clock = SimpleNamespace(now_s=1_000.0)
    clock.monotonic = lambda: clock.now_s
    monkeypatch.setattr("pymq.client.group.unread.time", clock)
    return clock


class Said:
    """What is said of some queues, since it was asked for last."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.unread = UnreadQueues("g", SaidOnce(logging.getLogger("test")))

    def take(self, level: int) -> list[str]:
        said = [one.getMessage() for one in self._caplog.records if one.levelno == level]
        self._caplog.clear()
        return said


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    return Said(caplog)


@pytest.mark.parametrize(
    ("error", "count"),
    [
        (AWAY, 1),
        (BUSY, 1),
        (ServiceNotAvailable("a slave that knows of no offsets", code=14), 1),
        (NoPermission("not this queue", code=16), 3),
    ],
)
def test_what_fails_at_all_queues_of_a_broker_is_said_once(
    error: PymqError, count: int, said: Said
) -> None:
    for _ in range(2):
        for queue in QUEUES:
            said.unread.failed(queue, error)
    warnings = said.take(logging.WARNING)
    assert len(warnings) == count
    assert str(error) in warnings[0] and "'a'" in warnings[0]
    for queue in QUEUES:
        said.unread.succeeded(queue)
        said.unread.succeeded(queue)
    assert len(said.take(logging.INFO)) == count
    said.unread.failed(QUEUES[0], error)
    assert len(said.take(logging.WARNING)) == 1


@pytest.mark.parametrize("error", [AWAY, BUSY])
def test_a_queue_that_is_read_ends_no_warning_while_another_one_fails_on_and_on(
    error: PymqError, said: Said
) -> None:
    """Nor do queues that have just come to this member, and never failed."""
    said.unread.failed(QUEUES[1], error)
    for queue in QUEUES[1:]:
        for _ in range(3):
            said.unread.failed(QUEUES[0], error)
        said.unread.succeeded(queue)
    assert len(said.take(logging.WARNING)) == 1
    said.unread.succeeded(QUEUES[0])
    assert said.take(logging.INFO) == ["group 'g', topic 'T', a:0: reading goes on after a failure"]


def test_a_queue_that_was_away_and_then_refused_is_read_in_spite_of_both(said: Said) -> None:
    for _ in range(2):
        for error in (AWAY, BUSY, AWAY):
            said.unread.failed(QUEUES[0], error)
        assert len(said.take(logging.WARNING)) == 2
        said.unread.succeeded(QUEUES[0])
        assert len(said.take(logging.INFO)) == 2


def test_a_queue_that_nobody_reads_any_more_keeps_nothing_from_being_said(
    said: Said, clock: SimpleNamespace
) -> None:
    """It waits for room since it failed."""
    assert LAPSE_S > PULL_TIMEOUT_S + FAILURE_PAUSE_S, "one that is read fails again sooner"
    said.unread.failed(QUEUES[0], AWAY)
    clock.now_s += LAPSE_S + 1
    said.unread.failed(QUEUES[1], AWAY)
    assert len(said.take(logging.WARNING)) == 2
    said.unread.failed(QUEUES[2], AWAY)
    clock.now_s += LAPSE_S + 1
    said.unread.succeeded(QUEUES[1])
    assert len(said.take(logging.INFO)) == 1, "the other one does not fail any more"
    said.unread.succeeded(QUEUES[2])
    assert said.take(logging.INFO) == []


def test_a_second_outage_is_warned_of_though_a_queue_left_in_the_first_one(
    said: Said, clock: SimpleNamespace
) -> None:
    for queue in QUEUES:
        said.unread.failed(queue, AWAY)
    assert len(said.take(logging.WARNING)) == 1
    said.unread.forget(QUEUES[0])
    for queue in QUEUES[1:]:
        said.unread.succeeded(queue)
    assert len(said.take(logging.INFO)) == 1
    clock.now_s += LAPSE_S / 2
    for queue in QUEUES[1:]:
        said.unread.failed(queue, AWAY)
    assert len(said.take(logging.WARNING)) == 1


def test_the_last_queue_that_is_given_up_ends_what_was_said(said: Said) -> None:
    for queue in QUEUES[:2]:
        said.unread.failed(queue, AWAY)
    said.unread.succeeded(QUEUES[1])
    said.unread.forget(QUEUES[0])
    said.unread.forget(QUEUES[0])
    (end,) = said.take(logging.INFO)
    assert end.endswith("a:0: it could not be read, and is given up or paused")
    said.unread.failed(QUEUES[1], AWAY)
    assert len(said.take(logging.WARNING)) == 1


def test_queues_that_a_division_gives_to_others_are_forgotten(said: Said) -> None:
    other = MessageQueue("U", "a", 0)
    for queue in (*QUEUES, other):
        said.unread.failed(queue, AWAY)
    said.unread.keep("T", QUEUES[2:])
    said.unread.succeeded(QUEUES[2])
    assert said.take(logging.INFO) == [], "that of another topic fails on"
    said.unread.succeeded(other)
    assert len(said.take(logging.INFO)) == 1
