"""Tables whose sending ends early: what is told of each row is so, and stays so."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import LIMITS, run

from pymq import Message, Producer, RowsNotSent
from pymq.columns.encoding import Messages, encode_messages
from pymq.errors import ClientClosed, LocalProtocolError, TooManyPending
from pymq.net.server import ServerConnection
from pymq.protocol.batch_body import decode_batch
from pymq.protocol.codes import SEND_RECORDS, RequestCode, ResponseCode
from pymq.protocol.command import Command

KEYS = 8
ROWS = 80
#: One request has one row.
BODY_BYTES = 1000


class Holding(FakeBroker):
    """Keeps batches to itself until it is told to answer."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.is_holding = True
        self.kept: list[tuple[ServerConnection, Command]] = []

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        if command.code == RequestCode.SEND_BATCH_MESSAGE and self.is_holding:
            self.kept.append((connection, command))
        elif command.code == SEND_RECORDS:  # as the official ones answer
            connection.respond(command, command.reply(3))
        else:
            super().on_command(connection, command)

    def answer(self) -> None:
        """Answer what was kept, and all that comes."""
        self.is_holding = False
        for connection, command in self.kept:
            self.on_command(connection, command)

    async def wait_kept(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.kept) < count:
                await asyncio.sleep(0.005)

    def bodies(self) -> set[bytes]:
        """Return the bodies of the batches that were answered."""
        batches = [one for one in self.sent if one.code == RequestCode.SEND_BATCH_MESSAGE]
        return {bytes(body) for one in batches for _, body, _ in decode_batch(one.body)}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.client.sending.column_sends.BATCH_BYTES", BODY_BYTES)


def table(*, keyed: bool = True) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"body": [b"%d-" % n + b"x" * BODY_BYTES for n in range(ROWS)]}
    if keyed:
        columns["sharding_key"] = [f"k{n % KEYS}" for n in range(ROWS)]
    return columns


def test_a_row_that_failed_is_not_sent_later_by_what_was_under_way() -> None:
    """One queue's rows cannot be sent; nobody goes on with those of others behind our back."""

    async def test() -> None:
        async with Holding("a", "b") as broker, Producer(broker.address, **LIMITS) as producer:
            await producer.send(Message("T", b"first"))
            for channel in producer._pool._channels.values():
                channel._table.pending_max = 2
            rows = table()
            sending = asyncio.create_task(producer.send_columns(rows, topic="T"))
            await broker.wait_kept(2)
            broker.answer()
            with pytest.raises(RowsNotSent) as failed:
                await sending
            assert producer.in_flight_count == 0
            assert [type(one) for one in failed.value.failures] == [TooManyPending]
            await producer.send(Message("T", b"last"))  # it comes after all that was sent before
            status = dict(zip(rows["body"], failed.value.receipts.status.tolist(), strict=True))
            lost = {body for body, what in status.items() if what == "FAILED"}
            assert failed.value.outcome_known and len(lost) == ROWS - 2
            assert not lost & broker.bodies()

    run(test())


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "free"])
def test_closing_while_a_table_is_sent_leaves_receipts(keyed: bool) -> None:
    async def test() -> None:
        async with Holding() as broker:
            producer = Producer(broker.address, in_flight_max=4, **LIMITS)
            async with producer:
                sending = asyncio.create_task(producer.send_columns(table(keyed=keyed), topic="T"))
                await broker.wait_kept(2)
                await producer.close(timeout_s=0.1)
            with pytest.raises(RowsNotSent) as failed:
                await sending
            status = failed.value.receipts.status.tolist()
            assert set(status) == {"UNKNOWN", "FAILED"}
            assert status.count("UNKNOWN") == len(broker.kept)
            assert any(isinstance(one, ClientClosed) for one in failed.value.failures)

    run(test())


def test_what_arrow_cannot_hold_leaves_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has limits of its own, which are met when much was sent."""

    def encode(columns: dict[str, pa.Array], *arguments: Any, **more: Any) -> Messages:
        if columns["body"][0].as_py() == later:
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        return encode_messages(columns, *arguments, **more)

    monkeypatch.setattr("pymq.columns.table.ROWS_MAX", ROWS // 2)
    monkeypatch.setattr("pymq.columns.table_requests.encode_messages", encode)
    rows = table(keyed=False)

    async def test() -> None:
        async with Holding() as broker, Producer(broker.address, **LIMITS) as producer:
            sending = asyncio.create_task(producer.send_columns(rows, topic="T"))
            await broker.wait_kept(1)
            broker.answer()
            with pytest.raises(RowsNotSent, match="cannot contain more than") as failed:
                await sending
            status = failed.value.receipts.status.tolist()
            assert status == ["SEND_OK"] * (ROWS // 2) + ["FAILED"] * (ROWS // 2)
            assert failed.value.outcome_known and not failed.value.retriable
            assert isinstance(failed.value.failures[0].__cause__, pa.ArrowCapacityError)
            with pytest.raises(LocalProtocolError, match="row 0 .*cannot contain more than"):
                await producer.send_columns({"body": [later]}, topic="T")

    later = rows["body"][ROWS // 2]
    run(test())


@pytest.mark.parametrize("answer", [int(ResponseCode.MESSAGE_ILLEGAL), None], ids=str)
def test_nothing_of_a_key_is_sent_behind_what_failed(
    monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    """Whoever sends the rows again that are not stored still has each key's in their order."""
    monkeypatch.setattr("pymq.columns.table.ROWS_MAX", ROWS // 4)  # in several parts

    async def test() -> None:
        async with Holding() as broker:
            broker.is_holding = False
            broker.answers = [0, 0, answer]
            async with Producer(broker.address, timeout_s=0.3, deadline_s=0.3) as producer:
                rows = table(keyed=False) | {"sharding_key": ["one"] * ROWS}
                with pytest.raises(RowsNotSent, match="77 with keys were not sent") as failed:
                    await producer.send_columns(rows, topic="T")
                lost = "UNKNOWN" if answer is None else "FAILED"
                status = failed.value.receipts.status.tolist()
                assert status == ["SEND_OK"] * 2 + [lost] + ["FAILED"] * (ROWS - 3)
                assert len(broker.sent) == 3
                more = await producer.send_columns(rows, topic="T")  # another call, another try
                assert more.is_stored.all()

    run(test())


def test_a_queue_whose_rows_fail_holds_up_no_other() -> None:
    async def test() -> None:
        async with Holding() as broker, Producer(broker.address, **LIMITS) as producer:
            broker.is_holding = False
            broker.answers = [int(ResponseCode.MESSAGE_ILLEGAL)]
            rows = table()
            with pytest.raises(RowsNotSent) as failed:
                await producer.send_columns(rows, topic="T")
            receipts = failed.value.receipts
            assert len(failed.value.failures) == 1 and receipts.is_stored.sum() == ROWS // 2
            assert set(receipts.queue_id[receipts.is_stored]) in ({0}, {1})

    run(test())


def test_batches_that_are_too_large_for_a_broker_say_what_to_set() -> None:
    async def test() -> None:
        async with Holding() as broker, Producer(broker.address, **LIMITS) as producer:
            broker.is_holding = False
            broker.answers = [int(ResponseCode.MESSAGE_ILLEGAL)]
            with pytest.raises(RowsNotSent, match="body_bytes_max; set that to .*maxMessageSize"):
                await producer.send_columns({"body": [b"1"]}, topic="T")

    run(test())


def test_a_table_waits_for_room_until_its_deadline() -> None:
    async def test() -> None:
        async with (
            Holding() as broker,
            Producer(broker.address, in_flight_max=2, **LIMITS) as producer,
        ):
            await producer.send(Message("T", b"x"))
            broker.answers = [None, None]
            unanswered = [producer.send_nowait(Message("T", b"x")) for _ in range(2)]
            async with asyncio.timeout(10):
                with pytest.raises(TooManyPending, match=r"expected fewer than 2 \(in_flight_max"):
                    await producer.send_columns({"body": [b"1"]}, topic="T", deadline_s=0.1)
            assert not broker.bodies()
            for one in unanswered:
                one.cancel()
            await producer.close(timeout_s=0.01)

    run(test())
