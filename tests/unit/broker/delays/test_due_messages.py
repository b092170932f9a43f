"""Copies of due messages: what is stored of many together is what is stored of each."""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.delays.delays import LEVELS_MS, Delays
from tests.unit.store.stores import BORN, HOST, FakeClock, config, read_all

from pymq.broker.delays.due_messages import DueMessages
from pymq.broker.delays.parking import park_delayed
from pymq.protocol.copied_records import CopiedRecords
from pymq.protocol.message import parse_properties
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record import NewRecord, Record, pack_host
from pymq.store import PutStatus, QueueKey, ReadResult
from pymq.store.inspection import check_store

SETTINGS: dict[str, Any] = {"segment_bytes": 1 << 20, "queue_file_bytes": 2000}
TAGS = ("", "TAGS\x01a\x02", "TAGS\x01Grüße 😀\x02", "TAGS\x01a\x02TAGS\x01b\x02", "TAGS\x01\x02")
#: Properties behind the place, as brokers have them that do not keep the order.
LATER = ("", "KEYS\x01k\x02", "REAL_TOPIC\x01\x02", "REAL_QID\x01\x02", "REAL_TOPICS\x01x\x02")


def some_message(dice: random.Random) -> NewRecord:
    body = dice.randbytes(dice.choice((0, 1, 100, 1000)))
    text = dice.choice(TAGS) + "DELAY\x011\x02" + "k\x01TAGS\x02" * dice.randrange(2)
    topic = dice.choice(("A", "A", "B", "%RETRY%g"))
    sent = NewRecord(
        topic,
        dice.randrange(3),
        body,
        text.encode(),
        pack_host(f"10.0.0.{dice.randrange(3)}", 1),
        dice.randrange(1 << 40),
        dice.randrange(-5, 5),
        dice.choice((0, 1, 8, 0x201)),
        dice.randrange(3),
        prepared_transaction_offset=dice.choice((0, 77)),
    )
    parked = park_delayed(3, sent, parse_properties(text))
    parked.properties += dice.choice(LATER).encode()
    return parked


@dataclass
class Delivered:
    """What came of messages: by queue the records, without their places, and the tag codes.

    ``order`` is their order in the log, over all queues.
    """

    records: dict[QueueKey, list[Record]]
    codes: dict[QueueKey, list[int]]
    order: list[tuple[int, QueueKey, int]]


def delivered(root: Path, parked: list[NewRecord], *, joins: bool) -> Delivered:
    delays = Delays(root, FakeClock(), joins=joins, **SETTINGS)
    dice = random.Random(1)
    for number in range(0, len(parked), 7):
        delays.store.put(parked[number : number + 7], HOST)
        if dice.random() < 0.5:
            delays.store.put([NewRecord("Other", 0, b"between", b"", HOST, 0)], HOST)
    assert delays.deliver(1000) == len(parked)
    queues = [key for key in delays.store.queues() if key[0] != SCHEDULE_TOPIC]
    found = Delivered({}, {}, [])
    for key in queues:
        records = read_all(delays.store, *key)
        found.order += [(one.physical_offset, key, one.queue_offset) for one in records]
        found.records[key] = [replace(record, physical_offset=0) for record in records]
        codes, _ = delays.store.entries.tag_codes(*key, 0, len(records))
        found.codes[key] = codes.tolist()
    found.order.sort()
    delays.store.close()
    report = check_store(config(root, delay_levels_ms=LEVELS_MS, **SETTINGS))
    assert report.is_whole, list(report.findings.groups())
    return found


def test_what_is_copied_together_is_what_is_copied_one_by_one(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    for number in range(12):
        parked = [some_message(dice) for _ in range(dice.choice((1, 5, 300)))]
        together = delivered(tmp_path / f"{number}-together", parked, joins=True)
        assert together == delivered(tmp_path / f"{number}-each", parked, joins=False)


def park_all(root: Path, *parked: NewRecord) -> ReadResult:
    delays = Delays(root, FakeClock(), **SETTINGS)
    results = delays.store.put(parked, HOST)
    assert {result.status for result in results} == {PutStatus.OK}
    return delays.store.read(SCHEDULE_TOPIC, 0, 0, count_max=100, bytes_max=1 << 20)


def message(text: str = "", *, topic: str = "T", queue_id: int = 0, **changes: Any) -> NewRecord:
    sent = NewRecord(topic, queue_id, b"body", f"{text}DELAY\x011\x02".encode(), BORN, 1)
    return replace(park_delayed(3, sent, parse_properties(text + "DELAY\x011")), **changes)


def test_usual_messages_are_copied_together(tmp_path: Path) -> None:
    result = park_all(
        tmp_path,
        *(message(), message(queue_id=3), message("TAGS\x01t\x02"), message(topic="U")),
        message(),
    )
    due = DueMessages(config(tmp_path, **SETTINGS), HOST).of(result, 1, one_by_one=False)
    assert [one.offsets for one in due] == [[0, 1, 2], [3], [4]]  # in the order of the level
    first, second, _ = (one.copy for one in due)
    assert isinstance(first, CopiedRecords) and isinstance(second, CopiedRecords)
    assert (first.topic, first.queue_ids.tolist()) == ("T", [0, 3, 0])
    assert first.tag_codes.tolist() == [0, 0, 116]
    assert (second.topic, second.queue_ids.tolist()) == ("U", [0])


@pytest.mark.parametrize(
    "special",
    [
        message(born_host=pack_host("::1", 1)),
        message(properties=b"__CRC32#\x011234567890\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"),
        message(topic="X" * 128),
        message(queue_id=1 << 16),
        message(properties=b"DELAY\x011\x02REAL_TOPIC\x01a.b\x02REAL_QID\x010\x02"),
        message(properties=b"DELAY\x011\x02REAL_TOPIC\x01T\x02"),
    ],
    ids=["ipv6", "checksum", "long topic", "high queue", "illegal topic", "no queue"],
)
def test_a_special_message_has_all_looked_at_one_by_one(tmp_path: Path, special: NewRecord) -> None:
    result = park_all(tmp_path, message(), special)
    due = DueMessages(config(tmp_path, **SETTINGS), HOST).of(result, 1, one_by_one=False)
    assert [one.offsets for one in due] == [[0], [1]]
    assert not any(isinstance(one.copy, CopiedRecords) for one in due)


@pytest.mark.parametrize(
    ("settings", "host", "one_by_one"),
    [
        ({"append_record_crc": True}, HOST, False),
        ({"segment_bytes": 1000}, HOST, False),
        ({}, pack_host("::1", 1), False),
        ({}, HOST, True),
    ],
)
def test_stores_where_messages_are_copied_one_by_one(
    tmp_path: Path, settings: dict[str, Any], host: bytes, one_by_one: bool
) -> None:
    result = park_all(tmp_path, message())
    made = DueMessages(config(tmp_path, **(SETTINGS | settings)), host)
    (due,) = made.of(result, 1, one_by_one=one_by_one)
    assert isinstance(due.copy, NewRecord)
