"""The checkers of popped messages find what they are for, and nothing in what is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, Noted, body_of, make_key
from tests.crash.pop_checkers import REVIVE_TOPIC, check_pops
from tests.unit.store.stores import BORN, HOST

from pymq.protocol.record import Record

KEYS = [make_key(1, number, 5) for number in range(3)]
RETRY = "%RETRY%g_T"


def message(key: str, topic: str, offset: int, physical: int, time_ms: int) -> Record:
    attempts = int(topic == RETRY)
    return Record(
        topic, 0, offset, physical, body_of(key), b"", 0, 0, 0, BORN, time_ms, HOST, attempts,
        0, 0, 0,
    )  # fmt: skip


def said(tag: str, start: int, time_ms: int, what: str, physical: int, topic: str = "T") -> Record:
    body = f'{{"t":"{topic}","c":"g","q":0,"so":{start},"pt":{time_ms},"bn":"broker-a",{what}}}'
    return Record(
        REVIVE_TOPIC, 0, 0, physical, body.encode(), f"TAGS\x01{tag}\x02".encode(), 0, 0, 0, BORN,
        0, HOST, 0, 0, 0, 0,
    )  # fmt: skip


def handle(start: int, time_ms: int, offset: int, kind: int = 0) -> str:
    return f"g:{start}:{time_ms}:1000:0:{kind}:broker-a:0:{offset}"


#: Three messages are popped at 100. The first is acknowledged, the second comes back at 1100, the
#: third is to come again at 500 and is acknowledged then.
SENT = [message(key, "T", number, 10 + number, 50) for number, key in enumerate(KEYS)]
POPPED = said("ck", 0, 100, '"d":[0,1,2],"n":3,"it":1000,"bm":0', 20)
ACKED = said("ack", 0, 100, '"ao":0', 21)
CHANGED = said("ck", 2, 200, '"d":[0],"n":1,"it":300,"bm":0', 22)
CHANGED_END = said("ack", 0, 100, '"ao":2', 23)
ACKED_AGAIN = said("bAck", 2, 200, '"ao":-1,"aol":[2]', 24)
COPY = message(KEYS[1], RETRY, 0, 25, 1100)
COPY_END = said("ack", 0, 100, '"ao":1', 26)
POPPED_COPY = said("ck", 0, 1200, '"d":[0],"n":1,"it":1000,"bm":0', 27, RETRY)
ACKED_COPY = said("ack", 0, 1200, '"ao":0', 28, RETRY)
RECORDS = [
    *(*SENT, POPPED, ACKED, CHANGED, CHANGED_END, ACKED_AGAIN, COPY, COPY_END),
    *(POPPED_COPY, ACKED_COPY),
]
EVENTS: list[Event] = [
    *(Attempted(f"{number}.s", (key,)) for number, key in enumerate(KEYS)),
    *(Acknowledged(f"{number}.s", 0, number, (10 + number,)) for number in range(3)),
    Attempted("3.p", ("g",)),
    *(Noted("3.p", (handle(0, 100, n), "T", "0", key, "110")) for n, key in enumerate(KEYS)),
    Attempted("4.a", (handle(0, 100, 0),)),
    Noted("4.a", ("120",)),
    Attempted("5.c", (handle(0, 100, 2),)),
    Noted("5.c", (handle(2, 200, 2), "210")),
    Attempted("6.a", (handle(2, 200, 2),)),
    Failed("6.a", False, "the connection was lost"),
    Attempted("7.a", (handle(0, 100, 1),)),  # too late
    Noted("7.a", ("1150",)),
    Attempted("8.p", ("g",)),
    Noted("8.p", (handle(0, 1200, 0, 1), "T", "1", KEYS[1], "1210")),
    Attempted("9.a", (handle(0, 1200, 0, 1),)),
]


def check(records: list[Record], events: list[Event] = EVENTS) -> list[str]:
    return check_pops(events, sorted(records, key=_place), topic="T", groups=["g"])


def _place(record: Record) -> int:
    return record.physical_offset


def changed(old: Record, new: Record) -> list[Record]:
    return [new if one is old else one for one in RECORDS]


def test_a_right_history_passes() -> None:
    assert check(RECORDS) == []


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (RECORDS[1:], "LOST: Attempted"),
        ([*RECORDS, message("9-9-9", "T", 3, 40, 50)], "nobody sent it"),
        ([one for one in RECORDS if one is not POPPED_COPY], "LOST: g never popped"),
        ([one for one in RECORDS if one is not ACKED], "OPEN"),
        (changed(COPY, replace(COPY, store_timestamp=1099)), "EARLY"),
        (changed(COPY, replace(COPY, reconsume_times=2)), "attempts [0, 2]"),
        ([*RECORDS, replace(COPY, queue_offset=1, physical_offset=40)], "TWICE"),
        (changed(COPY, replace(COPY, store_timestamp=1151)), "LOST ACKNOWLEDGEMENT"),
        ([*RECORDS, said("ck", 0, 300, '"d":[0],"n":1,"it":9,"bm":0', 40)], "was popped again"),
        (changed(CHANGED_END, replace(CHANGED_END, physical_offset=19)), "never began"),
        (changed(SENT[0], replace(SENT[0], body=b"?")), "damaged body"),
        (changed(SENT[0], replace(SENT[0], store_timestamp=111)), "before it was stored"),
    ],
)
def test_what_is_wrong_is_found(records: list[Record], text: str) -> None:
    assert any(text in complaint for complaint in check(records)), check(records)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ("9.a", "LOST: nobody acknowledged"),
        ("5.c", "was changed by nobody"),
    ],
)
def test_what_nobody_asked_for_is_found(request_: str, text: str) -> None:
    events = [one for one in EVENTS if one.request != request_]
    assert any(text in complaint for complaint in check(RECORDS, events))


def test_one_message_for_two_consumers_is_found() -> None:
    twice = Noted("10.p", (handle(0, 100, 0), "T", "0", KEYS[0], "130"))
    complaints = check(RECORDS, [*EVENTS, twice])
    assert any("was handed out at 110 and at 130" in one for one in complaints)
