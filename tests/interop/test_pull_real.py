"""Our pull consumer, and messages as columns, with official brokers: the assertions of our own."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

import pytest
from tests.cluster import column_scenarios, pulling
from tests.cluster.running import run
from tests.cluster.scenarios import QUEUE_COUNT
from tests.interop.conftest import RealCluster

from pymq import BlockingAdmin, BlockingClient

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
    topic = f"pull-{uuid.uuid4().hex[:12]}"
    with BlockingClient(name_server) as client:
        BlockingAdmin(client).create_topic(topic, queue_count=QUEUE_COUNT)
    run(scenario(name_server, topic))
