"""One local Spark and one embedded cluster for all tests of this folder; a bed of two brokers."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.local_spark import local_spark
from tests.spark.two_brokers import ANSWER_S, TwoBrokers

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster


@pytest.fixture(autouse=True)
def callbacks_can_be_heard() -> None:
    """py4j's server of callbacks uses ``select``; of a higher descriptor it dies, Spark waits."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    assert lowest_free < 900, "tests before this one left descriptors open: see /proc/self/fd"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    # It refuses nothing because that takes long.
    patient = {"fast_failure": False, "page_cache_busy_ms": 600_000}
    with Cluster(broker=patient) as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with local_spark("pymq tests", tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def client(cluster: Cluster) -> Iterator[BlockingClient]:
    with BlockingClient((cluster.name_server,), timeout_s=ANSWER_S) as open_client:
        yield open_client


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[TwoBrokers]:
    """A new name server and two brokers, as processes; see the module ``two_brokers``."""
    with TwoBrokers(tmp_path / "bed") as bed:
        yield bed


@pytest.fixture
def running() -> Iterator[list[StreamingQuery]]:
    """Queries to be stopped at the end of the test."""
    queries: list[StreamingQuery] = []
    yield queries
    for query in queries:
        query.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test alone."""
    return request.node.name.removeprefix("test_").replace("[", "-").replace("]", "")


@pytest.fixture
def send(client: BlockingClient) -> Callable[..., None]:
    """Sends messages with these bodies, spread over the queues of the topic."""

    def send(topic: str, bodies: list[bytes], tags: str | None = None) -> None:
        queues = client.write_queues(topic)
        for number, queue in enumerate(queues):
            some = bodies[number :: len(queues)]
            if some:
                client.send_batch(queue, [Message(topic, body, tags=tags) for body in some])

    return send
