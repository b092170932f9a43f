"""Another master of a topic's broker: who reads there, has locks there or asks there is told."""

import asyncio
from typing import Any

import pytest

from pymq import Consumer, Producer, PullConsumer
from pymq.client.cluster.pool import ClientPool
from pymq.errors import ConnectionFailed
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import MessageQueue

SERVER = "127.0.0.1:9"


class Told:
    """Plays a reader, or locks."""

    def __init__(self) -> None:
        self.count = 0

    def route_changed(self, *_: str) -> None:
        self.count += 1


@pytest.mark.parametrize("kind", ["push", "order", "pull"])
def test_readers_and_locks_hear_of_it(kind: str) -> None:
    async def test() -> None:
        reader, other, locks = Told(), Told(), Told()
        member: Any
        if kind == "pull":
            member = PullConsumer(SERVER, "g").subscribe("T")
            held, changed = member._queues.held, member._route_changed
        else:
            member = Consumer(SERVER, "g", orderly=kind == "order").subscribe("T")
            held, changed = member._parts.held, member._parts._route_changed
        held.readers = {MessageQueue("T", "a", 0): reader, MessageQueue("U", "a", 0): other}
        has_locks = held.locks is not None
        if has_locks:
            held.locks = locks
        changed("T")
        assert (reader.count, other.count, locks.count) == (1, 0, int(has_locks))
        assert has_locks == (kind == "order")

    asyncio.run(test())


def test_who_asks_hears_of_it() -> None:
    async def test() -> None:
        parts: Any = Producer(SERVER)._parts
        parts.requests._announced = {"T", "U"}
        parts._route_changed("T")
        assert parts.requests._announced == {"U"}

    asyncio.run(test())


def test_a_master_that_cannot_be_reached_is_doubted() -> None:
    async def test() -> None:
        pool: Any = ClientPool([SERVER])
        doubted: list[str] = []

        async def away(address: str) -> AsyncChannel:
            raise ConnectionFailed("it is away")

        pool.channel, pool.routes.doubt_master = away, doubted.append
        with pytest.raises(ConnectionFailed, match="advertises a:1"):
            await pool.broker_channel("T", "a", "a:1")
        assert doubted == ["a:1"]

    asyncio.run(test())
