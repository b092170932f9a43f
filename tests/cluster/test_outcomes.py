"""What becomes of a message is said by its handler's end or by name, and stored by its broker."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.running import run
from tests.cluster.scenarios import numbers_of, receive, send_numbers, wait_until

from pymq import blocking
from pymq.client.admin import BlockingAdmin
from pymq.client.blocking import BlockingClient
from pymq.client.consumer import Consumer
from pymq.errors import AlreadySettled, ConfigurationError, NotInHand, PymqError
from pymq.protocol.codes import Permission
from pymq.protocol.message import ReceivedMessage
from pymq.testing.cluster import Cluster

DEADLINE_S = 30.0

pytestmark = pytest.mark.usefixtures("quick_local_retry")


def committed(name_server: str, topic: str = "T") -> int:
    """Return how many messages the group has finished, as its broker knows."""
    with BlockingClient(name_server) as client:
        return sum(lag.consumer_offset for lag in BlockingAdmin(client).group_lag("g", topic))


def consumer_of(cluster: Cluster, **options: Any) -> Consumer:
    return Consumer(cluster.name_server, "g", from_where="earliest", **options).subscribe("T")


async def dead_letters(cluster: Cluster, count: int) -> list[ReceivedMessage]:
    undertaker = Consumer(cluster.name_server, "u", from_where="earliest").subscribe("%DLQ%g")
    async with undertaker:
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
    def count(self) -> int:
        return sum(map(len, self.tries.values()))


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


async def check_dead_letters(cluster: Cluster) -> None:
    by_number = {int(one.body): one for one in await dead_letters(cluster, 2)}
    assert by_number.keys() == {4, 5}
    assert by_number[4].properties["DLQ_REASON"] == "cannot be parsed:  no  JSON"
    assert "DLQ_REASON" not in by_number[5].properties
    for letter in by_number.values():
        assert letter.topic == "%DLQ%g"
        assert (letter.properties["RETRY_TOPIC"], letter.reconsume_times) == ("T", 1)
        assert letter.properties["ORIGIN_MESSAGE_ID"]


@pytest.mark.parametrize("way", ["async", "plain", "loop", "batch"])
def test_outcomes_by_name(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    tried = Tried()

    async def handler(message: ReceivedMessage) -> None:
        tried.handle(message)

    def several(messages: list[ReceivedMessage]) -> None:
        for message in messages:  # number 6 fails the rest of its batch, so one by one
            tried.handle(message)

    async def loop(consumer: Consumer) -> None:
        async for message in consumer:
            try:
                tried.handle(message)
            except ValueError:
                if int(message.body) == 6:
                    message.retry()

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(8))
        async with consumer_of(pymq_cluster) as consumer:
            ways: dict[str, Callable[[], Any]] = {
                "async": lambda: consumer.run(handler),
                "plain": lambda: consumer.run(tried.handle),
                "loop": lambda: loop(consumer),
                "batch": lambda: consumer.run(several, batch_size=1),
            }
            running = asyncio.ensure_future(ways[way]())
            expected = sum(map(len, EXPECTED.values()))
            await wait_until(lambda: tried.count >= expected, "all tries")
            await wait_until(lambda: not consumer.backlog_count, "all are finished")
        await running
        await check_dead_letters(pymq_cluster)

    run(work())
    assert tried.tries == EXPECTED
    assert committed(pymq_cluster.name_server) == 8
    if way != "loop":
        assert caplog.text.count("the handler raised after it had settled message") == 1


def test_outcomes_from_another_thread_in_the_blocking_iterator(pymq_cluster: Cluster) -> None:
    asyncio.run(send_numbers(pymq_cluster.name_server, "T", range(8)))
    tried = Tried()
    refused: list[PymqError] = []

    def work(message: ReceivedMessage) -> None:
        try:
            tried.handle(message)
        except ValueError:
            if int(message.body) == 6:
                message.retry()

    with blocking.Consumer(pymq_cluster.name_server, "g", from_where="earliest").subscribe(
        "T"
    ) as consumer:
        for message in consumer.messages(timeout_s=5):
            thread = threading.Thread(target=work, args=(message,))
            thread.start()
            thread.join()
            if tried.count == sum(map(len, EXPECTED.values())):
                break
        consumer.acknowledge()
        for _ in range(2):
            with pytest.raises(AlreadySettled, match="comes too late: the message was") as late:
                message.ack()
            refused.append(late.value)
        consumer.commit()
        assert committed(pymq_cluster.name_server) == 8
    asyncio.run(check_dead_letters(pymq_cluster))
    assert tried.tries == EXPECTED
    assert not refused[0].retriable


def test_a_second_outcome_is_refused_and_changes_nothing(pymq_cluster: Cluster) -> None:
    refusals: list[str] = []

    async def handler(message: ReceivedMessage) -> None:
        message.retry(after_s=1.4)
        for again in (message.ack, message.retry, message.reject):
            with pytest.raises(AlreadySettled) as refused:
                again()
            refusals.append(str(refused.value))

    async def once(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0:
            await handler(message)

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(1))
        async with consumer_of(pymq_cluster) as consumer:
            running = asyncio.ensure_future(consumer.run(once))
            await wait_until(lambda: len(refusals) == 3, "all are refused")
            await wait_until(lambda: not consumer.backlog_count, "it is finished")
        await running

    run(work())
    assert "ack() of message " in refusals[0] and "reject() of message " in refusals[2]
    for text in refusals:
        assert "comes too late: the message goes back with retry(after_s=1.4)" in text


def test_wrong_outcomes_leave_the_message_in_hand(pymq_cluster: Cluster) -> None:
    wrong: Any = {"retry": [{"after_s": -1}, {"after_s": "soon"}, {"after_s": float("nan")}]}
    wrong["reject"] = [{"reason": 7}]
    checked = False

    async def handler(message: ReceivedMessage) -> None:
        nonlocal checked
        for name, several in wrong.items():
            for arguments in several:
                with pytest.raises(ConfigurationError, match="expected"):
                    getattr(message, name)(**arguments)
        message.ack()
        checked = True

    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(1))
        async with consumer_of(pymq_cluster) as consumer:
            running = asyncio.ensure_future(consumer.run(handler))
            await wait_until(lambda: checked and not consumer.backlog_count, "it is finished")
        await running

    run(work())
    assert committed(pymq_cluster.name_server) == 1


def test_what_is_not_ours_any_more_cannot_be_settled(pymq_cluster: Cluster) -> None:
    async def work() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(4))
        consumer = consumer_of(pymq_cluster)
        held: list[ReceivedMessage] = []
        with pytest.raises(ZeroDivisionError):
            async with consumer:
                async for message in consumer:
                    held.append(message)
                    break
                consumer.unsubscribe("T")
                await wait_until(lambda: not consumer.backlog_count, "its queue is given up")
                with pytest.raises(NotInHand, match="is read by another member now"):
                    held[0].reject("too late")
                consumer.subscribe("T")
                again = await receive(consumer, 1)
                raise ZeroDivisionError
        with pytest.raises(NotInHand, match="the consumer was closed"):
            again[0].ack()
        async with consumer_of(pymq_cluster) as consumer:
            assert numbers_of(await receive(consumer, 4)) == list(range(4))

    run(work())


def test_a_rejected_message_waits_for_its_broker(
    pymq_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Its handler is not called again; what is committed stays before it until that is done."""
    handled: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        handled.append(int(message.body))
        message.reject("never")

    with BlockingClient(pymq_cluster.name_server) as client:
        admin = BlockingAdmin(client)
        admin.create_topic("%RETRY%g", queue_count=1, perm=int(Permission.READ))

        async def work() -> None:
            await send_numbers(pymq_cluster.name_server, "T", range(1))
            async with consumer_of(pymq_cluster) as consumer:
                running = asyncio.ensure_future(consumer.run(handler))
                await wait_until(lambda: "stays here: it becomes a dead" in caplog.text, "said")
                assert consumer.backlog_count == 1
                perm = int(Permission.READ | Permission.WRITE)
                await asyncio.to_thread(admin.create_topic, "%RETRY%g", queue_count=1, perm=perm)
                await wait_until(lambda: not consumer.backlog_count, "it is a dead letter")
            await running
            (letter,) = await dead_letters(pymq_cluster, 1)
            assert letter.properties["DLQ_REASON"] == "never"

        with caplog.at_level(logging.INFO, "pymq.client"):
            run(work())
    assert handled == [0]
    assert caplog.text.count("stays here") == 1
    assert "takes messages back again" in caplog.text
