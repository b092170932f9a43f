"""The asyncio client against official brokers: the same scenarios as against ours."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable

import pytest
from tests.cluster import scenarios
from tests.interop.conftest import RealCluster

from pymq.client.consuming.consumer import Consumer
from pymq.client.sending.producer import Producer
from pymq.client.threaded.consumer import Consumer as BlockingConsumer
from pymq.client.threaded.producer import Producer as BlockingProducer
from pymq.errors import ConfigurationError
from pymq.protocol.message import Message

pytestmark = [pytest.mark.interop, pytest.mark.by_turns("cluster")]

ClusterFactory = Callable[[str], RealCluster]


@pytest.fixture(params=["4.9.7", "5.3.3"])
def cluster(request: pytest.FixtureRequest, real_cluster: ClusterFactory) -> RealCluster:
    return real_cluster(request.param)


@pytest.fixture
def topic() -> str:
    return f"async-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda scenario: scenario.__name__)
def test_scenario(
    scenario: Callable[[str, str], Awaitable[None]],
    cluster: RealCluster,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        await scenario(cluster.name_server.address, topic)

    with caplog.at_level(logging.INFO, logger="pymq"):
        asyncio.run(run())


def test_blocking_faces(cluster: RealCluster, topic: str) -> None:
    name_server = cluster.name_server.address
    with BlockingProducer(name_server) as producer:
        for number in range(10):
            producer.send(Message(topic, b"%d" % number))
    consumer = BlockingConsumer(name_server, f"g-{topic}", from_where="earliest")
    with consumer.subscribe(topic):
        received = [consumer.receive(scenarios.DEADLINE_S) for _ in range(10)]
    assert sorted(int(message.body) for message in received if message) == list(range(10))


def test_a_broker_given_as_a_name_server_is_refused(cluster: RealCluster) -> None:
    async def run() -> None:
        with pytest.raises(ConfigurationError, match="was given as a name server and is a broker"):
            await Producer(cluster.broker.address).start()

    asyncio.run(run())


def test_members_that_subscribe_differently_say_so(
    cluster: RealCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    name_server = cluster.name_server.address

    async def run() -> None:
        await scenarios.send_numbers(name_server, topic, range(8))
        async with Consumer(name_server, f"g-{topic}").subscribe(topic, "a") as first:
            await scenarios.wait_until(lambda: first.assignment, "it has queues")
            async with Consumer(name_server, f"g-{topic}").subscribe(topic, "b"):
                await scenarios.wait_until(
                    lambda: f"of topic {topic!r} this one wants" in caplog.text, "one says so"
                )

    asyncio.run(run())
