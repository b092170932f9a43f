"""The Spark source and sink against official brokers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from pyspark.sql import SparkSession
from tests.administration import admin_of
from tests.interop.conftest import RealCluster
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_scenarios import AWKWARD_TEXT
from tests.interop.jvm import JavaClient
from tests.local_spark import local_spark

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message, ReceivedMessage
from pymq.protocol.record import decode_records

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.by_turns("site")]

VERSIONS: Final = ["5.3.3", "4.9.7"]
QUEUE_COUNT: Final = 4
BATCHED_COUNT: Final = 4_960
JAVA_COUNT: Final = 40
WRITTEN_COUNT: Final = 1_000
DEADLINE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Site:
    """An official broker and a new topic on it."""

    cluster: RealCluster
    client: BlockingClient
    java: JavaClient
    topic: str

    @property
    def name_server(self) -> str:
        return self.cluster.name_server.address

    def options(self, **more: str) -> dict[str, str]:
        # Generous: the machine may be busy, and official brokers stall when their JVM does.
        return {"nameServer": self.name_server, "requestTimeoutMs": "20000", **more}

    def read_all(self) -> list[ReceivedMessage]:
        """Return all messages, read without Spark."""
        bounds = self.client.bounds(self.client.read_queues(self.topic))
        return [
            ReceivedMessage.from_record(record, queue.broker_name)
            for queue, (first, end) in bounds.items()
            for chunk in self.client.pull_range(queue, first, end)
            for record in decode_records(chunk.buffer, verify=True)
        ]

    def wait_count(self, count: int) -> None:
        """Wait until this many messages are in their queues."""
        deadline = time.monotonic() + DEADLINE_S
        queues = self.client.read_queues(self.topic)
        while (
            found := sum(end - first for first, end in self.client.bounds(queues).values())
        ) < count:
            assert time.monotonic() < deadline, f"{found} of {count} messages"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    # Official brokers take most of the memory.
    with local_spark("pymq on official brokers", folder, spark_driver_memory="512m") as session:
        yield session


@pytest.fixture(params=VERSIONS)
def site(
    request: pytest.FixtureRequest,
    real_cluster: Callable[[str], RealCluster],
    java_client: Callable[[str], JavaClient],
) -> Iterator[Site]:
    cluster = real_cluster(request.param)
    with BlockingClient(
        cluster.name_server.address, timeout_s=20.0, read_deadline_s=60.0
    ) as client:
        topic = f"spark-{uuid.uuid4().hex[:12]}"
        admin_of(client).topics.create(topic, queue_count=QUEUE_COUNT)
        yield Site(cluster, client, java_client(request.param), topic)


def send_some(site: Site) -> None:
    """Send with our client in batches, and a few with the official one."""
    queues = site.client.write_queues(site.topic)
    each = BATCHED_COUNT // QUEUE_COUNT
    for queue in queues:
        for start in range(0, each, 310):
            site.client.send_batch(queue, [batched(queue, n) for n in range(start, start + 310)])
    with JavaProducer(site.java, f"p-{site.topic}", site.name_server) as producer:
        for n in range(JAVA_COUNT):
            producer.send(
                site.topic,
                b"java-%d" % n,
                tags="java",
                keys="k1 k2",
                properties={"text": AWKWARD_TEXT},
                queue_id=n % QUEUE_COUNT,
            )
    site.wait_count(BATCHED_COUNT + JAVA_COUNT)


def batched(queue: MessageQueue, number: int) -> Message:
    return Message(
        queue.topic,
        b"%d/%d" % (queue.queue_id, number) * (1 + number % 20),
        tags=[None, "a", "b"][number % 3],
        keys=f"key{number}" if number % 2 else None,
    )


def test_batch_read(spark: SparkSession, site: Site) -> None:
    send_some(site)
    options = site.options(subscribe=site.topic, columns="pymq,msgId,properties", minPartitions="6")
    rows = spark.read.format("pymq").options(**options).load().collect()
    found = {
        (row.queueId, row.queueOffset): (
            bytes(row.body), row.tags, row.keys, row.properties.get("text"), row.msgId,
            round(row.bornTimestamp.timestamp() * 1000),
            round(row.storeTimestamp.timestamp() * 1000),
        )
        for row in rows
    }  # fmt: skip
    expected = {
        (one.queue_id, one.queue_offset): (
            one.body, one.tags, one.properties.get("KEYS"), one.properties.get("text"),
            one.message_id, one.born_timestamp_ms, one.store_timestamp_ms,
        )
        for one in site.read_all()
    }  # fmt: skip
    assert len(rows) == len(expected) == BATCHED_COUNT + JAVA_COUNT
    assert found == expected
    assert sum(row.properties.get("text") == AWKWARD_TEXT for row in rows) == JAVA_COUNT

    tagged = spark.read.format("pymq").options(**site.options(subscribe=site.topic, tags="java"))
    assert {bytes(row.body) for row in tagged.load().select("body").collect()} == {
        b"java-%d" % n for n in range(JAVA_COUNT)
    }


def test_batch_write(spark: SparkSession, site: Site) -> None:
    rows = spark.range(WRITTEN_COUNT).selectExpr(
        "concat('body-', id) as body",
        "if(id % 5 = 0, null, concat('tag-', id % 3)) as tags",
        "if(id % 2 = 0, array('k', cast(id as string)), null) as keys",
        "map('id', cast(id as string), 'letter', 'é') as properties",
    )
    options = site.options(topic=site.topic)
    rows.write.format("pymq").mode("append").options(**options).save()
    with JavaPushConsumer(site.java, f"g-{site.topic}", site.name_server, site.topic) as consumer:
        received = consumer.wait_count(WRITTEN_COUNT, DEADLINE_S)
    assert len(received) == WRITTEN_COUNT
    found = {
        (m.body.decode(), m.tags, m.keys, m.properties["id"], m.properties["letter"])
        for m in received
    }
    assert found == {
        (
            f"body-{n}",
            f"tag-{n % 3}" if n % 5 else None,
            None if n % 2 else f"k {n}",
            str(n),
            "é",
        )
        for n in range(WRITTEN_COUNT)
    }
