"""The clock that tests advance."""

import math
from datetime import UTC, datetime

import pytest

from pymq.clock import Clock
from pymq.errors import ConfigurationError
from pymq.testing import ClusterClock

HOUR_MS = 3_600_000


class Seen:
    """Notes the time of each step."""

    def __init__(self) -> None:
        self.clock = ClusterClock(self.look)
        self.times_ms: list[int] = []

    def look(self) -> None:
        self.times_ms.append(self.clock.wall_ms())


def test_it_is_the_machine_s_until_it_is_advanced() -> None:
    seen = Seen()
    before_ms, monotonic_s = Clock().wall_ms(), Clock().monotonic_s()
    assert 0 <= seen.clock.wall_ms() - before_ms < 60_000
    seen.clock.advance(90)
    assert 90_000 <= seen.clock.wall_ms() - before_ms < 150_000
    assert seen.clock.monotonic_s() - monotonic_s < 60, "monotonic time goes on as before"
    now = seen.clock.now()
    assert now.tzinfo is UTC and now > datetime.fromtimestamp(before_ms / 1000 + 89, UTC)


def test_long_times_pass_in_steps_that_see_every_hour() -> None:
    seen = Seen()
    seen.clock.advance(26 * 3600)
    hours = [time_ms // HOUR_MS for time_ms in seen.times_ms]
    assert hours == sorted(hours) and len(set(hours)) >= 26
    assert set(range(hours[0], hours[-1])) <= set(hours)
    count = len(seen.times_ms)
    seen.clock.advance(0)
    assert len(seen.times_ms) == count + 1, "the brokers look all the same"


@pytest.mark.parametrize("seconds", [-1, -0.001, math.inf, math.nan])
def test_time_does_not_go_back(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=r"clock.advance\(.*does not go back"):
        Seen().clock.advance(seconds)


def test_times_of_files_are_translated() -> None:
    seen = Seen()
    before_ms = Clock().wall_ms() - 1000
    seen.clock.advance(1800)
    between_ms = Clock().wall_ms() + 1
    assert seen.clock.at(before_ms) == before_ms, "written before it was advanced"
    assert seen.clock.at(between_ms) == between_ms + 1_800_000
    seen.clock.advance(0.5)
    later_ms = Clock().wall_ms() + 1
    assert seen.clock.at(later_ms) == later_ms + 1_800_500


def test_what_happened_just_before_an_advance_happened_before_it() -> None:
    """Also in the same millisecond; and what happens next is later."""
    seen = Seen()
    for number in range(50):
        before_ms = Clock().wall_ms()
        seen.clock.advance(70)
        after_ms = Clock().wall_ms()
        assert seen.clock.at(before_ms) == before_ms + number * 70_000
        assert seen.clock.at(after_ms) == after_ms + (number + 1) * 70_000
