"""Disks that are full, broken or refuse to flush."""

import errno
import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.disks import small_tmpfs
from tests.unit.store.stores import (
    HOST,
    TOPIC,
    FailingFiles,
    FakeClock,
    QuickFiles,
    batch,
    bodies,
    crashed_copy,
    failing_in,
    log_files,
    never,
    no_descriptors,
    open_paths,
    open_store,
    overwrite,
    put_ok,
    queue_path,
    record,
    record_of_size,
    seeded,
)

from pymq.errors import DiskFull, FlushFailed, StoreError
from pymq.store import Files, FlushMode, MessageStore, PutStatus


@pytest.mark.parametrize("half", [False, True])
def test_full_disk_while_writing_the_log(tmp_path: Path, half: bool) -> None:
    files, clock = FailingFiles(), FakeClock()
    files.half = half
    store = open_store(tmp_path / "s", clock, files)
    put_ok(store, record(b"before"))
    end = store.log_end
    files.on_write = failing_in("commitlog", errno.ENOSPC)
    results = store.put([record(b"lost"), batch([b"lost"] * 3), record(topic="no/such")], HOST)
    assert [result.status for result in results] == [PutStatus.NOT_WRITABLE] * 3
    assert "No space left" in str(results[0].remark)
    assert store.log_end == end and store.queue_bounds(TOPIC, 0) == (0, 1)
    files.on_write = never
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
    files, clock = FailingFiles(), FakeClock()
    store = open_store(tmp_path / "s", clock, files)
    files.half = True
    files.on_write = failing_in("commitlog", errno.ENOSPC)
    store.put([record_of_size(150) for _ in range(4)], HOST)
    clock.now_ms += 1001
    files.on_write = never
    put_ok(store, record_of_size(150))
    root = crashed_copy(tmp_path / "s", tmp_path / "crashed")
    store.close()
    store = open_store(root)
    assert store.queue_bounds(TOPIC, 0) == (0, 1)
    store.close()


def test_no_room_for_the_next_segment(tmp_path: Path) -> None:
    files, clock = FailingFiles(), FakeClock()
    store = open_store(tmp_path, clock, files, segment_bytes=1024)
    put_ok(store, record_of_size(800))
    files.on_create = failing_in("commitlog", errno.ENOSPC)
    results = store.put([record(b"fits"), record_of_size(300), record(b"also no")], HOST)
    assert [result.status for result in results] == [
        PutStatus.OK,
        PutStatus.NOT_WRITABLE,
        PutStatus.NOT_WRITABLE,
    ]
    with pytest.raises(DiskFull):
        store.ahead.prepare_segment()
    assert len(log_files(tmp_path)) == 1
    files.on_create = never
    clock.now_ms += 1001
    (result,) = put_ok(store, record_of_size(300))
    assert (result.physical_offset, result.queue_offset) == (1024, 2)
    store.close()


@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("half", [False, True])
def test_full_disk_while_writing_queues(tmp_path: Path, mode: FlushMode, half: bool) -> None:
    """The records are in the log, so they are acknowledged, and visible as soon as possible."""
    files, clock = FailingFiles(), FakeClock()
    files.half = half
    store = open_store(tmp_path, clock, files, flush_mode=mode)
    put_ok(store, record(b"0"))
    store.durability.flush()
    files.on_write = failing_in("consumequeue", errno.ENOSPC)
    put_ok(store, record(b"1"), record(b"2", queue_id=1))
    store.durability.flush()
    assert store.queue_bounds(TOPIC, 0) == (0, 1)
    (result,) = store.put([record()], HOST)
    assert result.status is PutStatus.NOT_WRITABLE
    files.on_write = never
    assert store.dispatch.advance()
    assert bodies(store) == [b"0", b"1"] and bodies(store, TOPIC, 1) == [b"2"]
    clock.now_ms += 1001
    put_ok(store, record(b"3"))
    store.durability.flush()
    assert bodies(store) == [b"0", b"1", b"3"]
    store.close()


def test_closing_without_all_queues_written_leaves_the_abort_marker(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    files.on_write = failing_in("consumequeue", errno.ENOSPC)
    put_ok(store, record(b"0"))
    store.close()
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    assert bodies(store) == [b"0"]
    store.close()


def test_a_failed_sync_is_final(tmp_path: Path) -> None:
    files, clock = FailingFiles(), FakeClock()
    store = open_store(tmp_path, clock, files, flush_mode=FlushMode.SYNC)
    put_ok(store, record(b"safe"))
    store.durability.flush()
    put_ok(store, record(b"unsafe"))
    files.on_fsync = failing_in("commitlog", errno.EIO)
    job = store.durability.begin_flush()
    job.run()
    with pytest.raises(FlushFailed):
        store.durability.finish_flush(job)
    files.on_fsync = never
    clock.now_ms += 100_000
    with pytest.raises(FlushFailed):
        store.durability.flush()
    (result,) = store.put([record()], HOST)
    assert result.status is PutStatus.NOT_WRITABLE and "no more writes" in str(result.remark)
    assert bodies(store) == [b"safe"]
    store.close()
    assert (tmp_path / "abort").exists()


def test_a_failed_sync_of_a_queue_is_final(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put_ok(store, record(b"0"))
    files.on_fsync = failing_in("consumequeue", errno.EIO)
    job = store.durability.begin_queue_flush()
    job.run()
    with pytest.raises(FlushFailed):
        store.durability.finish_queue_flush(job)
    assert store.put([record()], HOST)[0].status is PutStatus.NOT_WRITABLE
    assert bodies(store) == [b"0"]
    store.close()


def test_an_io_error_of_a_write_is_final(tmp_path: Path) -> None:
    files, clock = FailingFiles(), FakeClock()
    store = open_store(tmp_path, clock, files)
    put_ok(store, record(b"0"))
    files.on_write = failing_in("commitlog", errno.EIO)
    assert store.put([record()], HOST)[0].status is PutStatus.NOT_WRITABLE
    files.on_write = never
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
        files, clock = FailingFiles(), FakeClock()
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
        store.dispatch.advance()
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

    def fsync(self, fd: int) -> None:
        self._count()
        super().fsync(fd)


@pytest.mark.by_turns("lost_queue")
@pytest.mark.parametrize("lost_queue", [False, True])
def test_recovery_that_fails_half_way_can_be_repeated(tmp_path: Path, lost_queue: bool) -> None:
    """Unflushed records, torn in the middle of the log, over two segments."""
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
    gc.collect()  # What earlier tests left to the collector is not this test's.
    descriptors = len(open_paths(tmp_path))
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
        assert len(open_paths(tmp_path)) == descriptors
        if complete:
            break
    assert 10 < nth < 199


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    with small_tmpfs(tmp_path / "small", "1m") as path:
        yield path


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


def test_a_really_full_disk_is_refused_by_its_level_and_cleaned(small_disk: Path) -> None:
    """What a broker does every second and every ten: look, and delete whatever the age."""
    clock = FakeClock()
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    settings = {"segment_bytes": 1 << 16, "queue_file_bytes": 2000}
    store = open_store(small_disk / "store", clock, Files(), **settings, force_clean=False)
    while store.put([record_of_size(1000)], HOST)[0].status is PutStatus.OK:
        store.retention.check_disk()
    assert "diskSpaceWarningLevelRatio" in str(store.not_writable_reason)
    count = len(bodies(store))
    ballast.unlink()
    store.retention.check_disk()
    clock.now_ms += 1001
    put_ok(store, record_of_size(1000))
    assert len(bodies(store)) == count + 1
    store.close()
    ballast.write_bytes(bytes(300_000))
    store = open_store(small_disk / "store", clock, Files(), **settings)
    assert store.not_writable_reason is not None
    while store.retention.clean_step():
        pass
    assert store.not_writable_reason is None and store.log_first > 0
    put_ok(store, record_of_size(1000))
    low, end = store.queue_bounds(TOPIC, 0)
    assert 0 < low < end == count + 2 and len(bodies(store)) == end - low
    store.close()


def test_after_a_failed_sync_the_checkpoint_vouches_for_nothing_more(tmp_path: Path) -> None:
    """The system reports a lost page once: a second fsync would succeed."""
    files, clock = FailingFiles(), FakeClock()
    store = open_store(tmp_path, clock, files)
    put_ok(store, record(b"safe"))
    store.durability.flush()
    clock.now_ms += 10_000
    put_ok(store, record(b"unsafe"))
    files.on_fsync = failing_in("commitlog", errno.EIO)
    with pytest.raises(FlushFailed):
        store.durability.flush()
    before = (tmp_path / "checkpoint").read_bytes()
    files.on_fsync = never
    clock.now_ms += 10_000
    with pytest.raises(FlushFailed):
        store.durability.flush()
    with pytest.raises(FlushFailed):
        store.durability.flush_queues()
    assert (tmp_path / "checkpoint").read_bytes() == before
    store.close()


class RecordingFiles(Files):
    """Remembers what was flushed."""

    def __init__(self) -> None:
        self.flushed: list[Path] = []

    def fsync(self, fd: int) -> None:
        self.flushed.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        super().fsync(fd)


def test_without_descriptors_nothing_is_final(tmp_path: Path) -> None:
    """Connections may take the last ones: what cannot be opened is no failed fsync."""
    files, clock = RecordingFiles(), FakeClock()
    store = open_store(tmp_path, clock, files, segment_bytes=1024)
    put_ok(store, *(record_of_size(300, tag="T") for _ in range(4)))
    found = store.read(TOPIC, 0, 0, count_max=9, bytes_max=9999)
    assert len(found.starts) == 2
    files.flushed.clear()
    with no_descriptors():
        with pytest.raises(StoreError, match="ulimit"):
            store.durability.flush_queues()
        with pytest.raises(StoreError, match="ulimit"):
            store.durability.flush()
        with pytest.raises(StoreError, match="ulimit"):
            store.begin_prefetch(found.buffers, found.starts)
    assert store.not_writable_reason is None and not files.flushed
    descriptors = len(open_paths(tmp_path))
    store.durability.flush()
    store.durability.flush_queues()
    assert {path.parent for path in files.flushed} >= {tmp_path / "commitlog", queue_path(tmp_path)}
    assert store.durability.unflushed_bytes == 0
    put_ok(store, record())
    assert len(open_paths(tmp_path)) == descriptors
    store.close()


def test_a_segment_whose_directory_cannot_be_synced_stands_in_nobodys_way(tmp_path: Path) -> None:
    class NoSync(QuickFiles):
        fails = False

        def fsync_directory(self, path: Path) -> None:
            if self.fails and path.name == "commitlog":
                raise StoreError(f"{path}: too many open files")
            super().fsync_directory(path)

    files, clock = NoSync(), FakeClock()
    store = open_store(tmp_path, clock, files, segment_bytes=1024)
    put_ok(store, record_of_size(800))
    files.fails = True
    assert store.put([record_of_size(800)], HOST)[0].status is PutStatus.NOT_WRITABLE
    with pytest.raises(StoreError, match="too many"):
        store.ahead.prepare_segment()
    assert len(log_files(tmp_path)) == 1
    files.fails = False
    clock.now_ms += 1001
    put_ok(store, record_of_size(800))
    store.close()


def test_a_topic_deleted_while_its_queues_are_synced(tmp_path: Path) -> None:
    class Deleting(QuickFiles):
        def exists(self, path: Path) -> bool:
            found = super().exists(path)
            if path == queue_path(tmp_path):
                store.retention.delete_queues(TOPIC)
            return found

    store = open_store(tmp_path, files=Deleting())
    put_ok(store, record(b"0"))
    store.durability.flush_queues()
    assert store.not_writable_reason is None
    store.close()
