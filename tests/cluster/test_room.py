"""What is unanswered has its limits, whatever it is and whoever waits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import LIMITS, run
from tests.cluster.scenarios import wait_until

from pymq import Message, Producer, ReceivedMessage, Transaction, TransactionStatus
from pymq.client.sending.send_attempt import BatchSend
from pymq.client.sending.send_maker import SendMaker
from pymq.errors import LocalProtocolError, TooManyPending
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT

BYTES_MAX = 10_000
BODY_BYTES = 3000
#: This many begin while the limit allows it.
ROOM = 4
COUNT = 12
SENDS = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
ASKED = ReceivedMessage(
    topic="T",
    body=b"?",
    properties={CLUSTER: "C", CORRELATION_ID: "1", REPLY_TO_CLIENT: "somebody"},
    broker_name="broker-a",
    queue_id=0,
    queue_offset=0,
    physical_offset=0,
    born_timestamp_ms=0,
    store_timestamp_ms=0,
    born_host_packed=b"",
    store_host_packed=b"",
)

Way: TypeAlias = Callable[[Producer, float | None], Awaitable[Any]]


class Frozen(FakeBroker):
    """Does nothing with messages."""

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        if command.code not in SENDS:
            super().on_command(connection, command)


async def send(producer: Producer, deadline_s: float | None) -> None:
    await producer.send(Message("T", bytes(BODY_BYTES)), deadline_s=deadline_s)


async def request(producer: Producer, deadline_s: float | None) -> None:
    await producer.request(Message("T", bytes(BODY_BYTES)), deadline_s=deadline_s)


async def reply(producer: Producer, deadline_s: float | None) -> None:
    await producer.reply(ASKED, bytes(BODY_BYTES), deadline_s=deadline_s)


async def transaction(producer: Producer, deadline_s: float | None) -> None:
    message = Message("T", bytes(BODY_BYTES))
    await Transaction(producer, message, deadline_s=deadline_s).begin()


async def batch(producer: Producer, deadline_s: float | None) -> None:
    messages = [Message("T", bytes(BODY_BYTES // 3)) for _ in range(3)]
    await producer.send_batch(messages, deadline_s=deadline_s)


def producer_of(broker: FakeBroker, **more: Any) -> Producer:
    return Producer(
        broker.address,
        group="asking",
        check_transaction=lambda message: TransactionStatus.UNKNOWN,
        compress_bytes_min=None,
        **{**LIMITS, **more},
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[BatchSend]:
    """Return the sends of batches that were made."""
    found: list[BatchSend] = []
    make = SendMaker.batch

    def batch(self: SendMaker, *args: Any, **kwargs: Any) -> BatchSend:
        found.append(make(self, *args, **kwargs))
        return found[-1]

    monkeypatch.setattr(SendMaker, "batch", batch)
    return found


@pytest.mark.parametrize("way", [send, request, reply, transaction, batch])
def test_all_wait_for_room_until_their_deadline(way: Way, made: list[BatchSend]) -> None:
    async def test() -> None:
        async with Frozen() as broker, producer_of(broker, in_flight_bytes_max=BYTES_MAX) as one:
            await one.queues("T")
            work = [asyncio.ensure_future(way(one, None)) for _ in range(COUNT)]
            window = one._window
            await wait_until(lambda: window.count + len(window._waiting) == COUNT, "all have come")
            assert window.count == ROOM
            assert BYTES_MAX <= window.size_bytes < BYTES_MAX + 2 * BODY_BYTES
            with pytest.raises(TooManyPending, match="in_flight_bytes_max") as full:
                await way(one, 0.05)
            assert full.value.outcome_known and full.value.retriable
            assert len(made) == (ROOM if way is batch else 0)  # what waits is not encoded
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            assert not one._parts.requests._waiting and not one._transactions._open
            await one.close(timeout_s=0.01)

    run(test())


def test_what_was_answered_makes_room_for_requests() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, producer_of(broker, in_flight_max=2) as producer:
            work = [asyncio.ensure_future(request(producer, 60)) for _ in range(COUNT)]
            await broker.wait_sent(COUNT)
            for task in work:  # They wait for their replies.
                assert not task.done()
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    run(test())


def test_a_batch_of_several_requests_is_made_request_by_request(made: list[BatchSend]) -> None:
    async def test() -> None:
        async with FakeBroker() as broker, producer_of(broker, body_bytes_max=2500) as producer:
            await producer.queues("T")
            broker.answers = [0, 0, None]
            messages = [Message("T", bytes(1000)) for _ in range(9)]
            work = asyncio.ensure_future(producer.send_batch(messages))
            await broker.wait_sent(3)
            assert [len(one.message_ids) for one in made] == [2, 2, 2]
            work.cancel()
            await producer.close(timeout_s=0.01)

    run(test())


def test_nothing_of_a_batch_is_sent_if_a_message_of_a_later_request_cannot_be() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, producer_of(broker, body_bytes_max=2500) as producer:
            messages = [Message("T", bytes(1000)) for _ in range(9)]
            messages[-1].flag = 1 << 40
            with pytest.raises(LocalProtocolError, match="32-bit"):
                await producer.send_batch(messages)
            assert not broker.sent and producer.in_flight_count == 0

    run(test())
