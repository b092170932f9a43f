"""Systems and file systems that cannot do what Linux and its disks can."""

import ctypes
import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from tests.disks import ramfs, small_tmpfs
from tests.unit.store.stores import bodies, open_store, put_ok, record, record_of_size

from pymq.errors import DiskFull, FlushFailed
from pymq.store import Files, FlushMode

FULL_SYNC = 51  # what macOS calls F_FULLFSYNC
MIB = 1 << 20


@pytest.fixture
def without_linux(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Take away the calls that macOS does not have."""
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **settings: object())
    return monkeypatch


class FullSync:
    """Stands in for fcntl(2) of macOS; ``code`` is what F_FULLFSYNC fails with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
        self.code = code
        self.full: list[Path] = []
        self.plain: list[Path] = []
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", self._fcntl)
        monkeypatch.setattr(os, "fsync", lambda fd: self.plain.append(_path(fd)))

    def _fcntl(self, fd: int, command: int) -> int:
        assert command == FULL_SYNC
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        self.full.append(_path(fd))
        return 0


def _path(fd: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{fd}"))


@pytest.mark.usefixtures("without_linux")
def test_a_store_needs_no_call_that_only_linux_has(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"segment_bytes": 1024, "flush_mode": FlushMode.SYNC}
    store = open_store(tmp_path, files=Files(), **settings)
    for _ in range(5):
        put_ok(store, record_of_size(400))
        store.durability.flush()
    store.close()
    store = open_store(tmp_path, files=Files(), **settings)
    assert len(bodies(store)) == 5
    store.close()


def test_where_fsync_stops_at_the_drives_cache_it_is_flushed_too(
    tmp_path: Path, without_linux: pytest.MonkeyPatch
) -> None:
    """What was acknowledged survives a power loss: of files and of their names."""
    system = FullSync(without_linux)
    store = open_store(tmp_path, files=Files(), flush_mode=FlushMode.SYNC)
    put_ok(store, record())
    store.durability.flush()
    assert {tmp_path / "commitlog", tmp_path / "commitlog" / f"{0:020d}"} <= set(system.full)
    assert not system.plain
    store.close()


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_without_that_flush_gets_the_ordinary_one(
    tmp_path: Path, without_linux: pytest.MonkeyPatch, code: int
) -> None:
    system = FullSync(without_linux, code)
    files = Files()
    files.write_file(tmp_path / "x", b"x")
    files.fsync_directory(tmp_path)
    assert system.plain == [tmp_path / "x", tmp_path] and not system.full


def test_that_flush_fails_for_good(tmp_path: Path, without_linux: pytest.MonkeyPatch) -> None:
    """The drive's error is told once: an ordinary fsync would succeed afterwards."""
    system = FullSync(without_linux, errno.EIO)
    with pytest.raises(FlushFailed):
        Files().write_file(tmp_path / "x", b"x")
    with pytest.raises(FlushFailed):
        Files().fsync_directory(tmp_path)
    assert not system.plain


def test_a_log_file_where_nothing_can_be_reserved_is_not_written_in_advance(
    tmp_path: Path,
) -> None:
    """glibc's posix_fallocate would write into each of its pages, while the loop waits.

    Nor does this file system say how large it is: that is not a full disk.
    """
    with ramfs(tmp_path / "r") as path:
        store = open_store(path / "s", files=Files(), segment_bytes=MIB)
        put_ok(store, record(b"0"))
        (log,) = (path / "s" / "commitlog").iterdir()
        found = log.stat()
        assert found.st_size == MIB and found.st_blocks * 512 < MIB // 2
        assert bodies(store) == [b"0"]
        store.close()


def test_blocks_are_reserved_where_they_can_be(tmp_path: Path) -> None:
    files = Files()
    with small_tmpfs(tmp_path / "t", "4m") as path:
        files.close(files.create(path / "fits", MIB, reserve=True))
        assert (path / "fits").stat().st_blocks * 512 == MIB
        with pytest.raises(DiskFull):
            files.create(path / "too large", 4 * MIB, reserve=True)
        assert not (path / "too large").exists()
