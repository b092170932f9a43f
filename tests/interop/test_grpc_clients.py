"""The official gRPC client at our broker, through the official proxy of 5.4.0."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.interop.conftest import require_peers
from tests.interop.grpc_client import GrpcMessage, GrpcSite
from tests.interop.jars import GRPC_CLIENT, PROXY
from tests.interop.jvm import JavaClient
from tests.interop.proxy import RealProxy

from pymq import BlockingClient, blocking
from pymq.errors import ConnectionFailed, RouteNotFound
from pymq.net.channel import AsyncChannel
from pymq.net.recognition import recognized
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.record import Record, decode_records
from pymq.testing import Cluster

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Iterator[GrpcSite]:
    require_peers(PROXY)
    require_peers(GRPC_CLIENT)
    # The JVM is ended with everything in it: consumers would wait for their last requests.
    with (
        RealProxy(cluster.name_server, "DefaultCluster") as proxy,
        JavaClient(GRPC_CLIENT) as client,
    ):
        yield GrpcSite(client, proxy.address)


def ask(cluster: Cluster, code: int, body: bytes = b"", **fields: Any) -> None:
    """Send one request of an administrator."""

    async def run() -> None:
        channel = await AsyncChannel.connect(cluster.broker_address, 30)
        texts = {name: str(value) for name, value in fields.items()}
        answer = await channel.request(Command(code, texts, body), 30)
        channel.close()
        assert answer.code == ResponseCode.SUCCESS, answer

    asyncio.run(run())


def make_topic(cluster: Cluster, kind: str = "NORMAL", queues: int = 4) -> str:
    """Create a topic for messages of a kind."""
    topic = f"{kind.lower()}-{uuid.uuid4().hex[:8]}"
    ask(
        cluster,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=queues,
        writeQueueNums=queues,
        perm=6,
        topicFilterType="SINGLE_TAG",
        order="false",
        attributes=f"+message.type={kind}",
    )
    return topic


def make_group(cluster: Cluster, **settings: Any) -> str:
    """Create a consumer group."""
    group = f"group-{uuid.uuid4().hex[:8]}"
    body = json.dumps({"groupName": group} | settings).encode()
    ask(cluster, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
    return group


def bodies(messages: list[GrpcMessage]) -> list[bytes]:
    return [message.body for message in messages]


def wait_for(found: Callable[[], list[Any]], timeout_s: float = 60) -> list[Any]:
    """Wait until there is something."""
    deadline = time.monotonic() + timeout_s
    while not (something := found()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return something


def read_all(client: BlockingClient, topic: str) -> list[Record]:
    """Return the messages of a topic; none if it does not exist."""
    try:
        queues = client.read_queues(topic)
    except RouteNotFound:
        return []
    return [record for queue in queues for record in decode_records(client.pull(queue, 0).body)]


def test_messages_are_received_and_acknowledged(cluster: Cluster, site: GrpcSite) -> None:
    topic, group = make_topic(cluster), make_group(cluster)
    producer = site.producer(topic)
    ids = [producer.send(topic, b"%d" % n, tag="ab"[n % 2]) for n in range(20)]
    consumer = site.consumer(group, topic, "a")
    received = consumer.receive_all(10)
    assert sorted(m.message_id for m in received) == sorted(ids[::2])
    assert {message.delivery_attempt for message in received} == {1}
    changed = received.pop()
    consumer.ack(received)
    consumer.change(changed, 1)
    (late,) = consumer.receive_all(1, invisible_s=10)
    assert (late.body, late.delivery_attempt) == (changed.body, 2)
    (again,) = consumer.receive_all(1)  # nobody has acknowledged it
    assert (again.body, again.delivery_attempt) == (changed.body, 3)
    consumer.ack([again])
    assert consumer.receive() == []


def test_push_consumers_try_again_and_give_up(cluster: Cluster, site: GrpcSite) -> None:
    topic = make_topic(cluster)
    group = make_group(
        cluster,
        retryMaxTimes=1,
        groupRetryPolicy={
            "type": "CUSTOMIZED",
            "customizedRetryPolicy": {"next": [1000]},
        },
    )
    producer = site.producer(topic)
    push = site.push(group, topic, lambda message: message.body != b"bad")
    for body in (b"good", b"bad", b"fine"):
        producer.send(topic, body)
    deliveries = push.wait_count(4)
    attempts = [m.delivery_attempt for m in deliveries if m.body == b"bad"]
    assert attempts == [1, 2]
    with BlockingClient(cluster.name_server) as client:
        (letter,) = wait_for(lambda: read_all(client, f"%DLQ%{group}"))
        assert letter.body == b"bad"
        assert letter.reconsume_times == 3  # the proxy popped it once more, and sent it back
    time.sleep(2)
    assert len(push.wait_count(4)) == 4


def test_messages_of_a_group_are_received_in_order(cluster: Cluster, site: GrpcSite) -> None:
    topic = make_topic(cluster, "FIFO", queues=2)
    group = make_group(cluster, consumeMessageOrderly=True)
    producer = site.producer(topic)
    for n in range(12):
        producer.send(topic, b"%s%d" % (b"xy"[n % 2 :][:1], n), message_group=f"m{n % 2}")
    seen: list[bytes] = []
    failed: list[bytes] = []

    def consume(message: GrpcMessage) -> bool:
        if message.body == b"x4" and message.delivery_attempt == 1:
            failed.append(message.body)
            return False
        seen.append(message.body)
        return True

    site.push(group, topic, consume).wait_count(13)
    assert failed == [b"x4"]
    for letter in (b"x", b"y"):
        of_group = [body for body in seen if body.startswith(letter)]
        assert of_group == sorted(of_group, key=lambda body: int(body[1:]))
    assert len(seen) == 12


def test_messages_are_delivered_at_their_time(cluster: Cluster, site: GrpcSite) -> None:
    topic, group = make_topic(cluster, "DELAY"), make_group(cluster)
    producer, consumer = site.producer(topic), site.consumer(group, topic)
    due_ms = int(time.time() * 1000) + 4000
    producer.send(topic, b"later", delivery_ms=due_ms)
    (message,) = consumer.receive_all(1)
    assert -1000 <= time.time() * 1000 - due_ms <= 60_000
    assert message.body == b"later"
    consumer.ack([message])


def test_our_clients_name_a_grpc_port(site: GrpcSite) -> None:
    assert recognized(site.proxy_address, 5.0) == "gRPC"
    with pytest.raises(ConnectionFailed, match="HTTP/2, which gRPC ports speak"):
        blocking.Admin(site.proxy_address, timeout_s=10.0).start()
    with (
        BlockingClient(site.proxy_address, timeout_s=10.0) as client,
        pytest.raises(ConnectionFailed, match="HTTP/2, which gRPC ports speak"),
    ):
        client.route("T")
