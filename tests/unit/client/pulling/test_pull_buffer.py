"""Polls that wait for what is pulled, without a socket."""

import asyncio

from tests.unit.client.pulling.test_pulled_queue import chunk, queue_of

from pymq.client.group.inbox import FlowLimits
from pymq.client.pulling.pull_buffer import PullBuffer

DEADLINE_S = 60.0


def test_polls_without_success_leave_nothing_behind() -> None:
    """What is quiet would grow for as long as nothing comes."""

    async def test() -> None:
        buffer = PullBuffer(FlowLimits())
        for _ in range(10):
            assert await buffer.wait_messages(1, 0) == []
            assert await buffer.wait_chunk(0) is None
        assert not buffer._takers

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))


def test_one_that_is_cancelled_just_then_leaves_the_message_to_the_next() -> None:
    async def test() -> None:
        buffer = PullBuffer(FlowLimits())
        first, second = (asyncio.ensure_future(buffer.wait_messages(1, None)) for _ in range(2))
        while len(buffer._takers) < 2:
            await asyncio.sleep(0)
        buffer.keep(queue_of(0), chunk(0, 1))
        first.cancel()  # in the same turn of the loop
        assert [one.queue_offset for one in await second] == [0]
        assert first.cancelled()

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))
