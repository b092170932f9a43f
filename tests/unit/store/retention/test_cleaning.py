"""Which files go, when, and what a full disk does: decisions first, then real files."""

import logging
import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    HOST,
    TOPIC,
    FakeClock,
    QuickFiles,
    bodies,
    config,
    crashed_copy,
    log_files,
    open_store,
    put_ok,
    queue_path,
    record_of_size,
)

from pymq.errors import StoreError
from pymq.store import Files, MessageStore, PutStatus
from pymq.store.files import DiskUsage
from pymq.store.queues.queue_trim import TrimJob
from pymq.store.retention.policy import DiskLevel, is_hour_of, level_of, may_delete

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
GIB = 1 << 30


def at_hour(hour: int) -> int:
    """Return a time, ms, in an hour of the local day."""
    return int(datetime(2026, 3, 3, hour, 30).timestamp() * 1000)


class Disks(QuickFiles):
    """Says how full the disks are: per cent used, of 100 GiB, by the name of the directory."""

    def __init__(self, percent: float = 10.0, **by_name: float) -> None:
        self.percent = percent
        self.by_name = by_name
        self.keep: set[str] = set()
        self.is_unseen = False

    def disk_usage(self, path: Path) -> DiskUsage:
        if self.is_unseen:
            raise StoreError(f"{path}: look at its disk: Input/output error")
        used = int(self.by_name.get(path.name, self.percent) * GIB)
        return DiskUsage(used, 100 * GIB - used)

    def remove(self, path: Path) -> None:
        if path.name in self.keep:
            raise StoreError(f"{path}: remove: Operation not permitted")
        super().remove(path)


# ------------------------------------------------------------------------------- decisions


@pytest.mark.parametrize(
    ("percent", "level"),
    [
        (0, DiskLevel.PLENTY),
        (75, DiskLevel.PLENTY),
        (75.1, DiskLevel.CLEAN),
        (85, DiskLevel.CLEAN),
        (85.1, DiskLevel.FORCE),
        (90, DiskLevel.FORCE),
        (90.1, DiskLevel.FULL),
        (100, DiskLevel.FULL),
    ],
)
def test_levels(tmp_path: Path, percent: float, level: DiskLevel) -> None:
    usage = DiskUsage(int(percent * 1000), int((100 - percent) * 1000))
    assert level_of(usage, config(tmp_path)) is level
    enough = usage.available_bytes
    assert level_of(usage, config(tmp_path, disk_free_enough_bytes=enough + 1)) is level
    if enough:
        plenty = config(tmp_path, disk_free_enough_bytes=enough)
        assert level_of(usage, plenty) is DiskLevel.PLENTY


def test_levels_out_of_bounds_become_the_nearest_as_in_rocketmq(tmp_path: Path) -> None:
    low = config(tmp_path, disk_clean_percent=1, disk_force_percent=0, disk_full_percent=-5)
    assert (low.disk_clean_percent, low.disk_force_percent, low.disk_full_percent) == (10, 30, 35)
    high = config(tmp_path, disk_clean_percent=99, disk_force_percent=99, disk_full_percent=99)
    assert (high.disk_clean_percent, high.disk_force_percent, high.disk_full_percent) == (
        95,
        85,
        90,
    )


def test_hours_are_local() -> None:
    assert is_hour_of(at_hour(4), (4,)) and is_hour_of(at_hour(14), (2, 14))
    assert not is_hour_of(at_hour(5), (4,)) and not is_hour_of(at_hour(4), ())


@pytest.mark.parametrize(
    ("age_h", "hour", "level", "is_requested", "force", "expected"),
    [
        (72, 4, DiskLevel.PLENTY, False, True, True),
        (71.9, 4, DiskLevel.PLENTY, False, True, False),
        (72, 5, DiskLevel.PLENTY, False, True, False),
        (72, 5, DiskLevel.PLENTY, True, True, True),
        (71.9, 5, DiskLevel.PLENTY, True, True, False),
        (72, 5, DiskLevel.CLEAN, False, True, True),
        (1, 5, DiskLevel.CLEAN, False, True, False),
        (1, 5, DiskLevel.FORCE, False, True, True),
        (1, 5, DiskLevel.FORCE, False, False, False),
        (72, 5, DiskLevel.FORCE, False, False, True),
        (1, 5, DiskLevel.FULL, False, True, True),
        (None, 4, DiskLevel.PLENTY, True, True, False),
        (None, 5, DiskLevel.FORCE, False, True, True),
    ],
)
def test_what_may_be_deleted(
    tmp_path: Path,
    age_h: float | None,
    hour: int,
    level: DiskLevel,
    is_requested: bool,
    force: bool,
    expected: bool,
) -> None:
    now = at_hour(hour)
    last_write = None if age_h is None else now - int(age_h * HOUR_MS)
    rules = config(tmp_path, force_clean=force)
    may_go = may_delete(
        last_write, rules, now_ms=now, level=level, is_requested=is_requested
    )
    assert may_go is expected


# ------------------------------------------------------------------------------ real files


SMALL: dict[str, Any] = {"segment_bytes": 1024, "queue_file_bytes": 60}
#: Records of this many bytes: three to a segment.
RECORD_BYTES = 300


def fill(store: MessageStore, clock: FakeClock, segments: int, *, step_ms: int = HOUR_MS) -> None:
    """Put three records per segment, each segment an hour younger than the one before."""
    for _ in range(segments):
        put_ok(store, *(record_of_size(RECORD_BYTES) for _ in range(3)))
        clock.now_ms += step_ms
    flush(store)


def flush(store: MessageStore) -> None:
    store.durability.flush()
    store.durability.flush_queues()


def run_pass(store: MessageStore) -> None:
    for _ in range(1000):
        if not store.retention.clean_step():
            return
    raise AssertionError("a pass that does not end")


def first_names(root: Path) -> tuple[int, int, int]:
    """Return the names of the first log and queue file, and how many log files there are."""
    files = log_files(root)
    queue = min(queue_path(root).iterdir())
    return int(files[0].name), int(queue.name), len(files)


def test_files_go_by_age_in_their_hour(tmp_path: Path) -> None:
    clock = FakeClock(at_hour(5))
    store = open_store(tmp_path, clock, Disks(), **SMALL, reserved_hours=3)
    fill(store, clock, 6)  # Last written at 5, 6, 7, 8, 9 and 10 h 30.
    assert datetime.fromtimestamp(clock.now_ms / 1000).hour == 11
    run_pass(store)
    assert first_names(tmp_path) == (0, 0, 6)
    clock.now_ms = at_hour(4) + DAY_MS - 18 * HOUR_MS  # 10 h 30 again, but as a clean hour
    store.close()
    store = open_store(tmp_path, clock, Disks(), **SMALL, reserved_hours=3, delete_hours=(10, 22))
    # The successor's first record tells when a segment was full: 6, 7, 8 h ... for the files
    # themselves were all written today.
    run_pass(store)
    assert store.log_first == 2 * 1024
    assert first_names(tmp_path) == (2048, 120, 4)
    assert store.queue_bounds(TOPIC, 0) == (6, 18)
    assert len(bodies(store)) == 12
    clock.now_ms += 30 * DAY_MS + 12 * HOUR_MS
    run_pass(store)
    assert first_names(tmp_path) == (5 * 1024, 300, 1)  # The last one stays.
    assert store.queue_bounds(TOPIC, 0) == (15, 18)
    put_ok(store, record_of_size(RECORD_BYTES))
    store.close()


def test_an_old_file_time_counts_and_a_young_copy_does_not(tmp_path: Path) -> None:
    now = at_hour(4)
    clock = FakeClock(now - 100 * HOUR_MS)
    store = open_store(tmp_path / "s", clock, Disks(), **SMALL)
    fill(store, clock, 2, step_ms=0)
    clock.now_ms = now
    fill(store, clock, 2, step_ms=0)
    store.close()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "s", copy, copy_function=shutil.copyfile)
    for path in log_files(copy):
        assert path.stat().st_mtime > 1_750_000_000
    store = open_store(copy, clock, Disks(), **SMALL)
    run_pass(store)
    assert store.log_first == 1024  # Its successor began 100 hours ago.
    second = log_files(copy)[0]
    old = now / 1000 - 73 * 3600
    os.utime(second, (old, old))
    run_pass(store)
    assert store.log_first == 2048
    store.close()


def test_preparing_and_reading_do_not_make_a_file_young(tmp_path: Path) -> None:
    """After a crash the file that the log ends in may be written, and no other one."""
    store = open_store(tmp_path, **SMALL)
    fill(store, FakeClock(), 2)
    path = log_files(tmp_path)[0]
    os.utime(path, (1e9, 1e9))
    store.ahead.prepare_segment()
    assert bodies(store)
    flush(store)
    store.close()
    store = open_store(tmp_path, **SMALL)
    assert path.stat().st_mtime == 1e9
    store.close()
    crashed = shutil.copytree(tmp_path, tmp_path / "crashed")
    (crashed / "abort").touch()
    store = open_store(crashed, **SMALL)
    assert log_files(crashed)[0].stat().st_mtime == 1e9
    store.close()


def test_a_pass_deletes_a_batch_and_asking_lasts_twenty_passes(tmp_path: Path) -> None:
    clock = FakeClock(at_hour(12))
    store = open_store(tmp_path, clock, Disks(), **SMALL, clean_batch_max=2, reserved_hours=1)
    fill(store, clock, 7)
    clock.now_ms += 50 * DAY_MS
    run_pass(store)
    assert len(log_files(tmp_path)) == 7
    store.retention.clean_now()
    for left in (5, 3, 1, 1):
        run_pass(store)
        assert len(log_files(tmp_path)) == left
    for _ in range(15):
        run_pass(store)
    fill(store, clock, 3)
    clock.now_ms += 50 * DAY_MS
    run_pass(store)  # the twentieth
    assert len(log_files(tmp_path)) == 2
    run_pass(store)
    assert len(log_files(tmp_path)) == 2
    store.close()


def test_nothing_goes_that_is_not_safe(tmp_path: Path) -> None:
    """Neither before the log nor before the queues are on the disk."""
    clock, disks = FakeClock(), Disks(89)
    store = open_store(tmp_path, clock, disks, **SMALL)
    put_ok(store, *(record_of_size(RECORD_BYTES) for _ in range(9)))
    run_pass(store)
    assert len(log_files(tmp_path)) == 3
    store.durability.flush()
    run_pass(store)
    assert len(log_files(tmp_path)) == 3
    flush(store)
    run_pass(store)
    assert len(log_files(tmp_path)) == 1
    store.close()


def test_forced_cleaning_stops_when_there_is_space(tmp_path: Path) -> None:
    clock, disks = FakeClock(at_hour(12)), Disks(89)
    store = open_store(tmp_path, clock, disks, **SMALL)
    fill(store, clock, 6)
    assert store.retention.clean_step() == 1 and store.retention.clean_step() == 2
    disks.percent = 60
    run_pass(store)
    assert len(log_files(tmp_path)) == 4
    store.close()


def test_what_is_needed_stays_however_full_the_disk_is(tmp_path: Path) -> None:
    clock, disks = FakeClock(at_hour(12)), Disks(89)
    store = open_store(tmp_path, clock, disks, **SMALL)
    fill(store, clock, 6)
    # Asked when a segment is about to go: this may have changed since its age was looked at.
    job = store.retention.begin_clean()
    job.run()
    store.retention.needed_from = lambda: 1023
    assert store.retention.finish_clean(job) == 1  # The queues are looked at.
    run_pass(store)
    assert len(log_files(tmp_path)) == 6
    store.retention.needed_from = lambda: 2048
    run_pass(store)
    assert [int(path.name) for path in log_files(tmp_path)] == [2048, 3072, 4096, 5120]
    store.retention.needed_from = lambda: None
    run_pass(store)
    assert len(log_files(tmp_path)) == 1
    store.close()


def test_reads_go_on_while_their_segment_is_deleted(tmp_path: Path) -> None:
    clock = FakeClock(at_hour(12))
    store = open_store(tmp_path, clock, Disks(89), **SMALL)
    fill(store, clock, 3)
    before = bodies(store)
    held = store.read(TOPIC, 0, 0, count_max=3, bytes_max=9999)
    prefetch = store.begin_prefetch(held.buffers, held.starts)
    copies = [bytes(buffer) for buffer in held.buffers]
    run_pass(store)
    prefetch.run()
    assert [bytes(buffer) for buffer in held.buffers] == copies
    assert bodies(store) == before[-3:]
    low, end = store.queue_bounds(TOPIC, 0)
    assert (low, end) == (6, 9)
    assert store.read(TOPIC, 0, 0, count_max=3, bytes_max=9999).next_queue_offset == 6
    store.close()


@pytest.mark.parametrize("keep", [(), ("00000000000000001024",), ("00000000000000000060",)])
def test_a_crash_after_any_step_opens_fine(tmp_path: Path, keep: tuple[str, ...]) -> None:
    """Also when a file could not be deleted."""
    clock, disks = FakeClock(at_hour(12)), Disks(89)
    disks.keep = set(keep)
    live = tmp_path / "live"
    store = open_store(live, clock, disks, **SMALL)
    fill(store, clock, 5)
    every = bodies(store)
    count = 0
    while True:
        more = store.retention.clean_step()
        count += 1
        for clean in (False, True):
            root = crashed_copy(live, tmp_path / f"{count} {clean}")
            reopened = open_store(root, clock, **SMALL)
            if clean:
                reopened.close()
                reopened = open_store(root, clock, **SMALL)
            low, end = reopened.queue_bounds(TOPIC, 0)
            assert end == 15 and low == reopened.log_first // 1024 * 3, (count, low)
            assert bodies(reopened) == every[low:]
            put_ok(reopened, record_of_size(RECORD_BYTES))
            assert reopened.queue_bounds(TOPIC, 0) == (low, 16)
            # What the crash left of the queues is caught up on.
            flush(reopened)
            run_pass(reopened)
            oldest = min(int(path.name) for path in queue_path(root).iterdir())
            assert oldest // 20 + 3 > low or len(list(queue_path(root).iterdir())) == 1
            reopened.close()
        if not more:
            break
    assert count > 3
    disks.keep = set()
    run_pass(store)
    if not keep:
        assert first_names(live) == (4 * 1024, 240, 1)
    store.close()
    store = open_store(live, clock, **SMALL)
    assert bodies(store) == every[store.queue_bounds(TOPIC, 0)[0] :]
    store.close()


def test_queue_files_go_one_by_one_each_durably(tmp_path: Path) -> None:
    """Or a power loss could leave a gap; found by tests/crash/test_cleaning.py."""
    done: list[str] = []

    class Noting(Disks):
        def remove(self, path: Path) -> None:
            if "consumequeue" in path.parts:
                done.append("remove")
            super().remove(path)

        def fsync_directory(self, path: Path) -> None:
            if path == queue_path(tmp_path):
                done.append("sync")
            super().fsync_directory(path)

    store = open_store(tmp_path, FakeClock(), Noting(89), **SMALL)
    fill(store, FakeClock(), 5)
    done.clear()
    run_pass(store)
    assert done == ["remove", "sync"] * 4
    store.close()


def test_a_missing_queue_file_does_not_cost_the_numbering(tmp_path: Path) -> None:
    """New files may get lost in any order: what is in front of the first lost one stays."""
    clock = FakeClock(at_hour(12))
    live = tmp_path / "live"
    store = open_store(live, clock, Disks(89), **SMALL)
    put_ok(store, *(record_of_size(RECORD_BYTES, queue_id=7) for _ in range(6)))
    fill(store, clock, 1)
    run_pass(store)
    assert store.queue_bounds(TOPIC, 7) == (6, 6)
    crashed = crashed_copy(live, tmp_path / "crashed")
    (queue_path(crashed, TOPIC, 7) / f"{240:020d}").write_bytes(bytes(60))
    for _ in range(2):
        reopened = open_store(crashed, clock, **SMALL)
        assert reopened.queue_bounds(TOPIC, 7) == (6, 6)
        reopened.close()
    put_ok(store, *(record_of_size(RECORD_BYTES, queue_id=7) for _ in range(9)))
    crashed = crashed_copy(live, tmp_path / "again")
    (queue_path(crashed, TOPIC, 7) / f"{180:020d}").unlink()
    reopened = open_store(crashed, clock, **SMALL)
    assert reopened.queue_bounds(TOPIC, 7) == (6, 15)
    assert len(bodies(reopened, TOPIC, 7)) == 9
    reopened.close()
    store.close()


def test_a_queue_whose_records_are_all_gone_keeps_its_numbers(tmp_path: Path) -> None:
    clock = FakeClock(at_hour(12))
    store = open_store(tmp_path / "s", clock, Disks(89), **SMALL)
    put_ok(store, *(record_of_size(RECORD_BYTES, queue_id=7) for _ in range(4)))
    fill(store, clock, 3)
    run_pass(store)
    assert store.queue_bounds(TOPIC, 7) == (4, 4)
    crashed = crashed_copy(tmp_path / "s", tmp_path / "crashed")
    store.close()
    for root in (tmp_path / "s", crashed):
        store = open_store(root, clock, **SMALL)
        assert store.queue_bounds(TOPIC, 7) == (4, 4)
        (result,) = put_ok(store, record_of_size(RECORD_BYTES, queue_id=7))
        assert result.queue_offset == 4
        assert len(bodies(store, TOPIC, 7)) == 1
        store.close()


def test_a_file_that_cannot_be_deleted_is_reported_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, disks = FakeClock(at_hour(12)), Disks(80)
    store = open_store(tmp_path, clock, disks, **SMALL, reserved_hours=0)
    fill(store, clock, 3)
    disks.keep = {"0" * 20}
    for _ in range(3):
        run_pass(store)
    errors = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(errors) == 1 and "not permitted" in errors[0].getMessage()
    assert len(log_files(tmp_path)) == 3 and store.log_first == 2048
    disks.keep = set()
    run_pass(store)
    assert len(log_files(tmp_path)) == 1
    assert first_names(tmp_path)[1] == 120
    store.close()


def test_a_queue_file_that_stays_is_reported_once_and_again_when_another_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(at_hour(12))
    store = open_store(tmp_path, clock, Disks(80), **SMALL, reserved_hours=0)

    def fails(job: TrimJob) -> bool:
        raise StoreError("too many open files")

    for count in (1, 2):
        fill(store, clock, 3)
        with monkeypatch.context() as patch:
            patch.setattr(TrimJob, "finish", fails)
            for _ in range(3):
                run_pass(store)
        errors = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert len(errors) == count and "an old file stays" in errors[-1].getMessage()
        run_pass(store)
        run_pass(store)
    store.close()


def indexed_store(root: Path, files: Files) -> MessageStore:
    """Return a store of 12 messages with the keys k0.. in 4 segments, and 4 index files."""
    sizes = {"index_slot_count": 4, "index_item_limit": 4}
    store = open_store(root, FakeClock(at_hour(12)), files, **SMALL, **sizes)
    for number in range(12):
        properties = b"KEYS\x01k%d" % number
        new = record_of_size(RECORD_BYTES)
        new.body, new.properties = new.body[len(properties) :], properties
        put_ok(store, new)
    while store.keys.index_step():
        pass
    flush(store)
    assert len(list((root / "index").iterdir())) == 4
    return store


def test_the_index_follows_the_log(tmp_path: Path) -> None:
    store = indexed_store(tmp_path, Disks(89))
    run_pass(store)
    assert store.log_first == 3 * 1024
    assert len(list((tmp_path / "index").iterdir())) == 1
    assert not store.keys.query(TOPIC, "k8").buffers
    assert store.keys.query(TOPIC, "k9").buffers
    store.close()


def test_an_index_file_that_cannot_be_deleted_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = Disks(89)
    store = indexed_store(tmp_path, files)
    remove = files.remove

    def failing(path: Path) -> None:
        if path.parent.name == "index":
            raise StoreError(f"cannot remove {path}")
        remove(path)

    monkeypatch.setattr(files, "remove", failing)
    run_pass(store)
    assert len(list((tmp_path / "index").iterdir())) == 4
    assert "an old index file stays" in caplog.text
    assert not store.keys.query(TOPIC, "k8").buffers
    monkeypatch.setattr(files, "remove", remove)
    run_pass(store)
    assert len(list((tmp_path / "index").iterdir())) == 1
    store.close()


@pytest.mark.parametrize("number", [0, 9])
def test_a_query_whose_messages_expire_meanwhile(tmp_path: Path, number: int) -> None:
    """Between the moments when it is requested, when files are read, and when it is answered."""
    store = indexed_store(tmp_path, Disks(89))
    limits = {"count_max": 1, "begin_ms": 0, "end_ms": 1 << 62}
    before = store.keys.begin_query(TOPIC, f"k{number}", **limits)
    between = store.keys.begin_query(TOPIC, f"k{number}", **limits)
    between.run()
    assert len(between.places) == 1
    run_pass(store)
    before.run()
    found = int(number == 9)  # what is left after the pass
    assert len(before.places) == found
    for job in (before, between):
        assert len(store.keys.finish_query(job).buffers) == found
    store.close()


def test_many_queues_are_trimmed_some_at_a_time(tmp_path: Path) -> None:
    clock = FakeClock(at_hour(12))
    store = open_store(tmp_path, clock, Disks(89), segment_bytes=1 << 16, queue_file_bytes=20)
    count = 200
    for _ in range(4):
        put_ok(store, *(record_of_size(150, queue_id=number) for number in range(count)))
    flush(store)
    steps = 0
    while done := store.retention.clean_step():
        assert done <= 65
        steps += 1
    assert steps >= 4
    lows = {store.queue_bounds(TOPIC, number)[0] for number in range(count)}
    assert lows == {2, 3}
    for number in range(count):
        low, _ = store.queue_bounds(TOPIC, number)
        assert min(int(path.name) for path in queue_path(tmp_path, TOPIC, number).iterdir()) == (
            low * 20
        )
    store.close()


# ------------------------------------------------------------------------- writes are refused


def test_above_the_warning_level_writes_are_refused_until_there_is_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, disks = FakeClock(), Disks(50)
    store = open_store(tmp_path, clock, disks, force_clean=False)
    put_ok(store, record_of_size(200))
    disks.percent = 93
    put_ok(store, record_of_size(200))  # Not looked yet.
    store.retention.check_disk()
    (result,) = store.put([record_of_size(200)], HOST)
    assert result.status is PutStatus.NOT_WRITABLE
    for word in (str(tmp_path), "93.0%", "90 %", "diskSpaceWarningLevelRatio", "free some space"):
        assert word in str(result.remark)
    assert store.not_writable_reason == result.remark
    assert len(bodies(store)) == 2
    flush(store)
    for percent in (89.0, 93.0, 93.0, 80.0, 50.0, 50.0):
        disks.percent = percent
        store.retention.check_disk()
        refused = store.put([record_of_size(200)], HOST)[0].status is not PutStatus.OK
        assert refused is (percent > 90)
    levels = [one.args[0] for one in caplog.records if one.args and "level" in one.msg]
    assert levels == ["FULL", "FORCE", "FULL", "CLEAN", "PLENTY"]
    store.close()


def test_a_full_disk_of_the_queues_refuses_too(tmp_path: Path) -> None:
    store = open_store(tmp_path, files=Disks(50, consumequeue=91))
    reason = str(store.not_writable_reason)
    assert "consumequeue" in reason and "91.0%" in reason
    store.close()


def test_enough_free_bytes_switch_the_levels_off(tmp_path: Path) -> None:
    store = open_store(tmp_path, files=Disks(97), disk_free_enough_bytes=2 * GIB)
    put_ok(store, record_of_size(200))
    assert store.not_writable_reason is None
    store.close()


def test_a_disk_that_cannot_be_seen_refuses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unseen(QuickFiles):
        def disk_usage(self, path: Path) -> DiskUsage:
            raise StoreError(f"{path}: look at its disk: Input/output error")

    store = open_store(tmp_path, files=Unseen())
    put_ok(store, record_of_size(200))
    for _ in range(3):
        store.retention.check_disk()
    run_pass(store)
    assert caplog.text.count("cannot be seen") == 1
    store.close()


def test_a_disk_that_cannot_be_seen_is_reported_once_and_again_when_it_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disks = Disks()
    store = open_store(tmp_path, files=disks)
    for count in (1, 2):
        disks.is_unseen = True
        for _ in range(3):
            store.retention.check_disk()
        assert caplog.text.count("cannot be seen") == count
        disks.is_unseen = False
        store.retention.check_disk()
    store.close()
