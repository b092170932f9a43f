"""The blocking client against official brokers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests.administration import admin_of
from tests.interop.conftest import RealCluster
from tests.preencoded import takes_records

from pymq import blocking
from pymq.client.operations import PullStatus, SendStatus
from pymq.client.sockets.batch_targets import BatchTarget
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import BrokerError, MessageNotFound, OffsetOutOfRange, RouteNotFound
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message, ReceivedMessage
from pymq.protocol.record import Record, decode_records
from pymq.protocol.record_batch import read_columns

pytestmark = pytest.mark.interop

VERSIONS = ["5.3.3", "4.9.7"]
QUEUE_COUNT = 2
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Site:
    cluster: RealCluster
    client: BulkClient
    admin: blocking.Admin
    topic: str

    def queue(self, queue_id: int = 0) -> MessageQueue:
        return MessageQueue(self.topic, self.cluster.broker.name, queue_id)


@pytest.fixture(params=VERSIONS)
def site(
    request: pytest.FixtureRequest, real_cluster: Callable[[str], RealCluster]
) -> Iterator[Site]:
    cluster = real_cluster(request.param)
    with BulkClient(cluster.name_server.address) as client:
        admin = admin_of(client)
        topic = f"blocking-{uuid.uuid4().hex[:12]}"
        admin.topics.create(topic, queue_count=QUEUE_COUNT)
        yield Site(cluster, client, admin, topic)


def wait_end(site: Site, end: int) -> None:
    """Wait until messages are in their queue: official brokers acknowledge before that."""
    deadline_s = time.monotonic() + DEADLINE_S
    while (found := site.client.bounds([site.queue()])[site.queue()]) != (0, end):
        assert time.monotonic() < deadline_s, f"bounds {found}, expected (0, {end})"
        time.sleep(0.01)


def encoded(bodies: list[bytes], tag: bytes = b"") -> bytes:
    properties = b"TAGS\x01" + tag + b"\x02" if tag else b""
    return encode_batch((0, body, properties) for body in bodies)


def records(site: Site, first: int, end: int, *, tags: str = "*") -> list[Record]:
    found = []
    position = first
    for chunk in site.client.pull_range(site.queue(), first, end, tags=tags):
        assert chunk.first == position
        position = chunk.next_offset
        found += list(decode_records(chunk.buffer, verify=True))
    assert position == end
    return found


def test_a_topic_is_created_listed_and_deleted(site: Site) -> None:
    assert site.topic in site.admin.topics.names()
    broker = site.cluster.broker.name
    assert broker not in site.admin.topics.names()
    assert broker in site.admin.topics.names(with_system=True)
    expected = [site.queue(number) for number in range(QUEUE_COUNT)]
    assert site.client.read_queues(site.topic) == expected
    assert site.client.write_queues(site.topic) == expected
    assert list(site.admin.topics.status(site.topic)) == expected
    assert site.admin.brokers.masters() == {broker: site.cluster.broker.address}
    site.admin.topics.delete(site.topic)
    assert site.topic not in site.admin.topics.names()
    site.client.forget_route(site.topic)
    with pytest.raises(RouteNotFound, match="pymq topic create"):
        site.client.read_queues(site.topic)


def test_what_is_sent_is_pulled(site: Site) -> None:
    message = Message(site.topic, b"one", tags="a", keys=["k1", "k2"], properties={"p": "Grüße"})
    result = site.client.send(message, site.queue())
    assert result.status is SendStatus.OK and not result.durability_unknown
    assert (result.queue, result.queue_offset) == (site.queue(), 0)
    large = bytes(range(256)) * 64
    second = site.client.send(Message(site.topic, large), site.queue())
    batch = [Message(site.topic, b"batch-%d" % number, tags="b") for number in range(3)]
    third = site.client.send_batch(site.queue(), batch)
    assert third.queue_offset == 2 and len(third.offset_message_ids) == 3

    wait_end(site, 5)
    pulled = site.client.pull(site.queue(), 0)
    assert pulled.status is PullStatus.FOUND
    assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (5, 0, 5)
    received = [
        ReceivedMessage.from_record(record, site.cluster.broker.name)
        for record in decode_records(pulled.body, verify=True)
    ]
    assert [one.body for one in received] == [b"one", large, b"batch-0", b"batch-1", b"batch-2"]
    assert (received[0].tags, received[0].keys) == ("a", ["k1", "k2"])
    assert received[0].properties["p"] == "Grüße"
    assert received[0].message_id == result.message_id
    assert received[1].message_id == second.message_id
    assert [one.message_id for one in received[2:]] == (third.message_id or "").split(",")
    assert [received[0].offset_message_id] == result.offset_message_ids
    assert site.client.pull(site.queue(), 5).status is PullStatus.NO_NEW
    beyond = site.client.pull(site.queue(), 50)
    assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 5)


def test_a_send_creates_its_topic(site: Site) -> None:
    topic = f"auto-{uuid.uuid4().hex[:12]}"
    results = [site.client.send(Message(topic, b"x")) for _ in range(6)]
    assert {result.queue.queue_id for result in results} <= set(range(4))
    site.client.forget_route(topic)
    assert {queue.topic for queue in site.client.write_queues(topic)} == {topic}


def test_a_range_is_read_exactly(site: Site) -> None:
    bodies = [b"%06d" % number + b"x" * (number % 700) for number in range(3_000)]
    batches = [encoded(bodies[at : at + 250]) for at in range(0, len(bodies), 250)]
    results = site.client.send_batches(site.queue(), batches, in_flight_max=1)
    assert [result.queue_offset for result in results] == list(range(0, 3_000, 250))
    wait_end(site, 3_000)
    assert site.client.bounds([site.queue(), site.queue(1)]) == {
        site.queue(): (0, 3_000),
        site.queue(1): (0, 0),
    }
    for first, end in ((0, 3_000), (17, 1_033), (2_999, 3_000), (5, 5)):
        found = records(site, first, end)
        assert [record.body for record in found] == bodies[first:end]
        assert [record.queue_offset for record in found] == list(range(first, end))
    chunks = list(site.client.pull_range(site.queue(), 0, 3_000))
    assert len(chunks) <= 3  # 1.1 MB: small answers are joined
    assert sum(len(read_columns(chunk.buffer)) for chunk in chunks) == 3_000
    with pytest.raises(OffsetOutOfRange, match="0 up to 3000"):
        list(site.client.pull_range(site.queue(), 2_990, 3_001))


def test_preencoded_records_are_for_pymq_brokers_only(site: Site) -> None:
    assert takes_records(site.client, site.queue()) is False


def test_pipelined_batches_are_all_there(site: Site) -> None:
    bodies = [b"%06d" % number for number in range(2_000)]
    batches = [encoded(bodies[at : at + 50]) for at in range(0, len(bodies), 50)]
    results = site.client.send_batches(site.queue(), batches)
    wait_end(site, 2_000)
    # An official broker handles the requests of a connection on several threads; still in order.
    assert [record.body for record in records(site, 0, 2_000)] == bodies
    assert [result.queue_offset for result in results] == list(range(0, 2_000, 50))


def test_batches_for_any_queue_keep_the_order_of_each(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.client.sockets.batch_targets.TURN_BYTES", 20_000)
    bodies = [b"%06d" % number for number in range(6_000)]
    pipeline = site.client.batch_pipeline(in_flight_max=3, retry_s=60.0)
    for at in range(0, len(bodies), 20):
        pipeline.send(BatchTarget(site.topic), encoded(bodies[at : at + 20]))
    pipeline.flush()
    queues = site.client.write_queues(site.topic)
    deadline_s = time.monotonic() + DEADLINE_S
    while sum(end for _, end in site.client.bounds(queues).values()) < len(bodies):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    found = {
        queue: [
            record.body
            for chunk in site.client.pull_range(queue, first, end)
            for record in decode_records(chunk.buffer)
        ]
        for queue, (first, end) in site.client.bounds(queues).items()
    }
    assert len(queues) > 1 and all(found.values())
    assert all(numbers == sorted(numbers) for numbers in found.values())
    assert sorted(body for numbers in found.values() for body in numbers) == bodies


def test_large_messages_make_predictions_wrong(site: Site) -> None:
    bodies = [bytes([number % 256]) * (100 + 60_000 * (number % 5 == 0)) for number in range(200)]
    batches = [encoded(bodies[at : at + 20]) for at in range(0, 200, 20)]
    site.client.send_batches(site.queue(), batches, in_flight_max=1)
    wait_end(site, 200)
    assert [record.body for record in records(site, 0, 200)] == bodies
    assert [record.body for record in records(site, 3, 150)] == bodies[3:150]


def test_tags_select(site: Site) -> None:
    for number in range(40):
        tag = (b"red", b"green", b"blue")[number % 3]
        site.client.send_batches(site.queue(), [encoded([b"%d" % number], tag)])
    wait_end(site, 40)
    expected = [b"%d" % number for number in range(40) if number % 3 != 2]
    assert [one.body for one in records(site, 0, 40, tags="red || green")] == expected
    assert [one.body for one in records(site, 1, 8, tags="blue")] == [b"2", b"5"]
    assert records(site, 0, 40, tags="nobody") == []


def test_offsets_by_time_and_progress(site: Site) -> None:
    for number in range(3):
        site.client.send(Message(site.topic, b"%d" % number), site.queue())
    wait_end(site, 3)
    stored = [record.store_timestamp for record in records(site, 0, 3)]
    assert site.client.offset_by_time(site.queue(), stored[0] - 1_000) == 0
    # A binary search: of messages of one millisecond RocketMQ 4.9 names any.
    assert stored[site.client.offset_by_time(site.queue(), stored[2])] == stored[2]
    group = f"group-{site.topic}"
    site.admin.groups.create(group)
    assert group in site.admin.groups.names()
    site.client.commit_offset(group, site.queue(), 2)
    assert site.client.committed_offset(group, site.queue()) == 2
    lags = {lag.queue: lag.lag for lag in site.admin.offsets.lag(group, site.topic)}
    assert lags[site.queue()] == 1
    assert site.admin.groups.members(group).connections == []
    site.admin.groups.delete(group)
    assert group not in site.admin.groups.names()


def wait_found(site: Site, key: str, count: int) -> list[ReceivedMessage]:
    """Wait until messages can be found: official brokers index after they acknowledge."""
    deadline_s = time.monotonic() + DEADLINE_S
    while len(found := site.admin.messages.by_key(site.topic, key)) != count:
        assert time.monotonic() < deadline_s, f"{len(found)} messages, expected {count}"
        time.sleep(0.01)
    return found


def test_messages_are_found_by_key_and_by_id(site: Site) -> None:
    sent = [
        site.client.send(
            Message(site.topic, b"%d" % n, keys=f"all k{n % 3}"), site.queue(n % QUEUE_COUNT)
        )
        for n in range(12)
    ]
    assert [one.body for one in wait_found(site, "k1", 4)] == [b"1", b"4", b"7", b"10"]
    found = wait_found(site, "all", 12)
    assert [one.message_id for one in found] == [one.message_id for one in sent]
    newest = site.admin.messages.by_key(site.topic, "all", count_max=3)
    assert len(newest) == 3
    assert site.admin.messages.by_key(site.topic, "none") == []
    late = found[-1].store_timestamp_ms + 60_000
    assert site.admin.messages.by_key(site.topic, "all", begin_ms=late) == []
    for one, message in zip(sent, found, strict=True):
        assert site.admin.messages.by_id(one.offset_message_ids[0]) == message
        assert site.admin.messages.by_id(message.message_id, site.topic) == message
    with pytest.raises(BrokerError, match="can not find message by the offset"):
        site.admin.messages.by_id(f"{sent[0].offset_message_ids[0][:-16]}{1 << 40:016X}")
    with pytest.raises(MessageNotFound):
        site.admin.messages.by_id("no id", site.topic)


def test_the_state_of_a_broker(site: Site) -> None:
    before = site.admin.brokers.state(site.cluster.broker.address)
    site.client.send(Message(site.topic, b"one"), site.queue())
    after = site.admin.brokers.state(site.cluster.broker.address)
    assert int(after["putMessageTimesTotal"]) > int(before["putMessageTimesTotal"])
    assert after["brokerVersionDesc"] == "V" + site.cluster.version.replace(".", "_")
