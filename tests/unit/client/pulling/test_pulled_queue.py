"""What was pulled and not polled: positions, limits, turns, against a list."""

import asyncio
import random

import pytest
from tests.unit.client.test_ranges import record

from pymq.client.group.inbox import FlowLimits
from pymq.client.pulling.pull_buffer import PULL_LIMITS, PullBuffer
from pymq.client.pulling.pulled_queue import PulledQueue
from pymq.client.ranges import PullChunk
from pymq.errors import RemoteProtocolError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import MessageFlag
from pymq.protocol.record import decode_records


def chunk(first: int, next_offset: int, *, there: list[int] | None = None) -> PullChunk:
    offsets = range(first, next_offset) if there is None else there
    return PullChunk(memoryview(b"".join(map(record, offsets))), first, next_offset)


def queue_of(number: int, first: int = 0) -> PulledQueue:
    return PulledQueue(MessageQueue("T", "broker-a", number), first)


def test_polls_and_chunks_return_everything_once_and_in_order() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    queue, expected, got = queue_of(0, 5), [], []
    for _ in range(300):
        if chance.random() < 0.5:
            first, count = queue.next_offset, chance.randrange(6)
            there = [n for n in range(first, first + count) if chance.random() < 0.7]
            queue.keep(chunk(first, first + count, there=there))
            expected += there
        elif chance.random() < 0.7 or not queue.is_ready:
            got += [one.queue_offset for one in queue.take(chance.randrange(1, 4))]
        else:
            taken = queue.take_chunk()
            got += [one.queue_offset for one in decode_records(taken.buffer)]
            assert queue.position == taken.next_offset
        assert got == expected[: len(got)]
        left = expected[len(got) :]
        assert queue.position <= queue.next_offset == queue.position + queue.span
        assert all(offset >= queue.position for offset in left)
        assert queue.is_ready == bool(left)
        assert queue.message_count >= len(left) and (queue.message_bytes > 0) == bool(left)
    got += [one.queue_offset for one in queue.take(10_000)]
    assert got == expected and queue.position == queue.next_offset
    assert queue.message_count == queue.message_bytes == 0


def test_a_message_that_cannot_be_read_is_told_when_it_is_next() -> None:
    queue = queue_of(0)
    bad = bytearray(record(2))
    bad[39] |= MessageFlag.COMPRESSED  # the lowest byte of the system flag
    queue.keep(PullChunk(memoryview(record(1) + bytes(bad) + record(3)), 1, 4))
    assert [one.queue_offset for one in queue.take(5)] == [1]
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=r"offset 2 .*seek\(queue, 3\)"):
            queue.take(5)
    assert queue.position == 2


def test_queues_take_turns_and_limits_hold_pulls_back() -> None:
    async def test() -> None:
        limits = FlowLimits(queue_messages_max=10, messages_max=25, span_max=1 << 31)
        buffer = PullBuffer(limits)
        queues = [queue_of(number, 100 * number) for number in range(3)]
        for queue in queues:
            assert buffer.room(queue) > 0
            buffer.keep(queue, chunk(queue.position, queue.position + 10))
            assert buffer.room(queue) <= 0
        waiting = asyncio.ensure_future(buffer.wait_room(queues[0]))
        got = await buffer.wait_messages(15, 60)
        assert [one.queue_offset // 100 for one in got] == [0] * 10 + [1] * 5
        assert await waiting == 5  # 25 - 20: a chunk counts until its last message is taken
        got = await buffer.wait_messages(6, 60)
        assert [one.queue_offset // 100 for one in got] == [2] * 6
        queues[1].is_paused = True
        got = await buffer.wait_messages(100, 60)
        assert [one.queue_offset // 100 for one in got] == [2] * 4
        assert await buffer.wait_messages(100, 0) == []
        resumed = asyncio.ensure_future(buffer.wait_messages(100, 60))
        await asyncio.sleep(0)
        buffer.resume(queues[1])
        assert [one.queue_offset for one in await resumed] == [105, 106, 107, 108, 109]
        assert buffer.message_count == buffer.message_bytes == 0
        buffer.keep(queues[0], chunk(10, 20))
        buffer.drop(queues[0])
        assert buffer.message_count == buffer.message_bytes == 0
        ended = asyncio.ensure_future(buffer.wait_messages(1, None))
        await asyncio.sleep(0)
        buffer.close()
        assert await ended == []

    asyncio.run(test())


@pytest.mark.parametrize(
    ("queue_count", "expected"),
    [(0, 4 << 20), (1, 4 << 20), (8, 512 << 10), (64, 64 << 10), (5000, 64 << 10)],
)
def test_a_pull_brings_no_more_than_its_share(queue_count: int, expected: int) -> None:
    assert PullBuffer(PULL_LIMITS).pull_bytes(queue_count) == expected
