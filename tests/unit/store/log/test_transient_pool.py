"""Records that gather in memory before they are written to the log (the transient store pool)."""

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    HOST,
    TOPIC,
    FailingFiles,
    FakeClock,
    QuickFiles,
    bodies,
    crashed_copy,
    failing_in,
    log_files,
    never,
    open_store,
    put_ok,
    record,
    record_of_size,
    seeded,
)

from pymq.errors import DiskFull, FlushFailed, OffsetOutOfRange
from pymq.store import Files, FlushMode, MessageStore, PutStatus

POOLED: dict[str, Any] = {"transient_pool": True, "segment_bytes": 1024, "queue_file_bytes": 200}


def written(root: Path) -> int:
    """Return how many bytes of the log's files are not zero at their end."""
    data = b"".join(path.read_bytes() for path in log_files(root))
    return len(data.rstrip(b"\0"))


def test_nothing_is_written_or_seen_before_the_commit(tmp_path: Path) -> None:
    store = open_store(tmp_path, **POOLED)
    (first,) = put_ok(store, record(b"0", tag="T"))
    assert (written(tmp_path), store.durability.uncommitted_bytes) == (0, first.physical_end)
    assert store.queue_bounds(TOPIC, 0) == (0, 0)
    with pytest.raises(OffsetOutOfRange):
        store.record_at(0)
    job = store.durability.begin_flush()
    assert job.physical_end == 0
    job.run()
    store.durability.finish_flush(job)
    assert store.durability.flushed_end == 0
    store.durability.commit()
    assert (written(tmp_path), store.durability.uncommitted_bytes) == (first.physical_end, 0)
    assert bodies(store) == [b"0"] and store.record_at(0).body == b"0"
    assert store.durability.begin_commit() is None
    store.durability.flush()
    assert store.durability.flushed_end == first.physical_end
    store.close()


def test_with_sync_flush_nothing_is_promised_before_it_is_on_the_disk(tmp_path: Path) -> None:
    live = tmp_path / "live"
    store = open_store(live, flush_mode=FlushMode.SYNC, **POOLED)
    put_ok(store, record(b"0"))
    store.durability.commit()
    assert store.queue_bounds(TOPIC, 0) == (0, 0) and store.durability.flushed_end == 0
    store.durability.flush()
    put_ok(store, record(b"1"))
    store.durability.flush()
    assert bodies(store) == [b"0", b"1"] and store.durability.flushed_end == store.log_end
    crashed = crashed_copy(live, tmp_path / "crashed")
    store.close()
    store = open_store(crashed, flush_mode=FlushMode.SYNC, **POOLED)
    assert bodies(store) == [b"0", b"1"]
    store.close()


def test_a_kill_takes_what_is_not_committed_and_no_more(tmp_path: Path) -> None:
    live = tmp_path / "live"
    store = open_store(live, **POOLED)
    put_ok(store, *(record(b"%d" % number) for number in range(5)))
    store.durability.commit()
    put_ok(store, *(record(b"%d" % number) for number in range(5, 9)))
    crashed = crashed_copy(live, tmp_path / "crashed")
    store.close()
    store = open_store(live, **POOLED)
    assert len(bodies(store)) == 9
    store.close()
    store = open_store(crashed, **POOLED)
    assert bodies(store) == [b"%d" % number for number in range(5)]
    (result,) = put_ok(store, record(b"next"))
    assert result.queue_offset == 5
    store.close()


def test_buffers_are_lent_taken_back_and_bypassed(tmp_path: Path) -> None:
    """Two buffers, five segments in one put: the third and later ones are written to directly."""
    files = FailingFiles()
    store = open_store(tmp_path, files=files, transient_pool_size=2, **POOLED)
    put_ok(store, *(record_of_size(300) for _ in range(14)))
    assert [any(path.read_bytes()) for path in log_files(tmp_path)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert store.queue_bounds(TOPIC, 0) == (0, 0)  # The oldest are missing.
    store.durability.commit()
    assert store.queue_bounds(TOPIC, 0) == (0, 14)
    assert len(bodies(store)) == 14
    calls = files.calls
    put_ok(store, *(record_of_size(300) for _ in range(4)))  # Goes on directly, then rolls.
    store.durability.commit()
    put_ok(store, *(record_of_size(300) for _ in range(2)))
    assert files.calls - calls < 20
    assert len(log_files(tmp_path)) == 7 and not any(log_files(tmp_path)[-1].read_bytes())
    assert len(bodies(store)) == 18
    store.close()
    store = open_store(tmp_path, **POOLED)
    assert len(bodies(store)) == 20
    store.close()


def test_without_a_free_buffer_it_refuses_if_told_to(tmp_path: Path) -> None:
    store = open_store(
        tmp_path, transient_pool_size=1, transient_pool_refuses=True, **POOLED
    )
    results = store.put([record_of_size(300) for _ in range(5)], HOST)
    statuses = [result.status for result in results]
    assert statuses == [PutStatus.OK] * 3 + [PutStatus.BUSY] * 2
    assert "transientStorePoolSize" in str(results[-1].remark)
    assert store.not_writable_reason is None
    put_ok(store, record_of_size(92 + len(TOPIC)))  # It still fits.
    store.durability.commit()
    assert len(bodies(store)) == 4
    store.close()


def test_a_full_disk_keeps_what_was_acknowledged_and_refuses_more(tmp_path: Path) -> None:
    files, clock = FailingFiles(), FakeClock()
    files.half = True
    live = tmp_path / "live"
    store = open_store(live, clock, files, **POOLED)
    put_ok(store, record(b"0"))
    store.durability.commit()
    put_ok(store, *(record(b"%d" % number) for number in range(1, 12)))
    files.on_write = failing_in("commitlog", errno.ENOSPC)
    for _ in range(3):
        with pytest.raises(DiskFull):
            store.durability.commit()
        clock.now_ms += 1001  # However long it takes, nothing new goes first.
        (result,) = store.put([record(b"refused")], HOST)
        assert result.status is PutStatus.NOT_WRITABLE and "No space" in str(result.remark)
    assert bodies(store) == [b"0"]
    crashed = crashed_copy(live, tmp_path / "crashed")
    files.on_write = never
    store.durability.commit()
    assert bodies(store) == [b"%d" % number for number in range(12)]
    clock.now_ms += 1001
    put_ok(store, record(b"12"))
    store.close()
    store = open_store(live, clock, **POOLED)
    assert bodies(store) == [b"%d" % number for number in range(13)]
    store.close()
    store = open_store(crashed, clock, **POOLED)
    found = bodies(store)
    assert found == [b"%d" % number for number in range(len(found))]
    store.close()


def test_a_broken_disk_is_final(tmp_path: Path) -> None:
    files, clock = FailingFiles(), FakeClock()
    store = open_store(tmp_path, clock, files, **POOLED)
    put_ok(store, record(b"0"))
    store.durability.commit()
    put_ok(store, record(b"1"))
    files.on_write = failing_in("commitlog", errno.EIO)
    with pytest.raises(FlushFailed):
        store.durability.commit()
    files.on_write = never
    clock.now_ms += 100_000
    with pytest.raises(FlushFailed):
        store.durability.commit()
    with pytest.raises(FlushFailed):
        store.durability.flush()
    assert store.put([record()], HOST)[0].status is PutStatus.NOT_WRITABLE
    assert bodies(store) == [b"0"]
    store.close()
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path, clock, **POOLED)
    assert bodies(store) == [b"0"]
    store.close()


def test_one_commit_at_a_time_and_puts_go_on_meanwhile(tmp_path: Path) -> None:
    store = open_store(tmp_path, **POOLED)
    put_ok(store, record(b"0"))
    job = store.durability.begin_commit()
    assert job is not None and store.durability.begin_commit() is None
    put_ok(store, *(record_of_size(300) for _ in range(4)))
    job.run()
    store.durability.finish_commit(job)
    assert store.queue_bounds(TOPIC, 0) == (0, 1)
    store.durability.commit()
    assert store.queue_bounds(TOPIC, 0) == (0, 5)
    store.close()


def test_where_memory_cannot_be_locked_one_warning_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class NoLocks(QuickFiles):
        def lock_in_memory(self, view: memoryview, *, when_used: bool = False) -> bool:
            return False

    store = open_store(tmp_path, files=NoLocks(), **POOLED)
    put_ok(store, *(record_of_size(300) for _ in range(9)))
    (warning,) = caplog.records
    assert "ulimit -l" in warning.getMessage()
    store.close()


def test_locking_is_tried_for_real() -> None:
    files = Files()
    buffer = files.map_memory(1 << 16)
    buffer[:2] = b"ab"
    assert files.lock_in_memory(buffer, when_used=True) in (True, False)
    files.unlock_from_memory(buffer)
    assert bytes(buffer[:3]) == b"ab\0"


@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("round_", range(6))
def test_random_operations_against_a_list(
    tmp_path: Path, seed: int, mode: FlushMode, round_: int
) -> None:
    """Puts, commits that fail, flushes, closes and crashes: committed is there, in order."""
    dice = seeded(seed + round_)
    files, clock = FailingFiles(), FakeClock()
    files.half = bool(dice.randrange(2))
    settings = POOLED | {"transient_pool_size": dice.choice([1, 2, 5]), "flush_mode": mode}
    root = tmp_path / "0"
    store: MessageStore = open_store(root, clock, files, **settings)
    stored: list[bytes] = []
    kept = 0  # So many of them survive a crash.
    for step in range(150):
        clock.now_ms += 1001
        action = dice.random()
        if action < 0.5:
            made = [record(b"%d" % (len(stored) + n), tag="t") for n in range(dice.randint(1, 9))]
            for new, result in zip(made, store.put(made, HOST), strict=True):
                if result.status is PutStatus.OK:
                    assert result.queue_offset == len(stored)
                    stored.append(bytes(new.body))
        elif action < 0.8:
            files.on_write = failing_in("commitlog", errno.ENOSPC) if action < 0.6 else never
            try:
                store.durability.commit() if dice.randrange(2) else store.durability.flush()
                kept = len(stored)
            except DiskFull:
                pass
            files.on_write = never
        elif action < 0.9:
            store.close()
            store, kept = open_store(root, clock, files, **settings), len(stored)
        else:
            root = crashed_copy(root, tmp_path / f"{step + 1}")
            store.close()
            store = open_store(root, clock, files, **settings)
            found = bodies(store)
            assert kept <= len(found)
            stored, kept = stored[: len(found)], len(found)
        visible = bodies(store)
        assert visible == stored[: len(visible)]
        if mode is FlushMode.ASYNC:
            assert len(visible) >= kept
    store.close()
    store = open_store(root, clock, files, **settings)
    assert bodies(store) == stored
    store.close()
