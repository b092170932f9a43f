"""What a member says of brokers that leave the route of its topic and come back."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

import pytest

from pymq.client.cluster.routes import Route
from pymq.client.group.rebalance import Rebalance
from pymq.client.group.start_policy import StartPolicy
from pymq.clock import Clock
from pymq.protocol.bodies import MessageQueue, Subscription


def route_to(*names: str) -> Route:
    queues = tuple(MessageQueue("T", name, 0) for name in names)
    return Route("T", queues, queues, {name: {0: f"{name}:1"} for name in names})


class Pool:
    """Has the route that the test sets."""

    def __init__(self) -> None:
        self.clock, self.routes, self.heartbeats = Clock(), self, self
        self.now = route_to()

    async def route(self, topic: str) -> Route:
        return self.now

    async def send_all(self) -> None:
        pass


class Held:
    """Has each queue at once."""

    def __init__(self) -> None:
        self.readers: dict[MessageQueue, object] = {}

    async def take(
        self, queues: Collection[MessageQueue], wanted: Callable[..., object], start: object
    ) -> bool:
        self.readers |= dict.fromkeys(queues)
        return True

    async def lose(self, queues: Collection[MessageQueue]) -> None:
        for queue in queues:
            del self.readers[queue]

    async def give_up(self, queues: Collection[MessageQueue]) -> None:
        await self.lose(queues)


def test_a_broker_that_leaves_twice_is_said_twice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pymq.client.group.rebalance")
    pool: Any = Pool()
    held: Any = Held()
    rebalance = Rebalance(
        "g",
        {"T": Subscription(topic="T")},
        start=StartPolicy.of("earliest"),
        allocation=None,
        pool=pool,
        held=held,
    )

    async def test() -> None:
        for names in ("ab", "a", "a", "ab", "ab", "a"):
            pool.now = route_to(*names)
            assert await rebalance.rebalance()

    asyncio.run(test())
    said = [
        (one.levelname, one.getMessage().split(",")[0].split(":")[0])
        for one in caplog.records
        if "broker" in one.getMessage()
    ]
    left = ("WARNING", "group 'g' does not read broker 'b' any more")
    assert said == [left, ("INFO", "group 'g' reads broker 'b' again"), left]
