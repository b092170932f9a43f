"""Timer messages over restarts, deaths and long downtime."""

import functools
from pathlib import Path

import pytest
from tests.unit.broker.timers.waits import DAY_MS, NOW_MS, Waits
from tests.unit.store.stores import FakeClock, crashed_copy

from pymq.protocol.record import NewRecord
from pymq.store.timer import timer_recovery
from pymq.store.timer.timer_log import UNIT_BYTES
from pymq.store.timer.timer_wheel import TimerWheel


def test_what_waits_survives_restarts(tmp_path: Path, clock: FakeClock) -> None:
    waits = Waits(tmp_path / "store", clock)
    waits.delay(b"a", 10_000)
    waits.deliver()
    waits.delay(b"b", 10_000)  # not taken up yet
    for _ in range(3):
        waits.stop()
        waits = Waits(tmp_path / "store", clock)
        waits.deliver(1000)
    waits.delay(b"c", 7000)
    assert waits.deliver(6999) == []
    waits.stop()
    clock.now_ms += 1
    waits = Waits(tmp_path / "store", clock)
    assert waits.deliver() == [b"a", b"b", b"c"]
    waits.stop()
    waits = Waits(tmp_path / "store", clock)
    assert waits.deliver(10_000_000) == [b"a", b"b", b"c"]


def test_a_stop_in_the_middle_of_a_slot_repeats_nothing(tmp_path: Path, clock: FakeClock) -> None:
    waits = Waits(tmp_path / "store", clock)
    for number in range(250):
        waits.delay(b"%d" % number, 1000)
    waits.cancel(b"240", NOW_MS + 1000)
    waits.deliver()

    def stops(record: NewRecord) -> bool:
        if record.body == b"150":
            waits.timers._is_stopped.set()
        return False

    waits.refuses = stops
    assert len(waits.deliver(1000)) == 200
    waits.stop()
    waits = Waits(tmp_path / "store", clock)
    assert waits.deliver(1000) == [b"%d" % number for number in range(250) if number != 240]


def test_downtime_longer_than_the_wheel(tmp_path: Path, clock: FakeClock) -> None:
    """RocketMQ gives up what is older than seven days."""
    waits = Waits(tmp_path / "store", clock)
    waits.delay(b"a", 2 * DAY_MS)
    waits.delay(b"b", 5000)
    waits.deliver()
    waits.stop()
    clock.now_ms += 30 * DAY_MS
    waits = Waits(tmp_path / "store", clock)
    waits.delay(b"c", 2000)
    assert waits.deliver() == [b"b", b"a"]
    assert waits.deliver(2000) == [b"b", b"a", b"c"]


def test_new_messages_do_not_take_the_slots_of_what_is_overdue(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = 2 * 160
    monkeypatch.setattr(
        timer_recovery, "TimerWheel", functools.partial(TimerWheel, window_slots=slots // 2)
    )
    waits = Waits(tmp_path / "store", clock)
    waits.delay(b"a", 50_000)
    waits.deliver()
    waits.stop()
    clock.now_ms += 10 * slots * 1000
    waits = Waits(tmp_path / "store", clock)
    for delay_ms in (49_000, 50_000, 51_000):
        waits.delay(b"%d" % delay_ms, delay_ms)
    assert waits.deliver() == [b"a"]
    assert waits.deliver(60_000) == [b"a", b"49000", b"50000", b"51000"]


@pytest.mark.parametrize("idle_ms", [0, 40 * DAY_MS])
@pytest.mark.parametrize("is_taken_up", [True, False])
def test_timers_that_die_before_a_flush_and_stay_down_for_days(
    tmp_path: Path, clock: FakeClock, *, idle_ms: int, is_taken_up: bool
) -> None:
    """What was recorded last is from before the days without timer messages, or nothing is."""
    waits = Waits(tmp_path / "store", clock)
    if idle_ms:
        waits.delay(b"old", 1000)
        waits.deliver(1000)
        waits.flush()
        waits.deliver(idle_ms)
    waits.delay(b"a", 20_000)
    waits.delay(b"b", 20_000)
    waits.cancel(b"a", clock.now_ms + 20_000)
    waits.store.durability.flush()
    if is_taken_up:
        waits.deliver()
    root = crashed_copy(tmp_path / "store", tmp_path / "left")
    clock.now_ms += 20 * DAY_MS
    expected = [b"old", b"b"] if idle_ms else [b"b"]
    assert Waits(root, clock).deliver() == expected


def test_a_file_that_lost_its_content_hides_no_units(tmp_path: Path, clock: FakeClock) -> None:
    """Power was lost after the timer log began a file, and before it was flushed."""
    settings = {"timer_log_file_bytes": 5 * UNIT_BYTES + 16}
    waits = Waits(tmp_path / "store", clock, **settings)
    waits.flush()
    for number in range(20):
        waits.delay(b"%d" % number, 10_000)
    waits.deliver()
    waits.run(waits.timers.flush)  # The messages are not flushed: they count as not taken up.
    root = crashed_copy(tmp_path / "store", tmp_path / "left")
    Waits(root, clock, **settings).stop()  # It records that the log ends where a file does.
    (root / "timerlog" / f"{4 * 276:020d}").write_bytes(bytes(276))
    waits = Waits(root, clock, **settings)
    waits.deliver()
    assert waits.files.waiting_count == 20
    assert len(waits.deliver(10_000)) == 20


def test_what_is_overdue_by_a_month_can_be_put_off(tmp_path: Path, clock: FakeClock) -> None:
    """A unit has 4 bytes for the time from when it was written to when it is due."""
    waits = Waits(tmp_path / "store", clock)
    for body in (b"a", b"b"):
        waits.delay(body, 1000)
    waits.deliver()
    waits.stop()
    clock.now_ms += 40 * DAY_MS
    waits = Waits(tmp_path / "store", clock)

    def stops(record: NewRecord) -> bool:
        waits.timers._is_stopped.set()
        return True

    waits.refuses = stops
    assert waits.run(waits.timers.dequeue) and waits.bodies() == []
    waits.stop()
    assert Waits(tmp_path / "store", clock).deliver() == [b"a", b"b"]
