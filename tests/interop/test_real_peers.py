"""The harness's own check: official clients against official brokers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interop.conftest import RealCluster, require_peers
from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import (
    JavaLitePullConsumer,
    JavaProducer,
    JavaPullConsumer,
    JavaPushConsumer,
)
from tests.interop.java_values import JavaError, Outgoing, ReceivedMessage
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealBroker, RealNameServer
from tests.interop.processes import PeerFailed

pytestmark = pytest.mark.interop

ClientFactory = Callable[[str], JavaClient]
ClusterFactory = Callable[[str], RealCluster]
AdminFactory = Callable[[str, str], JavaAdmin]

# (client version, broker version)
PAIRS = [("4.9.7", "4.9.7"), ("5.3.3", "5.3.3"), ("4.5.1", "5.3.3"), ("5.4.0", "5.3.3")]
QUEUE_COUNT = 4
AWKWARD_TEXT = 'Grüße, 世界 😀 = \\ " ;'


@dataclass(frozen=True, slots=True)
class Pair:
    """A client, a cluster, and names nobody used before."""

    client: JavaClient
    cluster: RealCluster
    admin: JavaAdmin
    topic: str
    group: str

    @property
    def name_server(self) -> str:
        return self.cluster.name_server.address


@pytest.fixture(params=PAIRS, ids=lambda pair: f"client-{pair[0]}-broker-{pair[1]}")
def pair(
    request: pytest.FixtureRequest,
    java_client: ClientFactory,
    real_cluster: ClusterFactory,
    java_admin: AdminFactory,
) -> Pair:
    client_version, broker_version = request.param
    client = java_client(client_version)
    cluster = real_cluster(broker_version)
    admin = java_admin(client_version, cluster.name_server.address)
    name = f"real-{uuid.uuid4().hex[:12]}"
    admin.create_topic(name, QUEUE_COUNT)
    return Pair(client, cluster, admin, name, f"group-{name}")


def send_every_way(pair: Pair) -> list[bytes]:
    """Send sync, async, one-way and batch; return the bodies."""
    with JavaProducer(pair.client, f"producer-{pair.topic}", pair.name_server) as producer:
        result = producer.send(
            pair.topic,
            b"\x00sync\xff",
            tags="a",
            keys="k1 k2",
            properties={"text": AWKWARD_TEXT},
            queue_id=2,
        )
        assert (result.status, result.queue_id, result.queue_offset) == ("SEND_OK", 2, 0)
        assert result.broker_name == pair.cluster.broker.name
        assert result.msg_id
        assert len(result.offset_msg_id) == 32  # IPv4 address, port, physical offset, in hex
        futures = [producer.send_async(pair.topic, b"async-%d" % i, tags="b") for i in range(8)]
        assert {future.result(timeout=30).status for future in futures} == {"SEND_OK"}
        producer.send_oneway(pair.topic, b"oneway", tags="b")
        batch = [Outgoing(pair.topic, b"batch-%d" % i, "a" if i % 2 else "b") for i in range(10)]
        assert producer.send_batch(batch).status == "SEND_OK"
    return [
        b"\x00sync\xff",
        *[b"async-%d" % i for i in range(8)],
        b"oneway",
        *[message.body for message in batch],
    ]


def check_received(pair: Pair, received: Sequence[ReceivedMessage], bodies: list[bytes]) -> None:
    assert sorted(message.body for message in received) == sorted(bodies)
    assert {message.topic for message in received} == {pair.topic}
    places = {(message.queue_id, message.queue_offset) for message in received}
    assert len(places) == len(bodies)
    assert all(queue_id in range(QUEUE_COUNT) for queue_id, _ in places)
    assert len({message.commit_log_offset for message in received}) == len(bodies)
    assert all(message.store_size > len(message.body) for message in received)
    assert all(0 < message.born_timestamp <= message.store_timestamp + 1 for message in received)
    assert {message.reconsume_times for message in received} == {0}
    (sync,) = [message for message in received if message.body == b"\x00sync\xff"]
    assert (sync.tags, sync.keys, sync.queue_id, sync.queue_offset) == ("a", "k1 k2", 2, 0)
    assert sync.properties["text"] == AWKWARD_TEXT
    assert sync.msg_id == sync.properties["UNIQ_KEY"]


def test_every_way_of_sending_reaches_push_and_pull_consumers(pair: Pair) -> None:
    bodies = send_every_way(pair)
    with JavaPushConsumer(pair.client, pair.group, pair.name_server, pair.topic) as push:
        check_received(pair, push.wait_count(len(bodies)), bodies)
        push.wait_offsets(
            len(bodies), lambda: pair.admin.committed_count(pair.group, pair.topic)
        )

    pull_group = f"pull-{pair.topic}"
    if pair.client.version == "4.5.1":  # has no lite pull consumer
        with JavaPullConsumer(pair.client, pull_group, pair.name_server, pair.topic) as pull:
            check_received(pair, pull.poll_count(len(bodies)), bodies)
    else:
        with JavaLitePullConsumer(pair.client, pull_group, pair.name_server, pair.topic) as lite:
            check_received(pair, lite.poll_count(len(bodies)), bodies)

    assert pair.admin.message_count(pair.topic) == len(bodies)
    stats = pair.admin.consume_stats(pair.group)
    ours = {queue: at for (topic, queue), at in stats.items() if topic == pair.topic}
    assert len(ours) == QUEUE_COUNT
    assert sum(at.consumer_offset for at in ours.values()) == len(bodies)


def test_tag_expression_is_applied(pair: Pair) -> None:
    bodies = send_every_way(pair)
    with JavaPushConsumer(
        pair.client, pair.group, pair.name_server, pair.topic, "a || none"
    ) as push:
        received = push.wait_count(6)
    expected = [body for body in bodies if body in (b"\x00sync\xff", *_odd_batch())]
    assert sorted(message.body for message in received) == sorted(expected)


def _odd_batch() -> list[bytes]:
    return [b"batch-%d" % i for i in range(1, 10, 2)]


@pytest.fixture
def own_pair(
    java_client: ClientFactory, real_cluster: ClusterFactory, java_admin: AdminFactory
) -> Pair:
    """5.3.3 with itself, for what needs no table of versions."""
    client, cluster = java_client("5.3.3"), real_cluster("5.3.3")
    admin = java_admin("5.3.3", cluster.name_server.address)
    name = f"real-{uuid.uuid4().hex[:12]}"
    admin.create_topic(name, QUEUE_COUNT)
    return Pair(client, cluster, admin, name, f"group-{name}")


def test_lite_pull_assign_seek_and_commit(own_pair: Pair) -> None:
    pair = own_pair
    with JavaProducer(pair.client, f"producer-{pair.topic}", pair.name_server) as producer:
        for i in range(6):
            producer.send(pair.topic, b"%d" % i, queue_id=i % 2)
    key = (pair.cluster.broker.name, 1)
    with JavaLitePullConsumer(
        pair.client, pair.group, pair.name_server, pair.topic, mode="assign", queue_ids=[1]
    ) as lite:
        assert [message.body for message in lite.poll_count(3)] == [b"1", b"3", b"5"]
        lite.seek(key, 1)
        assert [message.body for message in lite.poll_count(2)] == [b"3", b"5"]
        lite.commit()
        assert lite.committed(key) == 3


def test_pull_consumer_reports_status_and_next_offset(own_pair: Pair) -> None:
    pair = own_pair
    with JavaProducer(pair.client, f"producer-{pair.topic}", pair.name_server) as producer:
        producer.send(pair.topic, b"one", queue_id=0)
    key = (pair.cluster.broker.name, 0)
    with JavaPullConsumer(pair.client, pair.group, pair.name_server, pair.topic) as pull:
        status, position, messages = pull.pull(key, 0)
        assert (status, position, [message.body for message in messages]) == ("FOUND", 1, [b"one"])
        assert pull.pull(key, 1) == ("NO_NEW_MSG", 1, [])


def test_orderly_consumer_keeps_each_queues_order_and_retries_in_place(own_pair: Pair) -> None:
    pair = own_pair
    with JavaProducer(pair.client, f"producer-{pair.topic}", pair.name_server) as producer:
        for i in range(40):
            producer.send(pair.topic, b"%d" % i, queue_id=i % QUEUE_COUNT)
    with JavaPushConsumer(
        pair.client, pair.group, pair.name_server, pair.topic, listener="orderly", fail_first=1
    ) as push:
        received = push.wait_count(40)
        assert len(push.failed) == 1
    for queue_id in range(QUEUE_COUNT):
        offsets = [m.queue_offset for m in received if m.queue_id == queue_id]
        assert offsets == list(range(10))


def test_failed_delivery_comes_again(own_pair: Pair) -> None:
    pair = own_pair
    # Made beforehand, or the client learns of it at its next rebalance, after twenty seconds.
    pair.admin.create_topic(f"%RETRY%{pair.group}", 1)
    with (
        JavaProducer(pair.client, f"producer-{pair.topic}", pair.name_server) as producer,
        JavaPushConsumer(
            pair.client,
            pair.group,
            pair.name_server,
            pair.topic,
            fail_first=1,
            retry_delay_level=1,
        ) as push,
    ):
        producer.send(pair.topic, b"again")
        (received,) = push.wait_count(1)
        (failed,) = push.failed
    assert (failed.body, failed.reconsume_times) == (b"again", 0)
    assert (received.body, received.reconsume_times, received.topic) == (b"again", 1, pair.topic)


def test_sql_expression_and_compressed_body(own_pair: Pair) -> None:
    pair = own_pair
    body = b"compress me " * 1000
    with JavaProducer(
        pair.client, f"producer-{pair.topic}", pair.name_server, CompressMsgBodyOverHowmuch=100
    ) as producer:
        for price in (5, 15):
            producer.send(pair.topic, body, properties={"price": str(price)})
    with JavaPushConsumer(
        pair.client, pair.group, pair.name_server, pair.topic, "price > 10", selector="sql"
    ) as push:
        (received,) = push.wait_count(1)
    assert received.properties["price"] == "15"
    assert received.body == body
    assert received.store_size < len(body)


def test_java_exceptions_carry_the_response_code(own_pair: Pair) -> None:
    pair = own_pair
    with JavaProducer(pair.client, f"producer-{pair.topic}", pair.name_server) as producer:
        with pytest.raises(JavaError) as caught:
            producer.send("no/legal*topic", b"x")
        assert caught.value.class_name == "MQClientException"
    with pytest.raises(JavaError):
        pair.admin.topic_stats("no-such-topic")
    assert pair.admin.cluster_info().masters() == [pair.cluster.broker.address]


def test_store_survives_kill_and_restart(
    tmp_path: Path, java_client: ClientFactory, java_admin: AdminFactory
) -> None:
    client = java_client("4.9.7")
    topic = f"real-{uuid.uuid4().hex[:12]}"
    with (
        RealNameServer("4.9.7") as name_server,
        RealBroker(
            "4.9.7",
            [name_server.address],
            store_dir=tmp_path / "store",
            mappedFileSizeCommitLog=1 << 20,
        ) as broker,
    ):
        java_admin("4.9.7", name_server.address).create_topic(topic)
        with JavaProducer(client, f"producer-{topic}", name_server.address) as producer:
            sent = [producer.send(topic, b"%d" % i * 1000) for i in range(20)]
        broker.kill()
        assert (broker.store_dir / "abort").exists()
        (segment,) = (broker.store_dir / "commitlog").glob("0*0")
        assert segment.stat().st_size == 1 << 20
        broker.start()
        with JavaPushConsumer(client, f"group-{topic}", name_server.address, topic) as push:
            received = push.wait_count(len(sent))
        assert {(m.queue_id, m.queue_offset) for m in received} == {
            (s.queue_id, s.queue_offset) for s in sent
        }
    assert (tmp_path / "store" / "checkpoint").exists()
    assert not (tmp_path / "store" / "abort").exists()


def test_broker_that_cannot_start_says_why() -> None:
    require_peers("4.9.7")
    with (
        RealNameServer("4.9.7") as name_server,
        pytest.raises(PeerFailed, match=r"(?s)Address already in use.*ended before 'boot"),
        RealBroker("4.9.7", [], listenPort=name_server.port),
    ):
        pass
