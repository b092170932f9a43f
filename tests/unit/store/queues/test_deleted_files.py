"""Deleted queue files: their names go at once, their space when a job closes them.

So it is for those of a slave whose queue begins again. Whole topics go in a job of their own.
"""

import errno
import random
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
from tests.unit.store.test_replication import follow

from pymq.protocol.record import NewRecord

FILE_BYTES = 200  # ten entries
FILE_COUNT = 12


def open_deleted(root: Path) -> int:
    """Return how many files of a store this process holds open without a name."""
    return sum(link.endswith(" (deleted)") for link in open_paths(root))


def open_files(root: Path) -> int:
    """Return how many queue files of a store this process holds open."""
    return sum("/consumequeue/" in link for link in open_paths(root))


class Bed:
    """A slave with a queue of many files, and its master.

    Attributes:
        root: directory of the slave.
        store: of the slave.
    """

    def __init__(self, path: Path, files: QuickFiles) -> None:
        self.root = path / "slave"
        self.store = open_store(self.root, files=files, queue_file_bytes=FILE_BYTES)
        self._master = open_store(path / "master")
        self.follow(*(record(b"%d" % i) for i in range(FILE_COUNT * FILE_BYTES // 20)))

    def follow(self, *records: NewRecord) -> None:
        put_ok(self._master, *records)
        follow(self._master, self.store, random.Random(1))

    def begin_again(self) -> None:
        """Have the slave find out from a message that the queue is a new one."""
        self._master.retention.delete_queues(TOPIC)
        self.follow(record(b"again"))


def test_the_names_of_a_queue_go_and_a_job_frees_the_space(tmp_path: Path) -> None:
    bed = Bed(tmp_path, QuickFiles())
    bed.begin_again()
    assert len(list(queue_path(bed.root).iterdir())) == 1
    assert open_deleted(bed.root) == FILE_COUNT
    job = bed.store.retention.begin_watch()
    assert open_deleted(bed.root) == FILE_COUNT
    job.run()
    assert open_deleted(bed.root) == 0
    bed.store.retention.finish_watch(job)
    assert bodies(bed.store) == [b"again"]
    bed.store.close()


def test_a_topic_that_is_deleted_leaves_none_open(tmp_path: Path) -> None:
    bed = Bed(tmp_path, QuickFiles())
    assert bed.store.retention.delete_queues(TOPIC) == 1
    assert open_files(bed.root) == open_deleted(bed.root) == 0
    bed.store.close()


def test_a_store_that_is_closed_leaves_none_open(tmp_path: Path) -> None:
    bed = Bed(tmp_path, QuickFiles())
    bed.begin_again()
    bed.store.close()
    assert open_deleted(bed.root) == 0


class FewDescriptors(QuickFiles):
    def open_files_limit(self) -> int:
        return 8  # 16 queue files stay open all the same


def test_not_too_many_are_held_open(tmp_path: Path) -> None:
    bed = Bed(tmp_path, FewDescriptors())
    bed.begin_again()
    assert open_deleted(bed.root) == 16 // 4
    assert len(list(queue_path(bed.root).iterdir())) == 1
    bed.store.close()


def test_they_count_among_those_that_may_be_open(tmp_path: Path) -> None:
    bed = Bed(tmp_path, FewDescriptors())
    bed.follow(*(record(b"kept", topic="Other") for _ in range(15 * FILE_BYTES // 20)))
    assert open_files(bed.root) == 16
    bed.begin_again()
    assert open_files(bed.root) <= 16
    bed.follow(*(record(b"kept", topic="Third") for _ in range(9 * FILE_BYTES // 20)))
    assert open_files(bed.root) <= 16
    assert len(bodies(bed.store, "Other")) == 15 * FILE_BYTES // 20
    assert len(bodies(bed.store, "Third")) == 9 * FILE_BYTES // 20
    bed.store.close()


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
    bed = Bed(tmp_path, files)
    bed.begin_again()
    job = bed.store.retention.begin_watch()
    files.fails = True
    job.run()
    files.fails = False
    assert open_deleted(bed.root) == 0
    assert caplog.text.count("cannot be closed") == FILE_COUNT
    assert job.usages
    bed.store.retention.finish_watch(job)
    bed.store.close()
