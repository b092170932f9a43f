"""Every kind of damage is found and named: in the log, in queues, in the index, in small files."""

import errno
import os
import random
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.store.inspection.inspected import (
    ENTRIES_START,
    LIMIT,
    SIZES,
    SLOTS,
    assert_whole,
    check,
    fill,
    findings,
    index_files,
    message,
    place,
    records,
    the_finding,
)
from tests.unit.store.stores import (
    FakeClock,
    log_files,
    open_store,
    overwrite,
    put_ok,
    queue_path,
    seeded,
)

from pymq.protocol.record import Record
from pymq.store import StoreConfig
from pymq.store.files import ReadOnlyFiles
from pymq.store.index.index_format import ITEM
from pymq.store.inspection import Kind, Severity
from pymq.store.inspection.findings import Findings
from pymq.store.inspection.layout import read_layout


@pytest.mark.parametrize(
    ("at", "data", "expected"),
    [
        (0, b"\0\0\1\0", "fields|past its end|size"),
        (4, b"\xda\xa3\x20\xa6", "magic"),
        (28, bytes(7) + b"\1", "physical offset"),
        (84, b"\0\0\7\0", "fields|body"),
        (88, b"\xff", "body CRC"),
    ],
    ids=["size", "magic", "physical offset", "body length", "body"],
)
def test_a_damaged_record_is_named(root: Path, at: int, data: bytes, expected: str) -> None:
    victim = records(root)[100]
    path, position = place(root, victim)
    if path.read_bytes()[position + at : position + at + len(data)] == data:
        data = b"\xfe" * len(data)
    overwrite(path, position + at, data)
    finding = the_finding(check(root), Kind.LOG_RECORD)
    assert (finding.path, finding.position) == (path, position)
    assert re.search(expected, finding.found)


@pytest.mark.parametrize("clean", [True, False])
def test_a_zeroed_page_in_the_middle_is_damage(root: Path, clean: bool) -> None:
    overwrite(log_files(root)[2], 4096, bytes(512))
    if not clean:
        (root / "abort").touch()
    finding = the_finding(check(root), Kind.LOG_RECORD)
    assert finding.path == log_files(root)[2] and finding.position is not None
    assert 4096 - 400 < finding.position <= 4096


def test_a_torn_tail_after_an_unclean_stop_is_no_damage(root: Path) -> None:
    last = records(root)[-1]
    path, position = place(root, last)
    overwrite(path, position + last.size - 30, bytes(30))
    finding = the_finding(check(root), Kind.LOG_RECORD)
    assert (finding.path, finding.position) == (path, position)
    (root / "abort").touch()
    (root / "checkpoint").write_bytes(
        struct.pack(">5q", last.store_timestamp - 1, last.store_timestamp - 1, 0, 0, 0).ljust(4096)
    )
    report = assert_whole(root)
    tail = the_finding(report, Kind.LOG_TAIL, Severity.REPAIR)
    assert (tail.path, tail.position) == (path, position) and "repairs it" in tail.advice


def test_stale_bytes_behind_the_end_are_no_damage(root: Path) -> None:
    last = records(root)[-1]
    path, position = place(root, last)
    overwrite(path, position + last.size, b"left by an earlier life")
    report = assert_whole(root)
    assert the_finding(report, Kind.LOG_TAIL, Severity.NOTE).position == position + last.size


def test_a_missing_segment_is_named(root: Path) -> None:
    victim = log_files(root)[3]
    victim.unlink()
    report = check(root)
    assert the_finding(report, Kind.LOG_FILE).path == victim
    assert the_finding(report, Kind.QUEUE_EXTRA)


def test_a_lost_last_segment_is_named(root: Path) -> None:
    log_files(root)[-1].unlink()
    report = check(root)
    assert the_finding(report, Kind.KNOWN_ENDS) and the_finding(report, Kind.QUEUE_EXTRA)


def test_a_foreign_file_and_a_wrong_size_are_named(root: Path) -> None:
    (root / "commitlog" / "notes.txt").write_text("hello")
    os.truncate(log_files(root)[-2], 5000)
    report = check(root)
    paths = {one.path.name for one in findings(report) if one.kind is Kind.LOG_FILE}
    assert {"notes.txt", log_files(root)[-2].name} <= paths


def test_a_store_time_that_goes_back_is_named(root: Path) -> None:
    victim = records(root)[50]
    path, position = place(root, victim)
    overwrite(path, position + 56, struct.pack(">q", victim.store_timestamp + (1 << 40)))
    finding = the_finding(check(root), Kind.STORE_TIME)
    assert (finding.path, finding.position) == (path, position)


def test_a_queue_offset_out_of_order_is_named(root: Path) -> None:
    victim = records(root)[60]
    path, position = place(root, victim)
    overwrite(path, position + 20, struct.pack(">q", victim.queue_offset + 5))
    finding = the_finding(check(root), Kind.QUEUE_OFFSET)
    assert (finding.path, finding.position) == (path, position)


def test_a_checksum_of_the_whole_record_tells_what_nothing_else_does(tmp_path: Path) -> None:
    root, clock = tmp_path / "store", FakeClock()
    store = open_store(root, clock, append_record_crc=True, **SIZES)
    chance = seeded(9)
    for number in range(60):
        put_ok(store, message(number, chance))
    store.close()
    assert not len(assert_whole(root).findings)
    path, position = place(root, records(root)[30])
    overwrite(path, position + 16, b"flag")
    finding = the_finding(check(root), Kind.LOG_RECORD)
    assert (finding.path, finding.position) == (path, position)
    assert "checksum of the whole record" in finding.found


def entry_place(root: Path, one: Record) -> tuple[Path, int]:
    at = one.queue_offset * 20
    size = SIZES["queue_file_bytes"]
    directory = queue_path(root, one.topic, one.queue_id)
    return directory / f"{at - at % size:020d}", at % size


@pytest.mark.parametrize(
    ("at", "data", "kind"),
    [
        (5, b"\x55\x55", Kind.QUEUE_WRONG),
        (10, b"\x55", Kind.QUEUE_WRONG),
        (18, b"\x55", Kind.QUEUE_WRONG),
        (0, bytes(20), Kind.QUEUE_MISSING),
    ],
    ids=["physical offset", "size", "tag code", "all"],
)
def test_a_damaged_queue_entry_is_named(root: Path, at: int, data: bytes, kind: Kind) -> None:
    path, position = entry_place(root, records(root)[90])
    overwrite(path, position + at, data)
    report = check(root)
    finding = the_finding(report, kind)
    assert (finding.path, finding.position) == (path, position)
    assert report.findings.count(Severity.DAMAGE) == 1


def test_a_wrong_delivery_time_is_named(root: Path) -> None:
    late = next(one for one in records(root) if one.topic.startswith("SCHEDULE"))
    path, position = entry_place(root, late)
    overwrite(path, position + 12, struct.pack(">q", late.store_timestamp + 30_000))
    finding = the_finding(check(root), Kind.QUEUE_WRONG)
    assert (finding.path, finding.position) == (path, position)
    assert finding.expected.endswith(f"{late.store_timestamp + 10_000})")


def test_an_entry_too_many_is_named(root: Path) -> None:
    last = [one for one in records(root) if (one.topic, one.queue_id) == ("Alpha", 0)][-1]
    path, position = entry_place(root, last)
    overwrite(path, position + 20, struct.pack(">qiq", last.physical_offset, last.size, 7))
    finding = the_finding(check(root), Kind.QUEUE_EXTRA)
    assert (finding.path, finding.position) == (path, position + 20)


def test_missing_queue_files_are_named(root: Path) -> None:
    shutil.rmtree(queue_path(root, "Gamma", 1))
    middle = sorted(queue_path(root, "Alpha", 2).iterdir())[0]
    middle.unlink()
    report = check(root)
    paths = [one.path for one in findings(report) if one.kind is Kind.QUEUE_MISSING]
    assert queue_path(root, "Gamma", 1) in paths and middle.parent in paths


def test_a_queue_of_no_topic_is_named(root: Path) -> None:
    shutil.copytree(queue_path(root, "Alpha", 2), queue_path(root, "Alpha", 9))
    finding = the_finding(check(root), Kind.QUEUE_EXTRA)
    assert finding.path.parent == queue_path(root, "Alpha", 9) and finding.position == 0


def test_units_of_an_extension_are_looked_at(tmp_path: Path) -> None:
    root = tmp_path / "store"
    clock = FakeClock()
    store = open_store(root, clock, queue_extension=True, queue_extension_file_bytes=1000, **SIZES)
    fill(store, clock, seeded(8), 60)
    store.close()
    assert not len(assert_whole(root).findings)
    unit = sorted((root / "consumequeue_ext" / "Alpha" / "1").iterdir())[0]
    overwrite(unit, 5, b"\x55")
    assert the_finding(check(root), Kind.QUEUE_WRONG).path.parent == queue_path(root, "Alpha", 1)
    shutil.rmtree(root / "consumequeue_ext" / "Beta")
    assert the_finding(check(root), Kind.EXTENSION).path.parts[-3] == "Beta"


@pytest.mark.parametrize(
    ("at", "data", "kind"),
    [
        (0, b"\x15\x55", Kind.INDEX_EXTRA),
        (4, b"\x55", Kind.INDEX_EXTRA),
        (10, b"\x55\x55", Kind.INDEX_EXTRA),
        (14, b"\x55", Kind.INDEX_TIME),
        (19, b"\x55", Kind.INDEX_CHAIN),
    ],
    ids=["hash", "far offset", "offset", "time", "older"],
)
def test_a_damaged_index_entry_is_named(root: Path, at: int, data: bytes, kind: Kind) -> None:
    path = index_files(root)[2]
    position = ENTRIES_START + 20 * 77
    overwrite(path, position + at, data)
    finding = the_finding(check(root), kind)
    assert (finding.path, finding.position) == (path, position)


def test_a_damaged_slot_is_named(root: Path) -> None:
    path = index_files(root)[1]
    slots = struct.unpack_from(f">{SLOTS}i", path.read_bytes(), 40)
    slot = next(number for number, entry in enumerate(slots) if entry)
    overwrite(path, 40 + 4 * slot, bytes(4))
    finding = the_finding(check(root), Kind.INDEX_CHAIN)
    assert (finding.path, finding.position) == (path, 40 + 4 * slot)


def test_slots_that_are_newer_than_their_header_are_rebuilt_by_the_next_start(root: Path) -> None:
    """The header of a cut file was written, and its slots were not.

    A store in use looks the same if its slots are written after its header was read.
    """
    (root / "abort").touch()
    layout = read_layout(StoreConfig(root_path=root), ReadOnlyFiles(), Findings())
    first = layout.first_trusted(layout.checkpoint.index_trusted_ms)
    one = [one for one in layout.index_files if one.header.first_physical < first][-1]
    layout.close()
    data = one.path.read_bytes()
    items = np.frombuffer(data, ITEM, LIMIT, ENTRIES_START)
    count = int(np.searchsorted(items["physical_offset"][1 : one.header.next_number], first))
    assert 0 < count < one.header.next_number - 1
    kept = items[1 : count + 1]
    header = replace(
        one.header,
        last_physical=int(kept["physical_offset"][-1]),
        end_ms=one.header.begin_ms + 1000 * int(kept["seconds"][-1]),
        slots_used=len({int(key_hash) % SLOTS for key_hash in kept["key_hash"]}),
        next_number=count + 1,
    )
    overwrite(one.path, 0, header.pack())
    finding = the_finding(assert_whole(root), Kind.INDEX_CHAIN, Severity.REPAIR)
    assert finding.path == one.path
    store = open_store(root, FakeClock(), **SIZES)
    while store.keys.index_step():
        pass
    store.close()
    assert not len(check(root).findings)


@pytest.mark.parametrize("at", [0, 8, 16, 24, 32], ids=["begin", "end", "first", "last", "slots"])
def test_a_damaged_index_header_is_named(root: Path, at: int) -> None:
    path = index_files(root)[2]
    width = 4 if at == 32 else 8
    was = int.from_bytes(path.read_bytes()[at : at + width])
    overwrite(path, at, (was + 1111).to_bytes(width))
    assert the_finding(check(root), Kind.INDEX_FILE).path == path


def test_a_header_may_count_entries_for_slots(root: Path) -> None:
    """As official brokers of 4.5.1 do."""
    path = index_files(root)[2]
    header = path.read_bytes()[:40]
    entry_count = int.from_bytes(header[36:]) - 1
    assert int.from_bytes(header[32:36]) < entry_count
    overwrite(path, 32, entry_count.to_bytes(4))
    assert_whole(root)


def test_keys_that_are_not_indexed_are_named(root: Path) -> None:
    index_files(root)[1].unlink()
    assert check(root).findings.count(Severity.DAMAGE, Kind.INDEX_MISSING) == LIMIT - 1
    shutil.rmtree(root / "index")
    report = assert_whole(root)
    assert the_finding(report, Kind.INDEX_FILE, Severity.REPAIR).path == root / "index"


def test_keys_behind_the_last_indexed_one_are_added_by_the_next_start(root: Path) -> None:
    index_files(root)[-1].unlink()
    (root / "queues.json").unlink()
    report = assert_whole(root)
    assert the_finding(report, Kind.INDEX_MISSING, Severity.REPAIR)


def test_damaged_tables_are_named(root: Path) -> None:
    offsets = root / "config" / "consumerOffset.json"
    shutil.copy(offsets, offsets.with_name(offsets.name + ".bak"))
    offsets.write_text('{"offsetTable":{"Alpha@group":{0:')
    report = assert_whole(root)
    assert the_finding(report, Kind.TABLE, Severity.REPAIR).path == offsets
    (root / "config" / "topics.json").write_bytes(bytes(100))
    assert the_finding(check(root), Kind.TABLE).path == root / "config" / "topics.json"


@pytest.mark.parametrize("field", [0, 1, 2, 4])
def test_a_checkpoint_that_promises_too_much_is_named(root: Path, field: int) -> None:
    path = root / "checkpoint"
    overwrite(path, 8 * field, struct.pack(">q", 1 << 50))
    sealed = path.read_bytes()[:64]  # otherwise the number at 32 promises nothing at all
    overwrite(path, 64, struct.pack(">q", 1 << 32 | zlib.crc32(sealed)))
    finding = the_finding(check(root), Kind.CHECKPOINT)
    assert (finding.path, finding.position) == (root / "checkpoint", 8 * field)


def _flip(path: Path, position: int, bit: int) -> None:
    data = path.read_bytes()
    overwrite(path, position, bytes([data[position] ^ 1 << bit]))


def _flip_in_log(root: Path, chance: random.Random) -> str:
    """Flip a bit of a field that something else tells, too."""
    one = chance.choice(records(root)[:-1])
    path, position = place(root, one)
    at = chance.choice([*range(12), *range(20, 36), *range(84, one.size - 30)])
    _flip(path, position + at, bit := chance.randrange(8))
    return f"log {path.name} {position}+{at} bit {bit}"


def _flip_in_queue(root: Path, chance: random.Random) -> str:
    path, position = entry_place(root, chance.choice(records(root)))
    _flip(path, position + (at := chance.randrange(20)), bit := chance.randrange(8))
    return f"queue {path} {position}+{at} bit {bit}"


def _flip_in_index(root: Path, chance: random.Random) -> str:
    path = chance.choice(index_files(root))
    count = struct.unpack_from(">i", path.read_bytes(), 36)[0] - 1
    # The time of a file's first entry counts from the file before.
    entries = range(ENTRIES_START + 40, ENTRIES_START + 20 * count)
    at = chance.choice([*range(36), *range(40, ENTRIES_START), *entries])
    _flip(path, at, bit := chance.randrange(8))
    return f"index {path.name} {at} bit {bit}"


def _truncate(root: Path, chance: random.Random) -> str:
    every = [path for path in root.rglob("0*") if path.is_file()]
    path = chance.choice([*every, *index_files(root)])
    os.truncate(path, size := chance.randrange(1, path.stat().st_size))
    return f"truncate {path} to {size}"


@pytest.mark.parametrize("damage", [_flip_in_log, _flip_in_queue, _flip_in_index, _truncate])
@pytest.mark.parametrize("seed", range(12))
def test_any_damage_is_found(
    root: Path, damage: Callable[[Path, random.Random], str], seed: int
) -> None:
    what = damage(root, seeded(seed))
    report = check(root)
    assert len(report.findings), what


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue", "index"])
def test_what_the_disk_refuses_to_read_is_named_and_the_rest_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    victim = next(path for path in sorted((root / folder).rglob("*")) if path.is_file())
    pread = os.pread

    def refuse(fd: int, size: int, position: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}") == str(victim) and position <= 99 < position + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, position)

    monkeypatch.setattr(os, "pread", refuse)
    report = check(root)
    finding = the_finding(report, Kind.UNREADABLE)
    assert finding.path == victim and finding.position is not None
    assert finding.position <= 99 < finding.position + 4096
    assert report.counts["records"] > len(records(root)) - 80


def test_of_much_damage_only_the_first_is_kept(root: Path) -> None:
    for one in records(root):
        if one.queue_offset % 2:
            path, position = entry_place(root, one)
            overwrite(path, position + 12, b"\x55" * 8)
    report = check(root)
    ((_, kind, count, kept),) = list(report.findings.groups())
    assert kind is Kind.QUEUE_WRONG and len(kept) == 20 < count
