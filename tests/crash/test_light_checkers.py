"""The checkers of light queues find what they are for, and nothing in what is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from tests.crash.checkers import IndexEntry
from tests.crash.delay_checkers import Kill
from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, Noted, body_of, make_key
from tests.crash.light_checkers import check_light
from tests.unit.store.stores import BORN, HOST

from pymq.protocol.message import encode_properties
from pymq.protocol.multi_dispatch import DISPATCH, OFFSETS
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record import Record

A, B = "%LMQ%a", "%LMQ%b"
KEYS = [make_key(1, number, 5) for number in range(4)]


def record(
    number: int,
    topic: str,
    offset: int,
    physical: int,
    time_ms: int = 50,
    *,
    names: str = "",
    offsets: str = "",
    real: str = "",
) -> Record:
    values = {DISPATCH: names, OFFSETS: offsets, "REAL_TOPIC": real}
    properties = encode_properties({name: value for name, value in values.items() if value})
    return Record(
        topic, 0, offset, physical, body_of(KEYS[number]), properties, 0, 0, 0, BORN, time_ms, HOST,
        0, 0, 0, 7,
    )  # fmt: skip


def entry(offset: int, physical: int) -> IndexEntry:
    return IndexEntry(0, offset, physical, 7, 0)


#: The first message is in both light queues, the second one in A, which it names twice, and
#: delayed. The third one is in none. Whether the fourth one was stored is unknown; it was.
FIRST = record(0, "T", 0, 10, names=f"{A},{B}", offsets="0,0")
PARKED = record(1, SCHEDULE_TOPIC, 0, 20, names=f"{A},{A}", real="T")
THIRD = record(2, "U", 0, 30)
FOURTH = record(3, "U", 1, 40, names=A, offsets="1")
COPY = record(1, "T", 1, 50, 150, names=f"{A},{A}", offsets="2,2")
RECORDS = [FIRST, PARKED, THIRD, FOURTH, COPY]
ENTRIES = {A: [entry(0, 10), entry(1, 40), entry(2, 50)], B: [entry(0, 10)]}
KILLS = [Kill(140, 145, {1: 0})]
EVENTS: list[Event] = [
    Noted("1.0.T.n", (f"{A},{B}",)),
    Attempted("1.0.T.n", (KEYS[0],)),
    Noted("reader0.r", (A, "0", KEYS[0], "0")),
    Acknowledged("1.0.T.n", 0, 0, (10,)),
    Noted("1.1.T.d1", (f"{A},{A}",)),
    Attempted("1.1.T.d1", (KEYS[1],)),
    Acknowledged("1.1.T.d1", 0, 0, (20,)),
    Attempted("1.2.U.n", (KEYS[2],)),
    Acknowledged("1.2.U.n", 0, 0, (30,)),
    Noted("1.3.U.n", (A,)),
    Attempted("1.3.U.n", (KEYS[3],)),
    Failed("1.3.U.n", False, "the connection was lost"),
    Noted("last.r", (A, "0", KEYS[0], "0")),
    Noted("last.r", (A, "1", KEYS[3], "1")),
    Noted("last.r", (A, "2", KEYS[1], "2")),
    Noted("last.r", (B, "0", KEYS[0], "0")),
]


def check(
    records: Sequence[Record] = RECORDS,
    entries: Mapping[str, Sequence[IndexEntry]] = ENTRIES,
    events: Sequence[Event] = EVENTS,
) -> list[str]:
    return check_light(events, records, entries, KILLS, topics=["T", "U"], levels_ms=(100,))


def instead(old: Record, *new: Record) -> list[Record]:
    at = RECORDS.index(old)
    return [*RECORDS[:at], *new, *RECORDS[at + 1 :]]


def test_a_right_history_passes() -> None:
    assert check() == []


def test_a_repeated_delivery_is_listed_again() -> None:
    """A kill came before the first one was saved."""
    again = record(1, "T", 2, 60, 160, names=f"{A},{A}", offsets="3,3")
    entries = {**ENTRIES, A: [*ENTRIES[A], entry(3, 60)]}
    events = [*EVENTS, Noted("last.r", (A, "3", KEYS[1], "3"))]
    early = record(1, "T", 1, 50, 130, names=f"{A},{A}", offsets="2,2")
    early_parked = replace(PARKED, store_timestamp=20)
    records = [FIRST, early_parked, THIRD, FOURTH, early, again]
    assert check(records, entries, events) == []
    assert any("TWICE" in one for one in check([*RECORDS, again], entries, events))


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({A: ENTRIES[A], B: []}, f"LOST: 1-0-5, acknowledged: its records are in {B} [0] times"),
        ({A: ENTRIES[A]}, f"QUEUE: {B} has 0 entries"),
        ({A: [entry(0, 10), entry(1, 40), entry(2, 50), entry(3, 50)]}, "in %LMQ%a [2] times"),
        ({A: [entry(0, 10), entry(1, 50), entry(2, 40)]}, "from 1 on"),
        ({A: [entry(0, 10), entry(2, 40), entry(3, 50)]}, "from 1 on"),
        ({A: [entry(0, 10), entry(1, 40), replace(entry(2, 50), size=8)]}, "from 2 on"),
        ({A: ENTRIES[A], B: [entry(0, 10), entry(1, 20)]}, f"QUEUE: {B} has 2 entries, expected 1"),
        ({**ENTRIES, "%LMQ%c": [entry(0, 30)]}, "QUEUE: %LMQ%c has 1 entries, expected 0"),
    ],
)
def test_wrong_queues_are_found(entries: dict[str, list[IndexEntry]], text: str) -> None:
    complaints = check(entries=entries)
    assert any(text in complaint for complaint in complaints), complaints


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (RECORDS[1:], "LOST: Attempted"),
        (RECORDS[:-1], "never delivered"),
        (instead(FIRST, record(0, "T", 0, 10, names=A, offsets="0")), "its record names"),
        (instead(THIRD, record(2, "U", 0, 30, names=B, offsets="1")), "its record names"),
        (instead(FOURTH, record(3, "U", 1, 40, names=A, offsets="2")), "TOLD"),
        (instead(FOURTH, record(3, "U", 1, 40, names=A)), "says that it is at None"),
        (instead(FOURTH, record(3, "U", 2, 40, names=A, offsets="1")), "offset 2, expected 1"),
        (instead(COPY, replace(COPY, store_timestamp=149)), "EARLY"),
    ],
)
def test_wrong_records_are_found(records: list[Record], text: str) -> None:
    complaints = check(records)
    assert any(text in complaint for complaint in complaints), complaints


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (2, Noted("reader0.r", (A, "0", KEYS[3], "0")), "it is elsewhere"),
        (2, Noted("reader0.r", (A, "3", KEYS[1], "3")), "it is elsewhere"),
        (2, Noted("reader0.r", (A, "0", KEYS[0], "1")), "says at 1"),
        (2, Noted("reader0.r", (A, "0", "refused", "21")), "was refused with 21"),
        (-1, Noted("reader1.r", (B, "0", KEYS[0], "0")), "in the end 0 of 1 messages in %LMQ%b"),
    ],
)
def test_what_was_read_elsewhere_is_found(old: int, new: Event, text: str) -> None:
    events = list(EVENTS)
    events[old] = new
    complaints = check(events=events)
    assert any(text in complaint for complaint in complaints), complaints
