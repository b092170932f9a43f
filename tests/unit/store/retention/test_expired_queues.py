"""Whole queues that hold nothing any more: which go, and what a crash leaves of it."""

import random
import struct
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    HOST,
    TOPIC,
    FakeClock,
    QuickFiles,
    bodies,
    crashed_copy,
    open_store,
    overwrite,
    put_ok,
    queue_path,
    record,
    record_of_size,
)

from pymq.errors import FlushFailed, StoreError
from pymq.store import Files, MessageStore, PutStatus
from pymq.store.files import DiskUsage
from pymq.store.queues.consume_queue import BLANK_ENTRY
from pymq.testing.faulty_files import FaultyFiles
from pymq.testing.lost_power import Disk

RECORD_BYTES = 300  # Three to a segment.


class FullDisk(QuickFiles):
    """So full that every old segment goes at once, but writes are taken."""

    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(89 << 30, 11 << 30)


class LosingDisk(FaultyFiles):
    """The same, with a model of what is on the disk for certain."""

    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(89 << 30, 11 << 30)


def make(root: Path, files: Files | None = None) -> MessageStore:
    """Return a store whose queues 0 and 1 hold nothing any more, and whose queue 2 does."""
    store = open_store(root, FakeClock(), files or FullDisk(), segment_bytes=1024)
    for queue_id in (0, 1, 2):
        put_ok(store, *(record_of_size(RECORD_BYTES, queue_id=queue_id) for _ in range(6)))
    put_ok(store, record(b"kept", topic="Other"))
    store.durability.flush()
    store.durability.flush_queues()
    return store


def run_pass(store: MessageStore) -> None:
    for _ in range(100):
        if not store.retention.clean_step():
            return
    raise AssertionError("a pass that does not end")


def put_last(store: MessageStore) -> None:
    """Let the last of queue 2 be in the last segment, which stays."""
    put_ok(store, record(b"last", queue_id=2))


def every(topic: str, queue_id: int) -> bool:
    return True


def test_only_queues_without_messages_go_and_only_those_that_may(tmp_path: Path) -> None:
    store = make(tmp_path)
    assert store.retention.delete_expired_queues(every, count_max=9) == []
    put_last(store)
    run_pass(store)
    assert store.queue_bounds(TOPIC, 0) == store.queue_bounds(TOPIC, 1) == (6, 6)
    asked = []

    def only_the_first(topic: str, queue_id: int) -> bool:
        asked.append((topic, queue_id))
        return queue_id == 0

    assert store.retention.delete_expired_queues(only_the_first, count_max=9) == [(TOPIC, 0)]
    assert set(asked) == {(TOPIC, 0), (TOPIC, 1)}
    assert not queue_path(tmp_path, queue_id=0).exists()
    assert store.queue_bounds(TOPIC, 0) == (0, 0)
    assert store.queue_bounds(TOPIC, 1) == (6, 6)
    assert store.retention.delete_expired_queues(every, count_max=9) == [(TOPIC, 1)]
    assert store.retention.delete_expired_queues(every, count_max=9) == []
    assert bodies(store, queue_id=2)[-1] == b"last"
    assert bodies(store, "Other") == [b"kept"]
    store.close()


def test_as_many_as_wanted_go(tmp_path: Path) -> None:
    store = make(tmp_path)
    put_last(store)
    run_pass(store)
    assert len(store.retention.delete_expired_queues(every, count_max=1)) == 1
    assert len(store.retention.delete_expired_queues(every, count_max=1)) == 1
    assert store.retention.delete_expired_queues(every, count_max=1) == []
    store.close()


class StuckDisk(FullDisk):
    """The same; files in one directory cannot be removed."""

    stuck: Path | None = None

    def remove(self, path: Path) -> None:
        if path.parent == self.stuck:
            raise StoreError(f"{path}: cannot be removed")
        super().remove(path)


def test_nothing_is_written_where_files_of_a_deleted_queue_are_left(tmp_path: Path) -> None:
    root, files = tmp_path / "live", StuckDisk()
    store = make(root, files)
    put_last(store)
    run_pass(store)
    files.stuck = queue_path(root, queue_id=1)
    with pytest.raises(FlushFailed, match="cannot be removed"):
        store.retention.delete_expired_queues(every, count_max=9)
    (result,) = store.put([record(b"in the place of others", queue_id=1)], HOST)
    assert result.status is PutStatus.NOT_WRITABLE
    assert "cannot be removed" in str(result.remark)
    reopened = open_store(crashed_copy(root, tmp_path / "copy"), FakeClock(), segment_bytes=1024)
    put_ok(reopened, record(b"again", queue_id=1))
    assert reopened.queue_bounds(TOPIC, 1) == (6, 7)
    reopened.close()
    store.close()


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_deleted_queue_stays_deleted_and_begins_again(tmp_path: Path, is_clean: bool) -> None:
    root = tmp_path / "live"
    store = make(root)
    store.close()  # Its end is recorded: what is missing later would be looked for.
    store = open_store(root, FakeClock(), FullDisk(), segment_bytes=1024)
    put_last(store)
    run_pass(store)
    assert len(store.retention.delete_expired_queues(every, count_max=9)) == 2
    put_ok(store, record(b"again", queue_id=0))
    assert store.queue_bounds(TOPIC, 0) == (0, 1)
    if is_clean:
        store.close()
    reopened = open_store(crashed_copy(root, tmp_path / "copy"), FakeClock(), segment_bytes=1024)
    assert reopened.queue_bounds(TOPIC, 0) == (0, 1)
    assert bodies(reopened, queue_id=0) == [b"again"]
    assert (TOPIC, 1) not in reopened.queues()
    assert bodies(reopened, queue_id=2)[-1] == b"last"
    reopened.close()
    store.close()


def test_lost_power_does_not_bring_a_queue_back_under_new_messages(tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    disk = Disk(live)
    store = make(live, LosingDisk(disk=disk))
    put_last(store)
    run_pass(store)
    assert len(store.retention.delete_expired_queues(every, count_max=9)) == 2
    put_ok(store, record(b"again", queue_id=0))
    store.durability.flush()  # the log alone
    for seed in range(40):
        target = tmp_path / str(seed)
        disk.lose_power(random.Random(seed), target)
        reopened = open_store(target, FakeClock(), segment_bytes=1024)
        assert reopened.queue_bounds(TOPIC, 0) == (0, 1), seed
        assert bodies(reopened, queue_id=0) == [b"again"], seed
        reopened.close()
    store.close()


def test_a_queue_that_ends_with_blank_entries_has_messages(tmp_path: Path) -> None:
    """Recovery bridged a gap with them, and a power loss took what came behind it."""
    store = make(tmp_path)
    put_last(store)
    run_pass(store)
    put_ok(store, *(record_of_size(RECORD_BYTES, queue_id=0) for _ in range(2)))
    queue_file = sorted(queue_path(tmp_path, queue_id=0).iterdir())[-1]
    store.close()
    (tmp_path / "queues.json").unlink()
    (tmp_path / "abort").touch()
    # Of the entries 0..7 the last is at place 7; 8 is blank, 9 is of a record that is gone.
    overwrite(queue_file, 8 * 20, BLANK_ENTRY + struct.pack(">qiq", 1 << 30, 300, 0))
    store = open_store(tmp_path, FakeClock(), FullDisk(), segment_bytes=1024)
    assert store.queue_bounds(TOPIC, 0) == (6, 9)
    run_pass(store)
    assert (TOPIC, 0) not in store.retention.delete_expired_queues(every, count_max=9)
    assert store.reads.read(TOPIC, 0, 6, count_max=2, bytes_max=1 << 20).count == 2
    store.close()
