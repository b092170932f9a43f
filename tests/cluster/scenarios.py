"""What the asyncio client must do against any broker: run against ours and against real ones.

Every scenario takes a name server's address and the name of a topic that nobody used before; it
is created by the first send, with four queues.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from tests.administration import admin_of

from pymq.client.consuming.consumer import Consumer
from pymq.client.sending.producer import Producer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message, ReceivedMessage

DEADLINE_S = 120.0
#: For one request: a send that is made again for want of an answer may be stored twice, one to a
#: certain queue fails, and what is not committed comes again.
TIMEOUT_S = 30.0
QUEUE_COUNT = 4
AWKWARD_TEXT = 'Grüße, 世界 😀 = \\ " ;\n'
# Different texts of one Java hash: the broker cannot tell them apart, the client must.
TWIN_TAGS = ("AaAa", "BBBB")


async def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: not in time.
    """
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what}") from None


def has_begun(consumer: Consumer, topic: str, count: int) -> bool:
    """Is it known of so many queues where reading begins? What is sent from now on is read."""
    readers = [one for one in consumer._parts.held.readers.values() if one.queue.topic == topic]
    return sum(reader.process_queue is not None for reader in readers) == count


async def receive(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    """Return the next messages; the last one is finished when its block is left."""
    received: list[ReceivedMessage] = []
    async with asyncio.timeout(DEADLINE_S):
        async for message in consumer:
            received.append(message)
            if len(received) == count:
                break
    return received


def create_topic(name_server: str, topic: str = "T", queue_count: int = QUEUE_COUNT) -> None:
    """Create a topic on every broker: one that is created by sends may be on some only."""
    with BlockingClient(name_server, timeout_s=TIMEOUT_S) as client:
        admin_of(client).topics.create(topic, queue_count=queue_count)


async def send_numbers(name_server: str, topic: str, numbers: range) -> None:
    async with Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        for number in numbers:
            await producer.send(Message(topic, b"%d" % number))


def member(
    name_server: str, group: str, topic: str, tags: str = "*", *, from_where: str = "earliest"
) -> Consumer:
    made = Consumer(name_server, group, from_where=from_where, timeout_s=TIMEOUT_S)
    return made.subscribe(topic, tags)


def numbers_of(messages: list[ReceivedMessage]) -> list[int]:
    return sorted(int(message.body) for message in messages)


async def every_way_of_sending(name_server: str, topic: str) -> None:
    """Single, in one queue, by key, without waiting, one-way, batch, compressed: all arrive."""
    made = Producer(name_server, group=f"producer-{topic}", timeout_s=TIMEOUT_S)
    async with made as producer:
        await producer.send(Message(topic, b"first"))
        queues = await producer.queues(topic)
        assert queues == [MessageQueue(topic, queues[0].broker_name, n) for n in range(QUEUE_COUNT)]
        message = Message(
            topic,
            b"\x00\xff",
            tags="a",
            keys=["k1", "k2"],
            properties={"text": AWKWARD_TEXT},
            flag=7,
        )
        single = await producer.send(message, queue=queues[2])
        assert single.queue == queues[2]
        keyed = [
            await producer.send(Message(topic, b"key-%d" % n), sharding_key="one") for n in range(3)
        ]
        assert len({result.queue for result in keyed}) == 1
        offsets = [result.queue_offset for result in keyed]
        assert offsets == list(range(offsets[0], offsets[0] + 3))
        futures = [producer.send_nowait(Message(topic, b"now-%d" % n)) for n in range(50)]
        results = await asyncio.gather(*futures)
        assert {result.queue for result in results} == set(queues)
        await producer.send_one_way(Message(topic, b"one-way"))
        large = b"large " * 10_000
        await producer.send(Message(topic, large, tags="z"))
        batch = [Message(topic, b"batch-%d" % n, tags="b", keys=f"key{n}") for n in range(10)]
        receipts = await producer.send_batch(batch)
        ids = [single.message_id, *(r.message_id for r in results)]
        assert len({*ids}) == 51
    expected = [
        b"first", b"\x00\xff", *(b"key-%d" % n for n in range(3)),
        *(b"now-%d" % n for n in range(50)), b"one-way", large, *(m.body for m in batch),
    ]  # fmt: skip

    async with member(name_server, f"g-{topic}", topic) as consumer:
        received = await receive(consumer, len(expected))
    by_body = {message.body: message for message in received}
    assert sorted(by_body) == sorted(expected)
    assert {message.topic for message in received} == {topic}
    one = by_body[b"\x00\xff"]
    assert (one.tags, one.keys, one.flag) == ("a", ["k1", "k2"], 7)
    assert (one.properties["text"], one.message_id) == (AWKWARD_TEXT, single.message_id)
    assert (one.queue_id, one.queue_offset) == (2, single.queue_offset)
    assert one.offset_message_id == single.offset_message_id
    assert by_body[b"key-0"].properties["__SHARDINGKEY"] == "one"
    assert by_body[large].tags == "z"
    in_batch = [by_body[message.body] for message in batch]
    assert [m.keys for m in in_batch] == [[f"key{n}"] for n in range(10)]
    assert [(m.message_id, m.offset_message_id, m.queue_offset) for m in in_batch] == [
        (r.message_id, r.offset_message_id, r.queue_offset) for r in receipts
    ]
    assert {(m.broker_name, m.queue_id) for m in in_batch} == {
        (r.queue.broker_name, r.queue.queue_id) for r in receipts
    }


async def tags_are_told_apart(name_server: str, topic: str) -> None:
    """Only messages whose tag is one of those subscribed arrive, whatever its hash."""
    async with Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        for number in range(30):
            tag = (*TWIN_TAGS, "other")[number % 3]
            await producer.send(Message(topic, b"%d" % number, tags=tag))
        await producer.send(Message(topic, b"99", tags="last"))
    async with member(name_server, f"g-{topic}", topic, f"{TWIN_TAGS[0]} || last") as consumer:
        received = await receive(consumer, 11)
    assert numbers_of(received) == [*range(0, 30, 3), 99]


async def two_members_share(name_server: str, topic: str) -> None:
    """Two members divide the queues; when one leaves, the other gets all. Nothing is lost."""
    await send_numbers(name_server, topic, range(20))
    got: Counter[int] = Counter()

    async def handler(message: ReceivedMessage) -> None:
        got[int(message.body)] += 1

    def owned(consumer: Consumer) -> set[MessageQueue]:
        return {queue for queue in consumer.assignment if queue.topic == topic}

    group = f"g-{topic}"
    async with member(name_server, group, topic) as first:
        running = asyncio.ensure_future(first.run(handler))
        await wait_until(lambda: len(owned(first)) == QUEUE_COUNT, "the first has all queues")
        async with member(name_server, group, topic) as second:
            also = asyncio.ensure_future(second.run(handler))
            await wait_until(
                lambda: len(owned(first)) == len(owned(second)) == QUEUE_COUNT // 2,
                "each has half of the queues",
            )
            assert not owned(first) & owned(second)
            await send_numbers(name_server, topic, range(20, 60))
            await wait_until(lambda: len(got) == 60, "60 messages")
        await also
        await wait_until(lambda: len(owned(first)) == QUEUE_COUNT, "the first has all queues again")
        await send_numbers(name_server, topic, range(60, 80))
        await wait_until(lambda: len(got) == 80, "80 messages")
    await running
    # Twice at most, and only what was under way when queues changed hands.
    assert max(got.values()) <= 3


async def a_restart_goes_on(name_server: str, topic: str) -> None:
    """What was finished is not delivered again, what was not is; an idle start skips nothing."""
    await send_numbers(name_server, topic, range(10))
    group = f"g-{topic}"
    async with member(name_server, group, topic) as consumer:
        assert numbers_of(await receive(consumer, 10)) == list(range(10))
    await send_numbers(name_server, topic, range(10, 20))
    stopped_at = 0
    try:
        async with member(name_server, group, topic, from_where="latest") as consumer:
            async for message in consumer:
                stopped_at = int(message.body)
                raise ConnectionAbortedError("the body of the loop failed")
    except ConnectionAbortedError:
        pass
    async with member(name_server, group, topic, from_where="latest") as consumer:
        numbers = numbers_of(await receive(consumer, 10))
    assert numbers == list(range(10, 20))
    assert stopped_at in numbers

    idle = f"idle-{topic}"
    async with member(name_server, idle, topic, from_where="latest") as consumer:
        await wait_until(lambda: has_begun(consumer, topic, QUEUE_COUNT), "the queues are read")
        # A message that arrives shows that the queues are read; their beginnings are committed.
        await send_numbers(name_server, topic, range(100, 104))
        seen: set[int] = set()
        async with asyncio.timeout(DEADLINE_S):
            async for message in consumer:
                seen.add(int(message.body))
                if seen >= set(range(100, 104)):
                    break
    await send_numbers(name_server, topic, range(200, 210))
    async with member(name_server, idle, topic, from_where="latest") as consumer:
        assert numbers_of(await receive(consumer, 10)) == list(range(200, 210))


async def a_failed_message_comes_again(name_server: str, topic: str) -> None:
    """A message whose handler raises is delivered again, under its own topic; others go on."""
    tries: dict[int, list[int]] = {}
    topics: set[str] = set()

    async def handler(message: ReceivedMessage) -> None:
        number = int(message.body)
        tries.setdefault(number, []).append(message.reconsume_times)
        topics.add(message.topic)
        if number == 3 and message.reconsume_times == 0:
            raise ValueError("this handler does not like 3 the first time")

    await send_numbers(name_server, topic, range(10))
    group = f"g-{topic}"
    async with member(name_server, group, topic) as consumer:
        running = asyncio.ensure_future(consumer.run(handler))
        await wait_until(lambda: len(tries.get(3, ())) == 2, "message 3 comes again")
        await wait_until(lambda: len(tries) == 10, "all messages")
        await wait_until(lambda: not consumer.backlog_count, "all are finished")
    await running
    assert tries.pop(3) == [0, 1]
    assert all(times == [0] for times in tries.values())
    assert topics == {topic}
    await send_numbers(name_server, topic, range(50, 51))
    async with member(name_server, group, topic, from_where="latest") as consumer:
        assert numbers_of(await receive(consumer, 1)) == [50]


ALL = (
    every_way_of_sending,
    tags_are_told_apart,
    two_members_share,
    a_restart_goes_on,
    a_failed_message_comes_again,
)
