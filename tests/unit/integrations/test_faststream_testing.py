"""The FastStream broker in memory: handlers are called as in a cluster, and nothing listens."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

pytest.importorskip("faststream")

from faststream import AckPolicy, FastStream, TestApp
from faststream.exceptions import SubscriberNotFound
from pydantic import BaseModel, ValidationError

from pymq import LocalProtocolError
from pymq.integrations.faststream import (
    CurrentMessage,
    RocketBroker,
    RocketResponse,
    RocketRouter,
)
from pymq.integrations.faststream_testing import TestRocketBroker

NOWHERE = "127.0.0.1:1"


class Order(BaseModel):
    number: int


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test

    asyncio.run(limited())


def test_handlers_publishers_and_mocks() -> None:
    broker = RocketBroker(NOWHERE)

    @broker.subscriber("orders", "shipping")
    @broker.publisher("parcels", tags="new")
    async def ship(order: Order) -> dict[str, int]:
        return {"parcel": order.number}

    seen: list[tuple[Any, ...]] = []

    @broker.subscriber("parcels", "doors", tags="new || old")
    async def open_door(body: dict[str, int], message: CurrentMessage) -> None:
        raw = message.raw_message
        seen.append((body["parcel"], raw.tags, raw.topic, message.headers))

    @broker.subscriber("parcels", "others", tags="old")
    async def never(body: str) -> None:
        raise AssertionError(body)

    async def test() -> None:
        for round_number in range(2):  # twice in one process
            async with TestRocketBroker(broker) as running:
                receipt = await running.publish(
                    Order(number=7), "orders", keys=["a", "b"], headers={"h": "v"}
                )
                assert receipt.queue.topic == "orders" and len(receipt.message_id) == 32
                assert ship.mock is not None
                ship.mock.assert_called_once_with({"number": 7})
                await running.publish_batch({"number": 8}, {"number": 9}, topic="orders")
                with pytest.raises(ValidationError):
                    await running.publish("nonsense", "orders")
            assert [one[0] for one in seen] == [7, 8, 9] * (round_number + 1)
        assert seen[0] == (7, "new", "parcels", {})

    run(test())


def test_each_group_gets_a_message_once() -> None:
    broker, calls = RocketBroker(NOWHERE), Counter[str]()
    router = RocketRouter(prefix="shop-")

    @router.subscriber("t", "g")
    async def first(body: str) -> None:
        calls["g"] += 1

    @broker.subscriber("shop-t", "g")
    async def second(body: str) -> None:
        calls["g"] += 1

    @broker.subscriber("shop-t", "h")
    async def other(body: str) -> None:
        calls["h"] += 1

    broker.include_router(router)

    async def test() -> None:
        async with TestRocketBroker(broker) as running:
            await running.publish("x", "shop-t")

    run(test())
    assert calls == {"g": 1, "h": 1}


@pytest.mark.parametrize("policy", [AckPolicy.MANUAL, AckPolicy.NACK_ON_ERROR])
def test_outcomes_and_failures(policy: AckPolicy) -> None:
    broker = RocketBroker(NOWHERE, ack_policy=policy)

    @broker.subscriber("t", "g")
    async def handle(body: str, message: CurrentMessage) -> None:
        if body == "bad":
            raise KeyError(body)
        await {"a": message.ack, "n": message.nack, "r": message.reject}[body]()

    async def test() -> None:
        async with TestRocketBroker(broker) as running:
            for body in ("a", "n", "r"):
                await running.publish(body, "t")
            with pytest.raises(KeyError):
                await running.publish("bad", "t")
            with pytest.raises(LocalProtocolError, match="belongs to the system"):
                await running.publish("a", "t", headers={"TAGS": "x"})
            with pytest.raises(LocalProtocolError, match="topic name"):
                await running.publish("a", "a b")

    run(test())


def test_requests_are_answered() -> None:
    broker = RocketBroker(NOWHERE)

    @broker.subscriber("questions", "g")
    async def answer(body: str) -> RocketResponse | None:
        return RocketResponse(body.upper(), headers={"k": "v"}) if body else None

    async def test() -> None:
        async with TestRocketBroker(broker) as running:
            reply = await running.request("a", "questions")
            assert (await reply.decode(), reply.headers["k"]) == ("A", "v")
            with pytest.raises(SubscriberNotFound):
                await running.request("a", "elsewhere")

    run(test())


def test_an_application_as_a_whole() -> None:
    broker = RocketBroker(NOWHERE)
    app, got = FastStream(broker), list[str]()

    @broker.subscriber("t", "g")
    async def handle(body: str) -> None:
        got.append(body)

    @app.after_startup
    async def first() -> None:
        await broker.publish("first", "t")

    async def test() -> None:
        async with TestRocketBroker(broker), TestApp(app):
            assert got == ["first"]

    run(test())
