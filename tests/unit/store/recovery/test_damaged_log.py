"""Damaged logs after a crash: what was never safe is cut off, everything else stops the store."""

import logging
import os
import shutil
from pathlib import Path

import pytest
from tests.unit.store.recovery.recovered import TEXTS, assert_whole, reopen
from tests.unit.store.stores import (
    TOPIC,
    FakeClock,
    QuickFiles,
    bodies,
    crashed_copy,
    log_files,
    open_store,
    overwrite,
    put_ok,
    record,
    record_of_size,
)

from pymq.errors import CorruptRecord, StoreError


def test_tail_damaged_at_every_byte(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cut the last two records at every byte: what is whole stays, the rest is kept aside."""
    live = tmp_path / "live"
    store = open_store(live)
    results = put_ok(store, *(record_of_size(size, tag="T") for size in (130, 140, 150)))
    template = crashed_copy(live, tmp_path / "template")
    store.close()
    ends = [result.physical_end for result in results]
    original = log_files(template)[0].read_bytes()
    for cut in range(130, ends[-1]):
        root = crashed_copy(template, tmp_path / str(cut))
        overwrite(log_files(root)[0], cut, bytes(ends[-1] - cut))
        damaged = log_files(root)[0].read_bytes()
        count = sum(
            damaged[start:end] == original[start:end]
            for start, end in zip([0, *ends], ends, strict=False)
        )
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            store = open_store(root)
        end = ends[count - 1]
        assert store.log_end == end
        assert store.queue_bounds(TOPIC, 0) == (0, count)
        assert len(bodies(store)) == count
        rest = damaged[end:].rstrip(b"\0")
        assert not any(log_files(root)[0].read_bytes()[end:])
        if rest:
            (kept,) = (root / "recovered").iterdir()
            assert kept.read_bytes() == rest
            assert f"cut at physical offset {end}" in caplog.text
        put_ok(store, record(b"after"))
        assert bodies(store)[count:] == [b"after"]
        store.close()
        shutil.rmtree(root)


@pytest.mark.parametrize("offset", [0, 4, 8, 20, 28, 84, 88, 97, 98, 99, 108])
def test_a_flipped_bit_in_the_last_record(tmp_path: Path, offset: int) -> None:
    """Sizes, magic, physical offset, lengths, body: whatever a record's validity covers."""
    live = tmp_path / "live"
    store = open_store(live)
    _, last = put_ok(store, record(b"first"), record(b"0123456789"))
    root = crashed_copy(live, tmp_path / "crashed")
    store.close()
    path = log_files(root)[0]
    position = last.physical_offset + offset
    overwrite(path, position, bytes((path.read_bytes()[position] ^ 0x10,)))
    store = open_store(root)
    if offset in (20, 99):
        # Queue offset and topic are in no checksum: the record moves, but nothing breaks.
        assert store.log_end == last.physical_end
        assert store.record_at(0).body == b"first"
    else:
        assert bodies(store) == [b"first"]
        assert store.log_end == last.physical_offset
    store.close()


def test_damage_in_front_of_safe_records_stops_the_store(filled: Path) -> None:
    reopen(filled).close()
    path = log_files(filled)[1]
    position = path.read_bytes().index(b"TopicTest") - 1
    original = path.read_bytes()[position : position + 1]
    overwrite(path, position, b"?")
    (filled / "queues.json").unlink()
    shutil.rmtree(filled / "consumequeue")
    before = [path.read_bytes() for path in log_files(filled)]
    for _ in range(2):
        with pytest.raises(CorruptRecord, match=r"00000000000000001024.*position 0.*Restore"):
            reopen(filled)
    assert [path.read_bytes() for path in log_files(filled)] == before
    overwrite(path, position, original)
    store = reopen(filled)
    assert_whole(store)
    store.close()


def test_damage_before_the_checkpoint_stops_the_store_after_a_crash(tmp_path: Path) -> None:
    clock = FakeClock()
    live = tmp_path / "live"
    store = open_store(live, clock)
    put_ok(store, record(b"first"), record(b"second"), record(b"third"))
    store.durability.flush()  # Writes the checkpoint too: all three are safe.
    clock.now_ms += 10
    put_ok(store, record(b"later"))
    root = crashed_copy(live, tmp_path / "crashed")
    store.close()
    path = log_files(root)[0]
    overwrite(path, path.read_bytes().index(b"second"), b"X")
    with pytest.raises(CorruptRecord, match="position 105"):
        open_store(root)


@pytest.mark.parametrize("unclean", [False, True])
def test_a_log_shorter_than_at_its_last_clean_stop(tmp_path: Path, unclean: bool) -> None:
    store = open_store(tmp_path, segment_bytes=1024)
    put_ok(store, *(record_of_size(300) for _ in range(8)))
    store.close()
    path = log_files(tmp_path)[-1]
    data = path.read_bytes()
    if unclean:
        (tmp_path / "abort").touch()
    for damage in ("cut", "unlink"):
        if damage == "cut":
            overwrite(path, 590, bytes(10))
        else:
            path.unlink()
        with pytest.raises(CorruptRecord, match=r"last clean stop.*queues\.json"):
            open_store(tmp_path, segment_bytes=1024)
    path.write_bytes(data)
    store = open_store(tmp_path, segment_bytes=1024)
    assert len(bodies(store)) == 8
    store.close()


def test_unsynced_records_behind_a_torn_one_are_cut_together(tmp_path: Path) -> None:
    """After a power loss a later page may have reached the disk, an earlier one not."""
    clock = FakeClock()
    live = tmp_path / "live"
    store = open_store(live, clock, segment_bytes=1024)
    put_ok(store, record(b"safe"))
    store.durability.flush()
    clock.now_ms += 10
    for number in range(20):
        put_ok(store, record(b"unsafe %d" % number))
    root = crashed_copy(live, tmp_path / "crashed")
    store.close()
    path = log_files(root)[0]
    overwrite(path, path.read_bytes().index(b"unsafe 2"), b"X")
    store = open_store(root, clock, segment_bytes=1024)
    assert bodies(store) == [b"safe", b"unsafe 0", b"unsafe 1"]
    assert len(log_files(root)) == 1
    kept = sorted((root / "recovered").iterdir())
    assert b"unsafe 3" in kept[0].read_bytes() and b"unsafe 19" in kept[-1].read_bytes()
    put_ok(store, record(b"new"))
    store.close()
    store = open_store(root, clock, segment_bytes=1024)
    assert bodies(store) == [b"safe", b"unsafe 0", b"unsafe 1", b"new"]
    store.close()


def test_what_is_kept_aside_is_bounded(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = open_store(root, recovered_bytes_max=1000)
    put_ok(store, record(b"one"))
    end = store.log_end
    store.close()
    for turn in range(5):
        (root / "abort").touch()
        overwrite(log_files(root)[0], end, bytes((turn + 1,)) * 400)
        store = open_store(root, recovered_bytes_max=1000)
        assert store.log_end == end
        store.close()
    kept = sorted((root / "recovered").iterdir())
    assert [path.read_bytes()[:1] for path in kept] == [b"\x04", b"\x05"]
    assert kept[0].name == f"000004-at-{end:020d}"


def test_stale_records_behind_the_end_never_come_back(tmp_path: Path) -> None:
    """RocketMQ leaves the bytes it cuts; a record must stand where it says it does."""
    root = tmp_path / "store"
    store = open_store(root)
    put_ok(store, record_of_size(200), record_of_size(200))
    store.close()
    path = log_files(root)[0]
    data = path.read_bytes()
    overwrite(path, 400, data[200:400])  # Well-formed, but its physical offset is 200.
    store = open_store(root)
    assert store.log_end == 400 and store.queue_bounds(TOPIC, 0) == (0, 2)
    assert not any(path.read_bytes()[400:])
    store.close()


@pytest.mark.parametrize("damage", ["bit", "zeros"])
def test_damage_of_the_last_records_that_were_safe_stops_the_store(
    tmp_path: Path, damage: str
) -> None:
    live = tmp_path / "live"
    store = open_store(live)
    put_ok(store, record(b"first"))
    (last,) = put_ok(store, record(b"last"))
    store.durability.flush()
    (unsafe,) = put_ok(store, record(b"unsafe"))
    root = crashed_copy(live, tmp_path / "crashed")
    store.close()
    path = log_files(root)[0]
    before = path.read_bytes()
    assert unsafe.physical_offset == last.physical_end
    if damage == "bit":
        overwrite(path, before.index(b"last"), b"L")
    else:
        overwrite(path, last.physical_offset, bytes(last.physical_end - last.physical_offset + 500))
    spoiled = path.read_bytes()
    with pytest.raises(CorruptRecord, match="was safe on the disk") as caught:
        open_store(root)
    assert path.read_bytes() == spoiled
    assert str(root / "checkpoint") in str(caught.value)
    (root / "checkpoint").unlink()
    store = open_store(root)
    assert bodies(store) == [b"first"]
    store.close()


class BadBlock(QuickFiles):
    """The disk cannot read a byte of a file; in the map, that would be the end of the process."""

    def __init__(self, path: Path, position: int) -> None:
        self._path, self._position = str(path), position

    def pread(self, fd: int, size: int, position: int) -> bytes:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path == self._path and position <= self._position < position + size:
            raise StoreError(f"{path}: read at {position}: Input/output error")
        return super().pread(fd, size, position)


@pytest.mark.parametrize("at", ["first", "middle", "last"])
def test_a_block_of_the_log_that_the_disk_cannot_read(tmp_path: Path, at: str) -> None:
    """The start says which file it is in; once it can be read again, everything is there."""
    live = tmp_path / "live"
    store = reopen(live)
    results = put_ok(
        store, *(record(text, queue_id=number % 2) for number, text in enumerate(TEXTS))
    )
    crashed = crashed_copy(live, tmp_path / "crashed")
    store.close()
    number = {"first": 0, "middle": len(results) // 2, "last": -1}[at]
    place = results[number].physical_offset + (0 if at == "first" else 90)
    roots = [crashed, live] if at == "last" else [crashed]  # A clean start looks at the end only.
    for root in roots:
        path = root / "commitlog" / f"{place // 1024 * 1024:020d}"
        with pytest.raises(StoreError, match=f"{path}: read at .*Input/output error"):
            reopen(root, files=BadBlock(path, place % 1024))
        store = reopen(root)
        assert_whole(store)
        store.close()
