"""Our pull and simple consumers, and columns, with official brokers: as with our own."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

import pytest
from tests.cluster import column_scenarios, popping, pulling
from tests.cluster.running import run
from tests.cluster.scenarios import QUEUE_COUNT
from tests.interop.conftest import RealCluster

from pymq import BlockingAdmin, BlockingClient, ConfigurationError, SimpleConsumer

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


def new_topic(name_server: str) -> str:
    topic = f"pull-{uuid.uuid4().hex[:12]}"
    with BlockingClient(name_server) as client:
        BlockingAdmin(client).create_topic(topic, queue_count=QUEUE_COUNT)
    return topic
