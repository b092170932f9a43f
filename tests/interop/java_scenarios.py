"""What official Java clients do in the same way at official brokers and at ours."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import (
    JavaLitePullConsumer,
    JavaProducer,
    JavaPullConsumer,
    JavaPushConsumer,
)
from tests.interop.java_values import Outgoing, ReceivedMessage, call
from tests.interop.jvm import JavaClient

QUEUE_COUNT: Final = 4
#: The value of a property that is easy to get wrong.
AWKWARD_TEXT: Final = 'Grüße, 世界 😀 = \\ " ;'

ClientFactory = Callable[[str], JavaClient]
AdminFactory = Callable[[str, str], JavaAdmin]


@dataclass(frozen=True, slots=True)
class JavaSite:
    """An official client, a cluster of one broker, a new topic there and an unused group."""

    client: JavaClient
    admin: JavaAdmin
    name_server: str
    broker_name: str
    broker_address: str
    topic: str
    group: str

    def producer(self, **options: Any) -> JavaProducer:
        return JavaProducer(self.client, f"producer-{self.topic}", self.name_server, **options)

    def push(self, expression: str = "*", **options: Any) -> JavaPushConsumer:
        return JavaPushConsumer(
            self.client, self.group, self.name_server, self.topic, expression, **options
        )

    def pop_mode(self) -> None:
        """Have the group's consumers pop the topic."""
        modes = self.client.jvm.org.apache.rocketmq.common.message.MessageRequestMode
        call(
            self.admin.java.setMessageRequestMode,
            self.broker_address,
            self.topic,
            self.group,
            modes.POP,
            0,
            10_000,
        )

    def pull(self, group: str | None = None) -> JavaPullConsumer:
        return JavaPullConsumer(self.client, group or self.group, self.name_server, self.topic)

    def lite_pull(self, group: str | None = None, **options: Any) -> JavaLitePullConsumer:
        return JavaLitePullConsumer(
            self.client, group or self.group, self.name_server, self.topic, **options
        )


def make_site(
    version: str,
    java_client: ClientFactory,
    java_admin: AdminFactory,
    *,
    name_server: str,
    broker_name: str,
    broker_address: str,
) -> JavaSite:
    """Return a site with a client of one version; creates its topic."""
    admin = java_admin(version, name_server)
    topic = f"java-{uuid.uuid4().hex[:12]}"
    admin.create_topic(topic, QUEUE_COUNT)
    return JavaSite(
        java_client(version),
        admin,
        name_server,
        broker_name,
        broker_address,
        topic,
        f"group-{topic}",
    )


def send_every_way(site: JavaSite) -> list[bytes]:
    """Send synchronously, asynchronously, one-way and in a batch; return the bodies."""
    with site.producer() as producer:
        result = producer.send(
            site.topic,
            b"\x00sync\xff",
            tags="a",
            keys="k1 k2",
            properties={"text": AWKWARD_TEXT},
            queue_id=2,
        )
        assert (result.status, result.queue_id, result.queue_offset) == ("SEND_OK", 2, 0)
        assert result.broker_name == site.broker_name
        assert result.msg_id
        assert len(result.offset_msg_id) == 32  # IPv4 address, port, physical offset, in hex
        futures = [producer.send_async(site.topic, b"async-%d" % i, tags="b") for i in range(8)]
        assert {future.result(timeout=60).status for future in futures} == {"SEND_OK"}
        producer.send_oneway(site.topic, b"oneway", tags="b")
        batch = [Outgoing(site.topic, b"batch-%d" % i, "a" if i % 2 else "b") for i in range(10)]
        sent = producer.send_batch(batch)
        assert sent.status == "SEND_OK"
        assert len(sent.offset_msg_id.split(",")) == 10
    return [
        b"\x00sync\xff",
        *[b"async-%d" % i for i in range(8)],
        b"oneway",
        *[message.body for message in batch],
    ]


def bodies_with_tag_a() -> list[bytes]:
    """Return the bodies that ``send_every_way`` sends with this tag."""
    return [b"\x00sync\xff", *[b"batch-%d" % i for i in range(1, 10, 2)]]


def check_received(
    site: JavaSite, received: Sequence[ReceivedMessage], bodies: list[bytes]
) -> None:
    """Check all messages of ``send_every_way``."""
    assert sorted(message.body for message in received) == sorted(bodies)
    assert {message.topic for message in received} == {site.topic}
    places = {(message.queue_id, message.queue_offset) for message in received}
    assert len(places) == len(bodies)
    assert all(queue_id in range(QUEUE_COUNT) for queue_id, _ in places)
    assert len({message.commit_log_offset for message in received}) == len(bodies)
    assert all(message.store_size > len(message.body) for message in received)
    assert all(0 < message.born_timestamp <= message.store_timestamp + 1 for message in received)
    assert {message.reconsume_times for message in received} == {0}
    (one,) = [message for message in received if message.body == b"\x00sync\xff"]
    assert (one.tags, one.keys, one.queue_id, one.queue_offset) == ("a", "k1 k2", 2, 0)
    assert one.properties["text"] == AWKWARD_TEXT
    assert one.msg_id == one.properties["UNIQ_KEY"]
    assert one.properties["CLUSTER"] == "DefaultCluster"


def check_every_way(site: JavaSite) -> None:
    """Send in every way; receive by push and by pull; look at the group's progress."""
    bodies = send_every_way(site)
    with site.push() as push:
        check_received(site, push.wait_count(len(bodies)), bodies)
        push.wait_offsets(len(bodies), lambda: site.admin.committed_count(site.group, site.topic))
    pull_group = f"pull-{site.topic}"
    if site.client.version == "4.5.1":  # has no lite pull consumer
        with site.pull(pull_group) as pull:
            check_received(site, pull.poll_count(len(bodies)), bodies)
    else:
        with site.lite_pull(pull_group) as lite:
            check_received(site, lite.poll_count(len(bodies)), bodies)
    assert site.admin.message_count(site.topic) == len(bodies)
    stats = site.admin.consume_stats(site.group)
    ours = {queue: at for (topic, queue), at in stats.items() if topic == site.topic}
    assert len(ours) == QUEUE_COUNT
    assert sum(at.consumer_offset for at in ours.values()) == len(bodies)


def check_order(site: JavaSite) -> None:
    """Consume in order with a first failure, which is tried again in its place."""
    with site.producer() as producer:
        for i in range(40):
            producer.send(site.topic, b"%d" % i, queue_id=i % QUEUE_COUNT)
    with site.push(listener="orderly", fail_first=1) as push:
        received = push.wait_count(40)
        assert len(push.failed) == 1
    for queue_id in range(QUEUE_COUNT):
        offsets = [m.queue_offset for m in received if m.queue_id == queue_id]
        assert offsets == list(range(10))
