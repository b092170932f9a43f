"""The queues that a member takes: whether all could be had that are still wanted."""

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from pymq.client.group.held_queues import HeldQueues
from pymq.client.group.inbox import FlowLimits, Inbox
from pymq.client.group.rebalance_listener import ListenerCalls
from pymq.client.group.start_policy import StartPolicy
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


@pytest.mark.parametrize("orderly", [False, True], ids=["before", "while they are locked"])
def test_what_was_unsubscribed_meanwhile_is_not_missed(orderly: bool) -> None:
    """Else the queues would be divided again at once, for nothing."""

    async def test() -> None:
        subscriptions = {"T": Subscription(topic="T")} if orderly else {}
        pool: Any = Pool()
        locks: Any = Locks(subscriptions)
        held = HeldQueues(
            "g",
            pool=pool,
            inbox=Inbox(FlowLimits()),
            offsets=lambda _: pytest.fail("nothing is read"),
            on_undecodable=lambda _: None,
            listener=ListenerCalls("g", None),
            wake=lambda: None,
        )
        held.locks = locks if orderly else None
        start = StartPolicy.of("earliest")
        assert await held.take(QUEUES, lambda: subscriptions.get("T"), lambda _: start)
        assert not held.readers and not locks.locked
        await pool.tasks.close()

    asyncio.run(test())
