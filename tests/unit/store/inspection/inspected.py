"""Stores that are inspected, and what is found in them."""

import json
import random
from pathlib import Path

from tests.unit.store.stores import (
    FakeClock,
    batch,
    log_files,
    open_store,
    put_ok,
    record,
    seeded,
)

from pymq.protocol.hashes import java_hash
from pymq.protocol.record import NewRecord, Record, decode_record
from pymq.store import MessageStore, StoreConfig
from pymq.store.inspection import Finding, Kind, Report, Severity, check_store

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


def stopped_store(root: Path, seed: int, count: int = 300) -> Path:
    """Make a cleanly stopped store of everything; return ``root``."""
    clock = FakeClock()
    store = open_store(root, clock, **SIZES)
    fill(store, clock, seeded(seed), count)
    store.close()
    write_tables(root)
    return root


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
