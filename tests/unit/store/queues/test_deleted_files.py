"""Deleted queue files: their names go at once, their space when a job closes them."""

import errno
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    TOPIC,
    QuickFiles,
    bodies,
    open_paths,
    open_store,
    put_ok,
    queue_path,
    record,
)

from pymq.store import MessageStore

FILE_BYTES = 200  # ten entries
FILE_COUNT = 12


def open_deleted(root: Path) -> int:
    """Return how many files of a store this process holds open without a name."""
    return sum(link.endswith(" (deleted)") for link in open_paths(root))


def open_files(root: Path) -> int:
    """Return how many queue files of a store this process holds open."""
    return sum("/consumequeue/" in link for link in open_paths(root))


def with_a_queue(root: Path, files: QuickFiles, **settings: int) -> MessageStore:
    store = open_store(root, files=files, queue_file_bytes=FILE_BYTES, **settings)
    put_ok(store, *(record(b"%d" % i) for i in range(FILE_COUNT * FILE_BYTES // 20)))
    return store


def test_the_names_of_a_topic_go_and_a_job_frees_the_space(tmp_path: Path) -> None:
    store = with_a_queue(tmp_path, QuickFiles())
    assert store.retention.delete_queues(TOPIC) == 1
    assert not queue_path(tmp_path).exists()
    assert open_deleted(tmp_path) == FILE_COUNT
    put_ok(store, record(b"again"))
    job = store.retention.begin_watch()
    assert open_deleted(tmp_path) == FILE_COUNT
    job.run()
    assert open_deleted(tmp_path) == 0
    store.retention.finish_watch(job)
    assert bodies(store) == [b"again"]
    store.close()


def test_a_store_that_is_closed_leaves_none_open(tmp_path: Path) -> None:
    store = with_a_queue(tmp_path, QuickFiles())
    store.retention.delete_queues(TOPIC)
    store.close()
    assert open_deleted(tmp_path) == 0


class FewDescriptors(QuickFiles):
    def open_files_limit(self) -> int:
        return 8  # 16 queue files stay open all the same


def test_not_too_many_are_held_open(tmp_path: Path) -> None:
    store = with_a_queue(tmp_path, FewDescriptors())
    store.retention.delete_queues(TOPIC)
    assert open_deleted(tmp_path) == 16 // 4
    assert not queue_path(tmp_path).exists()
    store.close()


def test_they_count_among_those_that_may_be_open(tmp_path: Path) -> None:
    store = with_a_queue(tmp_path, FewDescriptors())
    put_ok(store, *(record(b"kept", topic="Other") for _ in range(15 * FILE_BYTES // 20)))
    assert open_files(tmp_path) == 16
    store.retention.delete_queues(TOPIC)
    assert open_files(tmp_path) <= 16
    put_ok(store, *(record(b"kept", topic="Third") for _ in range(9 * FILE_BYTES // 20)))
    assert open_files(tmp_path) <= 16
    assert len(bodies(store, "Other")) == 15 * FILE_BYTES // 20
    assert len(bodies(store, "Third")) == 9 * FILE_BYTES // 20
    store.close()


class FailingToClose(QuickFiles):
    """The disk reports an error when a file is closed; the descriptor is free all the same."""

    fails = False

    def close(self, fd: int) -> None:
        super().close(fd)
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")


def test_one_that_cannot_be_closed_keeps_no_other_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FailingToClose()
    store = with_a_queue(tmp_path, files)
    store.retention.delete_queues(TOPIC)
    job = store.retention.begin_watch()
    files.fails = True
    job.run()
    files.fails = False
    assert open_deleted(tmp_path) == 0
    assert caplog.text.count("cannot be closed") == FILE_COUNT
    assert job.usages
    store.retention.finish_watch(job)
    store.close()
