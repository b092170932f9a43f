"""Disks that are full, broken or refuse to sync."""

import errno
import gc
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    HOST,
    TOPIC,
    FakeClock,
    QuickFiles,
    batch,
    bodies,
    crashed_copy,
    log_files,
    open_store,
    overwrite,
    put_ok,
    queue_path,
    record,
    record_of_size,
    seeded,
)

from pymq.errors import DiskFull, FlushFailed, StoreError
from pymq.store import FlushMode, MessageStore, PutStatus


class FaultyFiles(QuickFiles):
    """Fails where it is told to; ``half`` writes a part of the data before it does."""

    def __init__(self) -> None:
        self.on_write: Callable[[Path], int] = lambda path: 0
        self.on_sync: Callable[[Path], int] = lambda path: 0
        self.on_create: Callable[[Path], int] = lambda path: 0
        self.half = False
        self.calls = 0
        self.fail_at = -1

    def _path(self, fd: int) -> Path:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise DiskFull("the n-th call: no space left on the device")

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> None:
        self._count()
        path = self._path(fd)
        code = self.on_write(path)
        if code:
            if self.half:
                super().pwrite(fd, data[: len(data) // 2 + 1], position)
            if code == errno.EIO:
                raise FlushFailed(f"{path}: {os.strerror(code)}")
            raise DiskFull(f"{path}: {os.strerror(code)}")
        super().pwrite(fd, data, position)

    def sync_data(self, fd: int) -> None:
        code = self.on_sync(self._path(fd))
        if code:
            raise FlushFailed(f"sync: {os.strerror(code)}")
        super().sync_data(fd)

    def create(self, path: Path, size_bytes: int, *, reserve: bool) -> int:
        self._count()
        if self.on_create(path):
            raise DiskFull(f"{path}: no space")
        return super().create(path, size_bytes, reserve=reserve)


def _in(name: str, code: int) -> Callable[[Path], int]:
    return lambda path: code if name in path.parts else 0


def _never(path: Path) -> int:
    return 0


@pytest.mark.parametrize("half", [False, True])
def test_full_disk_while_writing_the_log(tmp_path: Path, half: bool) -> None:
    files, clock = FaultyFiles(), FakeClock()
    files.half = half
    store = open_store(tmp_path / "s", clock, files)
    put_ok(store, record(b"before"))
    end = store.log_end
    files.on_write = _in("commitlog", errno.ENOSPC)
    results = store.put([record(b"lost"), batch([b"lost"] * 3), record(topic="no/such")], HOST)
    assert [result.status for result in results] == [PutStatus.NOT_WRITABLE] * 3
    assert "No space left" in str(results[0].remark)
    assert store.log_end == end and store.queue_bounds(TOPIC, 0) == (0, 1)
    files.on_write = _never
    (result,) = store.put([record()], HOST)
    assert result.status is PutStatus.NOT_WRITABLE  # It waits before it tries again.
    assert store.not_writable_reason is not None
    clock.now_ms += 1001
    (result,) = put_ok(store, record(b"after"))
    assert (result.physical_offset, result.queue_offset) == (end, 1)
    assert store.not_writable_reason is None
    crashed = crashed_copy(tmp_path / "s", tmp_path / "crashed")
    store.close()
    for root in (tmp_path / "s", crashed):
        store = open_store(root)
        assert bodies(store) == [b"before", b"after"]
        store.close()


def test_stale_halves_of_a_failed_write_do_not_come_back(tmp_path: Path) -> None:
    """A short record over the start of a failed long run, then a crash."""
    files, clock = FaultyFiles(), FakeClock()
    store = open_store(tmp_path / "s", clock, files)
    files.half = True
    files.on_write = _in("commitlog", errno.ENOSPC)
    store.put([record_of_size(150) for _ in range(4)], HOST)
    clock.now_ms += 1001
    files.on_write = _never
    put_ok(store, record_of_size(150))
    root = crashed_copy(tmp_path / "s", tmp_path / "crashed")
    store.close()
    store = open_store(root)
    assert store.queue_bounds(TOPIC, 0) == (0, 1)
    store.close()


def test_no_room_for_the_next_segment(tmp_path: Path) -> None:
    files, clock = FaultyFiles(), FakeClock()
    store = open_store(tmp_path, clock, files, segment_bytes=1024)
    put_ok(store, record_of_size(800))
    files.on_create = _in("commitlog", errno.ENOSPC)
    results = store.put([record(b"fits"), record_of_size(300), record(b"also no")], HOST)
    assert [result.status for result in results] == [
        PutStatus.OK,
        PutStatus.NOT_WRITABLE,
        PutStatus.NOT_WRITABLE,
    ]
    with pytest.raises(DiskFull):
        store.prepare_next()
    assert len(log_files(tmp_path)) == 1
    files.on_create = _never
    clock.now_ms += 1001
    (result,) = put_ok(store, record_of_size(300))
    assert (result.physical_offset, result.queue_offset) == (1024, 2)
    store.close()


@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("half", [False, True])
def test_full_disk_while_writing_queues(tmp_path: Path, mode: FlushMode, half: bool) -> None:
    """The records are in the log, so they are acknowledged, and visible as soon as possible."""
    files, clock = FaultyFiles(), FakeClock()
    files.half = half
    store = open_store(tmp_path, clock, files, flush_mode=mode)
    put_ok(store, record(b"0"))
    store.flush()
    files.on_write = _in("consumequeue", errno.ENOSPC)
    put_ok(store, record(b"1"), record(b"2", queue_id=1))
    store.flush()
    assert store.queue_bounds(TOPIC, 0) == (0, 1)
    (result,) = store.put([record()], HOST)
    assert result.status is PutStatus.NOT_WRITABLE
    files.on_write = _never
    assert store.dispatch_flushed()
    assert bodies(store) == [b"0", b"1"] and bodies(store, TOPIC, 1) == [b"2"]
    clock.now_ms += 1001
    put_ok(store, record(b"3"))
    store.flush()
    assert bodies(store) == [b"0", b"1", b"3"]
    store.close()


def test_closing_without_all_queues_written_leaves_the_abort_marker(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path, files=files)
    files.on_write = _in("consumequeue", errno.ENOSPC)
    put_ok(store, record(b"0"))
    store.close()
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    assert bodies(store) == [b"0"]
    store.close()


def test_a_failed_sync_is_final(tmp_path: Path) -> None:
    files, clock = FaultyFiles(), FakeClock()
    store = open_store(tmp_path, clock, files, flush_mode=FlushMode.SYNC)
    put_ok(store, record(b"safe"))
    store.flush()
    put_ok(store, record(b"unsafe"))
    files.on_sync = _in("commitlog", errno.EIO)
    job = store.flush_target()
    job.run()
    with pytest.raises(FlushFailed):
        store.flush_done(job)
    files.on_sync = _never
    clock.now_ms += 100_000
    with pytest.raises(FlushFailed):
        store.flush()
    (result,) = store.put([record()], HOST)
    assert result.status is PutStatus.NOT_WRITABLE and "no more writes" in str(result.remark)
    assert bodies(store) == [b"safe"]
    store.close()
    assert (tmp_path / "abort").exists()


def test_a_failed_sync_of_a_queue_is_final(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = open_store(tmp_path, files=files)
    put_ok(store, record(b"0"))
    files.on_sync = _in("consumequeue", errno.EIO)
    job = store.queue_flush_target()
    job.run()
    with pytest.raises(FlushFailed):
        store.queue_flush_done(job)
    assert store.put([record()], HOST)[0].status is PutStatus.NOT_WRITABLE
    assert bodies(store) == [b"0"]
    store.close()


def test_an_io_error_of_a_write_is_final(tmp_path: Path) -> None:
    files, clock = FaultyFiles(), FakeClock()
    store = open_store(tmp_path, clock, files)
    put_ok(store, record(b"0"))
    files.on_write = _in("commitlog", errno.EIO)
    assert store.put([record()], HOST)[0].status is PutStatus.NOT_WRITABLE
    files.on_write = _never
    clock.now_ms += 100_000
    assert store.put([record()], HOST)[0].status is PutStatus.NOT_WRITABLE
    assert bodies(store) == [b"0"]
    store.close()


def test_full_disk_at_the_nth_call(tmp_path: Path, seed: int) -> None:
    """For every n: what was acknowledged is there after close and after a crash."""
    dice = seeded(seed)
    script = [
        [record(b"%d.%d" % (turn, number), queue_id=dice.randrange(3)) for number in range(6)]
        for turn in range(12)
    ]
    settings = {"segment_bytes": 1024, "queue_file_bytes": 100}
    for nth in range(1, 120):
        files, clock = FaultyFiles(), FakeClock()
        root = tmp_path / str(nth)
        files.fail_at = nth
        try:
            store = open_store(root, clock, files, **settings)
        except DiskFull:
            files.fail_at = -1
            store = open_store(root, clock, files, **settings)
        acknowledged: list[list[bytes]] = [[], [], []]
        for entries in script:
            clock.now_ms += 1001
            for entry, result in zip(entries, store.put(entries, HOST), strict=True):
                if result.status is PutStatus.OK:
                    acknowledged[entry.queue_id].append(bytes(entry.body))
        clock.now_ms += 1001
        store.dispatch_flushed()
        crashed = crashed_copy(root, tmp_path / f"{nth} crashed")
        try:
            store.close()
        except StoreError:
            pass
        for path in (crashed, root):
            store = open_store(path, clock, **settings)
            assert [bodies(store, TOPIC, number) for number in range(3)] == acknowledged, nth
            store.close()


class FailingOnce(QuickFiles):
    """Fails at the n-th call that changes anything."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise DiskFull("the n-th call")

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> None:
        self._count()
        super().pwrite(fd, data, position)

    def create(self, path: Path, size_bytes: int, *, reserve: bool) -> int:
        self._count()
        return super().create(path, size_bytes, reserve=reserve)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)

    def sync_data(self, fd: int) -> None:
        self._count()
        super().sync_data(fd)


@pytest.mark.parametrize("lost_queue", [False, True])
def test_recovery_that_fails_half_way_can_be_repeated(tmp_path: Path, lost_queue: bool) -> None:
    """Unsynced records, torn in the middle of the log, over two segments."""
    live, clock = tmp_path / "live", FakeClock()
    settings = {"segment_bytes": 1024}
    store = open_store(live, clock, **settings)
    texts = [b"%d" % number for number in range(16)]
    put_ok(store, *(record(text, queue_id=number % 2) for number, text in enumerate(texts)))
    template = crashed_copy(live, tmp_path / "template")
    store.close()
    path = log_files(template)[1]
    data = path.read_bytes()
    cut = data.index(b"TopicTest", data.index(b"TopicTest") + 1) - 1
    overwrite(path, cut, b"\xff")
    if lost_queue:
        shutil.rmtree(queue_path(template, TOPIC, 1))
    descriptors = len(os.listdir("/proc/self/fd"))
    for nth in range(1, 200):
        root = crashed_copy(template, tmp_path / str(nth))
        files = FailingOnce(nth)
        try:
            store = open_store(root, clock, files, **settings)
        except DiskFull:
            second = crashed_copy(root, tmp_path / f"{nth} again")
            store = open_store(second, clock, **settings)
        complete, files.left = files.left > 0, -1
        found = [*bodies(store), *bodies(store, TOPIC, 1)]
        assert sorted(found, key=int) == texts[: len(found)] and len(found) == 11, nth
        put_ok(store, record(b"more"))
        store.close()
        gc.collect()  # Tracebacks of the failure hold views on the log.
        assert len(os.listdir("/proc/self/fd")) == descriptors
        if complete:
            break
    assert 10 < nth < 199


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True, timeout=30)


def _fill(store: MessageStore, clock: FakeClock) -> int:
    count = 0
    while True:
        clock.now_ms += 1001
        if store.put([record_of_size(1000)], HOST)[0].status is not PutStatus.OK:
            return count
        count += 1


def test_a_really_full_disk_refuses_and_resumes(small_disk: Path) -> None:
    clock = FakeClock()
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    root = small_disk / "store"
    settings = {"segment_bytes": 1 << 16, "queue_file_bytes": 2000}
    store = open_store(root, clock, **settings)
    count = _fill(store, clock)
    assert count > 100
    assert "no space left" in str(store.not_writable_reason)
    assert store.queue_bounds(TOPIC, 0) == (0, count)
    ballast.unlink()
    more = _fill(store, clock)
    assert more > 100
    assert len(bodies(store)) == count + more
    store.close()
    store = open_store(root, clock, **settings)
    assert len(bodies(store)) == count + more
    store.close()
