"""What a start makes of half messages and ops, whole or cut off in the middle of a write."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.store.stores import BORN, HOST, FakeClock, open_store, overwrite, put_ok, read_all

from pymq.broker.config import BrokerConfig
from pymq.broker.log_writer import LogWriter
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.transactions.messages import TransactionalMessages
from pymq.broker.transactions.transactions import Transactions
from pymq.protocol.message import decode_properties
from pymq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from pymq.protocol.parking import copy_of, with_properties
from pymq.protocol.record import NewRecord, Record
from pymq.protocol.transaction_records import half_record, identity, mark_committed, op_record
from pymq.store import MessageStore


def start(store: MessageStore, half: int | None = None, op: int | None = None) -> Transactions:
    """Return the transactions of a store, loaded from these cursors."""
    offsets = OffsetTable()
    for topic, cursor in ((HALF_TOPIC, half), (HALF_OP_TOPIC, op)):
        if cursor is not None:
            offsets.commit(TRANSACTION_GROUP, topic, 0, cursor)
    writer = LogWriter(lambda puts: store.put(puts, HOST), None)
    messages = TransactionalMessages(BrokerConfig(), MessageHooks(), HOST)
    transactions = Transactions(
        FakeClock(), store, offsets, messages, writer, cast(Any, None), HOST
    )
    transactions.load()
    return transactions


def half(number: int, *, topic: str = "T", copies: int = 0, born: int = 17) -> NewRecord:
    text = f"TRAN_MSG\x01true\x02UNIQ_KEY\x01K{number}\x02PGROUP\x01pg\x02".encode()
    sent = NewRecord(topic, 0, b"body%d" % number, text, BORN, born)
    record = half_record(sent, decode_properties(text))
    if copies:
        text = with_properties(record.properties, {"TRANSACTION_CHECK_TIMES": str(copies)})
        record.properties = text
    return record


def op(*offsets: int, body: bytes | None = None) -> NewRecord:
    record = op_record(offsets[0] if offsets else 0, store_host=HOST, now_ms=17)
    if len(offsets) != 1:
        record.body = b"".join(b"%d," % offset for offset in offsets)
    return record


def committed(half: Record) -> NewRecord:
    message = copy_of(half, "T", 0)
    mark_committed(message, half.physical_offset)
    return message


def ops(store: MessageStore) -> list[bytes]:
    return [record.body for record in read_all(store, HALF_OP_TOPIC)]


def still_open(transactions: Transactions, end: int) -> list[int]:
    runs = transactions.table.open_runs(end)
    return [offset for first, last in runs for offset in range(first, last)]


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return open_store(tmp_path, segment_bytes=1 << 16, queue_file_bytes=20_000)


def test_an_empty_store_has_none(store: MessageStore) -> None:
    assert still_open(start(store), 0) == []
    assert still_open(start(store, 7, 7), 0) == []
    store.close()


def test_ops_of_either_format_are_read_from_their_cursor_on(store: MessageStore) -> None:
    put_ok(store, *map(half, range(10)))
    put_ok(store, op(1), op(4, 2), op(), op(6))
    assert still_open(start(store), 10) == [0, 3, 5, 7, 8, 9]
    assert still_open(start(store, 3, 1), 10) == [3, 5, 7, 8, 9]
    assert still_open(start(store, 5, 3), 10) == [5, 7, 8, 9]
    assert still_open(start(store, 99, 99), 10) == []
    assert len(ops(store)) == 4
    store.close()


def test_a_commit_whose_op_was_cut_off_is_recorded(store: MessageStore) -> None:
    put_ok(store, half(0), half(1), half(2))
    put_ok(store, committed(read_all(store, HALF_TOPIC)[1]))
    assert still_open(start(store), 3) == [0, 2]
    assert ops(store) == [b"1"]
    assert still_open(start(store), 3) == [0, 2]
    assert ops(store) == [b"1"]
    store.close()


def test_commits_of_the_last_seconds_that_nobody_recorded(tmp_path: Path) -> None:
    """RocketMQ from 5.1 on writes the ops of three seconds together, and not when it stops."""
    clock = FakeClock()
    store = open_store(tmp_path, clock, segment_bytes=1 << 17, queue_file_bytes=20_000)
    put_ok(store, *map(half, range(100)))
    halves = read_all(store, HALF_TOPIC)
    put_ok(store, committed(halves[7]))
    put_ok(store, *(NewRecord("T", 0, b"other", b"", BORN, 17) for _ in range(64)))
    clock.now_ms += 20_000
    for record in halves[20:80]:
        put_ok(store, committed(record), NewRecord("T", 0, b"other", b"", BORN, 17))
        clock.now_ms += 50
    # The one long ago is not looked for: it was either recorded, or is checked.
    assert still_open(start(store), 100) == [*range(20), *range(80, 100)]
    assert len(ops(store)) == 60
    store.close()


def test_a_copy_closes_the_one_before_it(store: MessageStore) -> None:
    put_ok(store, half(0), half(1), half(0, copies=1), half(1, copies=1), half(0, copies=2))
    transactions = start(store)
    assert still_open(transactions, 5) == [3, 4]
    assert sorted(ops(store)) == [b"0", b"1", b"2"]
    assert still_open(start(store), 5) == [3, 4]
    assert len(ops(store)) == 3
    store.close()


def test_a_copy_whose_older_ones_are_behind_the_cursor_is_still_the_same_transaction(
    store: MessageStore,
) -> None:
    put_ok(store, half(0), half(1), half(0, copies=1))
    first, other, copy = read_all(store, HALF_TOPIC)
    transactions = start(store, 2)
    table = transactions.table
    assert [table.current(one.queue_offset, identity(one)) for one in (first, copy)] == [2, 2]
    assert table.current(other.queue_offset, identity(other)) is None
    store.close()


def test_a_copy_that_was_committed_by_the_offset_of_an_older_one(store: MessageStore) -> None:
    put_ok(store, half(0), op(0), half(0, copies=1))
    put_ok(store, committed(read_all(store, HALF_TOPIC)[0]))
    assert still_open(start(store), 2) == []
    assert ops(store) == [b"0", b"1"]
    store.close()


def test_two_sends_of_one_message_are_two_transactions(store: MessageStore) -> None:
    """A repeated send has the same unique key; two of one millisecond even the same identity."""
    put_ok(store, half(0), half(0, born=18), half(0))
    assert still_open(start(store), 3) == [0, 1, 2]
    put_ok(store, half(0, copies=1), half(0, copies=1, born=18), half(0, copies=1))
    assert still_open(start(store), 6) == [3, 4, 5]
    put_ok(store, committed(read_all(store, HALF_TOPIC)[4]))
    assert still_open(start(store), 6) == [3, 5]
    store.close()


def test_ops_of_messages_that_do_not_exist_close_nothing(store: MessageStore) -> None:
    put_ok(store, half(0), op(1, 5, 7))
    start(store)
    put_ok(store, half(1))
    assert still_open(start(store), 2) == [0]
    store.close()


def test_half_messages_that_do_not_exist_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 16, queue_file_bytes=20_000)
    put_ok(store, *map(half, range(3)))
    records = read_all(store, HALF_TOPIC)
    log = next((tmp_path / "commitlog").iterdir())
    overwrite(log, records[1].physical_offset + 90, b"\xff")
    with caplog.at_level(logging.ERROR):
        transactions = start(store)
    assert "cannot be read" in caplog.text
    assert "1 half messages do not exist any more" in caplog.text
    assert still_open(transactions, 3) == [0, 2]
    store.close()
