"""Directories that cannot be opened: one clear message, and nothing is changed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.disks import small_tmpfs
from tests.unit.store.stores import (
    TOPIC,
    FakeClock,
    bodies,
    open_store,
    put_ok,
    queue_path,
    record,
)

from pymq.errors import StoreError, StoreLocked, StoreMismatch
from pymq.store import Files

NOBODY = 65534
SMALL = {"segment_bytes": 1024, "queue_file_bytes": 60}


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return every name below a directory with its time and its bytes."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [root, *sorted(root.rglob("*"))]
    }


def make_store(root: Path) -> None:
    store = open_store(root, **SMALL)
    put_ok(store, *(record(b"%d" % number, queue_id=number % 2) for number in range(20)))
    while store.keys.index_step():
        pass
    store.close()


def write(path: Path, data: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def newer(root: Path) -> None:
    path = root / "queues.json"
    content = json.loads(path.read_text()) | {"version": 2}
    del content["pymqCrc32"]
    path.write_text(json.dumps(content))


Spoil = Callable[[Path], object]
BAD: list[tuple[str, Spoil, tuple[str, ...]]] = [
    ("foreign log file", lambda root: write(root / "commitlog" / "notes.txt"), ("notes.txt",)),
    (
        "short log file",
        lambda root: os.truncate(root / "commitlog" / f"{0:020d}", 1000),
        (f"{0:020d}", "1000 B", "1024 B", "mappedFileSizeCommitLog"),
    ),
    (
        "gap in the log",
        lambda root: (root / "commitlog" / f"{1024:020d}").unlink(),
        (f"{1024:020d}", "without a gap"),
    ),
    (
        "foreign queue file",
        lambda root: write(queue_path(root) / "notes.txt"),
        ("consumequeue", "notes.txt"),
    ),
    (
        "queue file of another size",
        lambda root: os.truncate(queue_path(root) / f"{0:020d}", 100),
        ("100 B", "60 B", "mappedFileSizeConsumeQueue"),
    ),
    (
        "index file of another size",
        lambda root: write(root / "index" / "20260101000000000", b"x" * 77),
        ("20260101000000000", "77 B", "maxHashSlotNum"),
    ),
    (
        "consume queues in RocksDB",
        lambda root: write(root / "consumequeue" / "CURRENT", b"MANIFEST-000004\n"),
        ("CURRENT", "RocksDB", "storeType"),
    ),
    (
        "tables in RocksDB",
        lambda root: write(root / "config" / "consumerOffsets" / "CURRENT", b"MANIFEST-000005\n"),
        ("consumerOffsets/CURRENT", "RocksDB", "rocksDBConfigToJson"),
    ),
    (
        "DLedger",
        lambda root: write(root / "dledger-n0" / "data" / f"{0:020d}"),
        ("dledger-n0", "enableDLegerCommitLog"),
    ),
    (
        "batch queues",
        lambda root: write(root / "batchconsumequeue" / "Batches" / "0" / f"{0:020d}"),
        ("Batches", "BatchCQ"),
    ),
    ("a later version", newer, ("queues.json", "version 2", "at most 1")),
]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(("spoil", "words"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_what_is_not_understood_is_refused_and_left_alone(
    tmp_path: Path, spoil: Spoil, words: tuple[str, ...], is_clean: bool
) -> None:
    root = tmp_path / "s"
    make_store(root)
    if not is_clean:
        (root / "abort").touch()
    spoil(root)
    before = tree(root)
    with pytest.raises(StoreMismatch) as caught:
        open_store(root, **SMALL)
    for word in (str(root), *words):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert tree(root) == before


@pytest.mark.parametrize(
    ("spoil", "words"), [row[1:] for row in BAD[6:9]], ids=[row[0] for row in BAD[6:9]]
)
def test_no_trace_is_left_in_what_is_no_store_of_ours(
    tmp_path: Path, spoil: Spoil, words: tuple[str, ...]
) -> None:
    spoil(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(StoreMismatch, match=words[0]):
        open_store(tmp_path, **SMALL)
    assert tree(tmp_path) == before
    assert not (tmp_path / "lock").exists() and not (tmp_path / "abort").exists()


@pytest.mark.parametrize("name", ["segment_bytes", "queue_file_bytes"])
def test_other_sizes_than_the_store_was_written_with(tmp_path: Path, name: str) -> None:
    make_store(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(StoreMismatch, match=f"expected {SMALL[name] * 2} B .{name}"):
        open_store(tmp_path, **(SMALL | {name: SMALL[name] * 2}))
    assert tree(tmp_path) == before


def test_empty_leftovers_of_other_kinds_are_no_reason(tmp_path: Path) -> None:
    """A default 5.x broker makes some of these directories and never uses them."""
    make_store(tmp_path)
    for name in ("batchconsumequeue/T/0", "dledger-n0/data", "timerlog", "compaction"):
        (tmp_path / name).mkdir(parents=True)
    write(tmp_path / "timerwheel")
    write(tmp_path / "dledger-n0" / "index" / f"{0:020d}")
    store = open_store(tmp_path, **SMALL)
    assert len(bodies(store)) == 10
    store.close()


def test_queues_without_their_rocksdb_are_rebuilt(tmp_path: Path) -> None:
    """What the message proposes."""
    make_store(tmp_path)
    (tmp_path / "queues.json").unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    write(tmp_path / "consumequeue" / "CURRENT")
    with pytest.raises(StoreMismatch):
        open_store(tmp_path, **SMALL)
    (tmp_path / "consumequeue").rename(tmp_path / "rocksdb")
    store = open_store(tmp_path, **SMALL)
    assert len(bodies(store)) == len(bodies(store, TOPIC, 1)) == 10
    store.close()


def test_a_second_process_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    put_ok(store, record(b"0"))
    store.durability.flush()
    before = tree(tmp_path)
    script = (
        "import sys; from pathlib import Path\n"
        "from pymq.clock import Clock; from pymq.errors import StoreLocked\n"
        "from pymq.store import MessageStore, StoreConfig\n"
        "try: MessageStore.open(StoreConfig(root_path=Path(sys.argv[1])), Clock())\n"
        "except StoreLocked as error: sys.stdout.write(str(error))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert str(tmp_path) in done.stdout and "another broker" in done.stdout
    with pytest.raises(StoreLocked):
        open_store(tmp_path, **SMALL)
    assert tree(tmp_path) == before
    store.close()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A store on a file system that can then only be read."""
    with small_tmpfs(tmp_path / "disk", "4m") as path:
        make_store(path / "s")
        subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True, timeout=120)
        yield path


def test_a_read_only_file_system(read_only: Path) -> None:
    before = tree(read_only)
    for root in (read_only / "s", read_only / "new"):
        with pytest.raises(StoreError, match=f"{root}.*read-only: remount it") as caught:
            open_store(root, FakeClock(), Files(), **SMALL)
        assert "\n" not in str(caught.value)
    assert tree(read_only) == before


@contextmanager
def without_privileges(root: Path) -> Iterator[None]:
    """Give a directory to somebody who is not root, and be that one."""
    if os.getuid() != 0:
        yield
        return
    for path in (root, *root.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_no_permission(tmp_path: Path) -> None:
    make_store(tmp_path / "s")
    before = tree(tmp_path)
    with without_privileges(tmp_path):
        (tmp_path / "s" / "commitlog").chmod(0)
        try:
            with pytest.raises(StoreError, match="commitlog.*right to it"):
                open_store(tmp_path / "s", FakeClock(), Files(), **SMALL)
        finally:
            (tmp_path / "s" / "commitlog").chmod(0o700)
    assert tree(tmp_path) == before


def test_a_file_where_a_directory_must_be(tmp_path: Path) -> None:
    (tmp_path / "commitlog").write_bytes(b"")
    before = tree(tmp_path)
    with pytest.raises(StoreError, match="commitlog.*there is a file where a directory must be"):
        open_store(tmp_path, FakeClock(), Files(), **SMALL)
    assert tree(tmp_path) == before
