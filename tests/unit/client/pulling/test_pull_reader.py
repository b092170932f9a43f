"""Where a reader of a pull consumer goes on, when two decide on it, and when one is cut off."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from pymq.client.cluster.network import PLAIN
from pymq.client.group.broker_offsets import BrokerOffsets
from pymq.client.group.inbox import FlowLimits
from pymq.client.group.reader_parts import ReaderParts
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.told_offsets import ToldOffsets
from pymq.client.group.unread import UnreadQueues
from pymq.client.operations import Pull, PullResult, PullStatus
from pymq.client.pulling.pull_buffer import PullBuffer
from pymq.client.pulling.pull_reader import PullReader
from pymq.errors import ConnectionFailed
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue, Subscription
from pymq.protocol.command import Command

QUEUE = MessageQueue("T", "a", 0)


class Broker:
    """Plays the pool, and the broker behind it, whose answer waits."""

    network = PLAIN

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()

    async def read_channel(self, queue: MessageQueue) -> None:
        await self.may_answer.wait()

    async def ask(self, channel: None, operation: Any) -> int:
        return 2


def reader_of(broker: Any, offsets: type[BrokerOffsets]) -> PullReader:
    buffer = PullBuffer(FlowLimits())
    return PullReader(
        QUEUE,
        ReaderParts(
            group="g",
            pool=broker,
            inbox=buffer,
            offsets=lambda queue: offsets("g", queue, broker),
            on_undecodable=lambda _: None,
            unread=UnreadQueues("g", SaidOnce(logging.getLogger("test"))),
        ),
        subscription=Subscription(topic="T"),
        start=StartPolicy.of("earliest"),
        left_at=None,
        buffer=buffer,
        begin_at=None,
        on_begin=lambda: None,
        queue_count=lambda: 1,
        is_divided=True,
    )


def test_a_seek_counts_although_the_broker_has_just_said_where_to_go_on() -> None:
    async def test() -> None:
        broker = Broker()
        reader = reader_of(broker, ToldOffsets)
        reader._begin(9)
        reader._newest_ms = 1
        before = reader.pulled
        assert before is not None
        illegal = PullResult(
            status=PullStatus.OFFSET_ILLEGAL,
            next_offset=3,
            min_offset=0,
            max_offset=3,
            suggested_broker_id=0,
            body=b"",
        )
        moving = asyncio.ensure_future(reader._move(before, illegal))
        await asyncio.sleep(0)
        reader.move(5)
        broker.may_answer.set()
        await moving
        assert reader.pulled is not None and reader.pulled.position == 5

    asyncio.run(test())


# --------------------------------------------- until what the program has chosen is committed


class Channel:
    """Plays an open connection, and notes commits, which are not answered for now."""

    address = "master:1"

    def __init__(self) -> None:
        self.is_open = True
        self.commits: list[Command] = []

    def request_nowait(self, request: Command, timeout_s: float) -> asyncio.Future[Command]:
        self.commits.append(request)
        return asyncio.get_running_loop().create_future()


class Pulled:
    """Plays the pool, and a broker that has nothing new, whose answers may have to wait."""

    network = PLAIN
    timeout_s = 3.0

    def __init__(self) -> None:
        route = SimpleNamespace(masters=lambda: {QUEUE.broker_name: "master:1"})
        self.routes = SimpleNamespace(find=lambda topic: route)
        #: ``None``: it is down, and its slave is read.
        self.master: Channel | None = None
        self.read_over = Channel()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def open_channel(self, address: str | None) -> Channel | None:
        assert address == "master:1"
        return self.master

    async def read_channel(self, queue: MessageQueue, broker_id: int = 0) -> Channel:
        return self.read_over

    async def ask(self, channel: Channel, operation: Pull, timeout_s: float) -> PullResult:
        await self.may_answer.wait()
        if not channel.is_open:
            raise ConnectionFailed("it is cut")
        return PullResult(PullStatus.NO_NEW, operation.offset, 0, 9, b"")


def is_in_doubt_when_cut(reader: PullReader, broker: Pulled) -> bool:
    """Would the reader go on where its group is, if its connection were cut now?"""
    broker.read_over.is_open = False
    try:
        return reader.is_in_doubt
    finally:
        broker.read_over.is_open = True


async def pull(reader: PullReader) -> None:
    assert reader.pulled is not None
    await reader._pull(reader.pulled, 1)


def test_a_seek_is_done_with_when_it_is_committed_and_a_pull_after_that_is_answered() -> None:
    async def test() -> None:
        broker = Pulled()
        broker.master = broker.read_over
        reader = reader_of(broker, BrokerOffsets)
        reader._begin(4)
        await pull(reader)
        assert is_in_doubt_when_cut(reader, broker)
        reader.move(1)
        await pull(reader)
        assert not is_in_doubt_when_cut(reader, broker)
        reader.commit_nowait()
        assert len(broker.master.commits) == 1
        assert not is_in_doubt_when_cut(reader, broker)
        await pull(reader)
        assert is_in_doubt_when_cut(reader, broker)
        reader.move(1)  # which is what the broker has, and need not be told again
        reader.commit_nowait()
        assert len(broker.master.commits) == 1
        await pull(reader)
        assert is_in_doubt_when_cut(reader, broker)

    asyncio.run(test())


def test_a_seek_is_not_done_with_while_the_master_is_away() -> None:
    """Its slave answers pulls, and nobody takes a commit."""

    async def test() -> None:
        broker = Pulled()
        reader = reader_of(broker, BrokerOffsets)
        reader._begin(4)
        await pull(reader)
        reader.move(1)
        reader.commit_nowait()
        await pull(reader)
        assert not is_in_doubt_when_cut(reader, broker)

    asyncio.run(test())


def test_a_pull_from_before_a_seek_does_not_end_it() -> None:
    async def test() -> None:
        broker = Pulled()
        broker.master = broker.read_over
        reader = reader_of(broker, BrokerOffsets)
        reader._begin(4)
        await pull(reader)
        reader.move(2)
        reader.commit_nowait()
        broker.may_answer.clear()
        pulling = asyncio.ensure_future(pull(reader))
        await asyncio.sleep(0)
        broker.may_answer.set()  # and it is moved in the turn in which the answer comes
        reader.move(1)
        await pulling
        assert not is_in_doubt_when_cut(reader, broker)

    asyncio.run(test())


def test_a_seek_is_not_done_with_when_its_commit_may_have_been_lost() -> None:
    async def test() -> None:
        broker = Pulled()
        broker.master = broker.read_over
        reader = reader_of(broker, BrokerOffsets)
        reader._begin(4)
        await pull(reader)
        reader.move(1)
        reader.commit_nowait()
        broker.read_over.is_open = False
        with pytest.raises(ConnectionFailed):
            await pull(reader)
        broker.master = broker.read_over = Channel()
        await pull(reader)
        assert not is_in_doubt_when_cut(reader, broker)

    asyncio.run(test())


def test_a_seek_is_not_done_with_when_its_commit_may_have_been_lost_between_pulls() -> None:
    """It is cut while there is no room: the next pull opens another connection, and is answered."""

    async def test() -> None:
        broker = Pulled()
        broker.master = broker.read_over
        reader = reader_of(broker, BrokerOffsets)
        reader._begin(4)
        await pull(reader)
        reader.move(1)
        reader.commit_nowait()
        broker.read_over.is_open = False
        broker.master = broker.read_over = Channel()
        await pull(reader)
        assert not is_in_doubt_when_cut(reader, broker)
        reader.commit_nowait()
        assert len(broker.master.commits) == 1, "it is told once more"
        await pull(reader)
        assert is_in_doubt_when_cut(reader, broker)

    asyncio.run(test())
