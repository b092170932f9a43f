"""Where a reader of a pull consumer goes on, when two decide on it."""

import asyncio
import logging
from typing import Any

from pymq.client.cluster.network import PLAIN
from pymq.client.group.inbox import FlowLimits
from pymq.client.group.reader_parts import ReaderParts
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.told_offsets import ToldOffsets
from pymq.client.operations import PullResult, PullStatus
from pymq.client.pulling.pull_buffer import PullBuffer
from pymq.client.pulling.pull_reader import PullReader
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue, Subscription

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


def test_a_seek_counts_although_the_broker_has_just_said_where_to_go_on() -> None:
    async def test() -> None:
        broker: Any = Broker()
        buffer = PullBuffer(FlowLimits())
        reader = PullReader(
            QUEUE,
            ReaderParts(
                group="g",
                pool=broker,
                inbox=buffer,
                offsets=lambda queue: ToldOffsets("g", queue, broker),
                on_undecodable=lambda _: None,
                troubles=SaidOnce(logging.getLogger("test")),
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
