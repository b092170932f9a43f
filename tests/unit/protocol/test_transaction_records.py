"""The records of a transaction, and how they are told apart."""

import dataclasses

import pytest

from pymq.protocol.message import decode_properties
from pymq.protocol.record import NewRecord, Record
from pymq.protocol.transaction_records import (
    Identity,
    check_times,
    closed_offsets,
    half_record,
    identity,
    is_committed,
    mark_committed,
    op_record,
    prepared_offset,
    without_prepared,
)

HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
SENT = NewRecord("T", 3, b"body", b"TRAN_MSG\x01true\x02UNIQ_KEY\x01K", HOST, 17, sys_flag=0x5)


def stored(new: NewRecord) -> Record:
    values = {field.name: getattr(new, field.name) for field in dataclasses.fields(new)}
    del values["tag_code"]
    more = {"queue_offset": 0, "physical_offset": 0, "store_timestamp": 0, "store_host": HOST}
    return Record(**values, **more, body_crc=0, size=0)


def test_a_half_message_knows_where_it_belongs() -> None:
    half = half_record(SENT, decode_properties(SENT.properties))
    assert (half.topic, half.queue_id, half.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 1)
    assert decode_properties(half.properties) == {
        "TRAN_MSG": "true",
        "UNIQ_KEY": "K",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
        "__transactionId__": "K",
    }
    assert without_prepared(half).properties == b"UNIQ_KEY\x01K\x02__transactionId__\x01K\x02"


def test_a_half_message_without_a_unique_key_has_no_transaction_id() -> None:
    bare = dataclasses.replace(SENT, properties=b"TRAN_MSG\x01true")
    half = half_record(bare, decode_properties(bare.properties))
    assert "__transactionId__" not in decode_properties(half.properties)
    assert identity(stored(half)) is None


def test_all_copies_have_the_identity_of_the_half_message() -> None:
    half = half_record(SENT, decode_properties(SENT.properties))
    assert identity(stored(half)) == Identity(b"K", 17, HOST)
    assert identity(stored(dataclasses.replace(half, born_timestamp=18))) != identity(stored(half))


@pytest.mark.parametrize(
    ("properties", "times", "offset"),
    [
        (b"", None, None),
        (b"TRANSACTION_CHECK_TIMES\x010\x02", 0, None),
        (b"A\x01b\x02TRAN_PREPARED_QUEUE_OFFSET\x0117\x02", None, 17),
        (b"A\x01TRANSACTION_CHECK_TIMES\x01\x02", None, None),
        (b"TRANSACTION_CHECK_TIMES\x01-1\x02TRAN_PREPARED_QUEUE_OFFSET\x01x\x02", None, None),
    ],
)
def test_copies_are_told_by_their_properties(
    properties: bytes, times: int | None, offset: int | None
) -> None:
    copy = stored(dataclasses.replace(SENT, properties=properties))
    assert (check_times(copy), prepared_offset(copy)) == (times, offset)


def test_a_committed_message_says_so() -> None:
    committed = dataclasses.replace(SENT)
    mark_committed(committed, 4711)
    assert (committed.sys_flag, committed.prepared_transaction_offset) == (0x9, 4711)
    assert is_committed(stored(committed))
    assert not is_committed(stored(SENT))
    assert not is_committed(stored(dataclasses.replace(SENT, sys_flag=0xC)))


@pytest.mark.parametrize(
    ("body", "offsets"),
    [
        (b"12", [12]),
        (b"12,", [12]),
        (b"12,13,170,", [12, 13, 170]),
        (b"", []),
        (b",,1,", [1]),
        (b"-1,x, 2,3", [3]),
        (b"1" * 5000 + b",4", [4]),
        ("\u0661,\u00b2,5".encode(), [5]),
        (b"\xff,6", [6]),
    ],
)
def test_offsets_that_an_op_closes(body: bytes, offsets: list[int]) -> None:
    op = stored(op_record(0, store_host=HOST, now_ms=17))
    assert closed_offsets(op) == [0]
    assert closed_offsets(dataclasses.replace(op, body=body)) == offsets
    assert closed_offsets(dataclasses.replace(op, body=body, properties=b"TAGS\x01x\x02")) == []
