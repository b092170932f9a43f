"""Locks of queues that are read in order, while something else changes: nobody keeps what is not
his, and nobody sets back what another one has committed."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import pytest
from tests.cluster.running import ask, run
from tests.cluster.scenarios import DEADLINE_S, TIMEOUT_S, create_topic, wait_until

from pymq import CommitFailed, Consumer, Message, MessageQueue, Producer
from pymq.client import operations
from pymq.client.group import queue_locks
from pymq.client.group.queue_locks import QueueLocks
from pymq.client.group.queue_reader import QueueReader
from pymq.client.group.rebalance import Rebalance
from pymq.errors import RequestTimeout
from pymq.testing import Cluster


@pytest.fixture
def cluster(pymq_cluster: Cluster) -> Cluster:
    create_topic(pymq_cluster.name_server, "T", queue_count=1)
    return pymq_cluster


def member(cluster: Cluster) -> Consumer:
    return Consumer(
        cluster.name_server, "g", from_where="earliest", orderly=True, timeout_s=TIMEOUT_S
    ).subscribe("T")


async def is_free(cluster: Cluster, queue: MessageQueue) -> bool:
    """Can another member have the lock of a queue?"""
    lock = operations.lock_queues("g", "other", [queue])
    granted: list[MessageQueue] = await ask(cluster.broker_address, lock)
    return granted == [queue]


def test_a_lock_that_is_granted_while_the_consumer_closes_is_given_free(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = QueueLocks.lock
    locked: list[MessageQueue] = []
    may_answer = asyncio.Event()

    async def slow_lock(self: QueueLocks, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        granted = await lock(self, queues)
        locked.extend(one for one in granted if one.topic == "T")
        if locked:
            await may_answer.wait()
        return granted

    monkeypatch.setattr(QueueLocks, "lock", slow_lock)

    async def test() -> None:
        consumer = member(cluster)
        async with asyncio.timeout(DEADLINE_S):
            await consumer.start()
            await wait_until(lambda: len(locked) == 1, "it is locked")
            assert not await is_free(cluster, locked[0])
            closing = asyncio.ensure_future(consumer.close())
            while consumer._parts.held._is_closing is False:
                await asyncio.sleep(0.01)
            may_answer.set()
            await closing
        assert await is_free(cluster, locked[0])

    run(test())


def test_a_queue_that_could_not_be_read_is_given_free_before_it_is_taken_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.client.group.rebalance.REBALANCE_S", 0.05)
    monkeypatch.setattr("pymq.client.group.rebalance.REBALANCE_SOON_S", 0.05)
    run_reader, unlock, rebalance = QueueReader.run, QueueLocks.unlock, Rebalance.rebalance
    begun: list[MessageQueue] = []
    divisions: list[bool] = []
    is_unlocking, may_unlock = asyncio.Event(), asyncio.Event()

    async def fail_first(self: QueueReader) -> None:
        if self.queue.topic == "T":
            begun.append(self.queue)
            if len(begun) == 1:
                raise RequestTimeout("where to begin is not known")
        await run_reader(self)

    async def slow_unlock(self: QueueLocks, queues: Any) -> None:
        if not is_unlocking.is_set() and begun and begun[0] in queues:
            is_unlocking.set()
            await may_unlock.wait()
        await unlock(self, queues)

    async def noted_rebalance(self: Rebalance) -> bool:
        settled = await rebalance(self)
        divisions.append(settled)
        return settled

    monkeypatch.setattr(Rebalance, "rebalance", noted_rebalance)
    monkeypatch.setattr(QueueReader, "run", fail_first)
    monkeypatch.setattr(QueueLocks, "unlock", slow_unlock)

    async def test() -> None:
        async with member(cluster):
            await wait_until(is_unlocking.is_set, "it is given free")
            before = len(divisions)
            await wait_until(lambda: len(divisions) > before + 3, "the queues are divided")
            begun_meanwhile = begun[1:]
            may_unlock.set()
            assert not begun_meanwhile
            await wait_until(lambda: len(begun) == 2, "it is read again")
            assert not await is_free(cluster, begun[0])
        assert await is_free(cluster, begun[0])

    run(test())


def test_a_queue_in_doubt_is_not_set_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pymq.client.group.queue_locks.RENEW_S", 3600)

    async def committed(queue: MessageQueue) -> int | None:
        offset: int | None = await ask(
            cluster.broker_address, operations.query_offset("g", queue)
        )
        return offset

    async def test() -> None:
        async with Producer(cluster.name_server, timeout_s=TIMEOUT_S) as producer:
            queue = (await producer.send(Message("T", b"one"))).queue
        consumer = member(cluster)
        async with consumer:
            async for message in consumer:
                message.ack()
                break
            await consumer.commit()
            monkeypatch.setattr(queue_locks._Lock, "is_valid", False)
            await consumer.commit()  # nobody else has read
            assert await committed(queue) == 1
            # As the member would that has got the queue meanwhile.
            await ask(cluster.broker_address, operations.update_offset("g", queue, 7))
            consumer.commit_nowait()
            with pytest.raises(CommitFailed, match="another member has read this queue"):
                await consumer.commit()
            assert await committed(queue) == 7
        assert await committed(queue) == 7

    with caplog.at_level(logging.WARNING):
        run(test())
    assert "are not committed" in caplog.text
