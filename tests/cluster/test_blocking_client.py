"""BlockingClient and Admin against pymq's own name server and broker."""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.administration import admin_of
from tests.cluster.played import Played, closed_address

from pymq.client.cluster.routes import Route
from pymq.client.operations import PullStatus, SendStatus
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import (
    BrokerError,
    ClientClosed,
    ClientMisplaced,
    ConfigurationError,
    ConnectionFailed,
    LocalProtocolError,
    MessageIllegal,
    MessageNotFound,
    OffsetOutOfRange,
    PymqError,
    RouteNotFound,
)
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message, ReceivedMessage
from pymq.protocol.record import decode_records
from pymq.protocol.record_batch import read_columns
from pymq.testing import Cluster, wait_until

#: For what succeeds, however busy the machine.
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def patient_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the broker wait for its key index and for the name server as long as it takes."""
    monkeypatch.setattr("pymq.broker.handlers.query.INDEX_WAIT_S", LIMIT_S)
    monkeypatch.setattr("pymq.broker.table_saving.ANNOUNCE_WAIT_S", LIMIT_S)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[BulkClient]:
    with BulkClient(cluster.name_server, timeout_s=LIMIT_S, read_deadline_s=LIMIT_S) as made:
        yield made


def encoded(bodies: list[bytes], tag: bytes = b"") -> bytes:
    properties = b"TAGS\x01" + tag + b"\x02" if tag else b""
    return encode_batch((0, body, properties) for body in bodies)


def bodies_of(
    client: BulkClient,
    queue: MessageQueue,
    first: int,
    end: int,
    *,
    tags: str = "*",
    bytes_max: int = 8 << 20,
) -> list[bytes]:
    found = []
    position = first
    for chunk in client.pull_range(queue, first, end, tags=tags, bytes_max=bytes_max):
        assert chunk.first == position
        position = chunk.next_offset
        found += [record.body for record in decode_records(chunk.buffer, verify=True)]
    assert position == end
    return found


def test_what_is_sent_is_pulled(client: BlockingClient, queue: MessageQueue) -> None:
    message = Message(queue.topic, b"one", tags="a", keys=["k1", "k2"], properties={"p": "Grüße"})
    result = client.send(message)
    assert result.status is SendStatus.OK and not result.durability_unknown
    assert (result.queue, result.queue_offset) == (queue, 0)
    large = bytes(range(256)) * 64
    client.send(Message(queue.topic, large), queue)
    batch = client.send_batch(queue, [Message(queue.topic, b"%d" % n, tags="b") for n in range(3)])
    assert (batch.queue_offset, len(batch.offset_message_ids)) == (2, 3)
    pulled = client.pull(queue, 0)
    assert pulled.status is PullStatus.FOUND
    assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (5, 0, 5)
    received = [
        ReceivedMessage.from_record(record, queue.broker_name)
        for record in decode_records(pulled.body, verify=True)
    ]
    assert [one.body for one in received] == [b"one", large, b"0", b"1", b"2"]
    assert (received[0].tags, received[0].keys) == ("a", ["k1", "k2"])
    assert received[0].properties["p"] == "Grüße"
    assert received[0].message_id == result.message_id
    assert [one.message_id for one in received[2:]] == (batch.message_id or "").split(",")
    assert client.pull(queue, 5).status is PullStatus.NO_NEW
    assert client.pull(queue, 9).status is PullStatus.OFFSET_ILLEGAL
    assert client.bounds([queue]) == {queue: (0, 5)}


def test_a_pull_may_wait_for_a_message(
    cluster: Cluster, client: BlockingClient, queue: MessageQueue
) -> None:
    def send_later() -> None:
        with BlockingClient(cluster.name_server, timeout_s=LIMIT_S) as other:
            other.send(Message(queue.topic, b"late"), queue)

    timer = threading.Timer(0.2, send_later)
    timer.start()
    assert client.pull(queue, 0, suspend_ms=60_000).status is PullStatus.FOUND
    timer.join()


@pytest.mark.parametrize("bytes_max", [1_000, 100_000, 8 << 20])
def test_a_range_is_read_exactly(client: BulkClient, queue: MessageQueue, bytes_max: int) -> None:
    bodies = [b"%06d" % number + b"x" * (number % 700) for number in range(3_000)]
    batches = [encoded(bodies[at : at + 250]) for at in range(0, len(bodies), 250)]
    results = client.send_batches(queue, batches)
    assert [result.queue_offset for result in results] == list(range(0, 3_000, 250))
    for first, end in ((0, 3_000), (17, 1_033), (2_999, 3_000), (5, 5)):
        assert bodies_of(client, queue, first, end, bytes_max=bytes_max) == bodies[first:end]
    with pytest.raises(OffsetOutOfRange, match="0 up to 3000"):
        list(client.pull_range(queue, 2_990, 3_001, bytes_max=bytes_max))


def test_an_error_of_the_bodies_is_the_callers_and_is_not_tried_again(
    client: BulkClient, queue: MessageQueue
) -> None:
    def bodies() -> Iterator[bytes]:
        yield encoded([b"sent"])
        raise ConnectionFailed("the source of the bodies is gone")

    with pytest.raises(ConnectionFailed, match="the source of the bodies"):
        client.send_batches(queue, bodies(), in_flight_max=1)


def test_a_large_range_comes_in_few_answers(client: BulkClient, queue: MessageQueue) -> None:
    batch = encoded([b"x" * 1_000] * 1_000)
    client.send_batches(queue, [batch] * 20)
    chunks = list(client.pull_range(queue, 0, 20_000, bytes_max=4 << 20))
    assert len(chunks) <= 8
    # All chunks are held at once: none may have been written over by a later one.
    offsets = [offset for chunk in chunks for offset in read_columns(chunk.buffer).queue_offset]
    assert offsets == list(range(20_000))


def test_a_loop_may_be_left_early(client: BulkClient, queue: MessageQueue) -> None:
    client.send_batches(queue, [encoded([b"x" * 1_000] * 1_000)] * 4)
    for _ in range(50):
        for _chunk in client.pull_range(queue, 0, 4_000, bytes_max=100_000):
            break
    assert len(bodies_of(client, queue, 0, 4_000)) == 4_000


def test_tags_select(client: BulkClient, queue: MessageQueue) -> None:
    for number in range(40):
        tag = (b"red", b"green", b"blue")[number % 3]
        client.send_batches(queue, [encoded([b"%d" % number], tag)])
    expected = [b"%d" % number for number in range(40) if number % 3 != 2]
    assert bodies_of(client, queue, 0, 40, tags="red || green") == expected
    assert bodies_of(client, queue, 1, 8, tags="blue") == [b"2", b"5"]
    assert bodies_of(client, queue, 0, 40, tags="nobody") == []


def test_offsets_by_time_and_progress(client: BlockingClient, queue: MessageQueue) -> None:
    admin = admin_of(client)
    for number in range(3):
        client.send(Message(queue.topic, b"%d" % number), queue)
    (chunk,) = client.pull_range(queue, 0, 3)
    stored = [record.store_timestamp for record in decode_records(chunk.buffer)]
    assert client.offset_by_time(queue, stored[0] - 1_000) == 0
    assert client.offset_by_time(queue, stored[2]) == stored.index(stored[2])
    assert client.offset_by_time(queue, stored[2] + 60_000) == 3
    group = f"g-{queue.topic}"
    admin.groups.create(group)
    assert group in admin.groups.names()
    client.commit_offset(group, queue, 2)
    assert client.committed_offset(group, queue) == 2
    assert client.pull(queue, 0, group=group).status is PullStatus.FOUND


def test_a_message_is_viewed_by_either_id(client: BlockingClient, queue: MessageQueue) -> None:
    admin = admin_of(client)
    sent = client.send(Message(queue.topic, b"find me", tags="t", keys=["k1", "k2"]), queue)
    (offset_id,) = sent.offset_message_ids
    assert sent.message_id is not None
    found = admin.messages.by_id(offset_id)
    assert (found.topic, found.body, found.keys) == (queue.topic, b"find me", ["k1", "k2"])
    assert (found.message_id, found.broker_name) == (sent.message_id, queue.broker_name)
    assert admin.messages.by_id(sent.message_id, queue.topic) == found
    with pytest.raises(RouteNotFound, match="name the topic, too"):
        admin.messages.by_id(sent.message_id)
    with pytest.raises(LocalProtocolError, match="'no id'"):
        admin.messages.by_id("no id")
    with pytest.raises(MessageNotFound, match="'no id'"):
        admin.messages.by_id("no id", queue.topic)
    with pytest.raises(BrokerError, match="can not find message by the offset, 1099511627776"):
        admin.messages.by_id(f"{offset_id[:-16]}{1 << 40:016X}")


def test_messages_are_found_by_key(client: BlockingClient, queue: MessageQueue) -> None:
    admin = admin_of(client)
    body = b"compressed " * 1000
    for number in range(70):
        client.send(Message(queue.topic, body + b"%d" % number, keys=f"all k{number % 7}"), queue)
    found = admin.messages.by_key(queue.topic, "k3")
    assert [one.body for one in found] == [body + b"%d" % n for n in range(3, 70, 7)]
    every = admin.messages.by_key(queue.topic, "all")
    assert [one.queue_offset for one in every] == [*range(6, 70)]
    newest = admin.messages.by_key(queue.topic, "all", count_max=2)
    assert [one.queue_offset for one in newest] == [68, 69]
    at = found[0].store_timestamp_ms
    assert admin.messages.by_key(queue.topic, "all", begin_ms=at, end_ms=at)[0].body
    assert admin.messages.by_key(queue.topic, "all", end_ms=1000) == []
    assert admin.messages.by_key(queue.topic, "none") == []
    with pytest.raises(ConfigurationError, match=r"1\.\.64"):
        admin.messages.by_key(queue.topic, "all", count_max=65)
    with pytest.raises(RouteNotFound):
        admin.messages.by_key("no-such-topic", "all")


def test_topics_come_and_go(cluster: Cluster, client: BlockingClient) -> None:
    admin = admin_of(client)
    topic = f"t-{uuid.uuid4().hex[:12]}"
    admin.topics.create(topic, queue_count=3)
    assert topic in admin.topics.names()
    assert cluster.broker_name in admin.topics.names(with_system=True)
    assert cluster.broker_name not in admin.topics.names()
    queues = [MessageQueue(topic, cluster.broker_name, number) for number in range(3)]
    assert client.read_queues(topic) == client.write_queues(topic) == queues
    assert admin.brokers.masters() == {cluster.broker_name: cluster.broker_address}
    wrong: list[Any] = [0, 65_537, "4", 2.5]
    for count in wrong:
        with pytest.raises(ConfigurationError, match=rf"queue_count={count!r}: expected 1..65536"):
            admin.topics.create(topic, queue_count=count)
    admin.topics.delete(topic)
    assert topic not in admin.topics.names()
    client.forget_route(topic)
    with pytest.raises(RouteNotFound, match="pymq topic create"):
        client.read_queues(topic)


QUEUE = MessageQueue("T", "broker-a", 0)
REQUESTS: dict[str, Callable[[BlockingClient], object]] = {
    "send": lambda client: client.send(Message("T", b"x")),
    "bounds": lambda client: client.bounds([QUEUE]),
    "range": lambda client: list(client.pull_range(QUEUE, 0, 1)),
}


@pytest.mark.parametrize("second", REQUESTS)
@pytest.mark.parametrize("first", REQUESTS)
def test_one_of_two_threads_is_refused_while_the_other_waits(first: str, second: str) -> None:
    go_on = threading.Event()

    def late(request: Command) -> Command:
        assert go_on.wait(LIMIT_S)
        return request.reply(ResponseCode.MESSAGE_ILLEGAL, "late")

    with (
        Played(late) as server,
        BlockingClient(
            closed_address(),
            timeout_s=LIMIT_S,
            routes=[Route("T", (QUEUE,), (QUEUE,), {"broker-a": {0: server.address}})],
        ) as client,
        ThreadPoolExecutor(2) as threads,
    ):
        waiting = threads.submit(REQUESTS[first], client)
        wait_until(lambda: server.requests, timeout_s=LIMIT_S)
        error = threads.submit(REQUESTS[second], client).exception(LIMIT_S)
        assert not waiting.done()
        go_on.set()
        other = waiting.exception(LIMIT_S)
        assert isinstance(error, ClientMisplaced) and "or take pymq.blocking" in str(error)
        assert isinstance(other, MessageIllegal)
        with pytest.raises(MessageIllegal):  # one after the other
            REQUESTS[second](client)


def test_a_send_creates_its_topic(client: BlockingClient) -> None:
    topic = f"auto-{uuid.uuid4().hex[:12]}"
    used = {client.send(Message(topic, b"x")).queue.queue_id for _ in range(8)}
    assert used == set(range(4))
    client.forget_route(topic)
    assert len(client.read_queues(topic)) == 4


def test_what_cannot_be_sent(client: BulkClient, queue: MessageQueue) -> None:
    other = Message("other", b"x")
    for send, text in (
        (lambda: client.send(Message("a/b", b"x")), "'/'"),
        (lambda: client.send(Message(queue.topic, bytes(5 << 20))), "body_bytes_max"),
        (lambda: client.send(Message(queue.topic, b"x", properties={"TAGS": "x"})), "system"),
        (lambda: client.send(Message(queue.topic, b"x", tags="a||b")), "one tag"),
        (lambda: client.send(Message(queue.topic, b"x", tags=5)), "tags is a int"),  # type: ignore
        (lambda: client.send(Message(queue.topic, b"x", keys=5)), "keys is 5, expected"),  # type: ignore
        (lambda: client.send(Message(queue.topic, b"x", delay_level=-3)), "delay_level=-3"),
        (lambda: client.send(b"x"), "expected a Message"),  # type: ignore[arg-type]
        (lambda: client.send(other, 0), "queue=0"),  # type: ignore[arg-type]
        (lambda: client.pull(queue, 0, tags="a > 5"), "SQL"),
        (lambda: list(client.pull_range(queue, 0, 1, tags="TAGS is not null")), "SQL"),
        (lambda: client.send(other, queue), "'other'"),
        (lambda: client.send_batch(queue, []), "batch of no message"),
        (lambda: client.send_batch(queue, [other, Message(queue.topic, b"")]), "one topic"),
        (lambda: client.send_batches(queue, [bytes(5 << 20)]), "batch 0"),
    ):
        with pytest.raises(LocalProtocolError, match=text):
            send()
    with pytest.raises(PymqError) as caught:
        client.send_batches(queue, [encoded([b"x"]), b"nonsense"])
    assert caught.value.__notes__ == ["1 batches were acknowledged before"]
    assert client.bounds([queue]) == {queue: (0, 1)}


def test_a_name_server_that_is_down(cluster: Cluster, queue: MessageQueue) -> None:
    dead = closed_address()
    with BlockingClient([dead, cluster.name_server]) as client:
        assert client.write_queues(queue.topic) == [queue]
    text = rf"no name server of {dead} answers: no connection to {dead}"
    with BlockingClient(dead) as client, pytest.raises(ConnectionFailed, match=text):
        client.read_queues(queue.topic)


def test_wrong_arguments() -> None:
    for name_servers in ("", " ; ", "host", "host:0", "host:x", ["a:1", "b"]):
        with pytest.raises(ConfigurationError, match="host:port"):
            BlockingClient(name_servers)
    with pytest.raises(ConfigurationError, match="timeout_s"):
        BlockingClient("a:1", timeout_s=0)
    assert BlockingClient("a:1; b:2,a:1").name_servers == ("a:1", "b:2")


def test_a_closed_client(cluster: Cluster, queue: MessageQueue) -> None:
    client = BlockingClient(cluster.name_server)
    assert client.bounds([queue]) == {queue: (0, 0)}
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.bounds([queue])


def test_an_advertised_address_that_cannot_be_reached() -> None:
    with (
        Cluster(broker={"advertised_address": "127.0.0.2"}) as cluster,
        BlockingClient(cluster.name_server, send_retries=0) as client,
        pytest.raises(ConnectionFailed, match="127.0.0.2.*broker-a.*brokerIP1"),
    ):
        client.send(Message("T", b"x"))


def test_a_broker_that_restarts(tmp_path: Path) -> None:
    limits: Any = {"timeout_s": LIMIT_S, "read_deadline_s": LIMIT_S}
    with Cluster(tmp_path) as cluster, BulkClient(cluster.name_server, **limits) as client:
        admin_of(client).topics.create("T", queue_count=1)
        (queue,) = client.write_queues("T")
        bodies = [b"%06d" % number for number in range(4_000)]
        client.send_batches(queue, [encoded(bodies[at : at + 500]) for at in range(0, 4_000, 500)])
        found = []
        for number, chunk in enumerate(client.pull_range(queue, 0, 4_000, bytes_max=40_000)):
            found += [record.body for record in decode_records(chunk.buffer)]
            if number == 2:
                cluster.restart_broker()
        assert found == bodies
        # The idle connection is dead by now; a send must not fall into that hole.
        cluster.restart_broker()
        assert client.send(Message("T", b"x"), queue).queue_offset == 4_000

        back = threading.Timer(0.5, cluster.start_broker)
        cluster.stop_broker()
        back.start()
        assert client.bounds([queue]) == {queue: (0, 4_001)}
        back.join()


def test_a_broker_that_stays_away(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path) as cluster,
        BulkClient(cluster.name_server, timeout_s=LIMIT_S, read_deadline_s=0.5) as client,
    ):
        admin_of(client).topics.create("T", queue_count=1)
        (queue,) = client.write_queues("T")
        cluster.stop_broker()
        with pytest.raises((ConnectionFailed, RouteNotFound)):
            client.bounds([queue])
        with pytest.raises((ConnectionFailed, RouteNotFound)):
            client.send_batches(queue, [encoded([b"x"])])
