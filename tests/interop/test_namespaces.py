"""Official clients with a namespace: a prefix of topics and groups that brokers know nothing of."""

import time
from collections.abc import Callable, Iterator

import pytest
from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.jvm import JavaClient

from pymq.client.bulk_client import BulkClient
from pymq.errors import PymqError
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(store_settings={"delay_levels_ms": (100,) * 18}) as running:
        yield running


def message_count(cluster: Cluster, topic: str) -> int:
    with BulkClient(cluster.name_server) as client:
        try:
            queues = client.read_queues(topic)
        except PymqError:
            return 0
        return sum(end for _, end in client.bounds(queues).values())


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_messages_retries_and_dead_letters_of_a_namespace(
    version: str,
    cluster: Cluster,
    java_client: Callable[[str], JavaClient],
    java_admin: Callable[[str, str], JavaAdmin],
) -> None:
    client, name_server = java_client(version), cluster.name_server
    space, topic, group = f"NS{version[0]}", "orders", "buyers"
    java_admin(version, name_server).create_topic(f"{space}%{topic}", 2)
    with JavaProducer(client, "makers", name_server, Namespace=space) as producer:
        producer.send(topic, b"message")
    assert message_count(cluster, f"{space}%{topic}") == 1
    with JavaPushConsumer(client, group, name_server, topic, Namespace=space) as consumer:
        (message,) = consumer.wait_count(1)
        assert (message.topic, message.body) == (topic, b"message")
    with JavaPushConsumer(
        client,
        f"{group}-failing",
        name_server,
        topic,
        Namespace=space,
        MaxReconsumeTimes=1,
        fail_first=1000,
        retry_delay_level=1,
    ):
        dead = f"%DLQ%{space}%{group}-failing"
        deadline = time.monotonic() + DEADLINE_S
        while not message_count(cluster, dead):
            assert time.monotonic() < deadline, "nothing became a dead letter"
            time.sleep(0.1)
    assert message_count(cluster, f"%RETRY%{space}%{group}-failing") == 1
