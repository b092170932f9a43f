"""What several modules share: a cluster, and a client with a queue of its own."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.cluster.replicated import Pair, pair_of
from tests.cluster.running import PATIENT
from tests.cluster.scenarios import QUEUE_COUNT, TIMEOUT_S

from pymq import BlockingClient
from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.bodies import MessageQueue
from pymq.testing import Cluster

#: So that what a consumer failed at soon comes again.
RETRY_MS = 100


@pytest.fixture
def pymq_cluster() -> Iterator[Cluster]:
    """A cluster for one test, whose delays are all short."""
    with Cluster(store_settings={"delay_levels_ms": (RETRY_MS,) * 18}) as running:
        yield running


@pytest.fixture
def topic(pymq_cluster: Cluster) -> str:
    """A topic of that cluster, for a scenario."""
    with BlockingClient(pymq_cluster.name_server, timeout_s=TIMEOUT_S) as made:
        admin_of(made).topics.create("topic", queue_count=QUEUE_COUNT)
    return "topic"


@pytest.fixture
def group() -> Iterator[Cluster]:
    """A group of two brokers and their controller."""
    with Cluster(replicas=2, replication=PATIENT) as running:
        running.wait_in_sync()
        yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_of(tmp_path) as one:
        yield one


@pytest.fixture
def quick_local_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have handlers of a queue that has to wait for them try again soon."""
    monkeypatch.setattr("pymq.client.group.retry.LOCAL_RETRY_S", RETRY_MS / 1000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[BulkClient]:
    with BulkClient(cluster.name_server) as made:
        yield made


@pytest.fixture
def queue(client: BulkClient) -> MessageQueue:
    """The only queue of a new topic."""
    topic = f"t-{uuid.uuid4().hex[:12]}"
    admin_of(client).topics.create(topic, queue_count=1)
    return client.write_queues(topic)[0]
