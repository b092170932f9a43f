"""A commit log over several directories."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    FakeClock,
    QuickFiles,
    bodies,
    config,
    crashed_copy,
    open_store,
    put_ok,
    record_of_size,
)

from pymq.errors import ConfigurationError, StoreMismatch
from pymq.store.files import DiskUsage
from pymq.store.log.segments import Segments

SIZE = 1024


def paths_of(root: Path, *names: str) -> tuple[Path, ...]:
    return tuple(root / name for name in names)


def placed(*paths: Path) -> dict[str, list[int]]:
    """Return which files lie where, by number."""
    return {
        path.name: sorted(int(file.name) // SIZE for file in path.iterdir())
        for path in paths
        if path.is_dir()
    }


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def test_placement_as_in_rocketmq(tmp_path: Path) -> None:
    """File i goes to sorted(paths - read-only - full)[i % n], however the paths are listed."""
    every = paths_of(tmp_path, "c", "a", "b")
    old = tmp_path / "0-old"
    segments = Segments(QuickFiles(), every, SIZE, read_only=[old])
    for _ in range(5):
        segments.append_next()
    assert placed(*every, old) == {"a": [0, 3], "b": [1, 4], "c": [2]}
    segments.full_paths = {tmp_path / "b", old}
    segments.append_next()  # 5 % 2: the second of a and c
    segments.prepare_next()  # 6 % 2
    segments.append_next()
    assert placed(*every) == {"a": [0, 3, 6], "b": [1, 4], "c": [2, 5]}
    segments.full_paths = set(every)
    segments.append_next()  # all are full: 7 % 3
    assert placed(*every) == {"a": [0, 3, 6], "b": [1, 4, 7], "c": [2, 5]}
    segments.close()


def settings(root: Path, **changes: Any) -> dict[str, Any]:
    return {
        "segment_bytes": SIZE,
        "queue_file_bytes": 60,
        "commit_log_paths": paths_of(root, "a", "b"),
        **changes,
    }


def test_a_store_over_two_directories(tmp_path: Path) -> None:
    root, clock = tmp_path / "s", FakeClock()
    store = open_store(root, clock, **settings(root))
    put_ok(store, *(record_of_size(300) for _ in range(14)))
    assert placed(root / "a", root / "b") == {"a": [0, 2, 4], "b": [1, 3]}
    assert not (root / "commitlog").exists()
    every = bodies(store)
    crashed = crashed_copy(root, tmp_path / "crashed")
    store.close()
    for path in (root, crashed):
        store = open_store(path, clock, **settings(path))
        assert bodies(store) == every
        put_ok(store, *(record_of_size(300) for _ in range(3)))
        assert placed(path / "a", path / "b") == {"a": [0, 2, 4], "b": [1, 3, 5]}
        store.close()


def test_files_are_taken_from_wherever_they_lie(tmp_path: Path) -> None:
    """As after a disk was added, and old files were moved to a read-only place."""
    root, clock = tmp_path, FakeClock()
    store = open_store(root, clock, **settings(root, commit_log_paths=paths_of(root, "a")))
    put_ok(store, *(record_of_size(300) for _ in range(8)))
    every = bodies(store)
    store.close()
    old = root / "old"
    old.mkdir()
    shutil.move(root / "a" / f"{0:020d}", old)
    os.chmod(old / f"{0:020d}", 0o400)
    changed = settings(root, read_only_log_paths=(old,))
    store = open_store(root, clock, **changed)
    assert bodies(store) == every
    put_ok(store, *(record_of_size(300) for _ in range(3)))
    assert placed(*paths_of(root, "a", "b", "old")) == {"a": [1, 2], "b": [3], "old": [0]}
    (root / "abort").touch()
    store.close()
    (root / "abort").touch()
    store = open_store(root, clock, **changed)
    assert len(bodies(store)) == 11
    store.close()


def test_one_name_in_two_directories_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path, **settings(tmp_path))
    put_ok(store, *(record_of_size(300) for _ in range(5)))
    store.close()
    name = f"{SIZE:020d}"
    shutil.copyfile(tmp_path / "b" / name, tmp_path / "a" / name)
    before = snapshot(tmp_path)
    with pytest.raises(StoreMismatch) as caught:
        open_store(tmp_path, **settings(tmp_path))
    for word in (str(tmp_path / "a"), str(tmp_path / "b" / name), "move the other away"):
        assert word in str(caught.value)
    assert snapshot(tmp_path) == before


def test_a_missing_directory_is_a_gap_and_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path, **settings(tmp_path))
    put_ok(store, *(record_of_size(300) for _ in range(8)))
    store.close()
    before = snapshot(tmp_path)
    with pytest.raises(StoreMismatch, match="without a gap"):
        open_store(tmp_path, **settings(tmp_path, commit_log_paths=paths_of(tmp_path, "a")))
    assert snapshot(tmp_path) == before


def test_the_last_file_must_be_writable(tmp_path: Path) -> None:
    store = open_store(tmp_path, **settings(tmp_path))
    put_ok(store, *(record_of_size(300) for _ in range(5)))
    store.close()
    with pytest.raises(StoreMismatch, match="read-only"):
        open_store(tmp_path, **settings(tmp_path, read_only_log_paths=paths_of(tmp_path, "b")))
    with pytest.raises(ConfigurationError, match="no directory of the commit log is left"):
        config(tmp_path, read_only_log_paths=(tmp_path / "commitlog",))


def test_new_files_avoid_a_nearly_full_disk_and_the_roomiest_decides(tmp_path: Path) -> None:
    class Disks(QuickFiles):
        percent: dict[str, int]

        def disk_usage(self, path: Path) -> DiskUsage:
            used = self.percent.get(path.name, 50)
            return DiskUsage(used << 30, (100 - used) << 30)

    disks = Disks()
    disks.percent = {"a": 95}
    store = open_store(tmp_path, files=disks, **settings(tmp_path))
    assert store.not_writable_reason is None
    put_ok(store, *(record_of_size(300) for _ in range(5)))
    assert placed(*paths_of(tmp_path, "a", "b")) == {"a": [], "b": [0, 1]}
    disks.percent = {"a": 95, "b": 95}
    store.retention.check_disk()
    assert "95.0% full" in str(store.not_writable_reason)
    disks.percent = {"a": 10, "b": 95}
    store.retention.check_disk()
    put_ok(store, *(record_of_size(300) for _ in range(3)))
    assert placed(*paths_of(tmp_path, "a", "b")) == {"a": [2], "b": [0, 1]}
    store.close()


def test_retention_takes_the_oldest_wherever_it_lies(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock, **settings(tmp_path, reserved_hours=1))
    put_ok(store, *(record_of_size(300) for _ in range(11)))
    store.durability.flush()
    store.durability.flush_queues()
    clock.now_ms += 10 * 3_600_000
    store.retention.clean_now()
    while store.retention.clean_step():
        pass
    assert placed(*paths_of(tmp_path, "a", "b")) == {"a": [], "b": [3]}
    store.close()
    store = open_store(tmp_path, clock, **settings(tmp_path))
    assert store.queue_bounds("TopicTest", 0) == (9, 11)
    store.close()


@pytest.mark.parametrize("tells", [True, False])
def test_a_directory_without_room_for_a_file_is_passed_over(tmp_path: Path, tells: bool) -> None:
    """Also one whose disk is far from full, and one whose quota does not show."""

    class Disks(QuickFiles):
        def disk_usage(self, path: Path) -> DiskUsage:
            if path.name == "a" and tells:
                return DiskUsage(SIZE, SIZE - 1)  # about half full
            return super().disk_usage(path)

        def reserve(self, fd: int, size_bytes: int) -> None:
            if "/a/" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = open_store(tmp_path, files=Disks(), **settings(tmp_path))
    put_ok(store, *(record_of_size(300) for _ in range(8)))
    assert placed(tmp_path / "b") == {"b": [0, 1, 2]}
    assert store.not_writable_reason is None
    store.close()


def test_the_level_is_that_of_a_directory_that_can_have_the_next_file(tmp_path: Path) -> None:
    """Otherwise one that is never written to would hide that the other one gets full."""

    class Disks(QuickFiles):
        def disk_usage(self, path: Path) -> DiskUsage:
            if path.name == "a":
                return DiskUsage(SIZE, SIZE - 1)
            if path.name == "b":
                return DiskUsage(88 << 30, 12 << 30)
            return super().disk_usage(path)

    store = open_store(tmp_path, files=Disks(), **settings(tmp_path))
    put_ok(store, *(record_of_size(300) for _ in range(8)))
    store.durability.flush()
    store.durability.flush_queues()
    while store.retention.clean_step():
        pass
    assert placed(tmp_path / "b") == {"b": [2]}, "above 85 % the oldest go"
    store.close()
