"""What becomes of messages, by every way of handling them: against any broker, ours and real ones.

Every scenario takes a name server's address and the name of a topic that nobody used before. The
broker's delays are short.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from tests.cluster.scenarios import receive, send_numbers, wait_until

from pymq import blocking
from pymq.client.admin import BlockingAdmin
from pymq.client.blocking import BlockingClient
from pymq.client.consumer import Consumer
from pymq.errors import AlreadySettled
from pymq.protocol.message import ReceivedMessage

WAYS = ("async", "plain", "loop", "batch")


def committed(name_server: str, topic: str, group: str) -> int:
    """Return how many messages the group has finished, as its brokers know."""
    with BlockingClient(name_server) as client:
        return sum(lag.consumer_offset for lag in BlockingAdmin(client).group_lag(group, topic))


async def dead_letters(name_server: str, group: str, count: int) -> list[ReceivedMessage]:
    undertaker = Consumer(name_server, f"u-{group}", from_where="earliest")
    async with undertaker.subscribe(f"%DLQ%{group}"):
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
    async with Consumer(name_server, group, from_where="earliest").subscribe(topic) as consumer:
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

    consumer = blocking.Consumer(name_server, group, from_where="earliest")
    with consumer.subscribe(topic):
        for message in consumer.messages(timeout_s=60):
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
