"""Where a log ends, found without opening the store: as recovery finds it."""

import random
import shutil
from pathlib import Path

import pytest
from tests.unit.store.stores import (
    FakeClock,
    QuickFiles,
    config,
    crashed_copy,
    log_files,
    open_store,
    put_ok,
    record,
)

from pymq.errors import CorruptRecord, StoreClosed, StoreLocked
from pymq.store.recovery.log_end import find_log_end

SEGMENT_BYTES = 1024


def found(root: Path, **changes: object) -> int:
    settings = config(root, **({"segment_bytes": SEGMENT_BYTES} | changes))
    before = contents(root)
    end = find_log_end(settings, QuickFiles())
    assert contents(root) == before
    return end


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def filled(root: Path, count: int, seed: int) -> Path:
    """Fill a store; return what a crash of it leaves."""
    dice, clock = random.Random(seed), FakeClock()
    store = open_store(root, clock, segment_bytes=SEGMENT_BYTES)
    for number in range(count):
        clock.now_ms += dice.choice((0, 1, 5000))
        put_ok(store, record(b"%d" % number + bytes(dice.randrange(300))))
    crashed = crashed_copy(root, root.with_name("crashed"))
    store.close()
    return crashed


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_it_is_where_the_store_opens(tmp_path: Path, count: int, seed: int) -> None:
    root = tmp_path / "clean"
    crashed = filled(root, count, seed)
    for one in (root, crashed):
        end = found(one)
        store = open_store(one, segment_bytes=SEGMENT_BYTES)
        assert store.log_end == end
        assert bool(end) == bool(count)
        store.close()


def test_it_is_known_after_a_clean_stop(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "clean", 40, seed)
    monkeypatch.delattr("pymq.store.recovery.log_end.scan_segment")  # nothing is read
    assert found(tmp_path / "clean") > 0


def test_after_rocketmqs_clean_stop_the_last_file_is_read(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "clean"
    filled(root, 40, seed)
    end = found(root)
    (root / "queues.json").unlink()
    assert found(root) == end


@pytest.mark.parametrize("count", [0, 5])
def test_a_log_that_rocketmq_has_cut_ends_where_that_left_it(tmp_path: Path, count: int) -> None:
    """Its slave gives up what its master does not have, and writes zeros there."""
    root, cut = tmp_path / "store", tmp_path / "cut"
    clock = FakeClock()
    for one, number in ((root, 20), (cut, count), (root, 60)):
        if one is cut:
            shutil.copytree(root, cut)
        store = open_store(one, clock, segment_bytes=1 << 16)
        for _ in range(number):
            clock.now_ms += 1
            put_ok(store, record(b"x" * 100))
        store.close()
        clock.now_ms += 1000
    if count:  # after the other ones
        store = open_store(cut, clock, segment_bytes=1 << 16)
        put_ok(store, record(b"x" * 100))
        store.close()
    for folder in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(root / folder, ignore_errors=True)
        if (cut / folder).exists():
            shutil.copytree(cut / folder, root / folder)
    ours, theirs = (bytearray((one / "checkpoint").read_bytes()) for one in (root, cut))
    ours[:24], ours[24:40] = theirs[:24], bytes(16)  # what RocketMQ writes
    (root / "checkpoint").write_bytes(ours)
    end = found(cut, segment_bytes=1 << 16)
    assert found(root, segment_bytes=1 << 16) == end
    store = open_store(root, clock, segment_bytes=1 << 16)
    assert store.log_end == end
    crashed = crashed_copy(root, tmp_path / "crashed")
    store.close()
    assert found(crashed, segment_bytes=1 << 16) == end
    open_store(crashed, clock, segment_bytes=1 << 16).close()


def test_a_log_whose_last_files_are_missing_is_refused_after_rocketmq_too(tmp_path: Path) -> None:
    """A disk that is not mounted: the queues point to what is there."""
    root, clock = tmp_path / "store", FakeClock()
    store = open_store(root, clock, segment_bytes=SEGMENT_BYTES)
    for _ in range(40):
        put_ok(store, record(b"x" * 100))
    store.close()
    data = bytearray((root / "checkpoint").read_bytes())
    data[24:40] = bytes(16)  # what RocketMQ writes
    (root / "checkpoint").write_bytes(data)
    files = log_files(root)
    for path in files[len(files) // 2 :]:
        path.unlink()
    with pytest.raises(CorruptRecord, match="is its disk mounted"):
        open_store(root, clock, segment_bytes=SEGMENT_BYTES)


@pytest.mark.parametrize("is_all", [False, True])
def test_an_unfinished_write_is_not_counted(tmp_path: Path, seed: int, is_all: bool) -> None:
    """Nor the records of a file whose first ones were lost with the power."""
    crashed = filled(tmp_path / "clean", 40, seed)
    last = log_files(crashed)[-1]
    data = bytearray(last.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[: size if is_all else size - 1] = bytes(size if is_all else size - 1)
    last.write_bytes(data)
    (crashed / "checkpoint").unlink()
    assert found(crashed) == int(last.name)


def test_an_empty_directory_has_no_log(tmp_path: Path) -> None:
    assert find_log_end(config(tmp_path / "new"), QuickFiles()) == 0
    assert list((tmp_path / "new").iterdir()) == []


def test_an_open_store_is_refused_and_a_long_read_ends_early(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "clean"
    crashed = filled(root, 40, seed)
    store = open_store(root, segment_bytes=SEGMENT_BYTES)
    with pytest.raises(StoreLocked):
        found(root)
    store.close()
    settings = config(crashed, segment_bytes=SEGMENT_BYTES)
    with pytest.raises(StoreClosed):
        find_log_end(settings, QuickFiles(), is_cancelled=lambda: True)
    assert found(crashed) > 0  # it has let go of the directory
