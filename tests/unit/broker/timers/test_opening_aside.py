"""Timers that a slave opens when it begins to act, in a thread, beside a store that is read."""

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.timers.waits import Waits
from tests.unit.store.stores import (
    FakeClock,
    QuickFiles,
    config,
    open_store,
    put_ok,
    read_all,
    record,
)

from pymq.errors import StoreClosed, StoreError
from pymq.protocol.names import TIMER_TOPIC
from pymq.store import MessageStore, TimerStore
from pymq.store.timer import timer_scan
from pymq.store.timer.timer_checkpoint import TimerCheckpoint
from pymq.store.timer.timer_log import UNIT_BYTES

COUNT = 200
SMALL: dict[str, Any] = {"segment_bytes": 2048, "queue_file_bytes": 400}


class OwnedFiles(QuickFiles):
    """A process that may open few; records which thread opened which file of log and queues.

    Attributes:
        shared: what one thread read, closed or unmapped of another one.
    """

    def __init__(self) -> None:
        self.owners: dict[int, tuple[int, str]] = {}
        self.maps: dict[int, tuple[int, str]] = {}
        self.shared: list[str] = []

    def open_files_limit(self) -> int:
        return 64

    def _own(self, fd: int) -> int:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if "/commitlog/" in path or "/consumequeue/" in path:
            self.owners[fd] = threading.get_ident(), path
        return fd

    def _check(self, owner: tuple[int, str] | None, what: str) -> None:
        if owner is not None and owner[0] != threading.get_ident():
            self.shared.append(f"{what} {owner[1]}")

    def open(self, path: Path, *, create: bool = False) -> int:
        return self._own(super().open(path, create=create))

    def open_for_reading(self, path: Path) -> int:
        return self._own(super().open_for_reading(path))

    def create_empty(self, path: Path) -> int:
        return self._own(super().create_empty(path))

    def duplicate(self, fd: int) -> int:
        return self._own(super().duplicate(fd))

    def close(self, fd: int) -> None:
        self._check(self.owners.pop(fd, None), "close")
        super().close(fd)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._check(self.owners.get(fd), "pread")
        return super().pread(fd, size, position)

    def map_for_reading(self, fd: int, size_bytes: int) -> memoryview:
        self._check(self.owners.get(fd), "map")
        view = super().map_for_reading(fd, size_bytes)
        if fd in self.owners:
            self.maps[id(view.obj)] = self.owners[fd]
        return view

    def unmap(self, view: memoryview) -> memoryview | None:
        self._check(self.maps.get(id(view.obj)), "unmap")
        return super().unmap(view)


@pytest.fixture
def files() -> OwnedFiles:
    return OwnedFiles()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock, files: OwnedFiles) -> Iterator[MessageStore]:
    """That of a slave whose master has told it of timers; the units have to be made again."""
    waits = Waits(tmp_path / "store", clock, **SMALL)
    for number in range(COUNT):
        waits.delay(b"%d" % number, 100_000 + number)
    waits.deliver()
    waits.stop()
    store = open_store(tmp_path / "store", clock, files, timer_wheel=False, **SMALL)
    told = TimerCheckpoint(
        read_ms=clock.now_ms,
        log_flushed=COUNT * UNIT_BYTES,
        queue_offset=COUNT,
        master_queue_offset=COUNT,
    )
    store.replication.timers.keep(told.encode(), may_be_ahead=False)
    yield store
    store.close()


def opened(store: MessageStore, clock: FakeClock) -> TimerStore:
    """Open the timers as ``TimerMessages`` does: in a thread."""
    job = store.replication.timers.begin_open(clock)
    with ThreadPoolExecutor(1) as executor:
        executor.submit(job.run).result(60)
    return job.result()


def test_threads_share_no_open_file(
    store: MessageStore, clock: FakeClock, files: OwnedFiles
) -> None:
    """One would close what the other is reading, or a number that is another file by then."""
    for _ in range(3):
        assert len(read_all(store, TIMER_TOPIC)) == COUNT
        timers = opened(store, clock)
        assert timers.waiting_count == COUNT
        timers.close()
    assert len(read_all(store, TIMER_TOPIC)) == COUNT
    put_ok(store, *(record(500) for _ in range(20)))
    store.durability.flush()
    store.durability.flush_queues()
    store.close()
    assert files.shared == []
    assert files.owners == {}


def test_timers_go_on_with_the_store(store: MessageStore, clock: FakeClock) -> None:
    timers = opened(store, clock)
    put_ok(store, record(b"one more", topic=TIMER_TOPIC))
    assert (timers.queue_behind, timers.queue_end) == (1, COUNT + 1)
    timers.close()


def test_files_that_are_deleted_meanwhile_are_an_error_of_the_store(
    store: MessageStore, clock: FakeClock, files: OwnedFiles
) -> None:
    """The slave tries again."""
    job = store.replication.timers.begin_open(clock)
    for path in sorted((store._config.root_path / "commitlog").iterdir())[:2]:
        path.unlink()
    with ThreadPoolExecutor(1) as executor, pytest.raises(StoreError, match="commitlog"):
        executor.submit(job.run).result(60)
    store.close()
    assert files.owners == {}


def told_to_stop(after: int) -> Callable[[], bool]:
    """Return what says that an opening is cancelled after it has been asked some times."""
    asked = iter(range(1 << 30))
    return lambda: next(asked) >= after


@pytest.mark.parametrize("is_log_gone", [False, True])
def test_an_opening_that_reads_many_messages_can_be_cancelled(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, is_log_gone: bool
) -> None:
    monkeypatch.setattr(timer_scan, "_READ_AT_ONCE", 10)
    root = tmp_path / "store"
    waits = Waits(root, clock, **SMALL)
    for number in range(COUNT):
        waits.delay(b"%d" % number, 100_000 + number)
    waits.deliver()
    waits.stop()
    if is_log_gone:
        shutil.rmtree(root / "timerlog")  # the units are made again
    else:
        (root / "config" / "timercheck").unlink()  # where they go on has to be found
    seen: list[tuple[int, int]] = []
    for after in (0, 1, 7, 15, 35 if is_log_gone else 0):
        with pytest.raises(StoreClosed, match="nothing is lost"):
            MessageStore.open(
                config(root, **SMALL),
                clock,
                files=QuickFiles(),
                is_cancelled=told_to_stop(after),
                on_progress=lambda done, total: seen.append((done, total)),
            )
    assert len(seen) >= 15 and all(0 <= done <= total for done, total in seen)
    assert max(done / total for done, total in seen) > 0.5
    waits = Waits(root, clock, **SMALL)
    assert waits.deliver(200_000) == [b"%d" % number for number in range(COUNT)]
    waits.stop()


def test_so_can_one_of_a_slave(
    store: MessageStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    files: OwnedFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It says how far it is."""
    monkeypatch.setattr(timer_scan, "_READ_AT_ONCE", 10)
    stop = told_to_stop(8)

    def is_cancelled() -> bool:
        clock.now_ms += 6000
        return stop()

    job = store.replication.timers.begin_open(clock, is_cancelled)
    with ThreadPoolExecutor(1) as executor, pytest.raises(StoreClosed):
        executor.submit(job.run).result(60)
    assert re.search(r"store: timer messages: [0-9]+ % of 0 MiB read", caplog.text)
    timers = opened(store, clock)
    assert timers.waiting_count == COUNT
    timers.close()
    store.close()
    assert files.shared == [] and files.owners == {}
