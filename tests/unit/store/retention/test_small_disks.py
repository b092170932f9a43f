"""A disk on which the next file of the log does not fit: it stays free, and the oldest goes."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    HOST,
    FakeClock,
    QuickFiles,
    log_files,
    open_store,
    put_ok,
    record_of_size,
)

from pymq.store import MessageStore, PutStatus
from pymq.store.files import DiskUsage

SIZE = 1024
SMALL: dict[str, Any] = {"segment_bytes": SIZE, "queue_file_bytes": 60, "reserved_hours": 72}
#: Where the log lies.
LOG = "commitlog"


class SmallDisk(QuickFiles):
    """Holds so many files of the log in each of its directories, and nothing else.

    Attributes:
        tells: whether one can see how full it is; a quota does not show.
        in_vain: reservations that took all there was, and failed.
        held_bytes: of deleted files that are still open.
    """

    def __init__(self, file_count: float, *, tells: bool = True) -> None:
        self._bytes = int(file_count * SIZE)
        self.tells = tells
        self.in_vain = 0
        self.held_bytes = 0

    def disk_usage(self, path: Path) -> DiskUsage:
        if path.name != LOG or not self.tells:
            return super().disk_usage(path)
        return DiskUsage(self._used(path), max(0, self._bytes - self._used(path)))

    def reserve(self, fd: int, size_bytes: int) -> None:
        directory = Path(os.readlink(f"/proc/self/fd/{fd}")).parent
        if self._used(directory) > self._bytes:  # The file has its length already.
            self.in_vain += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(fd, size_bytes)

    def _used(self, directory: Path) -> int:
        files = directory.iterdir() if directory.is_dir() else ()
        return self.held_bytes + sum(one.stat().st_size for one in files)


@pytest.fixture
def opened() -> Iterator[Callable[..., MessageStore]]:
    """Open a store, and close it at the end of the test."""
    with ExitStack() as stores:

        def open_it(*args: Any, **settings: Any) -> MessageStore:
            store = open_store(*args, **(SMALL | settings))
            stores.callback(store.close)
            return store

        yield open_it


def fill(store: MessageStore) -> str:
    """Put until the store refuses; return why it does."""
    for _ in range(100):
        (result,) = store.put([record_of_size(300)], HOST)
        if result.status is not PutStatus.OK:
            assert result.status is PutStatus.NOT_WRITABLE and result.remark
            return result.remark
    raise AssertionError("never refused")


def run_pass(store: MessageStore) -> None:
    """Delete what may go: everything put is on the disk."""
    store.durability.flush()
    store.durability.flush_queues()
    for _ in range(1000):
        if not store.retention.clean_step():
            return
    raise AssertionError("a pass that does not end")


def count(root: Path) -> int:
    return len(log_files(root))


@pytest.mark.parametrize("tells", [True, False])
def test_the_oldest_file_goes_when_the_next_one_does_not_fit(
    tmp_path: Path,
    opened: Callable[..., MessageStore],
    caplog: pytest.LogCaptureFixture,
    tells: bool,
) -> None:
    """However young it is: four files are 77 %, the fifth does not fit, 85 % is never reached."""
    clock, disk = FakeClock(), SmallDisk(5.2 if tells else 4.9, tells=tells)
    store = opened(tmp_path, clock, disk)
    for number in range(3):
        reason = fill(store)
        assert "no space left on the device" in reason and count(tmp_path) == 4
        run_pass(store)
        assert store.log_first == (number + 1) * SIZE, "one file, and no other"
        run_pass(store)
        assert store.log_first == (number + 1) * SIZE, "that is enough, as far as anybody knows"
        clock.now_ms += 1000
    put_ok(store, record_of_size(300))
    assert caplog.text.count("the oldest commit-log files are deleted") == 1
    if tells:
        assert not disk.in_vain, "the disk was never full"


@pytest.mark.parametrize("attempts", [1, 3])
def test_an_attempt_before_the_oldest_file_is_deleted_takes_no_other_with_it(
    tmp_path: Path, opened: Callable[..., MessageStore], attempts: int
) -> None:
    clock, disk = FakeClock(), SmallDisk(4.9)
    store = opened(tmp_path, clock, disk)
    fill(store)
    store.durability.flush()
    store.durability.flush_queues()
    assert store.retention.clean_step() and store.log_first == SIZE
    assert count(tmp_path) == 4, "it is out of the log, and still on the disk"
    for _ in range(attempts):
        clock.now_ms += 1000
        fill(store)
    run_pass(store)
    assert store.log_first == SIZE and count(tmp_path) == 3
    clock.now_ms += 1000
    put_ok(store, record_of_size(300))


def test_what_a_file_takes_is_said_where_none_may_go(
    tmp_path: Path, opened: Callable[..., MessageStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path, files=SmallDisk(4.9), force_clean=False)
    reason = fill(store)
    run_pass(store)
    assert store.log_first == 0 and count(tmp_path) == 4
    for text in (str(tmp_path / LOG), "mappedFileSizeCommitLog=1024", "free some space there"):
        assert text in reason
    assert "the oldest commit-log files are deleted" not in caplog.text


def test_no_file_is_made_that_would_end_all_writing(
    tmp_path: Path, opened: Callable[..., MessageStore]
) -> None:
    """Five files would be 96 %: above 90 % nothing is written, so it would be for nothing."""
    store = opened(tmp_path, files=SmallDisk(5.2))
    assert "(diskSpaceWarningLevelRatio)" in fill(store)
    assert count(tmp_path) == 4
    store.retention.check_disk()
    assert store.not_writable_reason is not None and "% full" not in store.not_writable_reason


def test_enough_free_bytes_are_left(tmp_path: Path, opened: Callable[..., MessageStore]) -> None:
    store = opened(tmp_path, files=SmallDisk(5.2), disk_free_enough_bytes=100)
    fill(store)
    assert count(tmp_path) == 5
    run_pass(store)
    assert count(tmp_path) == 4


def test_a_deleted_file_that_is_read_has_to_go_before_another_one(
    tmp_path: Path, opened: Callable[..., MessageStore]
) -> None:
    clock, disk = FakeClock(), SmallDisk(4.9)
    store = opened(tmp_path, clock, disk)
    fill(store)
    view = store.record_view(0)
    disk.held_bytes = SIZE
    run_pass(store)
    clock.now_ms += 1000
    fill(store)
    run_pass(store)
    assert store.log_first == SIZE, "the space of that one comes yet"
    clock.now_ms += 120_000
    run_pass(store)
    assert bytes(view[:4]) == bytes(4), "its blocks were freed"
    disk.held_bytes = 0
    clock.now_ms += 1000
    put_ok(store, record_of_size(300))
    view.release()


def test_room_that_came_by_itself_deletes_nothing(
    tmp_path: Path, opened: Callable[..., MessageStore]
) -> None:
    clock, disk = FakeClock(), SmallDisk(4.9)
    store = opened(tmp_path, clock, disk)
    fill(store)
    disk._bytes += 5 * SIZE
    clock.now_ms += 1000
    put_ok(store, record_of_size(300))
    run_pass(store)
    assert store.log_first == 0
