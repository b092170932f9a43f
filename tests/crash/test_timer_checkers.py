"""The checkers of timer messages find what they are for, and nothing in what is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, Noted, body_of, make_key
from tests.crash.timer_checkers import TimerKill, check_timers
from tests.unit.store.stores import BORN, HOST

from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.record import Record

KEYS = [make_key(1, number, 5) for number in range(6)]


def record(topic: str, key: str, physical: int, time_ms: int, more: str = "") -> Record:
    properties = f"TIMER_DELIVER_MS\x0110500\x02TIMER_OUT_MS\x0110000\x02{more}".encode()
    return Record(
        topic, 0, 0, physical, body_of(key), properties, 0, 0, 0, BORN, time_ms, HOST, 0, 0, 0, 0
    )


EVENTS: list[Event] = [
    Attempted("1.0.t", (KEYS[0],)),
    Acknowledged("1.0.t", 0, 0, (10,)),
    Attempted("1.1.t", (KEYS[1],)),
    Acknowledged("1.1.t", 0, 1, (20,)),
    Attempted("1.2.r", (KEYS[1],)),
    Noted("1.2.r", ("10999",)),
    Acknowledged("1.2.r", 0, 1, (20,)),
    Attempted("1.3.t", (KEYS[2],)),
    Failed("1.3.t", False, "the connection was lost"),
    Attempted("1.4.t", (KEYS[3],)),
    Acknowledged("1.4.t", 0, 3, (40,)),
    Attempted("1.5.r", (KEYS[3],)),
    Failed("1.5.r", False, "the connection was lost"),
    Attempted("1.6.t", (KEYS[4],)),
    Failed("1.6.t", False, "the connection was lost"),
]
PARKED = record(TIMER_TOPIC, KEYS[0], 10, 1000)
ROUND = record(TIMER_TOPIC, KEYS[0], 50, 4000, "TIMER_ROLL_TIMES\x011\x02")
COPY = record("T", KEYS[0], 60, 11_000)
RECALLED = record(TIMER_TOPIC, KEYS[1], 20, 1010)
UNKNOWN = record(TIMER_TOPIC, KEYS[2], 30, 1020)
UNKNOWN_COPY = record("T", KEYS[2], 70, 11_010)
MAYBE_RECALLED = record(TIMER_TOPIC, KEYS[3], 40, 1030)
RECORDS = [PARKED, RECALLED, UNKNOWN, MAYBE_RECALLED, ROUND, COPY, UNKNOWN_COPY]
KILLS = [TimerKill(11_020, 11_030, 10_000)]


def without(gone: Record) -> list[Record]:
    return [one for one in RECORDS if one is not gone]


def test_a_right_history_passes() -> None:
    assert check_timers(EVENTS, RECORDS, KILLS) == []
    again = replace(COPY, physical_offset=90, store_timestamp=12_000)
    assert check_timers(EVENTS, [*RECORDS, again], KILLS) == [], "a kill came before it was saved"


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        (without(PARKED), "LOST: Attempted(request='1.0.t'"),
        (without(RECALLED), "LOST: Attempted(request='1.1.t'"),
        (without(COPY), "Attempted(request='1.0.t', keys=('1-0-5',)) waits, but was never"),
        (without(UNKNOWN_COPY), "waits, but was never delivered"),
        ([*RECORDS, replace(PARKED, physical_offset=80)], "there 2 times before any round"),
        ([*without(COPY), replace(COPY, store_timestamp=10_499)], "EARLY: 1-0-5 by 1 ms"),
        ([*RECORDS, record("T", KEYS[1], 80, 11_000)], "RECALLED: Attempted(request='1.1.t'"),
        ([*RECORDS, replace(COPY, store_timestamp=11_010)], "TWICE: 1-0-5"),
        ([*RECORDS, record("T", KEYS[5], 99, 11_000)], "1-5-5 is there, and nobody sent it"),
        ([*RECORDS, replace(COPY, body=b"1-0-5|xxxxx")], "damaged body"),
    ],
)
def test_what_is_wrong_is_found(records: list[Record], complaint: str) -> None:
    assert complaint in "\n".join(check_timers(EVENTS, records, KILLS))


def test_a_delivery_that_was_saved_is_not_repeated_by_a_kill() -> None:
    again = replace(COPY, physical_offset=90, store_timestamp=12_000)
    saved = [TimerKill(11_020, 11_030, 11_000)]
    assert "TWICE: 1-0-5" in "\n".join(check_timers(EVENTS, [*RECORDS, again], saved))


def test_a_recall_that_is_answered_when_the_slot_is_over_comes_too_late() -> None:
    late = [Noted("1.2.r", ("11000",)) if isinstance(one, Noted) else one for one in EVENTS]
    delivered = [*RECORDS, record("T", KEYS[1], 80, 11_000)]
    assert check_timers(late, delivered, KILLS) == []
    assert "RECALLED" in "\n".join(check_timers(EVENTS, delivered, KILLS))
