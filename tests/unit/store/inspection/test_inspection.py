"""``store.inspection``: whole stores are found whole, and every kind of damage is named."""

import errno
import json
import os
import random
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.store.stores import (
    FakeClock,
    batch,
    crashed_copy,
    log_files,
    open_store,
    overwrite,
    put_ok,
    queue_path,
    record,
    seeded,
)

from pymq.errors import StoreError
from pymq.protocol.hashes import java_hash
from pymq.protocol.record import NewRecord, Record, decode_record
from pymq.store import MessageStore, StoreConfig
from pymq.store.files import ReadOnlyFiles
from pymq.store.index.index_format import ITEM
from pymq.store.inspection import Finding, Kind, Report, Severity, check_store, summarize
from pymq.store.inspection.findings import Findings
from pymq.store.inspection.layout import read_layout

SLOTS, LIMIT = 60, 150
SIZES = {"segment_bytes": 1 << 13, "queue_file_bytes": 400}
SIZES |= {"index_slot_count": SLOTS, "index_item_limit": LIMIT}
ENTRIES_START = 40 + 4 * SLOTS
TOPICS = ("Alpha", "Beta", "Gamma")


def message(number: int, chance: random.Random, topic: str | None = None) -> NewRecord:
    tag = chance.choice(("red", "green", "blue"))
    new = record(
        chance.randbytes(chance.randrange(1, 120)),
        topic=topic or chance.choice(TOPICS),
        queue_id=chance.randrange(3),
    )
    new.properties = f"KEYS\x01k{number} x{number % 5}\x02UNIQ_KEY\x01u{number}\x02TAGS\x01{tag}"
    new.properties = new.properties.encode()
    new.tag_code = java_hash(tag)
    return new


def fill(store: MessageStore, clock: FakeClock, chance: random.Random, count: int = 300) -> None:
    for number in range(count):
        clock.now_ms += chance.randrange(2000)
        if number % 25 == 7:
            late = record(b"late", topic="SCHEDULE_TOPIC_XXXX", queue_id=2)
            late.properties = b"DELAY\x013\x02REAL_TOPIC\x01Alpha"
            put_ok(store, late, batch([b"one", b"two", b"three"], topic="Beta", queue_id=1))
        put_ok(store, message(number, chance))
    while store.keys.index_step():
        pass


def write_tables(root: Path) -> None:
    config = root / "config"
    config.mkdir()
    topics = {topic: {"topicName": topic} for topic in (*TOPICS, "SCHEDULE_TOPIC_XXXX")}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (config / "consumerOffset.json").write_text('{"offsetTable":{"Alpha@group":{0:3,1:2}}}')
    (config / "delayOffset.json").write_text('{"offsetTable":{3:1}}')


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cleanly stopped store of everything; copy it before you break it."""
    root = tmp_path_factory.mktemp("whole") / "store"
    clock = FakeClock()
    store = open_store(root, clock, **SIZES)
    fill(store, clock, seeded(5))
    store.close()
    write_tables(root)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def check(root: Path) -> Report:
    """Check a store without telling the sizes of its files."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    report = check_store(StoreConfig(root_path=root))
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    return report


def findings(report: Report, severity: Severity = Severity.DAMAGE) -> list[Finding]:
    groups = report.findings.groups()
    return [one for this, _, _, kept in groups for one in kept if this is severity]


def the_finding(report: Report, kind: Kind, severity: Severity = Severity.DAMAGE) -> Finding:
    """Return the first finding of a kind; there must be one."""
    found = [one for one in findings(report, severity) if one.kind is kind]
    assert found, list(report.findings.groups())
    return found[0]


def assert_whole(root: Path) -> Report:
    report = check(root)
    assert report.is_whole, list(report.findings.groups())
    return report


def records(root: Path) -> list[Record]:
    """Return all records of an undamaged log."""
    found: list[Record] = []
    for path in log_files(root):
        data, at = path.read_bytes(), 0
        while data[at : at + 4] != bytes(4) and data[at + 4 : at + 8] != b"\xcb\xd4\x31\x94":
            found.append(decode_record(data, at))
            at += found[-1].size
    return found


def place(root: Path, one: Record) -> tuple[Path, int]:
    """Return (file, position) of a record."""
    size = SIZES["segment_bytes"]
    first = one.physical_offset - one.physical_offset % size
    return root / "commitlog" / f"{first:020d}", one.physical_offset % size


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


# ---------------------------------------------------------------------------- whole stores


def test_a_cleanly_stopped_store_is_whole(root: Path) -> None:
    report = assert_whole(root)
    assert not len(report.findings) and report.clean_stop and not report.in_use
    stored = records(root)
    assert report.counts["records"] == report.counts["queueEntries"] == len(stored)
    assert report.log_end == stored[-1].physical_offset + stored[-1].size
    assert (report.first_ms, report.last_ms) == (
        stored[0].store_timestamp,
        stored[-1].store_timestamp,
    )
    assert len(index_files(root)) > 4 and len(log_files(root)) > 4
    assert report.counts["indexEntries"] == 900


def test_an_empty_store_is_whole(tmp_path: Path) -> None:
    open_store(tmp_path / "store").close()
    (tmp_path / "store" / "commitlog").mkdir(exist_ok=True)
    report = assert_whole(tmp_path / "store")
    assert not len(report.findings) and report.first_ms is None


def test_a_killed_store_has_no_damage(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path / "store", clock, **SIZES)
    fill(store, clock, seeded(6))
    store.durability.flush()
    put_ok(store, record(b"not indexed"))
    copy = crashed_copy(tmp_path / "store", tmp_path / "copy")
    report = assert_whole(copy)
    assert not report.clean_stop
    assert the_finding(report, Kind.MARKER, Severity.REPAIR)
    assert assert_whole(tmp_path / "store").in_use
    open_store(copy, clock, **SIZES).close()
    assert not len(assert_whole(copy).findings)
    store.close()


def test_a_store_in_use_is_told_from_one_that_is_not(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", **SIZES)
    put_ok(store, record())
    assert check(tmp_path / "store").in_use and summarize(
        StoreConfig(root_path=tmp_path / "store")
    ).in_use
    with pytest.raises(StoreError, match="another broker"):
        open_store(tmp_path / "store", **SIZES)
    store.close()
    assert not check(tmp_path / "store").in_use


def test_a_store_without_write_permission_is_read(root: Path) -> None:
    for path in [*root.rglob("*"), root]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert_whole(root)
        assert summarize(StoreConfig(root_path=root)).message_count == len(records(root))
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)


def test_no_lock_file_is_made(root: Path) -> None:
    (root / "lock").unlink()
    assert_whole(root)
    assert not (root / "lock").exists()


def test_expired_segments_and_a_topic_that_came_back_are_no_damage(tmp_path: Path) -> None:
    clock, chance, root = FakeClock(), seeded(7), tmp_path / "store"
    store = open_store(root, clock, **SIZES)
    fill(store, clock, chance)
    store.retention.delete_queues("Beta")
    fill(store, clock, chance)
    store.retention.delete_queues("Gamma")
    store.close()
    report = assert_whole(root)
    assert the_finding(report, Kind.DELETED, Severity.NOTE)
    for path in log_files(root)[:4]:
        path.unlink()
    open_store(root, clock, **SIZES).close()
    assert_whole(root)
    # RocketMQ notes nowhere which topics were deleted: only its table of topics tells.
    (root / "queues.json").unlink()
    write_tables(root)
    topics = json.loads((root / "config" / "topics.json").read_text())
    del topics["topicConfigTable"]["Gamma"]
    (root / "config" / "topics.json").write_text(json.dumps(topics))
    assert_whole(root)
    topics["topicConfigTable"]["Gamma"] = {}
    (root / "config" / "topics.json").write_text(json.dumps(topics))
    assert the_finding(check(root), Kind.QUEUE_MISSING).path.parent.name == "Gamma"


def test_where_there_is_no_store_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store is there"):
        check_store(StoreConfig(root_path=tmp_path))


# ---------------------------------------------------------------------------- damaged logs


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


# -------------------------------------------------------------------------- damaged queues


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
    store = open_store(
        root, clock, queue_extension=True, queue_extension_file_bytes=1000, **SIZES
    )
    fill(store, clock, seeded(8), 60)
    store.close()
    assert not len(assert_whole(root).findings)
    unit = sorted((root / "consumequeue_ext" / "Alpha" / "1").iterdir())[0]
    overwrite(unit, 5, b"\x55")
    assert the_finding(check(root), Kind.QUEUE_WRONG).path.parent == queue_path(root, "Alpha", 1)
    shutil.rmtree(root / "consumequeue_ext" / "Beta")
    assert the_finding(check(root), Kind.EXTENSION).path.parts[-3] == "Beta"


# --------------------------------------------------------------------------- damaged index


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


# ------------------------------------------------------------------------------ small files


def test_damaged_tables_are_named(root: Path) -> None:
    offsets = root / "config" / "consumerOffset.json"
    shutil.copy(offsets, offsets.with_name(offsets.name + ".bak"))
    offsets.write_text('{"offsetTable":{"Alpha@group":{0:')
    report = assert_whole(root)
    assert the_finding(report, Kind.TABLE, Severity.REPAIR).path == offsets
    (root / "config" / "topics.json").write_bytes(bytes(100))
    assert the_finding(check(root), Kind.TABLE).path == root / "config" / "topics.json"


def test_consumer_offsets_behind_the_end_are_named(root: Path) -> None:
    (root / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"Alpha@group":{0:3,1:2000},"Nowhere@group":{0:5}}}'
    )
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{3:500}}')
    report = check(root)
    assert report.findings.count(Severity.DAMAGE, Kind.CONSUMER_OFFSET) == 2
    assert "2000 of group in Alpha/1" in the_finding(report, Kind.CONSUMER_OFFSET).found


@pytest.mark.parametrize("field", [0, 1, 2, 4])
def test_a_checkpoint_that_promises_too_much_is_named(root: Path, field: int) -> None:
    overwrite(root / "checkpoint", 8 * field, struct.pack(">q", 1 << 50))
    finding = the_finding(check(root), Kind.CHECKPOINT)
    assert (finding.path, finding.position) == (root / "checkpoint", 8 * field)


# ---------------------------------------------------------------------------------- chance


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


# --------------------------------------------------------------------------------- summary


def test_a_summary_says_what_is_there(root: Path) -> None:
    found = summarize(StoreConfig(root_path=root))
    stored = records(root)
    assert found.clean_stop and not found.in_use
    assert found.message_count == len(stored) and found.segment_count == len(log_files(root))
    assert (found.log_first, found.log_end) == (
        0,
        stored[-1].physical_offset + stored[-1].size,
    )
    assert found.last_ms == stored[-1].store_timestamp
    for queue in found.queues:
        own = [r for r in stored if (r.topic, r.queue_id) == (queue.topic, queue.queue_id)]
        assert (queue.queue_first, queue.queue_end) == (0, len(own))
        assert (queue.first_ms, queue.last_ms) == (
            own[0].store_timestamp,
            own[-1].store_timestamp,
        )
    assert sum(one.entry_count for one in found.index_files) == 900
    (group,) = found.groups
    ends = {q.queue_id: q.queue_end for q in found.queues if q.topic == "Alpha"}
    assert group.behind == ends[0] - 3 + ends[1] - 2
    assert found.tables == ["consumerOffset.json", "delayOffset.json", "topics.json"]


def test_a_summary_of_expired_messages_begins_with_the_first_kept(root: Path) -> None:
    for path in log_files(root)[:4]:
        path.unlink()
    found = summarize(StoreConfig(root_path=root))
    stored = records(root)
    assert found.log_first == int(log_files(root)[0].name)
    assert found.message_count == len(stored)
    assert all(one.queue_first > 0 for one in found.queues if one.topic in TOPICS)


def test_a_log_over_several_directories_is_one_log(tmp_path: Path) -> None:
    root, clock = tmp_path / "store", FakeClock()
    paths = {"commit_log_paths": (tmp_path / "one", tmp_path / "two")}
    store = open_store(root, clock, **paths, **SIZES)
    fill(store, clock, seeded(17), 250)
    store.close()
    assert all(len(list(path.iterdir())) > 1 for path in paths["commit_log_paths"])
    config = StoreConfig(root_path=root, **paths)
    assert not len(check_store(config).findings)
    victim = sorted((tmp_path / "two").iterdir())[0]
    victim.rename(tmp_path / "gone")
    finding = the_finding(check_store(config), Kind.LOG_FILE)
    assert finding.path.name == victim.name
    (tmp_path / "gone").rename(victim)
    shutil.copy(victim, tmp_path / "one")
    finding = the_finding(check_store(config), Kind.LOG_FILE)
    assert finding.path == victim and "second file" in finding.found
