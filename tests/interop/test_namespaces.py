"""Official clients with a namespace: a prefix of topics and groups that brokers know nothing of."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.handling import handle_until
from tests.interop.conftest import RealCluster
from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.jvm import JavaClient

from pymq import Message, Network, ReceivedMessage, blocking
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import PymqError
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

DEADLINE_S = 120.0


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


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_both_sides_share_a_namespace(
    version: str, cluster: Cluster, java_client: Callable[[str], JavaClient]
) -> None:
    """Topic, group, retries and dead letters are the same, whoever sends and whoever fails."""
    client, name_server = java_client(version), cluster.name_server
    space = f"shared{version[0]}"
    network = Network(namespace=space)
    with blocking.Producer(name_server, group="makers", network=network) as ours:
        ours.send(Message("orders", b"of pymq", tags="t", keys="k"))
        with JavaPushConsumer(client, "readers", name_server, "orders", Namespace=space) as theirs:
            (message,) = theirs.wait_count(1)
            assert (message.topic, message.body, message.tags) == ("orders", b"of pymq", "t")
    with JavaProducer(client, "makers", name_server, Namespace=space) as producer:
        producer.send("orders", b"of java")
    # The group goes on where its Java member was, and its failures come again to a Java member.
    consumer = blocking.Consumer(name_server, "readers", network=network).subscribe("orders")
    with consumer:
        ours_of_theirs = consumer.receive(DEADLINE_S)
        assert ours_of_theirs is not None
        assert (ours_of_theirs.topic, ours_of_theirs.body) == ("orders", b"of java")
        ours_of_theirs.retry()
    with JavaPushConsumer(client, "readers", name_server, "orders", Namespace=space) as theirs:
        assert [one.topic for one in theirs.wait_count(1)] == ["orders"]
    assert message_count(cluster, f"{space}%orders") == 2
    assert message_count(cluster, f"%RETRY%{space}%readers") >= 1
    rejecting = blocking.Consumer(
        name_server, "rejecting", from_where="earliest", network=network
    ).subscribe("orders")
    with rejecting:
        rejected: list[bytes] = []

        def reject(message: ReceivedMessage) -> None:
            rejected.append(message.body)
            message.reject("not wanted")

        handle_until(rejecting, reject, lambda: len(rejected) == 2)
    with JavaPushConsumer(
        client, "undertakers", name_server, "%DLQ%rejecting", Namespace=space
    ) as theirs:
        dead = theirs.wait_count(2)
    assert {one.body for one in dead} == {b"of pymq", b"of java"}


@pytest.mark.parametrize("orderly", [False, True])
def test_members_of_a_namespace_divide_the_queues_alike(
    orderly: bool, cluster: Cluster, java_client: Callable[[str], JavaClient]
) -> None:
    client, name_server, network = java_client("5.3.3"), cluster.name_server, Network(namespace="d")
    topic, group = f"divided-{orderly}".lower(), f"dividers-{orderly}".lower()
    with blocking.Admin(name_server, network=network) as admin:
        admin.topics.create(topic, queue_count=8)
    ours: list[bytes] = []
    consumer = blocking.Consumer(
        name_server, group, from_where="earliest", orderly=orderly, network=network
    ).subscribe(topic)
    with (
        consumer,
        JavaPushConsumer(
            client,
            group,
            name_server,
            topic,
            Namespace="d",
            listener="orderly" if orderly else "concurrent",
        ) as theirs,
        blocking.Producer(name_server, network=network) as producer,
    ):
        deadline = time.monotonic() + DEADLINE_S
        while (count := [one.topic for one in consumer.assignment].count(topic)) != 4:
            assert time.monotonic() < deadline, f"{count} of 8 queues are ours"
            time.sleep(0.1)
        for number, queue in enumerate(producer.queues(topic) * 4):
            producer.send(Message(topic, b"%d" % number), queue=queue)
        handle_until(consumer, lambda message: ours.append(message.body), lambda: len(ours) == 16)
        found = ours + [message.body for message in theirs.wait_count(16)]
    assert sorted(map(int, found)) == list(range(32))


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_both_sides_share_a_namespace_of_an_official_broker(
    version: str,
    real_cluster: Callable[[str], RealCluster],
    java_client: Callable[[str], JavaClient],
) -> None:
    """What pymq's brokers and clients might only agree on with each other: locks, retries, pops."""
    name_server, client = real_cluster(version).name_server.address, java_client(version)
    space = f"official{uuid.uuid4().hex[:6]}"
    network = Network(namespace=space)
    with blocking.Admin(name_server, network=network) as admin:
        admin.topics.create("orders", queue_count=2)
        for group in ("theirs", "ours", "inorder", "poppers"):
            admin.groups.create(group)
    with blocking.Producer(name_server, group="makers", network=network) as producer:
        for number in range(4):
            receipt = producer.send(Message("orders", b"%d" % number, keys="k"))
            assert receipt.queue.topic == "orders"
    with JavaPushConsumer(client, "theirs", name_server, "orders", Namespace=space) as theirs:
        assert {one.topic for one in theirs.wait_count(4)} == {"orders"}
    with JavaProducer(client, "makers", name_server, Namespace=space) as maker:
        maker.send("orders", b"4")
    for group, orderly in (("ours", False), ("inorder", True)):
        consumer = blocking.Consumer(
            name_server, group, from_where="earliest", orderly=orderly, network=network
        ).subscribe("orders")
        with consumer:
            found = [consumer.receive(DEADLINE_S) for _ in range(5)]
            assert {(one.topic, one.body) for one in found if one} == {
                ("orders", b"%d" % number) for number in range(5)
            }
    if version < "5":
        return
    popper = blocking.SimpleConsumer(
        name_server, "poppers", from_where="earliest", network=network
    ).subscribe("orders")
    counts: Counter[bytes] = Counter()
    with popper:
        deadline = time.monotonic() + DEADLINE_S
        while counts[b"0"] < 2 or len(counts) < 5:
            assert time.monotonic() < deadline, counts
            for message in popper.receive(8, 10.0, timeout_s=1):
                assert message.topic == "orders"
                counts[message.body] += 1
                if message.body == b"0" and counts[b"0"] == 1:
                    popper.change_invisible(message, 1.0)  # It comes again, from the retry topic.
                else:
                    popper.ack(message)
        assert not popper.receive(8, 10.0, timeout_s=12)
    assert counts == Counter({b"0": 2, b"1": 1, b"2": 1, b"3": 1, b"4": 1})
