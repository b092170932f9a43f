"""Our pull and simple consumers, and columns, with official brokers: as with our own."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest
from tests.administration import admin_of
from tests.cluster import column_scenarios, popping, pulling
from tests.cluster.running import run
from tests.cluster.scenarios import QUEUE_COUNT
from tests.interop.conftest import RealCluster
from tests.interop.java_client import JavaLitePullConsumer
from tests.interop.jvm import JavaClient
from tests.spark.two_brokers import wait_until

from pymq import (
    BlockingClient,
    ConfigurationError,
    Message,
    SimpleConsumer,
    blocking,
)
from pymq.testing import Cluster

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    "scenario", [*pulling.ALL, *column_scenarios.ALL], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("version", ["5.3.3", "4.9.7"])
def test_scenario(
    scenario: Callable[[str, str], Awaitable[None]],
    version: str,
    real_cluster: Callable[[str], RealCluster],
) -> None:
    name_server = real_cluster(version).name_server.address
    run(scenario(name_server, new_topic(name_server)))


@pytest.mark.parametrize("scenario", popping.ALL, ids=lambda one: one.__name__)
def test_popping(
    scenario: Callable[[str, str], Awaitable[None]],
    real_cluster: Callable[[str], RealCluster],
) -> None:
    name_server = real_cluster("5.3.3").name_server.address
    run(scenario(name_server, new_topic(name_server)))


def test_a_broker_without_pop_is_named(real_cluster: Callable[[str], RealCluster]) -> None:
    async def test() -> None:
        name_server = real_cluster("4.9.7").name_server.address
        async with SimpleConsumer(name_server, "g").subscribe(new_topic(name_server)) as consumer:
            with pytest.raises(ConfigurationError, match="has no POP.*from 5.0 on"):
                await consumer.receive()

    run(test())


@pytest.mark.parametrize("broker", ["5.3.3", "pymq"])
def test_a_group_shared_with_the_official_lite_pull_consumer(
    broker: str,
    real_cluster: Callable[[str], RealCluster],
    java_client: Callable[[str], JavaClient],
) -> None:
    client = java_client("5.3.3")
    with ExitStack() as stack:
        if broker == "pymq":
            name_server = stack.enter_context(Cluster()).name_server
        else:
            name_server = real_cluster(broker).name_server.address
        topic = new_topic(name_server)
        group = f"g-{topic}"
        ours = blocking.PullConsumer(name_server, group, from_where="earliest").subscribe(topic)
        with JavaLitePullConsumer(client, group, name_server, topic) as theirs:
            stack.enter_context(ours)
            wait_until(lambda: len(ours.assignment) == QUEUE_COUNT // 2, "half of them are ours")
            bodies = send(name_server, topic, 0)
            own = {queue.queue_id for queue in ours.assignment}
            poll(ours, {body for queue_id, body in bodies if queue_id in own})
            other = {body for queue_id, body in bodies if queue_id not in own}
            got: set[bytes] = set()
            while not other <= got:
                got |= {one.body for one in theirs.poll_count(1)}
            ours.commit()
            theirs.commit()
        wait_until(lambda: len(ours.assignment) == QUEUE_COUNT, "all queues are ours")
        more = send(name_server, topic, 100)
        poll(ours, {body for _, body in more})


def poll(consumer: blocking.PullConsumer, wanted: set[bytes]) -> None:
    """Poll until all of some messages were there."""
    got: set[bytes] = set()
    for _ in range(240):
        got |= {one.body for one in consumer.poll(100, 0.5)}
        if wanted <= got:
            return
    raise AssertionError(f"{len(wanted - got)} never came: {sorted(wanted - got)[:5]}")


def send(name_server: str, topic: str, first: int) -> list[tuple[int, bytes]]:
    """Send ten messages to each queue; return their queues and bodies."""
    sent = []
    with BlockingClient(name_server) as client:
        for queue in client.write_queues(topic):
            for n in range(first, first + 10):
                body = b"%d-%d" % (queue.queue_id, n)
                client.send(Message(topic, body), queue)
                sent.append((queue.queue_id, body))
    return sent


def new_topic(name_server: str) -> str:
    topic = f"pull-{uuid.uuid4().hex[:12]}"
    with BlockingClient(name_server) as client:
        admin_of(client).topics.create(topic, queue_count=QUEUE_COUNT)
    return topic
