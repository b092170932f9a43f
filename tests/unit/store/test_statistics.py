"""The statistics of a store: what is counted, in which class, and how rates come about."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.stores import (
    HOST,
    TOPIC,
    FailingFiles,
    FakeClock,
    batch,
    failing_in,
    open_store,
    put_ok,
    record,
    record_of_size,
)

from pymq.clock import Clock
from pymq.protocol.codes import MessageFlag
from pymq.store import PutResult, PutStatus, Rates
from pymq.store.statistics import SAMPLES_KEPT, StoreStatistics

OK = PutResult(PutStatus.OK, count=1)
REFUSED = PutResult(PutStatus.MESSAGE_ILLEGAL)


def statistics() -> StoreStatistics:
    return StoreStatistics(wall_ms=1_700_000_000_000, monotonic_s=100.0)


class SlowClock(FakeClock):
    """Goes on by itself, so that whatever is timed takes a while."""

    step_ms = 0

    def monotonic_s(self) -> float:
        self.now_ms += self.step_ms
        return super().monotonic_s()


# ------------------------------------------------------------------------------- a store's


def test_puts_are_counted_by_record_and_byte(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, record_of_size(200), batch([b"one", b"two", b"three"]), record_of_size(300))
    found = store.statistics.snapshot()
    assert (found.put_count, found.put_failed_count) == (5, 0)
    assert found.put_bytes == store.log_end
    assert found.started_ms == 1_700_000_000_000
    assert found.put_times["[<=0ms]"] == sum(found.put_times.values()) == 3
    store.close()


def test_what_is_staged_is_no_message_yet(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    staged = batch([b"one", b"two"])
    staged.sys_flag |= MessageFlag.TRANSACTION_ROLLBACK
    put_ok(store, record_of_size(200), staged, record_of_size(300))
    found = store.statistics.snapshot()
    assert (found.put_count, found.put_failed_count, found.put_bytes) == (2, 0, 500)
    assert store.log_end > 500
    assert sum(found.put_times.values()) == 3  # Somebody waited for it.
    store.close()


def test_padding_between_segments_is_not_what_was_put(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1024)
    put_ok(store, *(record_of_size(300) for _ in range(10)))
    assert store.statistics.snapshot().put_bytes == 3000
    assert store.log_end > 3000
    store.close()


def test_refused_entries_are_counted_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path, message_bytes_max=100)
    results = store.put([record(b"good"), record(101), record(b"good", topic="a/b")], HOST)
    assert [one.count for one in results] == [1, 0, 0]
    found = store.statistics.snapshot()
    assert (found.put_count, found.put_failed_count) == (1, 2)
    assert sum(found.put_times.values()) == 3
    store.close()


def test_a_full_disk_counts_every_entry_it_refuses(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put_ok(store, record(b"before"))
    before = store.statistics.snapshot()
    files.on_write = failing_in("commitlog", errno.ENOSPC)
    store.put([record(b"a"), record(b"b")], HOST)
    store.put([record(b"c")], HOST)  # refused without another try
    after = store.statistics.snapshot()
    assert (after.put_count, after.put_bytes) == (before.put_count, before.put_bytes)
    assert after.put_failed_count == 3
    files.on_write = failing_in("nowhere", 0)
    store.close()


def test_reads_are_found_or_missed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, *(record_of_size(150) for _ in range(4)))
    for offset in (0, 1, 4, 9):
        store.read(TOPIC, 0, offset, count_max=2, bytes_max=1 << 20)
    store.read("no such topic", 0, 0, count_max=2, bytes_max=1 << 20)
    found = store.statistics.snapshot()
    assert (found.get_found_count, found.get_miss_count) == (2, 3)
    assert (found.get_count, found.get_bytes) == (4, 600)
    store.close()


def test_a_put_counts_with_the_time_it_took(tmp_path: Path) -> None:
    clock = SlowClock()
    store = open_store(tmp_path, clock)
    clock.step_ms = 70
    put_ok(store, record(b"a"), record(b"b"))
    clock.step_ms = 30
    store.read(TOPIC, 0, 0, count_max=2, bytes_max=1 << 20)
    clock.step_ms = 0
    found = store.statistics.snapshot()
    assert found.put_times["[50~100ms]"] == sum(found.put_times.values()) == 2
    assert found.put_max_s == pytest.approx(0.07, rel=1e-3)
    assert found.get_max_s == pytest.approx(0.03, rel=1e-3)
    assert 50 < found.put_p99_ms <= 70.01
    store.close()


def test_a_real_clock_gives_real_times(tmp_path: Path) -> None:
    store = open_store(tmp_path, Clock())
    put_ok(store, record(b"a"))
    assert 0 < store.statistics.snapshot().put_max_s < 60
    store.close()


# ---------------------------------------------------------------------------- classes of time


@pytest.mark.parametrize(
    ("elapsed_ms", "name"),
    [
        (0, "[<=0ms]"),
        (0.99, "[<=0ms]"),
        (1.01, "[0~10ms]"),
        (9.9, "[0~10ms]"),
        (10.1, "[10~50ms]"),
        (50.1, "[50~100ms]"),
        (101, "[100~200ms]"),
        (201, "[200~500ms]"),
        (501, "[500ms~1s]"),
        (1001, "[1~2s]"),
        (2001, "[2~3s]"),
        (3001, "[3~4s]"),
        (4001, "[4~5s]"),
        (5001, "[5~10s]"),
        (10_001, "[10s~]"),
        (1e9, "[10s~]"),
    ],
)
def test_ranges_of_put_times(elapsed_ms: float, name: str) -> None:
    counts = statistics()
    counts.count_put([OK, REFUSED], 91, elapsed_ms / 1000)
    times = counts.snapshot().put_times
    assert times[name] == sum(times.values()) == 2
    assert list(times)[0] == "[<=0ms]" and list(times)[-1] == "[10s~]" and len(times) == 13


@given(st.lists(st.floats(0, 20_000), min_size=1, max_size=300))
def test_percentiles_are_as_near_as_their_class_is_wide(times_ms: list[float]) -> None:
    counts = statistics()
    for time_ms in times_ms:
        counts.count_put([OK], 91, time_ms / 1000)
    found = counts.snapshot()
    times_ms.sort()
    for share, estimate in ((0.99, found.put_p99_ms), (0.999, found.put_p999_ms)):
        below = sum(time_ms <= estimate * 1.5 + 0.01 for time_ms in times_ms)
        above = sum(time_ms >= estimate / 1.5 - 0.01 for time_ms in times_ms)
        assert below >= share * len(times_ms) - 1e-6
        assert above >= (1 - share) * len(times_ms)
        assert estimate <= times_ms[-1] + 1e-6
    assert found.put_p99_ms <= found.put_p999_ms


def test_percentiles_forget_after_two_minutes() -> None:
    counts = statistics()
    counts.count_put([OK], 91, 3.5)
    assert counts.snapshot().put_p99_ms > 3000
    for second in range(1, 122):
        counts.sample(100.0 + second)
        counts.count_put([OK], 91, 0.00002)
    found = counts.snapshot()
    assert found.put_p999_ms < 1
    assert found.put_max_s == 3.5  # but the longest is for ever


# -------------------------------------------------------------------------------------- rates


def test_no_rates_without_samples() -> None:
    counts = statistics()
    counts.count_put([OK], 91, 0.0)
    found = counts.snapshot()
    assert found.put_rates == found.get_rates == Rates(0.0, 0.0, 0.0)
    assert found.put_p99_ms == 0


def test_rates_are_over_their_span_or_what_there_is_of_it() -> None:
    counts = statistics()
    counts.count_get(50, 5000, 0.0)
    for second in range(1, 6):
        counts.count_put([OK] * 100, 9100, 0.0)
        counts.sample(100.0 + second)
    assert counts.snapshot().put_rates == Rates(100.0, 100.0, 100.0)
    for second in range(6, 26):
        counts.sample(100.0 + second)
    found = counts.snapshot()
    assert found.put_rates == Rates(0.0, 500 / 25, 500 / 25)
    assert found.get_rates == Rates(0.0, 2.0, 2.0)
    assert found.get_found_rates == Rates(0.0, 1 / 25, 1 / 25)


def test_samples_are_bounded_and_the_longest_rate_is_of_600_s() -> None:
    counts = statistics()
    counts.count_put([OK] * 7000, 91, 0.0)
    for second in range(1, 2 * SAMPLES_KEPT):
        if second > SAMPLES_KEPT:
            counts.count_put([OK], 91, 0.0)
        counts.count_get(0, 0, 0.0)
        counts.sample(100.0 + second)
    found = counts.snapshot()
    assert found.put_rates == Rates(1.0, 1.0, (SAMPLES_KEPT - 1) / 600)
    assert found.get_miss_rates == Rates(1.0, 1.0, 1.0)


def test_a_clock_that_stands_still_is_no_division_by_zero() -> None:
    counts = statistics()
    counts.sample(100.0)
    counts.sample(100.0)
    assert counts.snapshot().put_rates == Rates(0.0, 0.0, 0.0)
