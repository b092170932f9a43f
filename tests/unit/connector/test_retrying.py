"""Retrying: for how long, with which pauses, and what the log says."""

from types import SimpleNamespace

import pytest

from pymq.errors import ConnectionFailed, OffsetOutOfRange
from pyspark_pymq import retrying
from pyspark_pymq.retrying import Retries


class Time:
    def __init__(self) -> None:
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return 1000.0 + sum(self.pauses)

    def select(self, *arguments: object) -> None:
        *nothing, seconds = arguments
        assert nothing == [(), (), ()] and isinstance(seconds, float)
        self.pauses.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The clock of that module: event loops, and py4j, go on with the real one in their threads."""
    clock = Time()
    monkeypatch.setattr(retrying, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(retrying, "select", SimpleNamespace(select=clock.select))
    return clock


def test_retrying_ends(clock: Time) -> None:
    retries = Retries(10, "trying")
    with pytest.raises(ConnectionFailed, match="away"):
        while True:
            retries.wait_after(ConnectionFailed("away"))
    assert 9 <= sum(clock.pauses) <= 10
    assert clock.pauses[:3] == [0.05, 0.1, 0.2] and max(clock.pauses) == retrying.PAUSE_MAX_S


def test_progress_starts_it_again(clock: Time) -> None:
    retries = Retries(10, "trying")
    for _ in range(5):
        for _ in range(8):
            retries.wait_after(ConnectionFailed("away"))
        retries.progressed()
    assert sum(clock.pauses) > 20 and clock.pauses[8] == retrying.PAUSE_FIRST_S


def test_each_cause_is_logged_once(clock: Time, caplog: pytest.LogCaptureFixture) -> None:
    retries = Retries(60, "reading it")
    for error in [OffsetOutOfRange("gone")] * 3 + [ConnectionFailed("refused")] * 2:
        retries.wait_after(error)
    assert [record.getMessage() for record in caplog.records] == [
        "reading it failed, retrying for another 60 s: gone",
        "reading it failed, retrying for another 60 s: refused",
    ]
