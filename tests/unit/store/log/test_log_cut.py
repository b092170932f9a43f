"""What is cut off a log because its master's has other bytes there is kept, all of it."""

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    FailingFiles,
    QuickFiles,
    bodies,
    config,
    open_store,
    put_ok,
    record_of_size,
)

from pymq.errors import DiskFull, FlushFailed, StoreError
from pymq.store.config import StoreConfig
from pymq.store.files import DiskUsage
from pymq.store.truncation import truncate_log
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles

SEGMENT = 1 << 12
#: Four records fill a file, but for its padding; the last file holds one.
SIZE, COUNT = 1000, 17


class Log:
    """A store of five files, closed; and all bytes of its log."""

    def __init__(self, root: Path, *paths: Path) -> None:
        self.root = root
        # The limit of torn tails is none of these.
        self.config = config(
            root, segment_bytes=SEGMENT, commit_log_paths=paths, recovered_bytes_max=100
        )
        store = open_store(
            root, segment_bytes=SEGMENT, commit_log_paths=paths, recovered_bytes_max=100
        )
        results = put_ok(store, *(record_of_size(SIZE, tag=f"{n}") for n in range(COUNT)))
        self.ends = [result.physical_end for result in results]
        store.close()
        self.files = {path.name: path.read_bytes() for path in self.paths()}
        assert len(self.files) == 5
        self.bytes = b"".join(self.files[name] for name in sorted(self.files))

    def paths(self) -> list[Path]:
        return sorted(path for one in self.config.log_paths for path in one.iterdir())

    def check(self, end: int, kept_in: list[Path]) -> None:
        """The log is as it was up to its end, zero after it; the rest is in directories."""
        log = b"".join(path.read_bytes() for path in self.paths())
        assert log[:end] == self.bytes[:end] and not any(log[end:])
        files = [path for one in kept_in for path in one.iterdir()]
        kept = bytearray(len(self.bytes) - end)
        for path in files:
            data, at = path.read_bytes(), int(path.name) - end
            kept[at : at + len(data)] = data
        assert kept == self.bytes[end:]

    def kept(self) -> list[Path]:
        return sorted((self.root / "recovered").iterdir())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "store")


@pytest.mark.parametrize("number", [-1, 0, 3, 5, 14, 15])
def test_all_of_it_is_kept(log: Log, number: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whole files are the ones that there were; what follows the last record is given back."""
    end = log.ends[number] if number >= 0 else 0
    inodes = {path.name: path.stat().st_ino for path in log.paths()}
    with caplog.at_level(logging.WARNING):
        cut = truncate_log(log.config, end, files=QuickFiles())
    (kept_in,) = log.kept()
    assert kept_in.name == f"000001-cut-at-{end:020d}"
    log.check(end, [kept_in])
    for path in kept_in.iterdir():
        assert path.stat().st_ino == inodes.get(path.name, path.stat().st_ino)
    assert sum(path.stat().st_size for path in kept_in.iterdir()) == cut
    # The rest of a file that is too small for another record does not count.
    assert log.ends[-1] - end - 100 < cut <= log.ends[-1] - end
    assert f"the {cut} B after it" in caplog.text and str(kept_in) in caplog.text
    store = open_store(log.root, segment_bytes=SEGMENT)
    assert len(bodies(store)) == number + 1
    put_ok(store, record_of_size(SIZE))
    store.close()


def test_later_cuts_leave_the_earlier_ones_alone(log: Log) -> None:
    for number in (15, 10, 4):
        truncate_log(log.config, log.ends[number], files=QuickFiles())
    assert [path.name[:6] for path in log.kept()] == ["000001", "000002", "000003"]
    log.check(log.ends[4], log.kept())
    # Nor does a crash, whose torn tail is kept up to a limit.
    path = log.paths()[-1]
    with path.open("r+b") as file:
        file.seek(log.ends[4] % SEGMENT)
        file.write(b"x" * 500)
    (log.root / "abort").touch()
    open_store(log.root, segment_bytes=SEGMENT, recovered_bytes_max=100).close()
    *cuts, torn = log.kept()
    assert torn.read_bytes() == b"x" * 100
    log.check(log.ends[4], cuts)


@pytest.mark.parametrize("number", [-1, 5])
def test_whenever_the_process_dies_nothing_is_lost(tmp_path: Path, number: int) -> None:
    """And the next attempt comes to the end."""
    log = Log(tmp_path / "store")
    shutil.copytree(log.root, tmp_path / "before")
    end, at = log.ends[number] if number >= 0 else 0, 0
    while True:
        at += 1
        files = FaultyFiles(Fault(at=at))
        try:
            truncate_log(log.config, end, files=files)
        except Crashed:
            files.abandon()
        else:
            break
        truncate_log(log.config, end, files=QuickFiles())
        log.check(end, log.kept())
        shutil.rmtree(log.root)
        shutil.copytree(tmp_path / "before", log.root)
    assert at > 10


class LittleRoom(QuickFiles):
    """So many bytes are free."""

    free = 90 << 30

    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(10 << 30, self.free)


def full_at_copies(path: Path) -> int:
    return errno.ENOSPC if "recovered" in path.parts else 0


@pytest.mark.parametrize("way", ["told", "found"])
def test_what_cannot_be_kept_for_want_of_room_is_not_cut(log: Log, way: str) -> None:
    before = {path: path.read_bytes() for path in log.root.rglob("*") if path.is_file()}
    told, found = LittleRoom(), FailingFiles()
    told.free = 1999
    found.on_write, found.half = full_at_copies, True
    files = told if way == "told" else found
    for _ in range(2):
        with pytest.raises(DiskFull, match=r"commitlog.*2\d\d\d B.*not cut off: free some space"):
            truncate_log(log.config, log.ends[5], files=files)
    after = {path: path.read_bytes() for path in log.root.rglob("*") if path.is_file()}
    assert after == before
    told.free = 3000
    truncate_log(log.config, log.ends[5], files=told)
    log.check(log.ends[5], log.kept())


def test_attempts_that_fail_later_do_not_copy_again(log: Log) -> None:
    files = FailingFiles()
    files.on_write = lambda path: errno.EIO if "commitlog" in path.parts else 0
    for _ in range(3):
        with pytest.raises(FlushFailed):
            truncate_log(log.config, log.ends[5], files=files)
    assert len(log.kept()) == 1
    truncate_log(log.config, log.ends[5], files=QuickFiles())
    log.check(log.ends[5], log.kept())


class OtherDisk(LittleRoom):
    """Files cannot be renamed to some places."""

    def __init__(self, *places: Path) -> None:
        self._places = places

    def rename(self, source: Path, target: Path) -> None:
        if any(target.is_relative_to(one) for one in self._places) and source.name.isdigit():
            cause = OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            raise StoreError(f"{source}: rename") from cause
        super().rename(source, target)


def places_of(log: Log) -> list[Path]:
    return [log.root / "recovered", log.config.log_paths[0].parent / "recovered"]


@pytest.mark.parametrize("where", ["beside", "copied"])
def test_a_log_on_another_disk(tmp_path: Path, where: str) -> None:
    log = Log(tmp_path / "store", tmp_path / "disk" / "log")
    places = places_of(log)
    files = OtherDisk(*places[: 1 if where == "beside" else 2])
    inodes = {path.stat().st_ino for path in log.paths()}
    truncate_log(log.config, log.ends[5], files=files)
    kept_in = [path for one in places if one.exists() for path in one.iterdir()]
    log.check(log.ends[5], kept_in)
    moved = {path.stat().st_ino for one in kept_in for path in one.iterdir()} & inodes
    assert len(kept_in) == (2 if where == "beside" else 1)
    assert len(moved) == (3 if where == "beside" else 0)


def test_a_copy_to_another_disk_that_does_not_fit(tmp_path: Path) -> None:
    """The files after that one are kept, the copies of earlier attempts do not pile up."""
    log = Log(tmp_path / "store", tmp_path / "disk" / "log")
    files = OtherDisk(*places_of(log))
    files.free = 2500
    for _ in range(3):
        with pytest.raises(DiskFull, match="not cut off: free some space"):
            truncate_log(log.config, log.ends[5], files=files)
    assert len(log.kept()) == 1
    truncate_log(log.config, log.ends[5], files=OtherDisk(*places_of(log)))
    log.check(log.ends[5], log.kept())


def test_how_much_of_a_torn_tail_is_kept_is_said(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """The first bytes, which follow what is still in the log; and a key changes it."""
    with log.paths()[3].open("r+b") as file:
        file.write(b"\xff" * 4)  # The last two files are cut off.
    for name in "abort", "checkpoint", "queues.json", "queues.json.bak":
        (log.root / name).unlink(missing_ok=name != "checkpoint")
    (log.root / "abort").touch()
    shutil.rmtree(log.root / "consumequeue")
    with caplog.at_level(logging.WARNING):
        open_store(log.root, segment_bytes=SEGMENT, recovered_bytes_max=3000).close()
    assert "only the first 3000 of" in caplog.text and "pymqRecoveredBytesMax" in caplog.text
    (kept,) = log.kept()
    assert kept.read_bytes()[4:] == log.bytes[3 * SEGMENT + 4 : 3 * SEGMENT + 3000]


def test_the_limit_has_a_key() -> None:
    (field,) = (
        one
        for one in StoreConfig.__dataclass_fields__.values()
        if one.name == "recovered_bytes_max"
    )
    assert field.metadata["key"] == "pymqRecoveredBytesMax"
