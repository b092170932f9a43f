"""A consumer that subscribes to other tags while it reads: nothing that it wants is passed over."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from tests.cluster.running import run
from tests.cluster.scenarios import DEADLINE_S, TIMEOUT_S, create_topic, wait_until

from pymq import Consumer, Message, MessageQueue, Producer, PullConsumer
from pymq.client.group.queue_locks import QueueLocks
from pymq.client.group.queue_reader import QueueReader
from pymq.client.operations import PullResult
from pymq.testing import Cluster


async def send(name_server: str, tags: str) -> None:
    """Send one message for each letter, whose tag and body it is."""
    async with Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        for tag in tags:
            await producer.send(Message("T", tag.encode(), tags=tag))


@pytest.fixture
def cluster(pymq_cluster: Cluster) -> Cluster:
    create_topic(pymq_cluster.name_server, "T", queue_count=1)
    return pymq_cluster


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tags that pulls have asked the broker for."""
    asked: list[str] = []
    before = QueueReader._pull

    async def pull(self: QueueReader, *arguments: Any) -> PullResult:
        if self.queue.topic == "T":
            asked.append(self.subscription.expression)
        return await before(self, *arguments)

    monkeypatch.setattr(QueueReader, "_pull", pull)
    return asked


@pytest.mark.parametrize("orderly", [False, True])
def test_a_pull_that_is_held_is_made_again(
    cluster: Cluster, pulls: list[str], orderly: bool
) -> None:
    async def test() -> None:
        got: list[bytes] = []

        async def handle(message: Any) -> None:
            got.append(message.body)

        consumer = Consumer(
            cluster.name_server, "g", from_where="earliest", orderly=orderly, timeout_s=TIMEOUT_S
        )
        async with consumer.subscribe("T", "A"):
            running = asyncio.ensure_future(consumer.run(handle))
            await wait_until(lambda: pulls == ["A"], "it is asked for")
            await send(cluster.name_server, "B")
            consumer.subscribe("T", "A || B")
            await send(cluster.name_server, "A")
            await wait_until(lambda: b"A" in got, "what came last")
        await running
        assert got == [b"B", b"A"]

    run(test())


def test_who_subscribes_while_a_lock_is_asked_for_gets_what_is_wanted_now(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = QueueLocks.lock
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow_lock(self: QueueLocks, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        wanted = sorted(queues)
        granted = await lock(self, wanted)
        if any(queue.topic == "T" for queue in wanted):
            is_asked.set()
            await may_answer.wait()
        return granted

    monkeypatch.setattr(QueueLocks, "lock", slow_lock)

    async def test() -> None:
        await send(cluster.name_server, "ABA")
        consumer = Consumer(
            cluster.name_server, "g", from_where="earliest", orderly=True, timeout_s=TIMEOUT_S
        )
        async with consumer.subscribe("T", "A"), asyncio.timeout(DEADLINE_S):
            await is_asked.wait()
            consumer.subscribe("T", "B")
            may_answer.set()
            async for message in consumer:
                assert message.body == b"B"
                break

    run(test())


def test_a_pull_consumer_reads_again_what_it_has_not_polled(cluster: Cluster) -> None:
    async def test() -> None:
        await send(cluster.name_server, "ABABAB")
        consumer = PullConsumer(
            cluster.name_server, "g", from_where="earliest", timeout_s=TIMEOUT_S
        ).subscribe("T", "A")
        async with consumer:
            (first,) = await consumer.poll(1, DEADLINE_S)
            (queue,) = consumer.assignment
            consumer.subscribe("T", "B")
            found = [first]
            while len(found) < 3:
                found += await consumer.poll(1, DEADLINE_S)
            assert [(one.body, one.queue_offset) for one in found] == [
                (b"A", 0),
                (b"B", 1),
                (b"B", 3),
            ]
            await consumer.commit({queue: 1})
            consumer.subscribe("T", "A || B")  # what is consumed does not change by it
            assert await consumer.committed([queue]) == {queue: 1}
            assert await consumer.position(queue) == 4
            assert [one.queue_offset for one in await consumer.poll(9, DEADLINE_S)] == [4, 5]

    run(test())
