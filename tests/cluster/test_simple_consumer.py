"""The simple (POP) consumer over loopback: scenarios, two brokers, wrong arguments."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import pytest
from tests.cluster import popping
from tests.cluster.popping import fill
from tests.cluster.running import run
from tests.spark.two_brokers import TwoBrokers, numbers

from pymq import (
    ConfigurationError,
    PymqError,
    RouteNotFound,
    SimpleConsumer,
    blocking,
)
from pymq.testing.cluster import Cluster


@pytest.mark.parametrize("scenario", popping.ALL, ids=lambda one: one.__name__)
def test_scenario(
    scenario: Callable[[str, str], Awaitable[None]], pymq_cluster: Cluster, topic: str
) -> None:
    run(scenario(pymq_cluster.name_server, topic))


@pytest.mark.parametrize("trouble", ["killed", "frozen"])
def test_one_of_two_brokers_is_away(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bed: TwoBrokers) -> None:
        bed.create_topic("T")
        bed.send("T", numbers(80))
        got: Counter[bytes] = Counter()
        consumer = SimpleConsumer(bed.name_server, "g", from_where="earliest", timeout_s=4)

        async def consume(until: Callable[[], bool]) -> None:
            async with asyncio.timeout(90):
                while not until():
                    for message in await consumer.receive(8, 5, timeout_s=1):
                        try:
                            await consumer.ack(message)
                        except PymqError:
                            continue  # It comes again.
                        got[message.body] += 1

        async with consumer.subscribe("T"):
            await consume(lambda: len(got) >= 8)
            if trouble == "killed":
                await asyncio.to_thread(bed.broker("broker-b").kill)
            else:
                bed.freeze("broker-b")
            more = numbers(1000, 1040)
            await asyncio.to_thread(lambda: bed.send("T", more, to="broker-a"))
            await consume(lambda: set(more) <= got.keys())
            if trouble == "killed":
                await asyncio.to_thread(bed.start, "broker-b")
            else:
                bed.thaw("broker-b")
            bodies = {one.body for one in bed.acknowledged("T")}
            await consume(lambda: bodies <= got.keys())

    with caplog.at_level(logging.WARNING), TwoBrokers(tmp_path) as bed:
        run(test(bed))
    assert caplog.text.count("gets no messages of broker 'broker-b'") == 1


def test_the_blocking_face(pymq_cluster: Cluster, topic: str) -> None:
    async def prepare() -> None:
        await fill(pymq_cluster.name_server, topic, 3)

    run(prepare())
    consumer = blocking.SimpleConsumer(pymq_cluster.name_server, "g", from_where="earliest")
    with consumer.subscribe(topic):
        got = []
        while len(got) < 3:
            for message in consumer.receive(8, 30):
                consumer.change_invisible(message, 40)
                consumer.ack(message)
                got.append(message.body)
        assert sorted(got) == [b"0", b"1", b"2"]


def test_wrong_use_is_refused_with_a_reason(pymq_cluster: Cluster, topic: str) -> None:
    async def test() -> None:
        name_server = pymq_cluster.name_server
        with pytest.raises(ConfigurationError, match="subscribe"):
            await SimpleConsumer(name_server, "g").start()
        with pytest.raises(ConfigurationError, match="'latest' or 'earliest'"):
            SimpleConsumer(name_server, "g", from_where=datetime.now())  # type: ignore[arg-type]
        await fill(name_server, topic, 1)
        async with SimpleConsumer(name_server, "g").subscribe(topic) as consumer:
            for arguments in ((0, 1.0), (33, 1.0), (1, 0.0)):
                with pytest.raises(ConfigurationError, match="expected"):
                    await consumer.receive(*arguments)
            with pytest.raises(ConfigurationError, match="POP_CK"):
                await consumer.ack(None)  # type: ignore[arg-type]
        async with SimpleConsumer(name_server, "g").subscribe("nowhere") as consumer:
            with pytest.raises(RouteNotFound, match="nowhere"):
                await consumer.receive(1, 1, timeout_s=0)

    run(test())
