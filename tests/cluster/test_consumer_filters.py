"""Consumers that subscribe by SQL92 expressions."""

import asyncio
import logging

import pytest

from pymq import Consumer, Message, Producer, blocking
from pymq.testing import Cluster

DEADLINE_S = 60.0


async def send_numbers(name_server: str, count: int) -> None:
    async with Producer(name_server, timeout_s=30) as producer:
        for number in range(count):
            await producer.send(Message("T", b"%d" % number, properties={"n": str(number)}))


def test_consumers_get_what_they_select() -> None:
    async def consume(name_server: str) -> None:
        await send_numbers(name_server, 30)
        consumer = Consumer(name_server, "g", from_where="earliest").subscribe("T", sql="n > 24")
        found = []
        async with consumer, asyncio.timeout(DEADLINE_S):
            async for message in consumer:
                found.append(int(message.body))
                if len(found) == 5:
                    break
        assert sorted(found) == [*range(25, 30)]

    with Cluster(broker={"property_filter": True}) as cluster:
        asyncio.run(consume(cluster.name_server))
        consumer = blocking.Consumer(cluster.name_server, "h", from_where="earliest")
        with consumer.subscribe("T", sql="n BETWEEN 3 AND 4") as opened:
            messages = opened.messages(timeout_s=DEADLINE_S)
            assert sorted(int(next(messages).body) for _ in range(2)) == [3, 4]


def test_a_broker_without_property_filters_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def consume(name_server: str) -> None:
        await send_numbers(name_server, 1)
        consumer = Consumer(name_server, "g").subscribe("T", sql="n > 24")
        async with consumer, asyncio.timeout(DEADLINE_S):
            while "does not support consumer to filter message by SQL92" not in caplog.text:
                await asyncio.sleep(0.02)

    with Cluster() as cluster, caplog.at_level(logging.WARNING):
        asyncio.run(consume(cluster.name_server))
