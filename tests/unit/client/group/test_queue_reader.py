"""What a reader of one queue makes of answers that bring it nowhere, and of ones that are large."""

import asyncio
import logging
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pymq.client.cluster.network import PLAIN
from pymq.client.group.broker_offsets import BrokerOffsets
from pymq.client.group.inbox import FlowLimits, Inbox
from pymq.client.group.queue_reader import QueueReader
from pymq.client.group.reader_parts import ReaderParts
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.unread import UnreadQueues
from pymq.client.operations import Pull, PullResult, PullStatus
from pymq.client.pulling.pull_buffer import PullBuffer
from pymq.client.pulling.pull_reader import PullReader
from pymq.errors import ConnectionFailed, PymqError, ServiceNotAvailable, SystemBusy
from pymq.net.said_once import SaidOnce
from pymq.net.waiting import happens
from pymq.protocol.bodies import MessageQueue, Subscription
from pymq.protocol.codes import MessageFlag
from pymq.protocol.record import NewRecord, encode_record, record_size, topic_field

QUEUE = MessageQueue("T", "a", 0)
DEADLINE_S = 60.0
END = 5


class Broker:
    """Plays the pool, and the broker behind it, which answers pulls at once."""

    network = PLAIN

    def __init__(self, answer: Callable[[Pull], PullResult]) -> None:
        self._answer = answer
        self.pulls: list[Pull] = []
        #: At which broker.
        self.broker_ids: list[int] = []
        self.other_requests = 0
        self.routes: Any = None

    async def read_channel(self, queue: MessageQueue, broker_id: int = 0) -> None:
        self.broker_ids.append(broker_id)

    async def ask(self, channel: None, operation: Any, timeout_s: float | None = None) -> Any:
        await asyncio.sleep(0)  # or others could not run
        if not isinstance(operation, Pull):
            self.other_requests += 1
            return 0
        self.pulls.append(operation)
        return self._answer(operation)


def answer(status: PullStatus, next_offset: int, body: bytes = b"") -> PullResult:
    return PullResult(status, next_offset, 0, END, body)


def reader_of(broker: Any, inbox: Inbox) -> QueueReader:
    parts = ReaderParts(
        group="g",
        pool=broker,
        inbox=inbox,
        offsets=lambda queue: BrokerOffsets("g", queue, broker),
        on_undecodable=lambda _: None,
        unread=UnreadQueues("g", SaidOnce(logging.getLogger("test"))),
    )
    common: dict[str, Any] = {
        "subscription": Subscription(topic="T"),
        "start": StartPolicy.of("earliest"),
        "left_at": None,
    }
    if isinstance(inbox, PullBuffer):
        return PullReader(
            QUEUE,
            parts,
            **common,
            buffer=inbox,
            begin_at=0,
            on_begin=lambda: None,
            queue_count=lambda: 1,
            is_divided=True,
        )
    return QueueReader(QUEUE, parts, **common)


async def read(reader: QueueReader, until: Callable[[], object]) -> None:
    """Let a reader read until something holds."""
    reading = asyncio.ensure_future(reader.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not until():
                assert not reading.done(), reading
                await asyncio.sleep(0)
    finally:
        reading.cancel()
        await asyncio.wait([reading])


# --------------------------------------------------------------------- masters that are no more


@pytest.mark.parametrize("kind", [Inbox, PullBuffer])
@pytest.mark.parametrize("error", [SystemBusy("slave", code=2), ServiceNotAvailable("s", code=14)])
def test_who_was_refused_waits_no_longer_when_there_is_another_master(
    error: PymqError, kind: Callable[[FlowLimits], Inbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And asks it, whoever it was that has refused; what is committed is told to it, too."""
    monkeypatch.setattr("pymq.client.group.pull_pace.FAILURE_PAUSE_S", DEADLINE_S)
    slave_id = 1

    async def test() -> None:
        refusal = asyncio.Event()

        def respond(pull: Pull) -> PullResult:
            if len(broker.pulls) == 1:
                nothing = answer(PullStatus.NO_NEW, pull.offset)
                return replace(nothing, suggested_broker_id=slave_id)
            if len(broker.pulls) == 2:
                refusal.set()
                raise error
            return answer(PullStatus.NO_NEW, pull.offset)

        broker = Broker(respond)
        reader = reader_of(broker, kind(FlowLimits()))
        reader.offsets._committed = 7  # type: ignore[attr-defined]
        reading = asyncio.ensure_future(read(reader, lambda: len(broker.pulls) > 2))
        await refusal.wait()
        await asyncio.sleep(0)
        since_s = asyncio.get_running_loop().time()
        reader.route_changed()
        await reading
        assert asyncio.get_running_loop().time() - since_s < DEADLINE_S / 2
        after = broker.broker_ids.index(slave_id) + 1
        assert set(broker.broker_ids[after:]) == {0}
        assert reader.offsets._committed is None  # type: ignore[attr-defined]

    asyncio.run(test())


AWAY = ConnectionFailed("it is away")
REFUSES = SystemBusy("a slave that nobody may read from", code=2)


@pytest.mark.parametrize(
    ("before", "pulls"), [([], [AWAY, REFUSES, None, AWAY]), ([AWAY, REFUSES], [None, AWAY])]
)
def test_a_broker_that_was_away_and_then_refused_is_warned_of_again_when_it_is_away_again(
    before: list[PymqError],
    pulls: list[PymqError | None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restart goes through both, in one reader, or in those that could not begin before it."""
    monkeypatch.setattr("pymq.client.group.pull_pace.FAILURE_PAUSE_S", 0.0)
    left = iter(pulls)

    def respond(pull: Pull) -> PullResult:
        error = next(left, None)
        if error is not None:
            raise error
        return answer(PullStatus.NO_NEW, pull.offset)

    async def test() -> None:
        reader = reader_of(broker, Inbox(FlowLimits()))
        for error in before:
            reader._parts.unread.failed(QUEUE, error)
        await read(reader, lambda: len(broker.pulls) > len(pulls))

    broker = Broker(respond)
    broker.routes = SimpleNamespace(doubt=lambda topic: None)
    asyncio.run(test())
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert sum("it is away" in text for text in said) == 2
    assert sum("nobody may read from" in text for text in said) == 1


# ------------------------------------------------------------------- pulls that bring it nowhere


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between pulls, in seconds, none of which is waited for."""
    noted: list[float] = []
    here = threading.get_ident()

    async def note(event: asyncio.Event, delay_s: float) -> bool:
        if threading.get_ident() != here:  # a client of another module's fixture
            return await happens(event, delay_s)
        noted.append(delay_s)
        await asyncio.sleep(0)
        return False

    monkeypatch.setattr("pymq.client.group.pull_pace.happens", note)
    # However long the machine takes, no answer was held.
    monkeypatch.setattr("pymq.client.group.pull_pace.HELD_S", 3600.0)
    return noted


@pytest.mark.parametrize("kind", [Inbox, PullBuffer])
@pytest.mark.parametrize(
    "status", [PullStatus.NO_MATCH, PullStatus.NO_NEW, PullStatus.OFFSET_ILLEGAL]
)
def test_who_gets_the_same_answer_at_once_asks_ever_less_often(
    status: PullStatus,
    kind: Callable[[FlowLimits], Inbox],
    pauses: list[float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        broker = Broker(lambda pull: answer(status, pull.offset))
        await read(reader_of(broker, kind(FlowLimits())), lambda: len(pauses) >= 9)
        assert len(broker.pulls) - len(pauses) in (0, 1)  # it was stopped after a pause, or a pull
        assert broker.other_requests <= 1 + 2 * len(broker.pulls)

    asyncio.run(test())
    assert pauses[:9] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    moves = [one for one in caplog.records if "reading goes on at" in one.getMessage()]
    assert len(moves) == (status is PullStatus.OFFSET_ILLEGAL)


def test_who_gets_on_asks_again_at_once(pauses: list[float]) -> None:
    """Each second pull brings it nowhere, which makes a pause of 10 ms and never a longer one."""

    async def test() -> None:
        grows = iter([True, False] * 1000)
        broker = Broker(lambda pull: answer(PullStatus.NO_MATCH, pull.offset + next(grows)))
        await read(reader_of(broker, Inbox(FlowLimits())), lambda: len(broker.pulls) >= 100)

    asyncio.run(test())
    assert set(pauses) == {0.01} and 49 <= len(pauses) <= 51


def test_a_reset_does_not_wait_for_the_pause_to_end() -> None:
    async def test() -> None:
        broker = Broker(lambda pull: answer(PullStatus.NO_NEW, pull.offset))
        reader = reader_of(broker, Inbox(FlowLimits()))
        reading = asyncio.ensure_future(reader.run())
        async with asyncio.timeout(DEADLINE_S):
            while len(broker.pulls) < 3:
                await asyncio.sleep(0.001)
            reader.reset(3)
            while broker.pulls[-1].offset != 3:
                await asyncio.sleep(0.001)
        reading.cancel()
        await asyncio.wait([reading])

    asyncio.run(test())


class HoldingBroker(Broker):
    """Holds all pulls but the first."""

    async def ask(self, channel: None, operation: Any, timeout_s: float | None = None) -> Any:
        result = await super().ask(channel, operation, timeout_s)
        if len(self.pulls) > 1 and isinstance(operation, Pull):
            await asyncio.Event().wait()
        return result


def test_a_reset_is_said_although_the_pull_before_brought_it_nowhere(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        broker = HoldingBroker(lambda pull: answer(PullStatus.OFFSET_ILLEGAL, 3))
        reader = reader_of(broker, Inbox(FlowLimits()))

        def is_reset() -> bool:
            if len(broker.pulls) == 2:
                reader.reset(1)
            return len(broker.pulls) == 3

        await read(reader, is_reset)

    asyncio.run(test())
    assert pauses
    moves = [one for one in caplog.records if "reading goes on at" in one.getMessage()]
    assert [one.levelno for one in moves] == [logging.WARNING] * 2


# ------------------------------------------------------------- bodies that are large when inflated


def records(offsets: range, body: bytes) -> bytes:
    """Return stored records whose bodies are compressed."""
    host = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
    stored = zlib.compress(body)
    new = NewRecord("T", 0, stored, b"", host, 1, sys_flag=int(MessageFlag.COMPRESSED))
    return b"".join(
        part
        for offset in offsets
        for part in encode_record(
            new,
            topic_field(b"T"),
            size=record_size(len(stored), 2, 0, 2 * len(host)),
            queue_offset=offset,
            physical_offset=offset * 1000,
            store_timestamp=2,
            store_host=host,
        )
    )


def test_what_is_compressed_is_inflated_as_far_as_there_is_room() -> None:
    async def test() -> None:
        plain, count = bytes(1 << 20), 24

        def found(pull: Pull) -> PullResult:
            if pull.offset == count:
                return answer(PullStatus.NO_NEW, count)
            return answer(PullStatus.FOUND, count, records(range(pull.offset, count), plain))

        broker = Broker(found)
        inbox = Inbox(FlowLimits(queue_bytes_max=3 << 20))
        reading = asyncio.ensure_future(reader_of(broker, inbox).run())
        got: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(got) < count:
                delivery = await inbox.take()
                assert delivery is not None
                assert inbox.message_bytes <= 3 << 20
                got.append(delivery.message.queue_offset)
                inbox.acknowledge(delivery)
        reading.cancel()
        await asyncio.wait([reading])
        assert got == list(range(count))

    asyncio.run(test())


def test_one_message_is_taken_although_it_is_larger_than_the_room() -> None:
    async def test() -> None:
        def found(pull: Pull) -> PullResult:
            if pull.offset == END:
                return answer(PullStatus.NO_NEW, END)
            return answer(PullStatus.FOUND, END, records(range(pull.offset, END), bytes(1000)))

        inbox = Inbox(FlowLimits(queue_bytes_max=10))
        reading = asyncio.ensure_future(reader_of(Broker(found), inbox).run())
        async with asyncio.timeout(DEADLINE_S):
            for offset in range(END):
                delivery = await inbox.take()
                assert delivery is not None and delivery.message.queue_offset == offset
                assert inbox.message_count == 1
                inbox.acknowledge(delivery)
        reading.cancel()
        await asyncio.wait([reading])

    asyncio.run(test())
