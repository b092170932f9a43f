"""What becomes of messages, by every way of handling them: against any broker, ours and real ones.

Every scenario takes a name server's address and the name of a topic that nobody used before. The
broker's delays are short.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.administration import admin_of
from tests.cluster.scenarios import TIMEOUT_S, member, receive, send_numbers, wait_until

from pymq import blocking
from pymq.client.consuming.consumer import Consumer
from pymq.client.sending.producer import Producer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import AlreadySettled
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message, ReceivedMessage

DEADLINE_S = 120.0
WAYS = ("async", "plain", "loop", "batch")


def committed(name_server: str, topic: str, group: str) -> int:
    """Return how many messages the group has finished, as its brokers know."""
    with BlockingClient(name_server, timeout_s=TIMEOUT_S) as client:
        return sum(lag.consumer_offset for lag in admin_of(client).offsets.lag(group, topic))


async def dead_letters(name_server: str, group: str, count: int) -> list[ReceivedMessage]:
    async with member(name_server, f"u-{group}", f"%DLQ%{group}") as undertaker:
        return await receive(undertaker, count)


class Tried:
    """Settles messages by their number, and keeps what was delivered."""

    def __init__(self) -> None:
        self.tries: dict[int, list[int]] = {}

    def handle(self, message: ReceivedMessage) -> None:
        number = int(message.body)
        self.tries.setdefault(number, []).append(message.reconsume_times)
        if message.reconsume_times == 0:
            settle(number, message)

    @property
    def is_complete(self) -> bool:
        return sum(map(len, self.tries.values())) >= sum(map(len, EXPECTED.values()))


def settle(number: int, message: ReceivedMessage) -> None:
    if number == 1:
        message.ack()
        raise ValueError("after its ack")
    if number == 2:
        message.retry()
    elif number == 3:
        message.retry(after_s=1)
    elif number == 4:
        message.reject("cannot be parsed:\n\x01no \ud800JSON")
    elif number == 5:
        message.reject()
    elif number == 6:
        raise ValueError("no outcome by name")


EXPECTED = {0: [0], 1: [0], 2: [0, 1], 3: [0, 1], 4: [0], 5: [0], 6: [0, 1], 7: [0]}


async def check_dead_letters(name_server: str, topic: str, group: str) -> None:
    by_number = {int(one.body): one for one in await dead_letters(name_server, group, 2)}
    assert by_number.keys() == {4, 5}
    assert by_number[4].properties["DLQ_REASON"] == "cannot be parsed:  no  JSON"
    assert "DLQ_REASON" not in by_number[5].properties
    for letter in by_number.values():
        assert letter.topic == f"%DLQ%{group}"
        assert (letter.properties["RETRY_TOPIC"], letter.reconsume_times) == (topic, 1)
        assert letter.properties["ORIGIN_MESSAGE_ID"]


async def outcomes_by_name(name_server: str, topic: str, way: str) -> None:
    """What handlers and loops say of messages becomes of them, and all are committed."""
    tried = Tried()
    group = f"g-{topic}"

    async def handler(message: ReceivedMessage) -> None:
        tried.handle(message)

    def several(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            tried.handle(message)

    async def loop(consumer: Consumer) -> None:
        async for message in consumer:
            try:
                tried.handle(message)
            except ValueError:
                if int(message.body) == 6:
                    message.retry()

    await send_numbers(name_server, topic, range(8))
    async with member(name_server, group, topic) as consumer:
        ways: dict[str, Callable[[], Any]] = {
            "async": lambda: consumer.run(handler),
            "plain": lambda: consumer.run(tried.handle),
            "loop": lambda: loop(consumer),
            "batch": lambda: consumer.run(several, batch_size=1),
        }
        running = asyncio.ensure_future(ways[way]())
        await wait_until(lambda: tried.is_complete, "all tries")
        await wait_until(lambda: not consumer.backlog_count, "all are finished")
    await running
    await check_dead_letters(name_server, topic, group)
    assert tried.tries == EXPECTED
    assert await asyncio.to_thread(committed, name_server, topic, group) == 8


def outcomes_from_another_thread(name_server: str, topic: str) -> None:
    """The same in the blocking iterator: another thread says what became of each message."""
    asyncio.run(send_numbers(name_server, topic, range(8)))
    tried = Tried()
    group = f"g-{topic}"

    def work(message: ReceivedMessage) -> None:
        try:
            tried.handle(message)
        except ValueError:
            if int(message.body) == 6:
                message.retry()

    consumer = blocking.Consumer(name_server, group, from_where="earliest", timeout_s=TIMEOUT_S)
    with consumer.subscribe(topic):
        for message in consumer.messages(timeout_s=DEADLINE_S):
            thread = threading.Thread(target=work, args=(message,))
            thread.start()
            thread.join()
            if tried.is_complete:
                break
        consumer.acknowledge()
        try:
            message.ack()
        except AlreadySettled as error:
            assert "comes too late: the message was" in str(error)
        else:
            raise AssertionError("two outcomes")
        consumer.commit()
        assert committed(name_server, topic, group) == 8
    asyncio.run(check_dead_letters(name_server, topic, group))
    assert tried.tries == EXPECTED


class Unsteady:
    """A plain handler that fails at some messages the first time, and rejects others."""

    def __init__(self) -> None:
        self.handled: Counter[int] = Counter()

    def handle(self, message: ReceivedMessage) -> None:
        number = int(message.body)
        if number % 50 == 0 and message.reconsume_times == 0:
            message.retry(after_s=1)
        elif number % 50 == 1 and message.reconsume_times == 0:
            raise ValueError("not the first time")
        elif number % 50 == 2:
            message.reject(f"number {number}")
        self.handled[number] += 1


def nothing_is_lost_while_a_broker_restarts(
    name_server: str, topic: str, restart: Callable[[], None]
) -> None:
    """Every message that was acknowledged is handled, every reject is a dead letter, all is
    committed, though one of two brokers is killed and comes back while messages are sent.

    Args:
        name_server: of the two brokers.
        topic: created here, on both.
        restart: kills one of them and starts it again.
    """
    group = f"g-{topic}"
    unsteady = Unsteady()
    sent: set[int] = set()

    async def send(producer: Producer, numbers: range) -> None:
        for number in numbers:
            await producer.send(Message(topic, b"%d" % number))
            sent.add(number)

    async def work() -> None:
        consumer = Consumer(name_server, group, from_where="earliest")
        async with Producer(name_server, deadline_s=120) as producer, consumer.subscribe(topic):
            running = asyncio.ensure_future(consumer.run(unsteady.handle))
            await send(producer, range(200))
            await wait_until(lambda: len(unsteady.handled) > 50, "some are handled")
            sending = asyncio.ensure_future(send(producer, range(200, 600)))
            await asyncio.to_thread(restart)
            await sending
            await wait_until(lambda: unsteady.handled.keys() >= sent, "all are handled")
            # What the broker has forgotten of commits when it was killed comes again.
            async with asyncio.timeout(DEADLINE_S):
                while await asyncio.to_thread(uncommitted):
                    await asyncio.sleep(0.2)
        await running
        rejected = {number for number in sent if number % 50 == 2}
        found: set[int] = set()
        undertaker = Consumer(name_server, f"u-{group}", from_where="earliest")
        async with asyncio.timeout(DEADLINE_S), undertaker.subscribe(f"%DLQ%{group}"):
            async for letter in undertaker:
                assert letter.properties["DLQ_REASON"] == f"number {int(letter.body)}"
                found.add(int(letter.body))
                if found == rejected:
                    break

    def stored() -> dict[MessageQueue, int]:
        bounds = client.bounds(client.read_queues(topic))
        return {queue: end for queue, (_, end) in bounds.items()}

    def uncommitted() -> dict[MessageQueue, int]:
        return {
            queue: end
            for queue, end in stored().items()
            if client.committed_offset(group, queue) != end
        }

    with BlockingClient(name_server, read_deadline_s=DEADLINE_S) as client:
        admin_of(client, TIMEOUT_S).topics.create(topic, queue_count=4)
        asyncio.run(work())
        assert sum(stored().values()) >= len(sent) == 600
        assert not uncommitted()
