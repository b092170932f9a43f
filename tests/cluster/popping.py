"""What the simple consumer must do against any broker that pops: ours, and RocketMQ's from 5.0 on.

Every scenario takes a name server's address and the name of a topic of four queues that nobody
used before.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from tests.cluster.scenarios import DEADLINE_S, TIMEOUT_S, TWIN_TAGS

from pymq import Message, Producer, ReceivedMessage, SimpleConsumer

COUNT = 60


async def fill(name_server: str, topic: str, count: int = COUNT) -> set[bytes]:
    bodies = [b"%d" % n for n in range(count)]
    async with Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        futures = [
            producer.send_nowait(Message(topic, one, tags=TWIN_TAGS[n % 2]))
            for n, one in enumerate(bodies)
        ]
        await asyncio.gather(*futures)
    return set(bodies)


def member(name_server: str, topic: str, tags: str = "*") -> SimpleConsumer:
    # What is in an answer that comes too late would be invisible.
    consumer = SimpleConsumer(name_server, f"g-{topic}", from_where="earliest", timeout_s=TIMEOUT_S)
    return consumer.subscribe(topic, tags)


async def take(consumer: SimpleConsumer, wanted: set[bytes], invisible_s: float) -> Counter[bytes]:
    """Receive and acknowledge until all of some bodies were there."""
    got: Counter[bytes] = Counter()
    async with asyncio.timeout(DEADLINE_S):
        while not wanted <= got.keys():
            for message in await consumer.receive(8, invisible_s, timeout_s=2):
                got[message.body] += 1
                await consumer.ack(message)
    return got


async def members_share_messages(name_server: str, topic: str) -> None:
    """Each message goes to one of several members, more than there are queues."""
    wanted = await fill(name_server, topic)
    got: Counter[bytes] = Counter()
    async with asyncio.timeout(DEADLINE_S):
        async with member(name_server, topic) as first, member(name_server, topic) as second:

            async def consume(consumer: SimpleConsumer) -> None:
                while not wanted <= got.keys():
                    for message in await consumer.receive(4, 300, timeout_s=1):
                        assert message.topic == topic and message.reconsume_times == 0
                        got[message.body] += 1
                        await consumer.ack(message)

            await asyncio.gather(*(consume(one) for one in (first, second, first, second, first)))
            assert await first.receive(8, 300, timeout_s=0.2) == []
    assert got == dict.fromkeys(wanted, 1)


async def what_is_not_acknowledged_comes_again(name_server: str, topic: str) -> None:
    """After its invisible time, or the one that it was changed to; with a higher count."""
    wanted = await fill(name_server, topic, 6)
    async with member(name_server, topic) as consumer:
        held: list[ReceivedMessage] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(held) < 6:
                held += await consumer.receive(6 - len(held), 300)
        assert {one.body for one in held} == wanted
        assert await consumer.receive(6, 300, timeout_s=0.2) == []
        acked, changed, *others = held
        await consumer.ack(acked)
        before = time.monotonic()
        await consumer.change_invisible(changed, 1)
        (again,) = await consumer.receive(6, 300, timeout_s=DEADLINE_S)
        assert time.monotonic() - before > 0.9
        assert (again.body, again.message_id) == (changed.body, changed.message_id)
        assert (again.topic, again.reconsume_times) == (topic, 1)
        await consumer.ack(again)
        # A handle that was changed is the one to acknowledge with.
        await consumer.change_invisible(others[0], 200)
        await consumer.ack(others[0])
        for one in others[1:]:
            await consumer.change_invisible(one, 1)
        await take(consumer, {one.body for one in others[1:]}, 60)
        assert await consumer.receive(6, 300, timeout_s=3) == []


async def waiting_ends_with_a_message(name_server: str, topic: str) -> None:
    """A receive that waits gets what comes meanwhile; tags are told apart."""
    async with member(name_server, topic, TWIN_TAGS[0]) as consumer:
        assert await consumer.receive(8, 30, timeout_s=0.3) == []
        waiting = asyncio.ensure_future(consumer.receive(8, 30, timeout_s=DEADLINE_S))
        await asyncio.sleep(0)
        async with Producer(name_server) as producer:
            await producer.send(Message(topic, b"other", tags=TWIN_TAGS[1]))
            await producer.send(Message(topic, b"wanted", tags=TWIN_TAGS[0]))
        (found,) = await waiting
        assert (found.body, found.tags) == (b"wanted", TWIN_TAGS[0])
        await consumer.ack(found)


ALL: tuple[Callable[[str, str], object], ...] = (
    members_share_messages,
    what_is_not_acknowledged_comes_again,
    waiting_ends_with_a_message,
)
