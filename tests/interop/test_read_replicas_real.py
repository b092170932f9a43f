"""Reading from an official slave, because its master suggests it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.administration import admin_of
from tests.interop.conftest import require_peers
from tests.interop.peers import RealBroker, RealNameServer

from pymq.client.operations import Pull, update_topic
from pymq.client.ranges import PullChunk
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import TopicNotExist
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.bodies import MessageQueue, Subscription, TopicConfig
from pymq.protocol.names import TOOLS_GROUP
from pymq.protocol.record_batch import read_columns

pytestmark = [pytest.mark.interop, pytest.mark.by_turns("pair")]

QUEUE = MessageQueue("replicated", "broker-a", 0)
COUNT = 1_000
#: Whatever is asked for counts as having left the memory, where slaves are to be read.
#: Brokers tell name servers as often as they can: that is how the route gets the slave.
SUGGESTS = {
    "slaveReadEnable": True,
    "accessMessageInMemoryMaxRatio": 0,
    "registerNameServerPeriod": 10_000,
}


@pytest.fixture(params=["5.3.3", "4.9.7"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[BulkClient, RealBroker]]:
    """Yield a client and the slave, when that has ``COUNT`` messages."""
    require_peers(request.param)
    with RealNameServer(request.param) as name_server:
        name_servers = [name_server.address]
        with (
            RealBroker(
                request.param, name_servers, brokerRole="ASYNC_MASTER", **SUGGESTS
            ) as master,
            RealBroker(
                request.param, name_servers, brokerRole="SLAVE", **{**SUGGESTS, "brokerId": 1}
            ) as slave,
            BulkClient(name_server.address) as client,
        ):
            admin_of(client).topics.create(QUEUE.topic, queue_count=1)
            if slave.version == "5.3.3":  # It asks its master for topics only after a minute.
                config = TopicConfig(topic=QUEUE.topic, read_queue_count=1, write_queue_count=1)
                client.ask(slave.address, update_topic(config))
            bodies = [encode_batch([(0, b"%d" % n, b"")] * 100) for n in range(COUNT // 100)]
            client.send_batches(QUEUE, bodies, in_flight_max=1)
            wait_replicated(client, master, slave)
            yield client, slave


def wait_replicated(client: BulkClient, master: RealBroker, slave: RealBroker) -> None:
    """Wait until the slave has the queue, knows its topic, and is in the route."""
    subscription = Subscription.of_tags(QUEUE.topic, "*", 0)
    addresses = {0: master.address, 1: slave.address}
    deadline_s = time.monotonic() + 120
    while True:
        client.doubt_route(QUEUE.topic)
        known = client.route(QUEUE.topic).addresses[QUEUE.broker_name]
        pull = Pull(QUEUE, 0, group=TOOLS_GROUP, subscription=subscription)
        try:
            found: object = client.ask(slave.address, pull).max_offset
        except TopicNotExist as error:  # 4.9 asks its master for topics every ten seconds.
            found = error
        if (known, found) == (addresses, COUNT):
            return
        assert time.monotonic() < deadline_s, f"{found}, expected {COUNT}; route {known}"
        time.sleep(0.2)


def offsets(chunks: list[PullChunk]) -> list[int]:
    return [int(n) for chunk in chunks for n in read_columns(chunk.buffer).queue_offset]


def test_old_messages_are_read_from_a_slave_that_its_master_suggests(
    pair: tuple[BulkClient, RealBroker],
) -> None:
    client, slave = pair
    assert client.pull(QUEUE, 0).suggested_broker_id == 1
    chunks = list(client.pull_range(QUEUE, 0, COUNT))
    assert offsets(chunks) == list(range(COUNT))
    assert not any(chunk.is_from_master for chunk in chunks)
    chunks = list(client.pull_range(QUEUE, 0, COUNT, reads_replicas=False))
    assert offsets(chunks) == list(range(COUNT))
    assert all(chunk.is_from_master for chunk in chunks)

    slave.kill()
    chunks = list(client.pull_range(QUEUE, 0, COUNT))
    assert offsets(chunks) == list(range(COUNT))
    assert client.asks_master(QUEUE) and all(chunk.is_from_master for chunk in chunks)
