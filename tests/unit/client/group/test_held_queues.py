"""The queues that a member takes and gives up: which are wanted, and which fail no more."""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pymq.client.group.broker_offsets import BrokerOffsets
from pymq.client.group.held_queues import HeldQueues
from pymq.client.group.inbox import FlowLimits, Inbox
from pymq.client.group.queue_reader import QueueReader
from pymq.client.group.rebalance_listener import ListenerCalls
from pymq.client.group.start_policy import StartPolicy
from pymq.errors import ConnectionFailed
from pymq.net.tasks import Tasks
from pymq.protocol.bodies import MessageQueue, Subscription

QUEUES = [MessageQueue("T", "a", number) for number in range(2)]


class Pool:
    """Starts tasks, as the pool does."""

    def __init__(self) -> None:
        self.tasks = Tasks("test")
        self.spawn = self.tasks.start


class Locks:
    """Grants all locks; meanwhile the topic is unsubscribed."""

    def __init__(self, subscriptions: dict[str, Subscription]) -> None:
        self._subscriptions = subscriptions
        self.locked: set[MessageQueue] = set()

    async def lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        self.locked.update(queues)
        self._subscriptions.clear()
        return set(queues)

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        self.locked.difference_update(queues)


def held_queues(pool: Any) -> HeldQueues:
    return HeldQueues(
        "g",
        pool=pool,
        inbox=Inbox(FlowLimits()),
        offsets=lambda _: pytest.fail("nothing is read"),
        on_undecodable=lambda _: None,
        listener=ListenerCalls("g", None),
        wake=lambda: None,
    )


@pytest.mark.parametrize("orderly", [False, True], ids=["before", "while they are locked"])
def test_what_was_unsubscribed_meanwhile_is_not_missed(orderly: bool) -> None:
    """Else the queues would be divided again at once, for nothing."""

    async def test() -> None:
        subscriptions = {"T": Subscription(topic="T")} if orderly else {}
        pool: Any = Pool()
        locks: Any = Locks(subscriptions)
        held = held_queues(pool)
        held.locks = locks if orderly else None
        start = StartPolicy.of("earliest")
        assert await held.take(QUEUES, lambda: subscriptions.get("T"), lambda _: start)
        assert not held.readers and not locks.locked
        await pool.tasks.close()

    asyncio.run(test())


@pytest.mark.parametrize("how", ["lose", "lost_lock", "not divided to it"])
def test_a_queue_that_leaves_fails_no_more(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its failure would keep the next outage of its broker from being said."""
    caplog.set_level(logging.INFO)

    async def test() -> None:
        pool = Pool()
        held = held_queues(pool)
        unread = held._reader_parts.unread
        for queue in QUEUES:
            unread.failed(queue, ConnectionFailed("it is away"))
        reader: Any = SimpleNamespace(queue=QUEUES[0], process_queue=None)
        if how == "not divided to it":  # Its reader could not find out where to begin.
            start = StartPolicy.of("earliest")
            held.readers[QUEUES[1]] = reader
            await held.take([], lambda: Subscription(topic="T"), lambda _: start)
        else:
            held.readers[QUEUES[0]] = reader
            if how == "lose":
                await held.lose(QUEUES[:1])
            else:
                held.lost_lock(QUEUES[0])
        unread.succeeded(QUEUES[1])
        await pool.tasks.close()

    asyncio.run(test())
    assert sum("reading goes on after a failure" in one for one in caplog.messages) == 1


def test_a_queue_that_is_paused_fails_no_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def test() -> None:
        pool: Any = Pool()
        held = held_queues(pool)
        parts = replace(held._reader_parts, offsets=lambda one: BrokerOffsets("g", one, pool))
        subscription, start = Subscription(topic="T"), StartPolicy.of("earliest")
        for queue in QUEUES:
            held.readers[queue] = QueueReader(
                queue, parts, subscription=subscription, start=start, left_at=None
            )
            parts.unread.failed(queue, ConnectionFailed("it is away"))
        held.pause(QUEUES[:1])
        parts.unread.succeeded(QUEUES[1])

    asyncio.run(test())
    assert sum("reading goes on after a failure" in one for one in caplog.messages) == 1
