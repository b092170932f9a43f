"""Admin against official brokers."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.interop.conftest import RealCluster
from tests.interop.java_client import JavaPushConsumer
from tests.interop.jvm import JavaClient
from tests.interop.mqadmin import Mqadmin

from pymq import ReceivedMessage, blocking
from pymq.client.administration.resets import OffsetChange
from pymq.errors import BrokerSystemError, GroupNotExist, MessageNotFound, RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import Permission
from pymq.protocol.message import Message

pytestmark = [pytest.mark.interop, pytest.mark.by_turns("cluster")]

VERSIONS = ["5.3.3", "4.9.7"]
DEADLINE_S = 120.0


@pytest.fixture(params=VERSIONS)
def cluster(
    request: pytest.FixtureRequest, real_cluster: Callable[[str], RealCluster]
) -> RealCluster:
    return real_cluster(request.param)


@pytest.fixture
def admin(cluster: RealCluster) -> Iterator[blocking.Admin]:
    with blocking.Admin(cluster.name_server.address) as opened:
        yield opened


@pytest.fixture
def topic(admin: blocking.Admin) -> Iterator[str]:
    name = f"admin-{uuid.uuid4().hex[:12]}"
    admin.topics.create(name, queue_count=2)
    yield name
    admin.topics.delete(name)


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def send(cluster: RealCluster, admin: blocking.Admin, topic: str, count: int) -> list[str]:
    """Send messages to queue 0, wait until they can be read, and return their ids."""
    queue = MessageQueue(topic, cluster.broker.name, 0)
    with blocking.Producer(cluster.name_server.address) as producer:
        ids = [
            str(producer.send(Message(topic, b"%d" % n, keys=f"k{n}"), queue=queue).message_id)
            for n in range(count)
        ]
    eventually(lambda: admin.topics.status(topic)[queue].max_offset == count, "they are there")
    return ids


def test_topics(cluster: RealCluster, admin: blocking.Admin, topic: str) -> None:
    name = cluster.broker.name
    assert topic in admin.topics.names() and name not in admin.topics.names()
    assert admin.topics.route(topic).masters() == {name: cluster.broker.address}
    assert admin.topics.config(topic)[name].read_queue_count == 2
    changed = admin.topics.update(topic, perm=int(Permission.READ), queue_count=3)[name]
    assert (changed.perm, changed.read_queue_count, changed.write_queue_count) == (4, 3, 3)
    assert len(admin.topics.status(topic)) == 3
    with pytest.raises(RouteNotFound):
        admin.topics.update("no-such-topic", queue_count=1)


def test_groups(cluster: RealCluster, admin: blocking.Admin) -> None:
    group = f"group-{uuid.uuid4().hex[:12]}"
    admin.groups.create(group)
    assert group in admin.groups.names()
    assert admin.groups.config(group)[cluster.broker.name].group == group
    assert admin.groups.members(group).connections == []
    admin.groups.delete(group, forget_offsets=True)
    with pytest.raises(GroupNotExist):
        admin.groups.config(group)


def test_offsets_are_reset_and_read_back(
    cluster: RealCluster, admin: blocking.Admin, topic: str
) -> None:
    group = f"group-{uuid.uuid4().hex[:12]}"
    admin.groups.create(group)
    send(cluster, admin, topic, 10)
    queue = MessageQueue(topic, cluster.broker.name, 0)

    def committed() -> int:
        return {lag.queue: lag.consumer_offset for lag in admin.offsets.lag(group, topic)}[queue]

    changes = admin.offsets.reset(group, topic, "latest", dry_run=True)
    assert [(one.after, one.first, one.end) for one in changes] == [(10, 0, 10), (0, 0, 0)]
    admin.offsets.reset(group, topic, "latest")
    assert committed() == 10
    admin.offsets.reset(group, topic, 4, queue=queue)
    assert committed() == 4
    stored = admin.messages.by_offset(queue, 7).store_timestamp_ms
    (change, _) = admin.offsets.reset(group, topic, datetime.fromtimestamp(stored / 1000, UTC))
    assert admin.messages.by_offset(queue, change.after).store_timestamp_ms == stored
    assert committed() == change.after
    late = datetime.now(UTC) + timedelta(days=1)
    assert admin.offsets.reset(group, topic, late)[0].after == 10
    admin.offsets.reset(group, topic, "earliest")
    assert committed() == 0


def reset_members(admin: blocking.Admin, group: str, topic: str) -> list[OffsetChange]:
    """Reset a group, once it has committed in every queue: 4.9 does not know it before."""
    changes: list[OffsetChange] = []

    def is_reset() -> bool:
        try:
            changes[:] = admin.offsets.reset(group, topic, "earliest", wait_s=DEADLINE_S)
        except BrokerSystemError as error:
            assert "not exist" in error.remark
            return False
        return True

    eventually(is_reset, "the group is reset")
    return changes


def test_java_members_go_where_a_reset_sends_them(
    cluster: RealCluster,
    admin: blocking.Admin,
    topic: str,
    java_client: Callable[[str], JavaClient],
) -> None:
    group = f"group-{uuid.uuid4().hex[:12]}"
    send(cluster, admin, topic, 4)
    client = java_client(cluster.broker.version)
    with JavaPushConsumer(client, group, cluster.name_server.address, topic) as consumer:
        consumer.wait_count(4)
        (member,) = admin.groups.members(group).connections
        info = admin.groups.running_info(group, member.client_id, stacks=True)
        assert topic in {one.topic for one in info.subscriptions}
        assert {one.topic for one in info.queues} >= {topic} and info.stacks
        assert len(admin.groups.members(group).connections) == 1
        queue = MessageQueue(topic, cluster.broker.name, 0)
        eventually(
            lambda: {one.queue: one.lag for one in admin.offsets.lag(group, topic)}.get(queue) == 0,
            "what was consumed is committed",
        )
        changes = reset_members(admin, group, topic)
        assert [one.after for one in changes] == [0, 0]
        assert len(consumer.wait_count(8)) == 8


@pytest.mark.parametrize("orderly", [False, True])
def test_members_of_ours_go_where_a_reset_sends_them(
    cluster: RealCluster,
    admin: blocking.Admin,
    topic: str,
    orderly: bool,
    java_client: Callable[[str], JavaClient],
) -> None:
    """By our API and by mqadmin: brokers of 4.9 leave it to the members, 5.3.3 does it itself."""
    group, name_server = f"group-{uuid.uuid4().hex[:12]}", cluster.name_server.address
    queue = MessageQueue(topic, cluster.broker.name, 0)
    got: list[bytes] = []

    def is_committed() -> bool:
        lags = {one.queue: one.lag for one in admin.offsets.lag(group, topic)}
        return lags.get(queue) == 0

    send(cluster, admin, topic, 10)
    consumer = blocking.Consumer(name_server, group, from_where="earliest", orderly=orderly)
    with consumer.subscribe(topic):
        running = threading.Thread(
            target=lambda: consumer.run(lambda message: got.append(message.body))
        )
        running.start()
        eventually(lambda: len(got) == 10, "all came")
        eventually(is_committed, "committed")
        changes = reset_members(admin, group, topic)
        assert {one.after for one in changes} == {0}
        eventually(lambda: len(got) == 20, "all came again")
        eventually(is_committed, "committed")
        shown = Mqadmin(java_client(cluster.broker.version)).run(
            name_server, "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-f", "true"
        )
        assert topic in shown, shown
        eventually(lambda: len(got) == 30, "all came once more")
        eventually(is_committed, "committed")
        with blocking.Producer(name_server) as producer:
            producer.send(Message(topic, b"new"), queue=queue)
        eventually(lambda: len(got) == 31, "what is new came once")
        consumer.close()
        running.join(DEADLINE_S)
    assert got.count(b"new") == 1 and got.count(b"3") == 3


def test_messages(cluster: RealCluster, admin: blocking.Admin, topic: str) -> None:
    ids = send(cluster, admin, topic, 40)
    queue = MessageQueue(topic, cluster.broker.name, 0)
    third = admin.messages.by_offset(queue, 3)
    assert third.body == b"3"
    assert admin.messages.by_id(third.offset_message_id) == third
    eventually(lambda: bool(admin.messages.by_key(topic, "k3")), "it is indexed")
    assert admin.messages.by_unique_id(topic, ids[3]) == third
    every = admin.messages.by_time(topic, datetime.fromtimestamp(0, UTC))
    assert [message.body for message in every] == [b"%d" % n for n in range(40)]
    with pytest.raises(MessageNotFound, match="its offsets are 0 to 39"):
        admin.messages.by_offset(queue, 40)


def test_brokers(cluster: RealCluster, admin: blocking.Admin) -> None:
    name, address = cluster.broker.name, cluster.broker.address
    assert admin.brokers.addresses() == {name: {0: address}}
    assert admin.brokers.state(name)["brokerVersionDesc"].startswith("V")
    assert f"brokerName={name}" in admin.brokers.config(name).splitlines()
    assert admin.sinks.rows() == []


def test_operators_see_what_a_member_is_at(
    cluster: RealCluster,
    admin: blocking.Admin,
    topic: str,
    java_client: Callable[[str], JavaClient],
) -> None:
    """By way of official brokers, with the official tool."""
    name_server, group = cluster.name_server.address, f"watched-{uuid.uuid4().hex[:12]}"
    send(cluster, admin, topic, 5)
    is_free, has_begun = threading.Event(), threading.Event()

    def stand_still(_: object) -> None:
        has_begun.set()
        is_free.wait(DEADLINE_S)

    consumer = blocking.Consumer(name_server, group, from_where="earliest").subscribe(topic)
    running = threading.Thread(target=lambda: consumer.run(stand_still))
    with consumer:
        running.start()
        assert has_begun.wait(DEADLINE_S)
        (member,) = admin.groups.members(group).connections
        mqadmin = Mqadmin(java_client(cluster.broker.version))
        where = (name_server, "consumerStatus", "-g", group)
        one = mqadmin.run(*where, "-i", member.client_id, "-s")
        everyone = mqadmin.run(*where)
        is_free.set()
        consumer.close()
        running.join(DEADLINE_S)
    for part in (topic, group, "PROP_CONSUMER_START_TIMESTAMP", "CONSUME_PASSIVELY", "stand_still"):
        assert part in one, one
    lines = [line for line in everyone.splitlines() if member.client_id in line]
    assert any("V5_3_3" in line for line in lines), everyone
    assert not any("Failed" in line or "not same" in line for line in lines), everyone


def test_operators_have_a_member_handle_a_message_now(
    cluster: RealCluster,
    admin: blocking.Admin,
    topic: str,
    java_client: Callable[[str], JavaClient],
) -> None:
    """By way of official brokers, with the official tool."""
    name_server, group = cluster.name_server.address, f"told-{uuid.uuid4().hex[:12]}"
    with blocking.Producer(name_server) as producer:
        receipts = [producer.send(Message(topic, body)) for body in (b"good", b"bad")]
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) > 2 and message.body == b"bad":
            raise ValueError("no such account")

    consumer = blocking.Consumer(name_server, group, from_where="earliest").subscribe(topic)
    running = threading.Thread(target=lambda: consumer.run(handle))
    with consumer:
        running.start()
        eventually(lambda: len(seen) == 2, "both are handled")
        (member,) = admin.groups.members(group).connections
        mqadmin = Mqadmin(java_client(cluster.broker.version))
        whom = ["-g", group, "-d", member.client_id]
        if not cluster.broker.version.startswith("4."):
            whom += ["-t", topic]
        told = [
            mqadmin.run(name_server, "queryMsgById", "-i", str(one.offset_message_id), *whom)
            for one in receipts
        ]
        consumer.close()
        running.join(DEADLINE_S)
    assert sorted(seen[2:]) == [b"bad", b"good"]
    assert "consumeResult=CR_SUCCESS" in told[0], told[0]
    assert "consumeResult=CR_THROW_EXCEPTION" in told[1], told[1]
    assert "ValueError: no such account" in told[1]
