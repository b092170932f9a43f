"""Faults come where they were ordered, and lost power leaves what a disk may hold."""

import errno
import inspect
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pymq.errors import DiskFull, FlushFailed, StoreError, StoreLocked
from pymq.store.files import Files
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles, Keep
from pymq.testing.lost_power import PAGE_BYTES, SECTOR_BYTES, Disk

#: Made of other methods, which are counted.
COMPOSED = {"create", "read_part", "write_file"}
SEEDS = 400


@pytest.fixture
def root() -> Iterator[Path]:
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="pymq-disk-", dir=memory if memory.is_dir() else None))
    yield path
    shutil.rmtree(path)


def test_every_way_to_the_system_is_watched() -> None:
    """A new method of Files needs its place in FaultyFiles: a change, or a look."""
    public = {
        name
        for name, _ in inspect.getmembers(Files, inspect.isfunction)
        if not name.startswith("_")
    }
    assert public - COMPOSED == public & vars(FaultyFiles).keys()
    assert public > COMPOSED


# ------------------------------------------------------------------------------------- faults


def work(files: Files, root: Path) -> None:
    """Do one of everything."""
    files.make_directory(root / "a" / "b")
    fd = files.create(root / "a" / "file", 3 * PAGE_BYTES, reserve=True)
    files.pwrite(fd, b"x" * 3 * PAGE_BYTES, 0)
    files.fsync(fd)
    files.close(fd)
    files.write_file(root / "a" / "small.tmp", b"small")
    files.rename(root / "a" / "small.tmp", root / "a" / "small")
    files.fsync_directory(root / "a")
    files.remove(root / "a" / "small")
    files.remove_directory(root / "a" / "b")
    files.close(files.open(root / "new", create=True))


NAMES = [
    "make_directory", "make_directory", "create_empty", "resize", "reserve", "fsync", "pwrite",
    "fsync", "open_emptied", "pwrite", "fsync", "rename", "fsync_directory", "remove",
    "remove_directory", "open",
]  # fmt: skip


def test_operations_are_system_calls(root: Path) -> None:
    files = FaultyFiles()
    work(files, root)
    assert [name for name, _ in files.operations] == NAMES
    assert not files.fault_met and not files.crashed


@pytest.mark.parametrize("keep", [Keep.NOTHING, Keep.ALL])
def test_a_crash_at_each_operation(root: Path, keep: Keep) -> None:
    states = []
    for at in range(1, len(NAMES) + 1):
        place = root / str(at)
        place.mkdir()
        files = FaultyFiles(Fault(at=at, keep=keep))
        with pytest.raises(Crashed, match=f"operation {at}: {NAMES[at - 1]}"):
            work(files, place)
        assert files.crashed and files.fault_met
        with pytest.raises(Crashed):
            files.exists(place)
        with pytest.raises(Crashed):
            files.make_directory(place / "c")
        files.abandon()
        states.append(tree(place))
    if keep is Keep.NOTHING:
        work(Files(), root / "whole")
        states.append(tree(root / "whole"))
    else:
        states.insert(0, {})
    for name, before, after in zip(NAMES, states[:-1], states[1:], strict=True):
        assert (before == after) == (name.startswith("fsync") or name == "reserve"), name


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.parametrize(
    ("keep", "unit"),
    [(Keep.BYTES, 1), (Keep.SECTORS, SECTOR_BYTES), (Keep.PAGES, PAGE_BYTES)],
)
def test_a_crash_in_the_middle_of_a_write(root: Path, keep: Keep, unit: int) -> None:
    ends = set()
    for at in range(3, 60):
        files = FaultyFiles(Fault(at=at, keep=keep))
        fd = files.create(root / str(at), 5 * PAGE_BYTES, reserve=False)
        for _ in range(at - 3):
            files.fsync(fd)
        with pytest.raises(Crashed):
            files.pwrite(fd, b"x" * 3 * PAGE_BYTES, 700)
        files.abandon()
        data = (root / str(at)).read_bytes()
        end = 700 + data.count(b"x")
        assert data.strip(b"\0") == b"x" * (end - 700)
        assert end == 700 or end % unit == 0
        ends.add(end)
    assert len(ends) > 2 and max(ends) < 700 + 3 * PAGE_BYTES


@pytest.mark.parametrize("at", range(1, len(NAMES) + 1))
def test_errors_are_those_of_real_disks(root: Path, at: int) -> None:
    name = NAMES[at - 1]
    for code in (errno.ENOSPC, errno.EIO):
        place = root / str(code)
        place.mkdir()
        with pytest.raises(StoreError) as caught:
            work(FaultyFiles(Fault(at=at, code=code)), place)
        final = name.startswith("fsync") or (name == "pwrite" and code == errno.EIO)
        kind = FlushFailed if final else DiskFull if code == errno.ENOSPC else StoreError
        assert type(caught.value) is kind, (name, code)
        assert str(place) in str(caught.value)


def test_as_many_failures_as_ordered(root: Path) -> None:
    files = FaultyFiles(Fault(at=2, code=errno.ENOSPC, count=2))
    fd = files.create_empty(root / "file")
    for number in range(4):
        try:
            files.pwrite(fd, b"%d" % number, number)
        except DiskFull:
            assert number < 2
        else:
            assert number >= 2
    files.close(fd)
    assert (root / "file").read_bytes() == b"\0\x0023"


def test_a_mended_disk(root: Path) -> None:
    files = FaultyFiles(Fault(at=1, code=errno.EIO, count=1000))
    with pytest.raises(FlushFailed):
        files.fsync_directory(root)
    files.mend()
    files.fsync_directory(root)


def test_the_dead_hold_no_locks(root: Path) -> None:
    files = FaultyFiles(Fault(at=2))
    files.lock_directory(root)
    files.lock_file(root / "lock")
    with pytest.raises(StoreLocked):
        Files().lock_directory(root)
    with pytest.raises(Crashed):
        files.write_file(root / "file", b"")
    files.abandon()
    living = FaultyFiles()
    living.lock_directory(root)
    living.abandon()


def test_what_was_abandoned_is_not_closed_again(root: Path) -> None:
    """Its numbers are somebody else's by then."""
    files = FaultyFiles()
    taken = [files.open(root / "a", create=True), files.lock_directory(root)]
    taken.append(files.duplicate(taken[0]))
    files.abandon()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in taken]
    assert set(others) & set(taken)
    for fd in taken:
        files.close(fd)
    for fd in others:
        os.close(fd)


# --------------------------------------------------------------------------------- lost power


def outcomes(root: Path, do: Callable[[FaultyFiles, Path], None]) -> set[str]:
    """Return all trees that losing power leaves after some work on an empty directory."""
    place = root / "place"
    place.mkdir()
    disk = Disk(place)
    do(FaultyFiles(disk=disk), place)
    found = set()
    for seed in range(SEEDS):
        target = root / str(seed)
        disk.lose_power(random.Random(seed), target)
        found.add(repr(tree(target)))
        shutil.rmtree(target)
    shutil.rmtree(place)
    return found


def test_what_is_synced_stays(root: Path) -> None:
    def do(files: FaultyFiles, place: Path) -> None:
        work(files, place)
        files.fsync_directory(place / "a")
        files.fsync_directory(place)

    (found,) = outcomes(root, do)
    work(Files(), root)
    (root / "place").mkdir()
    assert found == repr({name: data for name, data in tree(root).items() if name != "place"})


def test_data_and_name_are_synced_apart(root: Path) -> None:
    def written(files: FaultyFiles, place: Path) -> None:
        files.write_file(place / "f", b"data")

    assert outcomes(root, written) == {repr({}), repr({"f": b"data"})}

    def named(files: FaultyFiles, place: Path) -> None:
        fd = files.create(place / "f", 4, reserve=False)
        files.pwrite(fd, b"data", 0)
        files.close(fd)
        files.fsync_directory(place)

    texts = (b"", b"\0\0\0\0", b"data")
    assert outcomes(root, named) == {repr({"f": text}) for text in texts}


def test_a_rename_is_whole_or_nothing(root: Path) -> None:
    def do(files: FaultyFiles, place: Path) -> None:
        files.write_file(place / "f", b"old")
        files.write_file(place / "f.tmp", b"new")
        files.fsync_directory(place)
        files.rename(place / "f.tmp", place / "f")

    assert outcomes(root, do) == {repr({"f": b"old", "f.tmp": b"new"}), repr({"f": b"new"})}


def test_changes_of_names_are_independent(root: Path) -> None:
    def do(files: FaultyFiles, place: Path) -> None:
        for name in ("a", "b"):
            files.write_file(place / name, b"")
        files.fsync_directory(place)
        files.remove(place / "a")
        files.make_directory(place / "c" / "d")

    found = outcomes(root, do)
    both, one = {"a": b"", "b": b""}, {"b": b""}
    new: list[dict[str, bytes | None]] = [{}, {"c": None}, {"c": None, "c/d": None}]
    assert found == {repr(old | more) for old in (both, one) for more in new}


def test_a_file_written_anew_without_a_sync(root: Path) -> None:
    def do(files: FaultyFiles, place: Path) -> None:
        files.write_file(place / "f", b"old")
        files.fsync_directory(place)
        fd = files.open_emptied(place / "f")
        files.pwrite(fd, b"new text", 0)
        files.close(fd)

    texts = (b"old", b"", bytes(8), b"new text")
    assert outcomes(root, do) == {repr({"f": text}) for text in texts}


def test_pages_are_lost_and_torn(root: Path) -> None:
    """Each page old or new, each sector of a torn one too; what was flushed never changes."""
    place = root / "place"
    place.mkdir()
    disk = Disk(place)
    files = FaultyFiles(disk=disk)
    fd = files.create(place / "f", 3 * PAGE_BYTES, reserve=True)
    files.pwrite(fd, b"s" * 100, 0)
    files.fsync(fd)
    files.fsync_directory(place)
    files.pwrite(fd, b"x" * 2 * PAGE_BYTES, 100)
    files.pwrite(fd, b"y" * PAGE_BYTES, 100)
    files.close(fd)
    orders, sectors, versions = set(), set(), set()
    for seed in range(SEEDS):
        disk.lose_power(random.Random(seed), root / "lost")
        data = (root / "lost" / "f").read_bytes()
        shutil.rmtree(root / "lost")
        assert len(data) == 3 * PAGE_BYTES
        assert data.startswith(b"s" * 100) and not any(data[100 + 2 * PAGE_BYTES :])
        second = 100 + PAGE_BYTES
        assert set(data[100:PAGE_BYTES]) <= set(b"\0xy")
        assert set(data[PAGE_BYTES:second]) <= set(b"\0xy")
        assert set(data[second : second + PAGE_BYTES]) <= set(b"\0x")
        orders.add((data[200] != 0, data[second] != 0, data[2 * PAGE_BYTES + 1] != 0))
        first = {data[at] for at in range(200, PAGE_BYTES, SECTOR_BYTES)}
        assert len(first) <= 2
        sectors.add(frozenset(first))
        versions.add(data[200])
    assert len(orders) == 8, "any of the three pages may be there without the others"
    assert {frozenset(b"\0x"), frozenset(b"xy"), frozenset(b"\0y")} < sectors
    assert versions == set(b"\0xy")


def test_a_failed_flush_is_not_made_good_by_another(root: Path) -> None:
    """Only what is written again reaches the disk; the file's length does in any case."""
    place = root / "place"
    place.mkdir()
    disk = Disk(place)
    files = FaultyFiles(Fault(at=5, code=errno.EIO), disk=disk)
    fd = files.create(place / "f", 8, reserve=False)
    files.fsync_directory(place)
    files.pwrite(fd, b"lost", 0)
    with pytest.raises(FlushFailed):
        files.fsync(fd)
    files.close(fd)
    next_files = FaultyFiles(disk=disk)
    fd = next_files.open(place / "f")
    assert next_files.pread(fd, 8, 0) == b"lost\0\0\0\0", "it is in the page cache"
    next_files.pwrite(fd, b"more", 4)
    next_files.fsync(fd)
    next_files.close(fd)
    for seed in range(SEEDS):
        disk.lose_power(random.Random(seed), root / "lost")
        assert (root / "lost" / "f").read_bytes() == b"\0\0\0\0more"
        shutil.rmtree(root / "lost")


def test_a_disk_outlives_processes(root: Path) -> None:
    """What a process that died did not flush is lost with the power, not with the process."""
    place = root / "place"
    place.mkdir()
    disk = Disk(place)
    files = FaultyFiles(Fault(at=4), disk=disk)
    with pytest.raises(Crashed):
        files.write_file(place / "f", b"1")
        files.fsync_directory(place)
    files.abandon()
    FaultyFiles(disk=disk).write_file(place / "g", b"2")
    found = set()
    for seed in range(SEEDS):
        disk.lose_power(random.Random(seed), root / "lost")
        found.add(repr(tree(root / "lost")))
        again = Disk(root / "lost")
        again.lose_power(random.Random(seed), root / "again")
        assert tree(root / "again") == tree(root / "lost")
        shutil.rmtree(root / "lost")
        shutil.rmtree(root / "again")
    assert found == {
        repr(one | two) for one in ({}, {"f": b"1"}) for two in ({}, {"g": b"2"})
    }
