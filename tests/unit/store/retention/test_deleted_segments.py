"""Segments that have left the log, read or not."""

import logging
import os
from pathlib import Path

import pytest
from tests.unit.store.stores import QuickFiles, open_paths

from pymq.errors import StoreError
from pymq.store.files import Files
from pymq.store.log.segments import Segments
from pymq.store.retention.deleted_segments import DeletedSegments

SIZE = 1 << 16
GRACE_S = 120.0


def segments_of(path: Path, files: Files, count: int) -> Segments:
    segments = Segments(files, [path], SIZE)
    for number in range(count):
        segments.append_next().write(bytes([number + 1]) * SIZE, 0)
    return segments


def names(path: Path) -> list[int]:
    return sorted(int(entry.name) for entry in path.iterdir())


def test_what_nobody_reads_goes_at_once(tmp_path: Path) -> None:
    files = QuickFiles()
    descriptors = len(open_paths(tmp_path))
    segments = segments_of(tmp_path / "log", files, 3)
    retirement = DeletedSegments(files, GRACE_S)
    assert bytes(segments[0].view[:1]) == b"\1"
    retirement.add(segments.take_first())
    assert not retirement.deleted
    assert (segments[0].first, len(segments)) == (SIZE, 2)
    assert retirement.step(0.0) == 1
    assert retirement.deleted and not retirement.held_count
    assert names(tmp_path / "log") == [SIZE, 2 * SIZE]
    assert retirement.step(0.0) == 0
    segments.close()
    assert len(open_paths(tmp_path)) == descriptors


def test_a_view_outlives_the_file_and_the_last_one_frees_it(tmp_path: Path) -> None:
    files = QuickFiles()
    descriptors = len(open_paths(tmp_path))
    segments = segments_of(tmp_path / "log", files, 2)
    retirement = DeletedSegments(files, GRACE_S)
    view = segments[0].view[10:20]
    more = view[1:3]
    retirement.add(segments.take_first())
    assert retirement.step(0.0) == 1
    assert names(tmp_path / "log") == [SIZE]
    assert retirement.held_count == 1
    assert bytes(view) == b"\1" * 10
    view.release()
    assert retirement.step(1.0) == 0
    assert retirement.held_count == 1 and bytes(more) == b"\1\1"
    more.release()
    assert retirement.step(2.0) == 1
    assert retirement.held_count == 0
    segments.close()
    assert len(open_paths(tmp_path)) == descriptors


def test_after_the_grace_period_the_blocks_are_freed_under_the_reader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = QuickFiles()
    segments = segments_of(tmp_path / "log", files, 2)
    retirement = DeletedSegments(files, GRACE_S)
    view = segments[0].view[:SIZE]
    watched = os.open(segments[0].path, os.O_RDONLY)
    retirement.add(segments.take_first())
    retirement.step(0.0)
    assert retirement.step(GRACE_S - 0.1) == 0
    assert bytes(view[-3:]) == b"\1\1\1" and not caplog.records
    before = os.fstat(watched)
    assert retirement.step(GRACE_S) == 1
    after = os.fstat(watched)
    os.close(watched)
    assert before.st_nlink == 0 and (before.st_blocks - after.st_blocks) * 512 >= SIZE // 2
    assert bytes(view) == bytes(SIZE)  # and no SIGBUS
    assert retirement.step(GRACE_S + 1) == 0
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING and "still read" in warning.getMessage()
    view.release()
    assert retirement.step(GRACE_S + 2) == 1
    assert retirement.held_count == 0
    segments.close()


def test_a_system_that_cannot_free_blocks_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class NoHoles(QuickFiles):
        def give_back_blocks(self, fd: int, size_bytes: int) -> bool:
            os.fstat(fd)
            return False

    segments = segments_of(tmp_path / "log", NoHoles(), 2)
    retirement = DeletedSegments(NoHoles(), GRACE_S)
    view = segments[0].view[:SIZE]
    retirement.add(segments.take_first())
    for now in (0.0, GRACE_S, GRACE_S + 1, GRACE_S + 2):
        retirement.step(now)
    assert len(caplog.records) == 1 and "cannot free" in caplog.text
    assert bytes(view[:2]) == b"\1\1"
    view.release()
    assert retirement.step(GRACE_S + 3) == 1
    segments.close()


def test_a_deletion_that_fails_is_tried_again_and_holds_the_later_ones_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(QuickFiles):
        fails = True

        def remove(self, path: Path) -> None:
            if self.fails and int(path.name) == 0:
                raise StoreError(f"{path}: remove: Operation not permitted")
            super().remove(path)

    files = Stubborn()
    segments = segments_of(tmp_path / "log", files, 3)
    retirement = DeletedSegments(files, GRACE_S)
    retirement.add(segments.take_first())
    retirement.add(segments.take_first())
    assert [retirement.step(float(now)) for now in range(3)] == [0, 0, 0]
    assert names(tmp_path / "log") == [0, SIZE, 2 * SIZE]
    assert len(caplog.records) == 1 and "not permitted" in caplog.text
    files.fails = False
    assert retirement.step(3.0) == 2
    assert names(tmp_path / "log") == [2 * SIZE]
    segments.close()


def test_closing_keeps_views_and_undeleted_files(tmp_path: Path) -> None:
    files = QuickFiles()
    descriptors = len(open_paths(tmp_path))
    segments = segments_of(tmp_path / "log", files, 3)
    retirement = DeletedSegments(files, GRACE_S)
    view = segments[0].view[:5]
    retirement.add(segments.take_first())
    retirement.step(0.0)
    retirement.add(segments.take_first())
    retirement.close()
    segments.close()
    assert bytes(view) == b"\1" * 5
    assert names(tmp_path / "log") == [SIZE, 2 * SIZE]
    view.release()
    assert len(open_paths(tmp_path)) == descriptors
