"""Trimming reads old entries, in another thread, and the thread of the store none of them."""

from pathlib import Path

from tests.unit.store.stores import (
    TOPIC,
    FakeClock,
    QuickFiles,
    bodies,
    open_store,
    put_ok,
    queue_path,
    record_of_size,
)

from pymq.store import MessageStore
from pymq.store.files import DiskUsage

QUEUE_COUNT = 3


class WatchedFiles(QuickFiles):
    """So full that every old segment goes at once; remembers what was read of queue files."""

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.read: set[tuple[Path, int]] = set()

    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(89 << 30, 11 << 30)

    def open(self, path: Path, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        self.paths[fd] = path
        return fd

    def open_for_reading(self, path: Path) -> int:
        fd = super().open_for_reading(path)
        self.paths[fd] = path
        return fd

    def create(self, path: Path, size_bytes: int, *, reserve: bool) -> int:
        fd = super().create(path, size_bytes, reserve=reserve)
        self.paths[fd] = path
        return fd

    def pread(self, fd: int, size: int, position: int) -> bytes:
        path = self.paths.get(fd)
        if path is not None and "consumequeue" in path.parts:
            self.read.add((path, position))
        return super().pread(fd, size, position)

    def taken(self) -> set[tuple[Path, int]]:
        taken, self.read = self.read, set()
        return taken


def make(root: Path, files: QuickFiles) -> MessageStore:
    store = open_store(root, FakeClock(), files, segment_bytes=1 << 14)
    for i in range(600):
        put_ok(store, record_of_size(200, queue_id=i % QUEUE_COUNT))
    store.durability.flush()
    store.durability.flush_queues()
    return store


def test_the_thread_of_the_store_reads_nothing(tmp_path: Path) -> None:
    files = WatchedFiles()
    store = make(tmp_path, files)
    files.taken()
    by_jobs: set[tuple[Path, int]] = set()
    by_store: set[tuple[Path, int]] = set()
    while True:
        job = store.retention.begin_clean()
        by_store |= files.taken()
        job.run()
        by_jobs |= files.taken()
        done = store.retention.finish_clean(job)
        by_store |= files.taken()
        if not done:
            break
    assert len(by_jobs) >= QUEUE_COUNT
    assert not by_store
    low, end = store.queue_bounds(TOPIC, 0)
    assert 0 < low < end == 200
    assert len(bodies(store)) == end - low
    store.close()


def test_a_queue_that_goes_before_its_job_runs(tmp_path: Path) -> None:
    store = make(tmp_path, WatchedFiles())
    while True:
        job = store.retention.begin_clean()
        if store.retention.delete_queues(TOPIC):
            assert not queue_path(tmp_path).exists()
        job.run()
        if not store.retention.finish_clean(job):
            break
    store.close()
