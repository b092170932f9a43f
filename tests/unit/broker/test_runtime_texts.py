"""Texts of the run-time table, and totals by day."""

from datetime import datetime

import pytest

from pymq.broker.handlers.runtime import run_time_text, size_text
from pymq.broker.statistics.day_totals import DayTotals


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (5 * (1 << 30) // 2, "2.5 GiB"),
        ((1 << 63) - 1, "8.0 EiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("elapsed_ms", "text"),
    [
        (-5, "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"),
        (999, "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"),
        (188_000, "[ 0 days, 0 hours, 3 minutes, 8 seconds ]"),
        (2 * 86_400_000 + 3_600_000 + 61_000, "[ 2 days, 1 hours, 1 minutes, 1 seconds ]"),
    ],
)
def test_run_time(elapsed_ms: int, text: str) -> None:
    assert run_time_text(elapsed_ms) == text


def at(day: int, hour: int) -> int:
    return int(datetime(2026, 3, day, hour).timestamp() * 1000)


def test_totals_move_on_at_local_midnight() -> None:
    days = DayTotals(at(1, 12))
    assert days.step(at(1, 23), put_count=10, get_count=1) == 0
    assert days.step(at(2, 0), put_count=20, get_count=2) == 1
    assert (days.put_yesterday, days.put_today) == (0, 20)
    assert days.step(at(2, 23), put_count=30, get_count=3) == 0
    assert days.step(at(3, 1), put_count=40, get_count=4) == 1
    assert (days.put_yesterday, days.put_today) == (20, 40)
    assert (days.get_yesterday, days.get_today) == (2, 4)


def test_a_clock_set_back_does_not_end_the_day() -> None:
    days = DayTotals(at(5, 12))
    assert days.step(at(4, 12), put_count=10, get_count=1) == 0
    assert days.step(at(5, 13), put_count=10, get_count=1) == 0
    assert days.put_today == 0


def test_a_clock_that_was_far_ahead_does_not_stop_the_days() -> None:
    days = DayTotals(at(1, 12))
    assert days.step(at(20, 12), put_count=10, get_count=1) == 19
    assert days.step(at(1, 13), put_count=20, get_count=2) == 0
    assert days.put_today == 10
    assert days.step(at(2, 0), put_count=30, get_count=3) == 1
    assert (days.put_yesterday, days.put_today) == (10, 30)
