"""Everything over IPv6: addresses in routes, 20-byte hosts in records, ids of 56 digits."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.administration import admin_of
from tests.cluster.addresses import has_ipv6
from tests.preencoded import takes_records

from pymq import Consumer, Producer
from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message
from pymq.protocol.record import decode_records
from pymq.testing import Cluster

pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(broker={"bind_address": "::1"}) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[BulkClient]:
    with BulkClient(cluster.name_server, timeout_s=30.0) as made:
        yield made


def topic_of_one_queue(client: BulkClient, topic: str) -> MessageQueue:
    admin_of(client).topics.create(topic, queue_count=1)
    (queue,) = client.write_queues(topic)
    return queue


def test_sends_singly_and_in_batches_are_read(client: BulkClient) -> None:
    queue = topic_of_one_queue(client, "sends")
    address = client.route("sends").address(queue.broker_name)
    assert address.startswith("[::1]:")
    port = int(address.rpartition(":")[2])
    result = client.send(Message("sends", b"one", tags="a"), queue=queue)
    assert result.offset_ids_text == f"{1:032X}{port:08X}{0:016X}"
    client.send_batch(queue, [Message("sends", b"%d" % n, tags="a") for n in range(500)])
    read = [
        record
        for chunk in client.pull_range(queue, 0, 501)
        for record in decode_records(chunk.buffer, verify=True)
    ]
    assert [record.body for record in read] == [b"one", *(b"%d" % n for n in range(500))]
    assert {len(record.born_host) + len(record.store_host) for record in read} == {40}
    assert [record.queue_offset for record in read] == list(range(501))


def test_records_laid_out_for_ipv4_are_not_wanted(client: BulkClient) -> None:
    queue = topic_of_one_queue(client, "records")
    assert not takes_records(client, queue)


def test_asyncio_clients(cluster: Cluster, client: BulkClient) -> None:
    topic_of_one_queue(client, "async")

    async def work() -> list[bytes]:
        bodies: list[bytes] = []
        consumer = Consumer(cluster.name_server, "g", from_where="earliest").subscribe("async")
        async with Producer(cluster.name_server) as producer, consumer:
            await producer.send(Message("async", b"first"))
            await producer.send_batch([Message("async", b"%d" % n) for n in range(9)])
            async for message in consumer:
                assert message.born_host.startswith("[::1]:")
                bodies.append(message.body)
                if len(bodies) == 10:
                    return bodies
        return bodies

    found = asyncio.run(asyncio.wait_for(work(), 120))
    assert found == [b"first", *(b"%d" % n for n in range(9))]
