"""What a member of a group answers to operators who ask it, by way of its brokers."""

import threading
import time
from collections.abc import Iterator

import pytest

from pymq import Message, Network, ReceivedMessage, blocking
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address
from pymq.protocol.client_bodies import ConsumerRunningInfo, ConsumerStatus
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.testing import Cluster

LIMIT_S = 120.0
COUNT = 24


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        yield running


def ask(address: str, code: RequestCode, **fields: str) -> Command:
    channel = BlockingChannel.connect(*split_address(address), timeout_s=LIMIT_S)
    try:
        return channel.request(Command(code, fields), timeout_s=LIMIT_S)
    finally:
        channel.close()


class Stuck:
    """A consumer whose handler stands still, in a thread, with everything that was sent."""

    def __init__(self, cluster: Cluster, topic: str, group: str, **options: object) -> None:
        self.network = options.get("network", Network())
        assert isinstance(self.network, Network)
        with blocking.Producer(
            cluster.name_server, timeout_s=LIMIT_S, network=self.network
        ) as producer:
            for number in range(COUNT):
                producer.send(Message(topic, b"%d" % number))
        self.is_free, self.has_begun = threading.Event(), threading.Event()
        self.consumer = blocking.Consumer(
            cluster.name_server,
            group,
            from_where="earliest",
            **options,  # type: ignore[arg-type]
        ).subscribe(topic)
        self._thread = threading.Thread(target=self._run)

    def stand_still(self, message: ReceivedMessage) -> None:
        self.has_begun.set()
        assert self.is_free.wait(LIMIT_S)

    def _run(self) -> None:
        self.consumer.run(self.stand_still)

    def __enter__(self) -> "Stuck":
        self.consumer.start()
        self._thread.start()
        assert self.has_begun.wait(LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.is_free.set()
        self.consumer.close()
        self._thread.join()


def member(cluster: Cluster, group: str) -> tuple[str, str]:
    """Return the address of a broker, and the id of the group's member."""
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        (connection,) = admin.groups.members(group).connections
    return cluster.broker_address, connection.client_id


def running_info(cluster: Cluster, group: str, *, stacks: bool = False) -> ConsumerRunningInfo:
    address, client_id = member(cluster, group)
    answer = ask(
        address,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        consumerGroup=group,
        clientId=client_id,
        jstackEnable=str(stacks).lower(),
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return ConsumerRunningInfo.decode(answer.body)


@pytest.mark.parametrize("orderly", [False, True])
def test_what_it_is_at(cluster: Cluster, orderly: bool) -> None:
    topic, group = f"at-{orderly}", f"group-{orderly}"
    before_ms = time.time_ns() // 1_000_000
    with Stuck(cluster, topic, group, orderly=orderly):
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            found = running_info(cluster, group, stacks=True)
            queues = {one: info for one, info in found.queues.items() if one.topic == topic}
            if sum(one.message_count for one in queues.values()) == COUNT:
                break
            assert time.monotonic() < deadline_s, found
    # Those of the retry topic may not be read yet.
    assert {one.topic for one in found.queues} <= {topic, f"%RETRY%{group}"}
    for info in queues.values():
        if info.message_count:
            assert (info.commit_offset, info.first_offset) == (0, 0)
            assert info.last_offset == info.message_count - 1
        assert info.is_locked is orderly and not info.is_dropped
        assert before_ms <= info.pulled_ms <= time.time_ns() // 1_000_000
    assert {one.topic for one in found.subscriptions} == {topic, f"%RETRY%{group}"}
    assert found.properties["PROP_CONSUMEORDERLY"] == str(orderly).lower()
    assert found.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert int(found.properties["PROP_CONSUMER_START_TIMESTAMP"]) >= before_ms
    assert found.properties["PROP_NAMESERVER_ADDR"] == cluster.name_server
    assert found.stacks is not None and "in stand_still" in found.stacks


def test_where_it_is(cluster: Cluster) -> None:
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    with Stuck(cluster, "where", "whereabouts"):
        _, client_id = member(cluster, "whereabouts")
        address = cluster.broker_address
        deadline_s = time.monotonic() + LIMIT_S
        while True:  # The handler has a message as soon as the first queue is read.
            answer = ask(address, code, topic="where", group="whereabouts")
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            offsets = ConsumerStatus.decode(answer.body).members[client_id]
            if {queue.broker_name for queue in offsets} == set(cluster.broker_names):
                break
            assert time.monotonic() < deadline_s, offsets
        other = ask(address, code, topic="another", group="whereabouts")
    assert other.code == ResponseCode.SUCCESS, other.remark
    assert {queue.topic for queue in offsets} == {"where"} and set(offsets.values()) == {0}
    assert ConsumerStatus.decode(other.body).members == {client_id: {}}


def test_names_of_a_namespace_are_what_brokers_call_them(cluster: Cluster) -> None:
    network = Network(namespace="shop")
    with Stuck(cluster, "sold", "sellers", network=network):
        found = running_info(cluster, "shop%sellers")
    names = {"shop%sold", "%RETRY%shop%sellers"}
    assert "shop%sold" in {one.topic for one in found.queues} <= names
    assert {one.topic for one in found.subscriptions} == names
    assert found.stacks is None
