"""The checkers of transactions find what they are for, and nothing in what is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, body_of, make_key
from tests.crash.transaction_checkers import check_transactions
from tests.crash.transaction_producers import is_committed
from tests.unit.store.stores import BORN, HOST

from pymq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC
from pymq.protocol.record import Record

KEYS = [make_key(1, number, 5) for number in range(50)]
YES = [key for key in KEYS if is_committed(key)][:3]
NO = [key for key in KEYS if not is_committed(key)][:2]


def record(topic: str, body: bytes, offset: int, physical: int, *, half: int = 0) -> Record:
    flag = 8 if topic == "T" else 0
    return Record(
        topic, 0, offset, physical, body, b"", 0, flag, 0, BORN, 0, HOST, 0, half, 0, 0
    )


def half(key: str, offset: int) -> Record:
    return record(HALF_TOPIC, body_of(key), offset, 1000 + offset)


def op(offset: int) -> Record:
    return record(HALF_OP_TOPIC, b"%d" % offset, offset, 2000 + offset)


def committed(key: str, offset: int, of: int) -> Record:
    return record("T", body_of(key), offset, 3000 + offset, half=1000 + of)


EVENTS: list[Event] = [
    Attempted("1.0.h", (YES[0],)),
    Acknowledged("1.0.h", 0, 0, (1000,)),
    Attempted("1.1.c", (YES[0],)),
    Acknowledged("1.1.c", 0, 0, (1000,)),
    Attempted("1.2.x", (YES[0],)),
    Acknowledged("1.2.x", 0, 0, (1000,)),
    Attempted("1.3.h", (NO[0],)),
    Failed("1.3.h", False, "the connection was lost"),
    Attempted("1.4.h", (YES[1],)),
    Failed("1.4.h", True, "the disk is full"),
    Attempted("1.5.h", (YES[2],)),
    Failed("1.5.h", False, "the connection was lost"),
]
RECORDS = [
    half(YES[0], 0),
    half(NO[0], 1),
    half(YES[2], 2),
    half(YES[2], 3),
    committed(YES[0], 0, 0),
    committed(YES[2], 1, 2),
    *(op(offset) for offset in range(4)),
]


def test_what_is_right_is_not_complained_of() -> None:
    assert check_transactions(EVENTS, RECORDS, topic="T") == []
    without = [one for one in RECORDS if one.body != body_of(NO[0])]
    assert check_transactions(EVENTS, without, topic="T") == []  # nobody knows whether it was sent


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ([*RECORDS, committed(YES[0], 2, 0)], "TWICE"),
        ([*RECORDS, committed(NO[0], 2, 1)], "WRONG"),
        ([one for one in RECORDS if one.physical_offset != 3000], "LOST"),
        ([one for one in RECORDS if one.physical_offset != 3001], "LOST"),
        ([one for one in RECORDS if one.physical_offset != 1000], "LOST"),
        ([one for one in RECORDS if one.physical_offset != 2003], "OPEN"),
        ([*RECORDS, half(YES[1], 4), op(4), committed(YES[1], 2, 4)], "refused"),
        ([*RECORDS, half(KEYS[40], 4), op(4)], "nobody sent it"),
        ([*RECORDS, record(HALF_TOPIC, b"other", 4, 1004)], "damaged body"),
        ([*RECORDS[:4], replace(RECORDS[4], sys_flag=0), *RECORDS[5:]], "no committed message"),
        ([*RECORDS[:4], committed(YES[0], 0, 1), *RECORDS[5:]], "was committed for"),
        ([*RECORDS, record("Other", body_of(YES[0]), 0, 9)], "in topic Other"),
    ],
)
def test_what_is_wrong_is_found(changed: list[Record], complaint: str) -> None:
    found = check_transactions(EVENTS, changed, topic="T")
    assert any(complaint in one for one in found), found
