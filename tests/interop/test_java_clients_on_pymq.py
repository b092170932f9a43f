"""Unmodified official Java clients against our name server and broker."""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import (
    JavaLitePullConsumer,
    JavaProducer,
    JavaPullConsumer,
    JavaPushConsumer,
)
from tests.interop.java_values import JavaError, Outgoing, ReceivedMessage
from tests.interop.jvm import JavaClient

from pymq.testing import Cluster

pytestmark = pytest.mark.interop

VERSIONS = ["4.5.1", "4.9.7", "5.3.3", "5.4.0"]
QUEUE_COUNT = 4
AWKWARD_TEXT = 'Grüße, 世界 😀 = \\ " ;'


@dataclass(frozen=True, slots=True)
class Setting:
    """An official client, our cluster, and names nobody used before."""

    client: JavaClient
    cluster: Cluster
    admin: JavaAdmin
    topic: str
    group: str

    @property
    def name_server(self) -> str:
        return self.cluster.name_server

    def producer(self) -> JavaProducer:
        return JavaProducer(self.client, f"producer-{self.topic}", self.name_server)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture(params=VERSIONS)
def setting(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    java_client: Callable[[str], JavaClient],
    java_admin: Callable[[str, str], JavaAdmin],
) -> Setting:
    return make_setting(request.param, cluster, java_client, java_admin)


@pytest.fixture
def newest(
    cluster: Cluster,
    java_client: Callable[[str], JavaClient],
    java_admin: Callable[[str, str], JavaAdmin],
) -> Setting:
    return make_setting("5.4.0", cluster, java_client, java_admin)


def make_setting(
    version: str,
    cluster: Cluster,
    java_client: Callable[[str], JavaClient],
    java_admin: Callable[[str, str], JavaAdmin],
) -> Setting:
    client = java_client(version)
    admin = java_admin(version, cluster.name_server)
    name = f"java-{uuid.uuid4().hex[:12]}"
    admin.create_topic(name, QUEUE_COUNT)
    return Setting(client, cluster, admin, name, f"group-{name}")


def send_every_way(setting: Setting) -> list[bytes]:
    """Send sync, async, one-way and batch; return the bodies."""
    with setting.producer() as producer:
        result = producer.send(
            setting.topic,
            b"\x00sync\xff",
            tags="a",
            keys="k1 k2",
            properties={"text": AWKWARD_TEXT},
            queue_id=2,
        )
        assert (result.status, result.queue_id, result.queue_offset) == ("SEND_OK", 2, 0)
        assert result.broker_name == setting.cluster.broker_name
        assert len(result.offset_msg_id) == 32
        futures = [producer.send_async(setting.topic, b"async-%d" % i, tags="b") for i in range(8)]
        assert {future.result(timeout=30).status for future in futures} == {"SEND_OK"}
        producer.send_oneway(setting.topic, b"oneway", tags="b")
        batch = [Outgoing(setting.topic, b"batch-%d" % i, "a" if i % 2 else "b") for i in range(10)]
        sent = producer.send_batch(batch)
        assert sent.status == "SEND_OK"
        assert len(sent.offset_msg_id.split(",")) == 10
    return [
        b"\x00sync\xff",
        *[b"async-%d" % i for i in range(8)],
        b"oneway",
        *[message.body for message in batch],
    ]


def check_received(
    setting: Setting, received: Sequence[ReceivedMessage], bodies: list[bytes]
) -> None:
    assert sorted(message.body for message in received) == sorted(bodies)
    assert {message.topic for message in received} == {setting.topic}
    places = {(message.queue_id, message.queue_offset) for message in received}
    assert len(places) == len(bodies)
    assert all(queue_id in range(QUEUE_COUNT) for queue_id, _ in places)
    assert len({message.commit_log_offset for message in received}) == len(bodies)
    assert {message.reconsume_times for message in received} == {0}
    (sync,) = [message for message in received if message.body == b"\x00sync\xff"]
    assert (sync.tags, sync.keys, sync.queue_id, sync.queue_offset) == ("a", "k1 k2", 2, 0)
    assert sync.properties["text"] == AWKWARD_TEXT
    assert sync.msg_id == sync.properties["UNIQ_KEY"]
    assert sync.properties["CLUSTER"] == "DefaultCluster"


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.02)


def test_every_way_of_sending_reaches_push_and_pull_consumers(setting: Setting) -> None:
    bodies = send_every_way(setting)
    with JavaPushConsumer(
        setting.client, setting.group, setting.name_server, setting.topic
    ) as push:
        check_received(setting, push.wait_count(len(bodies)), bodies)
        push.wait_offsets(
            len(bodies), lambda: setting.admin.committed_count(setting.group, setting.topic)
        )
    pull_group = f"pull-{setting.topic}"
    if setting.client.version == "4.5.1":  # has no lite pull consumer
        with JavaPullConsumer(
            setting.client, pull_group, setting.name_server, setting.topic
        ) as pull:
            check_received(setting, pull.poll_count(len(bodies)), bodies)
    else:
        with JavaLitePullConsumer(
            setting.client, pull_group, setting.name_server, setting.topic
        ) as lite:
            check_received(setting, lite.poll_count(len(bodies)), bodies)
    assert setting.admin.message_count(setting.topic) == len(bodies)
    stats = setting.admin.consume_stats(setting.group)
    ours = {queue: at for (topic, queue), at in stats.items() if topic == setting.topic}
    assert len(ours) == QUEUE_COUNT
    assert sum(at.consumer_offset for at in ours.values()) == len(bodies)


def test_a_waiting_push_consumer_gets_messages_as_they_come(setting: Setting) -> None:
    with JavaPushConsumer(
        setting.client, setting.group, setting.name_server, setting.topic, "a || none"
    ) as push:
        bodies = send_every_way(setting)
        wanted = [body for body in bodies if body == b"\x00sync\xff" or body in batch_with_tag_a()]
        received = push.wait_count(len(wanted))
        assert sorted(message.body for message in received) == sorted(wanted)


def batch_with_tag_a() -> list[bytes]:
    return [b"batch-%d" % i for i in range(1, 10, 2)]


def test_two_consumers_share_and_one_leaving_hands_over(newest: Setting) -> None:
    with JavaPushConsumer(
        newest.client, newest.group, newest.name_server, newest.topic, InstanceName="one"
    ) as first:
        with (
            JavaPushConsumer(
                newest.client, newest.group, newest.name_server, newest.topic, InstanceName="two"
            ) as second,
            newest.producer() as producer,
        ):
            count = 0
            while not (first.messages and second.messages):
                producer.send(newest.topic, b"%d" % count, queue_id=count % QUEUE_COUNT)
                count += 1
                assert count < 2000, "the group was never balanced"
        with newest.producer() as producer:
            for _ in range(8):
                producer.send(newest.topic, b"%d" % count, queue_id=count % QUEUE_COUNT)
                count += 1
        missing = {b"%d" % n for n in range(count)} - {m.body for m in second.messages}
        wait_until(lambda: missing <= {message.body for message in first.messages})


def test_an_orderly_consumer_locks_queues_and_keeps_their_order(newest: Setting) -> None:
    with newest.producer() as producer:
        for i in range(40):
            producer.send(newest.topic, b"%d" % i, queue_id=i % QUEUE_COUNT)
    with JavaPushConsumer(
        newest.client,
        newest.group,
        newest.name_server,
        newest.topic,
        listener="orderly",
        fail_first=1,
    ) as push:
        received = push.wait_count(40)
    for queue_id in range(QUEUE_COUNT):
        offsets = [m.queue_offset for m in received if m.queue_id == queue_id]
        assert offsets == list(range(10))


def test_a_topic_nobody_created_is_created_by_the_first_send(newest: Setting) -> None:
    topic = f"fresh-{uuid.uuid4().hex[:12]}"
    with newest.producer() as producer:
        assert producer.send(topic, b"first").status == "SEND_OK"
    with JavaPushConsumer(newest.client, newest.group, newest.name_server, topic) as push:
        (received,) = push.wait_count(1)
    assert (received.topic, received.body) == (topic, b"first")


def test_a_compressed_body_passes_through(newest: Setting) -> None:
    body = b"compress me " * 1000
    with JavaProducer(
        newest.client, "compressor", newest.name_server, CompressMsgBodyOverHowmuch=100
    ) as producer:
        producer.send(newest.topic, body)
    with JavaPushConsumer(newest.client, newest.group, newest.name_server, newest.topic) as push:
        (received,) = push.wait_count(1)
    assert received.body == body
    assert received.store_size < len(body)


def test_what_is_not_supported_yet_is_refused_with_a_reason(newest: Setting) -> None:
    with newest.producer() as producer, pytest.raises(JavaError, match="delayed messages"):
        producer.send(newest.topic, b"later", delay_level=3)


def test_administration_through_the_official_tools(setting: Setting) -> None:
    assert setting.admin.cluster_info().masters() == [setting.cluster.broker_address]
    assert setting.admin.message_count(setting.topic) == 0
    with pytest.raises(JavaError):
        setting.admin.topic_stats("no-such-topic")
