"""Official Java consumers at our broker, and what administrators do with them while they run."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.interop.conftest import some
from tests.interop.java_client import JavaPushConsumer
from tests.interop.java_scenarios import (
    QUEUE_COUNT,
    AdminFactory,
    ClientFactory,
    JavaSite,
    make_site,
)
from tests.interop.java_steering import JavaRequester, JavaResponder, JavaSteering
from tests.interop.java_values import JavaError

from pymq.broker.state.offsets import OffsetTable
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import refusal
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import ResponseCode
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

VERSIONS = [("4.5.1",), ("4.9.7",), ("5.3.3",), ("5.4.0",), ("5.5.0",)]
COUNT = 20
TRACES = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    java_client: ClientFactory,
    java_admin: AdminFactory,
) -> JavaSite:
    """A site with a client of the version in ``request.param``."""
    return make_site(
        request.param,
        java_client,
        java_admin,
        name_server=cluster.name_server,
        broker_name=cluster.broker_name,
        broker_address=cluster.broker_address,
    )


def on_versions(*always: str) -> pytest.MarkDecorator:
    """Run a test with clients of some versions always, of the others on demand."""
    versions = some(VERSIONS, *((version,) for version in always))
    return pytest.mark.parametrize("site", versions, indirect=True)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)


def send(site: JavaSite, first: int = 0, count: int = COUNT) -> None:
    with site.producer() as producer:
        for number in range(first, first + count):
            producer.send(site.topic, b"%d" % number, queue_id=number % QUEUE_COUNT)


def numbers(consumer: JavaPushConsumer) -> list[int]:
    return sorted(int(message.body) for message in consumer.messages)


@on_versions("4.9.7")
def test_who_cannot_be_told_what_is_committed_asks_again(
    site: JavaSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers before 5.0 take a refusal for "nothing is", and skip all that is there."""
    with site.push() as push:
        send(site)
        push.wait_count(COUNT)
    send(site, COUNT)
    find, refused = OffsetTable.find, []

    def find_later(table: OffsetTable, group: str, topic: str, queue_id: int) -> int | None:
        if group == site.group and len(refused) < QUEUE_COUNT:
            refused.append(queue_id)
            raise refusal(ResponseCode.SYSTEM_BUSY, "the broker is busy")
        return find(table, group, topic, queue_id)

    monkeypatch.setattr(OffsetTable, "find", find_later)
    with site.push() as push:
        push.wait_count(COUNT)
        assert len(refused) == QUEUE_COUNT
        assert numbers(push) == list(range(COUNT, 2 * COUNT))


# --- steering


@on_versions("4.9.7", "5.3.3")
def test_running_consumers_tell_about_themselves(site: JavaSite) -> None:
    steering = JavaSteering(site.admin)
    with site.push() as push:
        send(site)
        push.wait_count(COUNT)
        (client_id,) = steering.client_ids(site.group)
        info = steering.running_info(site.group, client_id, stacks=True)
        assert {site.topic, f"%RETRY%{site.group}"} == info.subscriptions
        assert info.properties["PROP_CLIENT_VERSION"] == "V" + site.client.version.replace(".", "_")
        assert info.stacks and "ConsumeMessageThread" in info.stacks
        queues = {queue for topic, queue in info.offsets if topic == site.topic}
        assert queues == {(site.broker_name, n) for n in range(QUEUE_COUNT)}
        push.wait_offsets(COUNT, lambda: site.admin.committed_count(site.group, site.topic))
        expected = dict.fromkeys(queues, COUNT // QUEUE_COUNT)
        assert steering.status(site.topic, site.group)[client_id] == expected
        assert steering.status(site.topic, site.group, client_id) == {client_id: expected}
    with pytest.raises(JavaError, match="not online"):
        steering.running_info(site.group, client_id)


@on_versions("4.9.7", "5.3.3")
def test_a_running_consumer_consumes_one_message_again(site: JavaSite) -> None:
    steering = JavaSteering(site.admin)
    with site.producer() as producer, site.push() as push:
        sent = producer.send(site.topic, b"again")
        push.wait_count(1)
        (client_id,) = steering.client_ids(site.group)
        result = steering.consume_directly(site.group, client_id, site.topic, sent.offset_msg_id)
        assert result == "CR_SUCCESS"
        first, second = push.wait_count(2)
        assert (first.body, first.commit_log_offset) == (second.body, second.commit_log_offset)
        group = f"producer-{site.topic}"
        wait_until(lambda: steering.producer_ids(group, site.topic), "its first heartbeat")
        with pytest.raises(JavaError):
            steering.consume_directly(site.group, "nobody", site.topic, sent.offset_msg_id)


@on_versions("5.3.3")  # clients of 4.9 pause for ten seconds
def test_a_running_group_is_set_back_and_consumes_again(site: JavaSite) -> None:
    steering = JavaSteering(site.admin)
    with site.push() as push:
        send(site)
        push.wait_count(COUNT)
        time.sleep(0.01)
        middle_ms = int(time.time() * 1000)
        send(site, COUNT)
        push.wait_count(2 * COUNT)
        push.wait_offsets(2 * COUNT, lambda: site.admin.committed_count(site.group, site.topic))
        reset = steering.reset(site.topic, site.group, middle_ms)
        assert reset == {(site.broker_name, n): COUNT // QUEUE_COUNT for n in range(QUEUE_COUNT)}
        again = sorted([*range(2 * COUNT), *range(COUNT, 2 * COUNT)])
        wait_until(lambda: numbers(push) == again, "the second half again")
        push.wait_offsets(2 * COUNT, lambda: site.admin.committed_count(site.group, site.topic))
        assert numbers(push) == again


@on_versions("5.3.3")
def test_a_group_that_is_away_is_set_back_and_cloned(site: JavaSite) -> None:
    steering = JavaSteering(site.admin)
    send(site)
    with site.push() as push:
        push.wait_count(COUNT)
        push.wait_offsets(COUNT, lambda: site.admin.committed_count(site.group, site.topic))
    other = f"other-{site.group}"
    site.admin.create_group(other)
    steering.clone(site.group, other, site.topic)
    with BlockingClient(site.name_server) as client:
        queues = [MessageQueue(site.topic, site.broker_name, n) for n in range(QUEUE_COUNT)]
        found = [client.committed_offset(other, queue) for queue in queues]
    assert found == [COUNT // QUEUE_COUNT] * QUEUE_COUNT
    steering.reset(site.topic, site.group, 0)
    assert site.admin.committed_count(site.group, site.topic) == 0
    with site.push() as push:
        push.wait_count(COUNT)
        assert numbers(push) == list(range(COUNT))


# --- requests and replies


def wait_known(site: JavaSite, requester: JavaRequester) -> None:
    """Wait until the broker knows the requester.

    The first request sends a heartbeat, unless another thread of the client is just sending one,
    perhaps to no broker: then no reply arrives before the next interval, with any broker.
    """
    topic = f"known-{site.topic}"
    site.admin.create_topic(topic)
    requester.send(topic, b"hello")
    steering = JavaSteering(site.admin)
    wait_until(lambda: bool(steering.producer_ids(f"r-{site.topic}", topic)), "it is known")


@pytest.mark.parametrize("size", [10, 100_000])
@on_versions("4.9.7", "5.3.3")
def test_a_request_gets_its_reply(site: JavaSite, size: int) -> None:
    if site.client.version == "4.5.1":
        pytest.skip("clients of 4.5.1 have no requests")
    options = {"CompressMsgBodyOverHowmuch": 1000, "HeartbeatBrokerInterval": 1000}
    with (
        JavaResponder(
            site.client, site.group, site.name_server, site.topic, **options
        ) as responder,
        JavaRequester(site.client, f"r-{site.topic}", site.name_server, **options) as requester,
    ):
        wait_known(site, requester)
        # Its first round may have found no route; a request does not wait for the next one.
        wait_until(lambda: responder.queue_count(site.topic) == QUEUE_COUNT, "it reads all queues")
        for number in range(5):
            body = b"%d" % number * size
            try:
                reply, properties = requester.request(site.topic, body)
            except JavaError as error:
                received = [message.body[:20] for message in responder.messages]
                pytest.fail(f"request {number}: {error}; received: {received}, {responder.errors}")
            assert reply == body * 2
            assert properties["MSG_TYPE"] == "reply"
            assert {"CORRELATION_ID", "PUSH_REPLY_TIME", "ARRIVE_TIME"} <= properties.keys()
        responder.wait_count(5)
        assert not responder.errors
    assert site.admin.message_count("DefaultCluster_REPLY_TOPIC") > 0


@on_versions("5.3.3")
def test_a_reply_to_who_is_gone_is_an_error_of_who_replies(site: JavaSite) -> None:
    with JavaResponder(site.client, site.group, site.name_server, site.topic) as responder:
        with site.producer() as producer:
            gone = {
                "CORRELATION_ID": uuid.uuid4().hex,
                "REPLY_TO_CLIENT": "gone",
                "TTL": "3000",
                "CLUSTER": "DefaultCluster",
            }
            message = site.client.jvm.org.apache.rocketmq.common.message.Message(site.topic, b"x")
            accessor = site.client.jvm.org.apache.rocketmq.common.message.MessageAccessor
            for name, value in gone.items():
                accessor.putProperty(message, name, value)
            producer.java.send(message)
        wait_until(lambda: responder.errors, "the reply fails")


# --- broadcasting


@on_versions("5.3.3")
def test_every_member_of_a_broadcasting_group_gets_everything(site: JavaSite) -> None:
    options = {"message_model": "BROADCASTING"}
    with site.push(**options) as first, site.push(**options) as second:
        send(site)
        for push in (first, second):
            push.wait_count(COUNT)
            assert numbers(push) == list(range(COUNT))
    with pytest.raises(JavaError, match="offset table is empty"):  # they keep their offsets
        site.admin.consume_stats(site.group)


@on_versions("5.3.3")
def test_a_group_that_must_not_broadcast_gets_nothing(site: JavaSite) -> None:
    site.admin.create_group(site.group, ConsumeBroadcastEnable=False)
    send(site)
    with site.push(message_model="BROADCASTING") as push:
        time.sleep(2)
        assert not push.messages
        site.admin.create_group(site.group, ConsumeBroadcastEnable=True)
        push.wait_count(COUNT)


# --- lite pull


@on_versions("4.9.7", "5.3.3")
def test_a_lite_pull_consumer_seeks_by_offset_and_by_time(site: JavaSite) -> None:
    send(site)
    time.sleep(0.01)
    middle_ms = int(time.time() * 1000)
    send(site, COUNT)
    queue = site.broker_name, 1
    mine = [number for number in range(2 * COUNT) if number % QUEUE_COUNT == 1]
    with site.lite_pull(mode="assign", queue_ids=[1]) as lite:
        assert [int(one.body) for one in lite.poll_count(len(mine))] == mine
        assert lite.offset_at(queue, 0) == 0
        half = lite.offset_at(queue, middle_ms)
        assert half == COUNT // QUEUE_COUNT
        for offset in (half, 3):
            lite.seek(queue, offset)
            assert [int(one.body) for one in lite.poll_count(len(mine) - offset)] == mine[offset:]
        lite.commit()
        assert lite.committed(queue) == len(mine)
        with BlockingClient(site.name_server) as client:
            at = MessageQueue(site.topic, *queue)
            wait_until(
                lambda: client.committed_offset(site.group, at) == len(mine), "the broker knows"
            )


@on_versions("5.3.3")
def test_lite_pull_consumers_share_the_queues_and_go_on_where_others_were(site: JavaSite) -> None:
    send(site)
    with site.lite_pull() as first:
        found = [int(one.body) for one in first.poll_count(COUNT)]
        assert sorted(found) == list(range(COUNT))
        first.commit()
        # Until the broker knows, another one that takes a queue over begins at its end.
        known = site.admin.committed_count
        wait_until(lambda: known(site.group, site.topic) == COUNT, "the broker knows")
        with site.lite_pull() as second:
            send(site, COUNT, COUNT)
            got: list[list[int]] = [[], []]

            def all_there() -> bool:
                for numbers, consumer in zip(got, (first, second), strict=True):
                    numbers += [int(one.body) for one in consumer.poll(0.1)]
                return set(got[0] + got[1]) == set(range(COUNT, 2 * COUNT))

            wait_until(all_there, "the second half")


# --- order


@on_versions("5.3.3")
def test_order_is_kept_while_orderly_consumers_come_and_go(site: JavaSite) -> None:
    consumers: list[JavaPushConsumer] = []
    count = 200
    with ExitStack() as stack, site.producer() as producer:
        for number in range(count):
            if number in (0, 60, 120):
                consumers.append(stack.enter_context(site.push(listener="orderly")))
            if number == 160:
                consumers[0].close()
            queue_id = number % QUEUE_COUNT
            producer.send(site.topic, b"%d" % number, queue_id=queue_id)
            time.sleep(0.02)

        def consumed() -> set[int]:
            return {number for consumer in consumers for number in numbers(consumer)}

        wait_until(lambda: consumed() == set(range(count)), "all of them")
    for consumer in consumers:
        for queue_id in range(QUEUE_COUNT):
            offsets = [m.queue_offset for m in consumer.messages if m.queue_id == queue_id]
            assert offsets == sorted(offsets)


# --- traces, compression, heartbeats


@on_versions("4.9.7", "5.3.3")
def test_traces_of_producers_can_be_read(site: JavaSite) -> None:
    client = site.client.jvm.org.apache.rocketmq.client
    producer = client.producer.DefaultMQProducer(f"traced-{site.topic}", None, True, None)
    producer.setNamesrvAddr(site.name_server)
    producer.setInstanceName(site.client.instance_name())
    producer.start()
    try:
        message = site.client.jvm.org.apache.rocketmq.common.message.Message(site.topic, b"traced")
        message_id = producer.send(message).getMsgId()
        wait_until(lambda: TRACES in site.admin.topics(), "the first trace creates their topic")
        with JavaPushConsumer(
            site.client,
            f"reader-{site.group}",
            site.name_server,
            TRACES,
        ) as reader:

            def is_traced() -> bool:
                bodies = [message.body.decode() for message in reader.messages]
                return any("Pub\x01" in body and message_id in body for body in bodies)

            wait_until(is_traced, "the producer's trace")
    finally:
        producer.shutdown()


@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
@on_versions("5.3.3")
def test_bodies_compressed_in_every_way(site: JavaSite, kind: str) -> None:
    if site.client.version.startswith("4."):
        pytest.skip("4.x has ZLIB alone")
    types = site.client.jvm.org.apache.rocketmq.common.compression.CompressionType
    body = b"compress me " * 10_000
    options = {"CompressMsgBodyOverHowmuch": 100, "CompressType": getattr(types, kind)}
    with site.producer(**options) as producer:
        producer.send(site.topic, body)
    with site.push() as push:
        (received,) = push.wait_count(1)
    assert received.body == body and received.store_size < len(body) // 10


@on_versions("5.3.3")
def test_heartbeats_without_subscriptions_keep_them(site: JavaSite) -> None:
    if site.client.version.startswith("4."):
        pytest.skip("4.x sends subscriptions with every heartbeat")
    options = {"UseHeartbeatV2": True, "HeartbeatBrokerInterval": 1000}
    with site.push(**options) as push:
        time.sleep(4)
        found = site.admin.java.examineConsumerConnectionInfo(site.group)
        assert site.topic in set(found.getSubscriptionTable().keySet())
        send(site)
        push.wait_count(COUNT)
