"""Files of deleted queues that are removed while the store goes on."""

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.folding_files import FoldingFiles
from tests.unit.store.stores import (
    HOST,
    TOPIC,
    FakeClock,
    QuickFiles,
    bodies,
    crashed_copy,
    open_store,
    put_ok,
    queue_path,
    record,
    record_of_size,
)
from tests.unit.store.test_replication import complaints

from pymq.errors import DiskFull, FlushFailed, StoreError
from pymq.store import Files, MessageStore, PutStatus, QueueRemoval
from pymq.store.files import DiskUsage
from pymq.store.state import clean_stop

EXTENSION = pytest.mark.parametrize("queue_extension", [False, True])


def make(root: Path, files: QuickFiles | None = None, **settings: Any) -> MessageStore:
    """Return a store with three queues of a topic, and one of another."""
    store = open_store(root, FakeClock(), files or QuickFiles(), **settings)
    put_ok(store, *(record(b"old", queue_id=one) for one in range(3)), record(topic="Other"))
    store.durability.flush()
    store.durability.flush_queues()
    return store


def begin(store: MessageStore, topic: str = TOPIC) -> QueueRemoval:
    removal = store.retention.begin_delete(topic)
    assert removal is not None
    return removal


def finish(store: MessageStore, removal: QueueRemoval) -> None:
    removal.run()
    store.retention.finish_delete(removal)


@EXTENSION
def test_a_topic_that_is_created_again_begins_before_all_files_are_gone(
    tmp_path: Path, queue_extension: bool
) -> None:
    store = make(tmp_path, queue_extension=queue_extension)
    removal = begin(store)
    assert len(removal) == 3
    assert store.queues() == [("Other", 0)]
    put_ok(store, record(b"new", queue_id=1))
    assert store.queue_bounds(TOPIC, 1) == (0, 1)
    assert queue_path(tmp_path, queue_id=0).exists(), "it is in nobody's way"
    finish(store, removal)
    finish(store, removal)
    assert not queue_path(tmp_path, queue_id=0).exists()
    for opened in (store, open_store(crashed_copy(tmp_path, tmp_path / "copy"))):
        assert bodies(opened, queue_id=1) == [b"new"]
        assert opened.queues() == [("Other", 0), (TOPIC, 1)]
        opened.close()
    assert not complaints(tmp_path)


def test_nothing_of_a_topic_is_left_when_it_is_not_created_again(tmp_path: Path) -> None:
    store = make(tmp_path, queue_extension=True)
    finish(store, begin(store))
    for name in "consumequeue", "consumequeue_ext":
        assert [one.name for one in (tmp_path / name).iterdir()] == ["Other"]
    store.close()


@EXTENSION
@pytest.mark.parametrize("is_begun", [False, True])
def test_the_next_start_removes_what_a_crash_left(
    tmp_path: Path, queue_extension: bool, is_begun: bool
) -> None:
    store = make(tmp_path, queue_extension=queue_extension)
    begin(store)
    if is_begun:
        put_ok(store, record(b"new", queue_id=1))
        store.durability.flush()
    copy = crashed_copy(tmp_path, tmp_path / "copy")
    again = open_store(copy, queue_extension=queue_extension)
    assert again.queue_bounds(TOPIC, 0) == (0, 0)
    assert bodies(again, queue_id=1) == [b"new"] * is_begun
    put_ok(again, record(b"first"))
    assert bodies(again) == [b"first"]
    again.close()
    store.close()


def test_a_store_that_is_closed_removes_the_rest(tmp_path: Path) -> None:
    store = make(tmp_path)
    removal = begin(store)
    put_ok(store, record(b"new", queue_id=1))
    store.close()
    assert not (tmp_path / "abort").exists()
    assert [one.name for one in queue_path(tmp_path).parent.iterdir()] == ["1"]
    finish(store, removal)  # its thread was late
    store = open_store(tmp_path)
    assert bodies(store, queue_id=1) == [b"new"]
    store.close()


def test_a_topic_that_is_deleted_again_before_its_files_are_gone(tmp_path: Path) -> None:
    store = make(tmp_path)
    first = begin(store)
    put_ok(store, record(b"second", queue_id=1))
    second = begin(store)
    assert (len(first), len(second)) == (3, 1)
    put_ok(store, record(b"third", queue_id=1), record(b"third", queue_id=2))
    finish(store, second)
    finish(store, first)
    assert bodies(store, queue_id=1) == bodies(store, queue_id=2) == [b"third"]
    assert store.queue_bounds(TOPIC, 0) == (0, 0)
    store.close()
    assert not complaints(tmp_path)


class Stuck(QuickFiles):
    """Removes queue files only when it may."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def remove(self, path: Path) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.begun.set()
            assert self.may_go_on.wait(10)
        super().remove(path)


def test_a_thread_is_waited_for_only_by_the_queue_it_is_at(tmp_path: Path) -> None:
    files = Stuck()
    store = make(tmp_path, files)
    removal = begin(store)
    thread = threading.Thread(target=removal.run)
    thread.start()
    assert files.begun.wait(10)  # it is at queue 0
    put_ok(store, record(b"new", queue_id=1), record(topic="Other"))
    assert bodies(store, queue_id=1) == [b"new"]
    threading.Timer(0.02, files.may_go_on.set).start()
    put_ok(store, record(b"new"))
    thread.join()
    store.retention.finish_delete(removal)
    assert bodies(store) == bodies(store, queue_id=1) == [b"new"]
    assert store.queue_bounds(TOPIC, 2) == (0, 0)
    store.close()


class ReadOnly(QuickFiles):
    """Takes no deletions in the directories of queues any more."""

    is_failing = False

    def remove(self, path: Path) -> None:
        if self.is_failing and "consumequeue" in path.parts:
            raise StoreError(f"{path}: read-only")
        super().remove(path)


@pytest.mark.parametrize("is_in_the_way", [False, True])
def test_files_that_stay_are_final(tmp_path: Path, is_in_the_way: bool) -> None:
    files = ReadOnly()
    store = make(tmp_path, files)
    files.is_failing = True
    removal = begin(store)
    if is_in_the_way:
        (result,) = store.put([record(b"new")], HOST)
        assert result.status is PutStatus.NOT_WRITABLE
    removal.run()
    with pytest.raises(FlushFailed, match="read-only; the next start removes what is left"):
        store.retention.finish_delete(removal)
    assert "read-only" in str(store.not_writable_reason)
    store.close()
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    assert store.queue_bounds(TOPIC, 0) == (0, 0)
    store.close()


class FullDisk(QuickFiles):
    """So full that every old segment goes at once, but writes are taken."""

    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(89 << 30, 11 << 30)


def test_a_deletion_is_remembered_while_files_are_left(tmp_path: Path) -> None:
    """Its records may have expired since: without it, their queue would go on where it was."""
    store = make(tmp_path, FullDisk(), segment_bytes=1024)
    removal = begin(store)
    put_ok(store, *(record_of_size(300, topic="Other") for _ in range(9)))
    store.durability.flush()
    store.durability.flush_queues()
    while store.retention.clean_step():
        pass
    assert store.log_first > 0
    store.retention.delete_queues("Other")  # saves what is deleted
    again = open_store(crashed_copy(tmp_path, tmp_path / "copy"), segment_bytes=1024)
    assert again.queue_bounds(TOPIC, 0) == (0, 0)
    again.close()
    finish(store, removal)
    store.close()


def test_where_case_is_folded_the_other_spelling_waits_for_no_thread(tmp_path: Path) -> None:
    class Folding(FoldingFiles, QuickFiles):
        pass

    store = open_store(tmp_path, files=Folding())
    put_ok(store, record(topic="Orders"), record(topic="Orders", queue_id=1))
    removal = begin(store, "Orders")
    put_ok(store, record(b"new", topic="orders"))
    finish(store, removal)
    assert bodies(store, "orders") == [b"new"]
    (result,) = store.put([record(topic="Orders")], HOST)
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    store.close()


class KeepsDirectories(QuickFiles):
    """Removes no directories of a topic while it may not."""

    is_failing = True

    def remove_directory(self, path: Path) -> bool:
        if self.is_failing and TOPIC in path.parts:
            raise StoreError(f"{path}: remove directory: Permission denied")
        return super().remove_directory(path)


@EXTENSION
@pytest.mark.parametrize("is_killed", [False, True])
def test_directories_that_stay_are_left_to_the_next_start(
    tmp_path: Path, queue_extension: bool, is_killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = KeepsDirectories()
    store = make(tmp_path / "store", files, queue_extension=queue_extension)
    finish(store, begin(store))
    assert "Permission denied: this empty directory is left to the next start" in caplog.text
    assert store.not_writable_reason is None
    put_ok(store, record(b"new", queue_id=1))  # it begins in a directory that was left
    store.durability.flush()
    store.durability.flush_queues()
    root = crashed_copy(tmp_path / "store", tmp_path / "copy") if is_killed else tmp_path / "store"
    store.close()
    places = [root / "consumequeue" / TOPIC]
    if queue_extension:
        places.append(root / "consumequeue_ext" / TOPIC)
    for place in places:
        assert sorted(one.name for one in place.iterdir()) == ["0", "1", "2"]
    for files.is_failing in True, False:  # the next start may be refused as well
        again = open_store(root, files=files, queue_extension=queue_extension)
        assert bodies(again, queue_id=1) == [b"new"]
        assert again.queue_bounds(TOPIC, 0) == (0, 0)
        again.close()
    for place in places:
        assert [one.name for one in place.iterdir()] == ["1"]
    again = open_store(root, queue_extension=queue_extension)
    put_ok(again, record(b"first"))
    again.close()
    assert not complaints(root, queue_extension=queue_extension)


def test_topics_are_deleted_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path)
    before = store.queues()

    def full(files: Files, path: Path, data: bytes) -> None:
        raise DiskFull("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(clean_stop, "replace_file", full)
        with pytest.raises(DiskFull):
            store.retention.begin_delete_topics([TOPIC, "Other"])
    assert store.queues() == before and not store.retention.recorded_deletions()
    written: list[Path] = []
    monkeypatch.setattr(clean_stop, "replace_file", lambda _, path, data: written.append(path))
    removals = store.retention.begin_delete_topics([TOPIC, "Other", "unknown"])
    assert [(one.topic, len(one)) for one in removals] == [("Other", 1), (TOPIC, 3)]
    assert len(written) == 1 and store.queues() == []
    assert store.retention.recorded_deletions() == dict.fromkeys(("Other", TOPIC), store.log_end)
    for removal in removals:
        finish(store, removal)
    store.close()


def test_a_deletion_that_may_not_be_on_the_disk_does_not_count_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path)

    def fail(files: Files, path: Path, data: bytes) -> None:
        raise FlushFailed("I/O error")

    monkeypatch.setattr(clean_stop, "replace_file", fail)
    with pytest.raises(FlushFailed):
        begin(store)
    assert not store.retention.recorded_deletions()
    store.close()
