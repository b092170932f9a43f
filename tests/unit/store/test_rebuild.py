"""``store.rebuild``: what can be made from the log comes out as it was, whatever interrupts it."""

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest
from tests.unit.store.inspection.inspected import (
    SIZES,
    assert_whole,
    fill,
    records,
    stopped_store,
)
from tests.unit.store.stores import (
    FakeClock,
    QuickFiles,
    crashed_copy,
    log_files,
    open_store,
    overwrite,
    put_ok,
    queue_path,
    record,
    seeded,
)

from pymq.errors import CorruptRecord, DiskFull, StoreError, StoreLocked
from pymq.store import StoreConfig
from pymq.store.inspection import Kind, Severity, Summary
from pymq.store.rebuild import REBUILDING_NAME, rebuild_store
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped_store(tmp_path_factory.mktemp("rebuild") / "store", seed=11, count=150)


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def rebuild(root: Path, files: QuickFiles | FaultyFiles | None = None) -> Summary:
    """Rebuild a store without telling the sizes of its files."""
    return rebuild_store(StoreConfig(root_path=root), FakeClock(), files=files or QuickFiles())


def content(root: Path) -> dict[str, bytes]:
    """Return all that is to come out as it was; index files by their order, not their names."""
    found = {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("commitlog", "consumequeue", "consumequeue_ext", "config")
        for path in (root / folder).rglob("*")
        if path.is_file()
    }
    for number, path in enumerate(sorted((root / "index").iterdir())):
        found[f"index {number}"] = path.read_bytes()
    return found


def assert_rebuilt(root: Path, expected: dict[str, bytes]) -> None:
    assert content(root) == expected
    assert not assert_whole(root).findings.count(Severity.REPAIR)
    assert not (root / REBUILDING_NAME).exists() and not (root / "abort").exists()
    files = FaultyFiles()
    store = open_store(root, files=files, **SIZES)
    written = {path.name for name, path in files.operations if name == "pwrite"}
    assert written <= {"lock", "abort"}, "it was not left as after a clean stop"
    store.close()


def test_a_whole_store_comes_out_as_it_was(root: Path) -> None:
    expected = content(root)
    summary = rebuild(root)
    assert summary.message_count == len(records(root)) and summary.clean_stop
    assert_rebuilt(root, expected)


def test_what_is_missing_damaged_or_foreign_is_made_again(root: Path) -> None:
    expected = content(root)
    shutil.rmtree(queue_path(root, "Alpha", 1))
    overwrite(queue_path(root, "Beta", 0) / ("0" * 20), 25, b"damage")
    (queue_path(root, "Beta", 2) / "notes.txt").write_text("hello")
    os.truncate(queue_path(root, "Gamma", 0) / ("0" * 20), 77)
    shutil.copytree(queue_path(root, "Alpha", 0), queue_path(root, "Nobody", 7))
    index = sorted((root / "index").iterdir())
    overwrite(index[1], 36, b"\x7f\0\0\0")
    os.truncate(index[2], 1000)
    (root / "checkpoint").write_bytes(b"\x7f" * 4096)
    rebuild(root)
    assert_rebuilt(root, expected)


def test_an_index_of_unknown_numbers_is_made_again(root: Path) -> None:
    for path in (root / "index").iterdir():
        path.write_bytes(bytes(random.Random(1).randbytes(7777)))
    config = StoreConfig(root_path=root, index_slot_count=60, index_item_limit=150)
    rebuild_store(config, FakeClock(), files=QuickFiles())
    assert not len(assert_whole(root).findings)


def test_queues_without_any_record_keep_their_offsets(tmp_path: Path) -> None:
    root, clock, chance = tmp_path / "store", FakeClock(), seeded(12)
    store = open_store(root, clock, **SIZES)
    put_ok(store, *(record(b"old", topic="Early", queue_id=4) for _ in range(30)))
    fill(store, clock, chance, 100)
    store.retention.delete_queues("Gamma")
    fill(store, clock, chance, 100)
    store.retention.delete_queues("Beta")
    store.close()
    for path in log_files(root)[:2]:
        path.unlink()
    before = {
        (one.topic, one.queue_id): (one.queue_first, one.queue_end) for one in rebuild(root).queues
    }
    assert before["Early", 4] == (30, 30) and before["Gamma", 0][0] == 0
    assert before["Alpha", 0][0] > 0 and "Beta" not in {topic for topic, _ in before}
    assert assert_whole(root)
    store = open_store(root, clock, **SIZES)
    for (topic, queue_id), bounds in before.items():
        assert store.queue_bounds(topic, queue_id) == bounds
    (result,) = put_ok(store, record(topic="Early", queue_id=4))
    assert result.queue_offset == 30
    store.close()
    assert assert_whole(root)


def test_extensions_are_made_again(tmp_path: Path) -> None:
    root, clock = tmp_path / "store", FakeClock()
    extended = {"queue_extension": True, "queue_extension_file_bytes": 1000}
    store = open_store(root, clock, **extended, **SIZES)
    fill(store, clock, seeded(13), 60)
    store.close()
    expected = content(root)
    shutil.rmtree(root / "consumequeue_ext" / "Beta")
    rebuild_store(StoreConfig(root_path=root, **extended), clock, files=QuickFiles())
    assert content(root) == expected
    assert not len(assert_whole(root).findings)


def test_an_unclean_stop_is_recovered_first(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path / "store", clock, **SIZES)
    fill(store, clock, seeded(14), 60)
    copy = crashed_copy(tmp_path / "store", tmp_path / "copy")
    store.close()
    last = log_files(copy)[-1]
    end = len(last.read_bytes().rstrip(b"\0"))
    overwrite(last, end, b"\0\0\2\0\xda\xa3\x20\xa7 half a record")
    # Nobody wrote the headers of its index files, so only the settings tell their numbers.
    config = StoreConfig(root_path=copy, index_slot_count=60, index_item_limit=150)
    rebuild_store(config, clock, files=QuickFiles())
    assert content(copy) == content(tmp_path / "store")
    assert len(list((copy / "recovered").iterdir())) == 1
    assert not len(assert_whole(copy).findings)


def test_a_damaged_log_is_refused_and_nothing_changes(root: Path) -> None:
    overwrite(log_files(root)[1], 2000, bytes(100))
    expected = content(root)
    with pytest.raises(CorruptRecord, match=f"{log_files(root)[1]}|reached") as caught:
        rebuild(root)
    assert REBUILDING_NAME not in str(caught.value)
    assert content(root) == expected and not (root / "abort").exists()
    assert not (root / REBUILDING_NAME).exists()


def test_a_store_in_use_is_refused(root: Path) -> None:
    store = open_store(root, **SIZES)
    with pytest.raises(StoreLocked):
        rebuild(root)
    store.close()


def test_a_directory_without_a_store_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store is there"):
        rebuild(tmp_path)
    assert not list(tmp_path.iterdir())


def test_progress_ascends(root: Path) -> None:
    seen: list[tuple[int, int]] = []
    rebuild_store(
        StoreConfig(root_path=root),
        FakeClock(),
        files=QuickFiles(),
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == sorted(seen) and all(done <= total for done, total in seen)
    assert seen[-1][0] == seen[-1][1] > 0


# ------------------------------------------------------------------------------ interruptions


def operations(root: Path) -> list[tuple[str, Path]]:
    files = FaultyFiles()
    rebuild(root, files)
    return files.operations


def test_after_a_crash_anywhere_the_next_start_or_rebuild_completes_it(
    whole: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(whole, tmp_path / "store"))
    expected = content(root)
    shutil.rmtree(queue_path(root, "Alpha", 1))
    damaged = Path(shutil.copytree(root, tmp_path / "damaged"))
    done = operations(root)
    swap = max(number for number, (name, _) in enumerate(done, 1) if name == "rename")
    begun = next(
        number for number, (_, path) in enumerate(done) if path == root / REBUILDING_NAME
    )
    moments = [*range(begun, len(done) + 1)]
    interesting = [at for at in moments if done[at - 1][0] in ("rename", "remove_directory")]
    chance = seeded(15)
    for at in sorted({*chance.sample(moments, 5), *chance.sample(interesting, 6), swap + 1}):
        for complete_by_start in (True, False):
            shutil.rmtree(root)
            shutil.copytree(damaged, root)
            files = FaultyFiles(Fault(at=at))
            with pytest.raises(Crashed):
                rebuild(root, files)
            files.abandon()
            if complete_by_start and (root / "abort").exists():
                open_store(root, **SIZES).close()
                assert content(root) == expected, f"crash at {at}: {done[at - 1]}"
                assert_whole(root)
            rebuild(root)
            assert_rebuilt(root, expected)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_leaves_something_to_complete(
    whole: Path, tmp_path: Path, code: int
) -> None:
    root = Path(shutil.copytree(whole, tmp_path / "store"))
    expected, count = content(root), len(operations(root))
    for at in seeded(16).sample(range(1, count + 1), 6):
        shutil.rmtree(root)
        shutil.copytree(whole, root)
        files = FaultyFiles(Fault(at=at, code=code, count=count))
        with pytest.raises(StoreError):
            rebuild(root, files)
        files.abandon()
        rebuild(root)
        assert_rebuilt(root, expected)


def test_a_full_disk_while_building_leaves_the_old_files_in_use(root: Path) -> None:
    expected = content(root)

    class Full(QuickFiles):
        def create_empty(self, path: Path) -> int:
            if REBUILDING_NAME in path.parts:
                raise DiskFull(f"{path}: no space left on the device")
            return super().create_empty(path)

    with pytest.raises(DiskFull):
        rebuild(root, Full())
    assert content(root) == expected and not (root / REBUILDING_NAME).exists()
    report = assert_whole(root)
    assert report.clean_stop and not report.findings.count(Severity.NOTE, Kind.NOT_LOOKED_AT)


def test_what_a_topics_deletion_left_out_stays_out(root: Path) -> None:
    store = open_store(root, **SIZES)
    store.retention.delete_queues("Beta")
    store.close()
    expected = content(root)
    rebuild(root)
    assert_rebuilt(root, expected)
    assert json.loads((root / "queues.json").read_text())["deleted"]["Beta"]
