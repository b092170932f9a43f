"""The next segment, written and locked ahead of need."""

import gc
import re
import threading
import time
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    FakeClock,
    QuickFiles,
    bodies,
    crashed_copy,
    log_files,
    open_store,
    put_ok,
    record_of_size,
)

from pymq.errors import DiskFull
from pymq.store import FlushMode
from pymq.store.files import Files
from pymq.store.log.segments import Segments
from pymq.store.log.warm_up import WarmUp

SIZE = 4 << 20


def locked_bytes() -> int:
    found = re.search(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


class Watched(QuickFiles):
    """Counts what is written and flushed of the log; refuses what a test wants refused."""

    def __init__(self) -> None:
        self.written = self.flushed = 0
        self.locks = True
        self.room = 1 << 40

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> None:
        if self.written + len(data) > self.room:
            raise DiskFull("no space left on the device")
        self.written += len(data)
        super().pwrite(fd, data, position)

    def fsync(self, fd: int) -> None:
        self.flushed += 1
        super().fsync(fd)

    def lock_in_memory(self, view: memoryview, *, when_used: bool = False) -> bool:
        return self.locks and super().lock_in_memory(view, when_used=when_used)


def segments_of(path: Path, files: Files, flush_bytes: int | None = None) -> Segments:
    return Segments(files, [path], SIZE, warm_up=WarmUp(flush_bytes))


def test_pages_are_written_locked_and_let_go_behind_the_log(tmp_path: Path) -> None:
    files = Watched()
    gc.collect()  # what earlier tests have left would be let go meanwhile
    before = locked_bytes()
    segments = segments_of(tmp_path, files)
    if not files.lock_in_memory(segments.append_next().view):
        pytest.skip("this user may lock no memory (RLIMIT_MEMLOCK)")
    segments[0].unlock_from_memory()
    files.flushed = 0
    segments.prepare_next()
    assert (files.written, files.flushed) == (SIZE, 1)  # Once for its blocks.
    assert (tmp_path / f"{SIZE:020d}").read_bytes() == bytes(SIZE)
    assert locked_bytes() - before == SIZE
    segments.append_next()
    segments.prepare_next()
    segments.unlock_old()
    assert locked_bytes() - before == 2 * SIZE
    segments.append_next()
    segments.unlock_old()
    assert locked_bytes() - before == SIZE
    segments.close()
    assert locked_bytes() == before


def test_it_is_synced_piece_by_piece_under_sync_flush(tmp_path: Path) -> None:
    files = Watched()
    segments = segments_of(tmp_path, files, flush_bytes=2 << 20)
    segments.prepare_next()
    assert files.flushed == 1 + 2
    segments.close()


def test_where_locking_is_refused_one_warning_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Watched()
    files.locks = False
    segments = segments_of(tmp_path, files)
    for _ in range(3):
        segments.prepare_next()
        segments.append_next()
    segments.unlock_old()
    (warning,) = caplog.records
    assert "ulimit -l" in warning.getMessage() and "4 MiB" in warning.getMessage()
    segments.close()


def test_no_space_leaves_nothing_behind(tmp_path: Path) -> None:
    files = Watched()
    files.room = SIZE // 2
    segments = segments_of(tmp_path, files)
    with pytest.raises(DiskFull):
        segments.prepare_next()
    assert not list(tmp_path.iterdir()) and not segments.prepared
    segments.make_next()
    assert segments.prepared
    segments.close()


def test_who_needs_the_segment_now_does_not_wait_for_its_warm_up(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Watched):
        def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> None:
            begun.set()
            assert go_on.wait(60)
            super().pwrite(fd, data, position)

    files = Slow()
    warm_up = WarmUp(None)
    segments = Segments(files, [tmp_path], SIZE, warm_up=warm_up)
    ahead = threading.Thread(target=segments.prepare_next)
    ahead.start()
    assert begun.wait(60)
    needing = threading.Thread(target=segments.make_next)
    needing.start()
    while not warm_up.is_hurried:
        time.sleep(0.001)
    go_on.set()
    ahead.join()
    needing.join()
    assert segments.prepared and files.written == 1 << 20
    assert segments.append_next().first == 0
    segments.close()


@pytest.mark.parametrize("mode", FlushMode)
def test_a_warmed_store_holds_the_same_after_a_stop_and_a_crash(
    tmp_path: Path, mode: FlushMode
) -> None:
    clock = FakeClock()
    sizes = {"segment_bytes": 1 << 16, "flush_mode": mode, "warm_segments": True}
    live = tmp_path / "live"
    store = open_store(live, clock, **sizes)
    for _ in range(5):
        put_ok(store, *(record_of_size(5000) for _ in range(10)))
        if store.ahead.segment_due:
            store.ahead.prepare_segment()
        assert not store.ahead.segment_due
        store.durability.flush()
        store.retention.clean_step()
    assert len(log_files(live)) == 5  # One more than is used.
    crashed = crashed_copy(live, tmp_path / "crashed")
    store.close()
    assert len(log_files(live)) == 4
    for root in (live, crashed):
        store = open_store(root, clock, **sizes)
        assert len(bodies(store)) == 50
        assert len(log_files(root)) == 4
        store.close()
