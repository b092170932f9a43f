"""Java client -> our asyncio client and back, through our broker and through official ones."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pytest
from tests.cluster.scenarios import receive
from tests.interop.conftest import RealCluster
from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_values import Outgoing
from tests.interop.jvm import JavaClient

from pymq.client.consuming.consumer import Consumer
from pymq.client.operations import SendStatus
from pymq.client.sending.producer import Producer
from pymq.client.sending.receipts import SendReceipt
from pymq.protocol.compression import Compression
from pymq.protocol.message import Message, ReceivedMessage
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

OURS: Final = "pymq"
#: (client version, broker): every client with our broker, and each official broker with its own.
PAIRS: Final = [
    ("4.5.1", OURS),
    ("4.9.7", OURS),
    ("5.3.3", OURS),
    ("5.4.0", OURS),
    ("4.9.7", "4.9.7"),
    ("5.3.3", "5.3.3"),
]
#: Formats that clients before 5.0 cannot read are left out for them.
COMPRESSIONS: Final = [
    *((client, broker, Compression.ZLIB) for client, broker in PAIRS),
    *(
        (client, broker, kind)
        for client, broker in (("5.3.3", OURS), ("5.4.0", OURS), ("5.3.3", "5.3.3"))
        for kind in (Compression.LZ4, Compression.ZSTD)
    ),
]
QUEUE_COUNT: Final = 4
AWKWARD_TEXT: Final = 'Grüße, 世界 😀 = \\ " ; \n\t|'
PROPERTIES: Final = {"text": AWKWARD_TEXT, "ключ": "значение", "n": "1"}
LARGE_BODY: Final = b"".join(b"line %06d of a body that compresses\n" % n for n in range(2_000))


@dataclass(frozen=True, slots=True)
class Pair:
    """A Java client, a name server with some broker behind it, names nobody used before."""

    client: JavaClient
    broker: str
    name_server: str
    topic: str

    def java_producer(self, **options: int) -> JavaProducer:
        return JavaProducer(self.client, f"p-{self.topic}", self.name_server, **options)

    def java_consumer(self) -> JavaPushConsumer:
        return JavaPushConsumer(self.client, f"g-{self.topic}", self.name_server, self.topic)

    def receive(self, count: int) -> list[ReceivedMessage]:
        """Return what a consumer of ours, in a group of its own, gets from the beginning."""

        async def consume() -> list[ReceivedMessage]:
            group = f"ours-{self.topic}"
            consumer = Consumer(self.name_server, group, from_where="earliest")
            async with consumer.subscribe(self.topic):
                return await receive(consumer, count)

        return asyncio.run(consume())


@pytest.fixture(scope="module")
def our_cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def make_pair(
    our_cluster: Cluster,
    java_client: Callable[[str], JavaClient],
    real_cluster: Callable[[str], RealCluster],
    java_admin: Callable[[str, str], JavaAdmin],
) -> Callable[[str, str], Pair]:
    def make(client_version: str, broker: str) -> Pair:
        if broker == OURS:
            name_server = our_cluster.name_server
        else:
            name_server = real_cluster(broker).name_server.address
        topic = f"both-{uuid.uuid4().hex[:12]}"
        client = java_client(client_version)
        java_admin(client_version, name_server).create_topic(topic, QUEUE_COUNT)
        return Pair(client, broker, name_server, topic)

    return make


@pytest.fixture(params=PAIRS, ids=lambda pair: f"client-{pair[0]}-broker-{pair[1]}")
def pair(request: pytest.FixtureRequest, make_pair: Callable[[str, str], Pair]) -> Pair:
    return make_pair(*request.param)


def test_java_producer_to_our_consumer(pair: Pair) -> None:
    with pair.java_producer() as producer:
        single = producer.send(
            pair.topic,
            b"\x00single\xff",
            tags="a",
            keys="k1 k2",
            properties=PROPERTIES,
            queue_id=2,
        )
        futures = [producer.send_async(pair.topic, b"async-%d" % n, tags="b") for n in range(8)]
        assert {future.result(timeout=60).status for future in futures} == {"SEND_OK"}
        producer.send_oneway(pair.topic, b"one-way")
        batch = [
            Outgoing(pair.topic, b"batch-%d" % n, "c", f"key{n}", {"n": str(n)}) for n in range(10)
        ]
        stored = producer.send_batch(batch)
    bodies = [b"\x00single\xff", *(b"async-%d" % n for n in range(8)), b"one-way"]
    bodies += [message.body for message in batch]

    received = pair.receive(len(bodies))
    by_body = {message.body: message for message in received}
    assert sorted(by_body) == sorted(bodies)
    one = by_body[b"\x00single\xff"]
    assert (one.topic, one.tags, one.keys) == (pair.topic, "a", ["k1", "k2"])
    assert users(one.properties) == PROPERTIES
    assert (one.queue_id, one.queue_offset) == (2, single.queue_offset)
    assert one.message_id == single.msg_id
    assert one.offset_message_id == single.offset_msg_id
    assert by_body[b"async-3"].tags == "b"
    assert by_body[b"one-way"].tags is None
    in_batch = [by_body[message.body] for message in batch]
    assert [message.keys for message in in_batch] == [[f"key{n}"] for n in range(10)]
    assert [message.properties["n"] for message in in_batch] == [str(n) for n in range(10)]
    assert [message.queue_offset for message in in_batch] == list(
        range(stored.queue_offset, stored.queue_offset + 10)
    )
    with pair.java_consumer() as consumer:
        ids = {message.body: message.msg_id for message in consumer.wait_count(len(bodies))}
    assert {message.body: message.message_id for message in received} == ids
    # A 5.3.3 broker appends the properties of the batch, its client's id among them, to those of
    # each message: all consumers see that one id for all of them.
    if pair.broker != "5.3.3":
        assert ",".join(message.message_id for message in in_batch) == stored.msg_id


def test_our_producer_to_java_consumer(pair: Pair) -> None:
    batch = [
        Message(pair.topic, b"batch-%d" % n, "c", f"key{n}", {"n": str(n)}) for n in range(10)
    ]
    message = Message(
        pair.topic, b"\x00single\xff", tags="a", keys=["k1", "k2"], properties=PROPERTIES, flag=7
    )

    async def send() -> tuple[SendReceipt, list[SendReceipt]]:
        async with Producer(pair.name_server, group=f"p-{pair.topic}", timeout_s=20.0) as producer:
            queues = await producer.queues(pair.topic)
            single = await producer.send(message, queue=queues[2])
            futures = [
                producer.send_nowait(Message(pair.topic, b"now-%d" % n, tags="b"))
                for n in range(8)
            ]
            for result in await asyncio.gather(*futures):
                assert result.status is SendStatus.OK
            await producer.send_one_way(Message(pair.topic, b"one-way"))
            return single, await producer.send_batch(batch)

    single, stored = asyncio.run(send())
    bodies = [b"\x00single\xff", *(b"now-%d" % n for n in range(8)), b"one-way"]
    bodies += [message.body for message in batch]

    with pair.java_consumer() as consumer:
        received = consumer.wait_count(len(bodies))
    by_body = {message.body: message for message in received}
    assert sorted(message.body for message in received) == sorted(bodies)
    one = by_body[b"\x00single\xff"]
    assert (one.topic, one.tags, one.keys, one.flag) == (pair.topic, "a", "k1 k2", 7)
    assert users(one.properties) == PROPERTIES
    assert (one.queue_id, one.queue_offset) == (2, single.queue_offset)
    assert one.msg_id == single.message_id
    assert one.reconsume_times == 0
    assert by_body[b"one-way"].tags is None
    in_batch = [by_body[message.body] for message in batch]
    assert [message.keys for message in in_batch] == [f"key{n}" for n in range(10)]
    assert [message.properties["n"] for message in in_batch] == [str(n) for n in range(10)]
    assert [(message.msg_id, message.queue_offset) for message in in_batch] == [
        (receipt.message_id, receipt.queue_offset) for receipt in stored
    ]


def users(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that no client or broker added."""
    return {name: value for name, value in properties.items() if name in PROPERTIES}


@pytest.mark.parametrize(("client", "broker", "kind"), COMPRESSIONS)
def test_compressed_both_ways(
    make_pair: Callable[[str, str], Pair], client: str, broker: str, kind: Compression
) -> None:
    pair = make_pair(client, broker)
    with pair.java_producer(CompressMsgBodyOverHowmuch=100) as producer:
        if client.startswith("5."):
            types = pair.client.jvm.org.apache.rocketmq.common.compression.CompressionType
            producer.java.setCompressType(getattr(types, kind.name))
        result = producer.send(pair.topic, LARGE_BODY, tags="java", queue_id=0)
        assert result.status == "SEND_OK"

    async def send() -> None:
        async with Producer(
            pair.name_server, compress_bytes_min=100, compression=kind, timeout_s=20.0
        ) as ours:
            queues = await ours.queues(pair.topic)
            await ours.send(Message(pair.topic, LARGE_BODY, tags="ours"), queue=queues[0])

    asyncio.run(send())
    with pair.java_consumer() as consumer:
        by_java = consumer.wait_count(2)
    assert {message.tags: message.body for message in by_java} == {
        "java": LARGE_BODY,
        "ours": LARGE_BODY,
    }
    # Compressed indeed.
    assert all(message.store_size < len(LARGE_BODY) // 2 for message in by_java)

    by_ours = {message.tags: message.body for message in pair.receive(2)}
    assert by_ours == {"java": LARGE_BODY, "ours": LARGE_BODY}
