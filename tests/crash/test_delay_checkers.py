"""The checkers of delayed messages find what they are for, and nothing in what is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.crash.delay_checkers import Kill, check_delays
from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, body_of, make_key
from tests.unit.store.stores import BORN, HOST

from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record import Record

LEVELS_MS = (100, 200)
KEYS = [make_key(1, number, 5) for number in range(8)]
RETRY, DEAD = "%RETRY%g", "%DLQ%g"


def record(
    topic: str, key: str, physical: int, time_ms: int, *, real: str = "", place: tuple[int, int]
) -> Record:
    properties = f"REAL_TOPIC\x01{real}\x02".encode() if real else b""
    queue_id, offset = place
    return Record(
        topic, queue_id, offset, physical, body_of(key), properties, 0, 0, 0, BORN, time_ms, HOST,
        0, 0, 0, 0,
    )  # fmt: skip


EVENTS: list[Event] = [
    Attempted("1.0.d1", (KEYS[0],)),
    Acknowledged("1.0.d1", 3, 0, (10,)),
    Attempted("1.1.d2", (KEYS[1],)),
    Failed("1.1.d2", False, "the connection was lost"),
    Attempted("1.2.n", (KEYS[2],)),
    Acknowledged("1.2.n", 0, 0, (30,)),
    Attempted("1.3.b1", (KEYS[2],)),
    Acknowledged("1.3.b1", 0, 0, (0,)),
    Attempted("1.4.n", (KEYS[3],)),
    Acknowledged("1.4.n", 0, 1, (50,)),
    Attempted("1.5.b-1", (KEYS[3],)),
    Acknowledged("1.5.b-1", 0, 0, (0,)),
    Attempted("1.6.d1", (KEYS[4],)),
    Failed("1.6.d1", True, "the disk is full"),
]
PARKED = record(SCHEDULE_TOPIC, KEYS[0], 10, 1000, real="T", place=(0, 0))
COPY = record("T", KEYS[0], 60, 1100, place=(3, 0))
PARKED_RETRY = record(SCHEDULE_TOPIC, KEYS[2], 40, 1010, real=RETRY, place=(0, 1))
RETRIED = record(RETRY, KEYS[2], 70, 1120, place=(0, 0))
NORMAL = record("T", KEYS[2], 30, 1005, place=(0, 0))
GIVEN_UP = record("T", KEYS[3], 50, 1020, place=(0, 1))
DEAD_LETTER = record(DEAD, KEYS[3], 55, 1025, place=(0, 0))
RECORDS = [PARKED, NORMAL, PARKED_RETRY, GIVEN_UP, DEAD_LETTER, COPY, RETRIED]
KILLS = [Kill(1200, 1210, {1: 1})]


def complaints(records: list[Record], kills: list[Kill] | None = None) -> list[str]:
    return check_delays(
        EVENTS, records, kills or KILLS, topic="T", group="g", levels_ms=LEVELS_MS
    )


def without(gone: Record) -> list[Record]:
    return [one for one in RECORDS if one is not gone]


def test_a_right_history_passes() -> None:
    assert complaints(RECORDS) == []
    again = replace(RETRIED, physical_offset=90, store_timestamp=1300)
    assert complaints([*RECORDS, again]) == [], "a kill came, and it was not saved"


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        (without(PARKED), "LOST: Attempted(request='1.0.d1'"),
        (without(COPY), "waits, but was never delivered"),
        (without(RETRIED), "waits, but was never delivered"),
        (without(NORMAL), "LOST: Attempted(request='1.2.n'"),
        (without(PARKED_RETRY), "LOST: Attempted(request='1.3.b1'"),
        (without(DEAD_LETTER), "LOST: Attempted(request='1.5.b-1'"),
        ([*without(PARKED), replace(PARKED, queue_offset=9)], "1.0.d1"),
        ([*without(PARKED), replace(PARKED, queue_id=1)], "waits in queue 1"),
        ([*RECORDS, replace(PARKED, queue_offset=2)], "there 2 times before any delay"),
        ([*without(COPY), replace(COPY, store_timestamp=1099)], "EARLY: ('T', '1-0-5') by 1 ms"),
        ([*RECORDS, replace(COPY, store_timestamp=1300)], "TWICE: ('T', '1-0-5'), level 1"),
        ([*RECORDS, replace(RETRIED, store_timestamp=1150)], "TWICE: ('%RETRY%g', '1-2-5')"),
        ([*RECORDS, replace(NORMAL, physical_offset=99)], "1.2.n"),
        ([*RECORDS, replace(DEAD_LETTER, physical_offset=99)], "1.5.b-1"),
        ([*without(COPY), replace(COPY, physical_offset=80)], "was delivered before 0"),
        ([*RECORDS, replace(COPY, body=b"1-0-5|xxxxx")], "damaged body"),
        ([*RECORDS, record("T", KEYS[7], 99, 1, place=(0, 9))], "where nobody sent it"),
        ([*RECORDS, record("T", KEYS[4], 99, 1, place=(0, 9))], "although it was refused"),
    ],
)
def test_what_is_wrong_is_found(records: list[Record], complaint: str) -> None:
    assert complaint in "\n".join(complaints(records))
