"""How many files a store keeps open: a share of what its process may, whoever reads."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    TOPIC,
    FakeClock,
    QuickFiles,
    bodies,
    config,
    crashed_copy,
    no_descriptors,
    open_paths,
    open_store,
    put_ok,
    read_all,
    record,
    record_of_size,
)

from pymq.errors import StoreError
from pymq.store import MessageStore
from pymq.store.files import Files
from pymq.store.log.segment import Segment
from pymq.store.recovery.log_end import find_log_end

#: Of the process, and what log and queues may have of it.
LIMIT, LOG_LIMIT, QUEUES_LIMIT = 64, 64 // 8, 64 // 4
SMALL: dict[str, Any] = {"segment_bytes": 1024, "queue_file_bytes": 2000}
SEGMENTS = 40


class FewFiles(QuickFiles):
    """A process that may open few; counts those of its maps, which have a descriptor, too."""

    def open_files_limit(self) -> int:
        return LIMIT


def open_count(root: Path, name: str) -> int:
    """Return how many files below a directory are open."""
    return sum((root / name) in Path(path).parents for path in open_paths(root))


def maps_count(root: Path) -> int:
    with open("/proc/self/maps") as maps:
        return sum(str(root / "commitlog") in line for line in maps)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path, FakeClock(), FewFiles(), **SMALL)
    put_ok(store, *(record_of_size(300, tag="T") for _ in range(3 * SEGMENTS)))
    store.durability.flush()
    store.durability.flush_queues()
    yield store
    store.close()


def test_who_reads_all_leaves_few_files_open(store: MessageStore, tmp_path: Path) -> None:
    for _ in range(2):
        assert len(read_all(store)) == 3 * SEGMENTS
        assert open_count(tmp_path, "commitlog") <= LOG_LIMIT
    put_ok(store, record_of_size(300))
    store.durability.flush()
    assert len(bodies(store)) == 3 * SEGMENTS + 1


def test_what_is_not_flushed_stays_open(tmp_path: Path) -> None:
    """What could not be written is told to who had the file open meanwhile."""
    opened: list[int] = []

    class Watching(FewFiles):
        def open(self, path: Path, *, create: bool = False) -> int:
            if path.parent.name == "commitlog":
                opened.append(int(path.name))
            return super().open(path, create=create)

    store = open_store(tmp_path, FakeClock(), Watching(), **SMALL)
    put_ok(store, *(record_of_size(300) for _ in range(3 * SEGMENTS)))
    store.durability.flush()
    assert not opened
    read_all(store)
    read_all(store)
    assert opened and open_count(tmp_path, "commitlog") <= LOG_LIMIT
    store.close()


def test_what_was_read_stays_readable(store: MessageStore, tmp_path: Path) -> None:
    """Files that are read are not closed; the next ones to be opened take their place."""
    views = [
        store.record_view(store.physical_offset(TOPIC, 0, 3 * number) or 0)
        for number in range(SEGMENTS)
    ]
    copies = [bytes(view) for view in views]
    assert maps_count(tmp_path) >= SEGMENTS
    assert len(read_all(store)) == 3 * SEGMENTS
    assert [bytes(view) for view in views] == copies
    for view in views:
        view.release()
    store.durability.flush()
    assert open_count(tmp_path, "commitlog") <= LOG_LIMIT


def test_one_job_may_read_more_files_than_stay_open(store: MessageStore, tmp_path: Path) -> None:
    starts = [store.physical_offset(TOPIC, 0, 3 * number) or 0 for number in range(SEGMENTS)]
    read: list[str] = []

    class Watching(Files):
        def pread(self, fd: int, size: int, position: int) -> bytes:
            read.append(os.readlink(f"/proc/self/fd/{fd}"))
            return super().pread(fd, size, position)

    views = [store.record_view(start) for start in starts]
    for view in views:
        view.release()
    job = store.begin_prefetch([memoryview(bytes(300))] * SEGMENTS, starts)
    job._files = Watching()
    job.run()
    assert [int(Path(path).name) for path in read] == [1024 * one for one in range(SEGMENTS)]


def test_times_of_records_in_many_files(store: MessageStore) -> None:
    messages = [(TOPIC, 0, 3 * number) for number in range(SEGMENTS)]
    job = store.begin_time_lookup(messages)
    times = [store.message_time(*one) for one in messages]
    job.run()
    assert None not in times and set(times) == {FakeClock().now_ms}
    assert store.offset_by_time(TOPIC, 0, FakeClock().now_ms) == 0


def test_a_start_that_reads_all_of_the_log_leaves_few_files_open(
    store: MessageStore, tmp_path: Path
) -> None:
    copy = crashed_copy(tmp_path, tmp_path / "copy")
    (copy / "checkpoint").unlink()
    most = 0

    class Counting(FewFiles):
        def map_for_reading(self, fd: int, size_bytes: int) -> memoryview:
            nonlocal most
            most = max(most, open_count(copy, "commitlog"))
            return super().map_for_reading(fd, size_bytes)

    end = find_log_end(config(copy, **SMALL), Counting())
    assert end == store.log_end
    again = open_store(copy, FakeClock(), Counting(), **SMALL)
    assert again.log_end == end and len(bodies(again)) == 3 * SEGMENTS
    assert 0 < most <= LOG_LIMIT + 2
    again.close()


def test_queues_have_their_share(tmp_path: Path) -> None:
    store = open_store(tmp_path, files=FewFiles())
    put_ok(store, *(record(b"1", queue_id=number) for number in range(60)))
    assert open_count(tmp_path, "consumequeue") <= QUEUES_LIMIT
    for number in range(60):
        assert bodies(store, TOPIC, number) == [b"1"]
    store.close()


def test_a_file_that_cannot_be_mapped_says_what_to_do(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    put_ok(store, *(record_of_size(300) for _ in range(7)))
    with no_descriptors(), pytest.raises(StoreError, match="ulimit"):
        store.record_view(0)
    store.close()


def test_who_asks_where_the_log_begins_opens_and_closes_nothing(
    store: MessageStore, tmp_path: Path
) -> None:
    store.close()
    store = open_store(tmp_path, FakeClock(), FewFiles(), **SMALL)
    for number in (16, 20, 23):
        store.record_view(1024 * number)
    opened = sorted(open_paths(tmp_path))
    for _ in range(3):
        assert store.log_first == 0
        store.retention.begin_clean()
        assert sorted(open_paths(tmp_path)) == opened
    store.close()


def test_files_that_are_in_use_are_not_tried_again_and_again(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where slow consumers hold many, a read may open another one at no great cost."""
    held = [store.record_view(1024 * number) for number in range(SEGMENTS // 2)]
    tried: list[int] = []
    close_unused = Segment.close_unused

    def count(segment: Segment) -> bool:
        tried.append(segment.first)
        return close_unused(segment)

    monkeypatch.setattr(Segment, "close_unused", count)
    for _ in range(3):
        for number in range(SEGMENTS // 2, SEGMENTS - 2):
            store.record_view(1024 * number)
    read_count = 3 * (SEGMENTS // 2 - 2)
    assert len(tried) <= 5 * read_count + SEGMENTS
    del held
