"""What the pull consumer must do against any broker: run against ours and against real ones.

Every scenario takes a name server's address and the name of a topic of four queues that nobody
used before.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from tests.cluster.scenarios import DEADLINE_S, QUEUE_COUNT, TIMEOUT_S, wait_until

from pymq import (
    CommitFailed,
    ConfigurationError,
    Message,
    MessageQueue,
    OffsetOutOfRange,
    Producer,
    PullConsumer,
    ReceivedMessage,
)

EACH = 10


async def fill(name_server: str, topic: str, *, first: int = 0) -> list[MessageQueue]:
    """Put ``EACH`` messages into each queue; a body is ``queue-number``; return the queues."""
    async with Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        queues = await producer.queues(topic)
        for queue in queues:
            for number in range(first, first + EACH):
                body = b"%d-%d" % (queue.queue_id, number)
                tag = "even" if number % 2 == 0 else "odd"
                await producer.send(Message(topic, body, tags=tag, keys=f"k{number}"), queue=queue)
    assert len(queues) == QUEUE_COUNT
    return queues


def reader_of(name_server: str, group: str, *, auto_commit: bool = True) -> PullConsumer:
    return PullConsumer(
        name_server, group, from_where="earliest", auto_commit=auto_commit, timeout_s=TIMEOUT_S
    )


async def poll_count(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    """Poll until there are so many messages."""
    got: list[ReceivedMessage] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(got) < count:
            got += await consumer.poll(7, 1)
    return got


def in_order(got: list[ReceivedMessage]) -> None:
    """Check that the messages of each queue came in order, without a gap."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for one in got:
        offsets.setdefault((one.broker_name, one.queue_id), []).append(one.queue_offset)
    for found in offsets.values():
        assert found == list(range(found[0], found[0] + len(found)))


async def assigned_queues_are_read_and_moved(name_server: str, topic: str) -> None:
    """Assign, poll, seek anywhere, ask for offsets, pause and resume."""
    before = datetime.now(UTC)
    queues = await fill(name_server, topic)
    consumer = reader_of(name_server, f"g-{topic}").assign(queues)
    async with consumer:
        got = await poll_count(consumer, QUEUE_COUNT * EACH)
        in_order(got)
        assert {one.body for one in got} == {
            b"%d-%d" % (queue.queue_id, n) for queue in queues for n in range(EACH)
        }
        assert await consumer.queues(topic) == queues == consumer.assignment
        one = queues[1]
        assert await consumer.position(one) == EACH
        assert await consumer.begin_offsets() == dict.fromkeys(queues, 0)
        assert await consumer.end_offsets([one]) == {one: EACH}
        assert await consumer.offsets_for_time(before, [one]) == {one: 0}

        assert await consumer.seek(one, 4) == 4
        assert [m.body for m in await poll_count(consumer, 6)][0] == b"1-4"
        assert await consumer.seek(one, "first") == 0
        assert (await poll_count(consumer, EACH))[0].body == b"1-0"
        assert await consumer.seek(one, before) == 0
        assert await consumer.seek(one, "last") == EACH
        assert await consumer.poll(5, 0.2) == []
        with pytest.raises(OffsetOutOfRange, match="holds 0 up to 10"):
            await consumer.seek(one, EACH + 1)
        other = MessageQueue(topic, one.broker_name, 99)
        with pytest.raises(ConfigurationError, match="not ours"):
            await consumer.seek(other, 0)

        consumer.pause([one])
        for queue in queues:
            await consumer.seek(queue, "first")
        paused = await poll_count(consumer, 3 * EACH)
        assert {m.queue_id for m in paused} == {0, 2, 3}
        assert await consumer.poll(5, 0.2) == []
        consumer.resume([one])
        assert {m.queue_id for m in await poll_count(consumer, EACH)} == {1}


async def what_is_committed_is_not_read_again(name_server: str, topic: str) -> None:
    """With and without auto_commit; a commit that is not taken is an error."""
    queues = await fill(name_server, topic)
    group = f"g-{topic}"

    def member(*, auto_commit: bool) -> PullConsumer:
        return reader_of(name_server, group, auto_commit=auto_commit).assign(queues)

    async with member(auto_commit=False) as consumer:
        await poll_count(consumer, QUEUE_COUNT * EACH)
    async with member(auto_commit=False) as consumer:  # nothing was committed
        got = await poll_count(consumer, 5)
        in_order(got)
        await consumer.commit({queues[0]: 3, queues[1]: 7})
        committed = await consumer.committed(queues[:2])
        assert committed == {queues[0]: 3, queues[1]: 7}
        lost = MessageQueue(topic, queues[0].broker_name, 99)
        with pytest.raises(CommitFailed, match="1 of 2 queues.*not ours") as failure:
            await consumer.commit({lost: 1, queues[2]: 2})
        assert list(failure.value.failed) == [lost]
        assert (await consumer.committed())[queues[2]] == 2
    try:
        async with member(auto_commit=True) as consumer:
            rest = await poll_count(consumer, 7 + 3 + 8 + EACH)
            assert sorted(m.body for m in rest if m.queue_id == 1) == [b"1-7", b"1-8", b"1-9"]
            assert await consumer.poll(5, 0.1) == []  # what came before is consumed
            await wait_for_commit(consumer, dict.fromkeys(queues, EACH))
            await fill(name_server, topic, first=EACH)
            await poll_count(consumer, QUEUE_COUNT * EACH)
            raise ConnectionAbortedError("the last poll was not handled")
    except ConnectionAbortedError:
        pass
    async with member(auto_commit=True) as consumer:
        (first,) = await consumer.poll(1, DEADLINE_S)
        assert int(first.body.split(b"-")[1]) >= EACH, "only what was polled last comes again"
        await consumer.commit()
        total = sum(offset or 0 for offset in (await consumer.committed()).values())
    async with member(auto_commit=False) as consumer:
        left = await poll_count(consumer, 2 * QUEUE_COUNT * EACH - total)
        assert (first.queue_id, first.queue_offset) not in {
            (one.queue_id, one.queue_offset) for one in left
        }


async def wait_for_commit(consumer: PullConsumer, wanted: dict[MessageQueue, int]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await consumer.committed() != wanted:
            await asyncio.sleep(0.05)


async def members_share_a_topic(name_server: str, topic: str) -> None:
    """Two subscribed members divide the queues; one that leaves hands its queues over."""
    await fill(name_server, topic)
    group = f"g-{topic}"
    first = reader_of(name_server, group).subscribe(topic, "even || x")
    got: list[bytes] = []
    async with first:
        got += [m.body for m in await poll_count(first, QUEUE_COUNT * EACH // 2)]
        await first.commit()  # Or what was polled last comes again, to the other one.
        second = reader_of(name_server, group)
        async with second.subscribe(topic, "even || x"):
            await wait_until(
                lambda: len(first.assignment) == len(second.assignment) == QUEUE_COUNT // 2,
                "each has half of the queues",
            )
            assert not set(first.assignment) & set(second.assignment)
            await fill(name_server, topic, first=EACH)
            half = QUEUE_COUNT * EACH // 4
            got += [m.body for m in await poll_count(first, half)]
            got += [m.body for m in await poll_count(second, half)]
        await wait_until(lambda: len(first.assignment) == QUEUE_COUNT, "it has all again")
        await fill(name_server, topic, first=2 * EACH)
        got += [m.body for m in await poll_count(first, QUEUE_COUNT * EACH // 2)]
    assert sorted(got) == sorted(
        b"%d-%d" % (queue, n) for queue in range(QUEUE_COUNT) for n in range(0, 3 * EACH, 2)
    )


async def a_loop_reads_on(name_server: str, topic: str) -> None:
    """``async for``: moving on consumes, leaving the loop does not lose the others."""
    queues = await fill(name_server, topic)
    consumer = reader_of(name_server, f"g-{topic}").assign(queues[:1])
    got = []
    async with consumer:
        async with asyncio.timeout(DEADLINE_S):
            async for message in consumer:
                got.append(message.body)
                if len(got) == 4:
                    break
            async for message in consumer:
                got.append(message.body)
                if len(got) == EACH:
                    break
    assert got == [b"0-%d" % n for n in range(EACH)]


ALL: tuple[Callable[[str, str], object], ...] = (
    assigned_queues_are_read_and_moved,
    what_is_committed_is_not_read_again,
    members_share_a_topic,
    a_loop_reads_on,
)
