"""Queues whose messages have all expired go on at a slave that becomes the master."""

import os
from pathlib import Path
from typing import Any

from tests.cluster.replicated import DEADLINE_S, SEGMENT_BYTES, eventually, pair_of

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode
from pymq.protocol.message import Message
from pymq.protocol.record import decode_records
from pymq.testing import Cluster

STORE: dict[str, Any] = {
    "segment_bytes": SEGMENT_BYTES,
    "reserved_hours": 0,
    "clean_interval_ms": 200,
    "clean_pause_ms": 0,
    "queue_flush_interval_ms": 200,
}


def test_a_group_misses_nothing_at_a_new_slave_that_becomes_the_master(tmp_path: Path) -> None:
    """No record of the queue is in the log that the slave got."""
    with pair_of(tmp_path, store_settings=STORE) as pair:
        pair.slave.stop_broker()
        for topic in ("old", "other"):
            pair.admin.topics.create(topic, queue_count=1)
        pair.admin.groups.create("g")
        for number in range(20):
            pair.client.send(Message("old", b"%d" % number))
        (queue,) = pair.client.read_queues("old")
        pair.client.commit_offset("g", queue, 20)
        for _ in range(3 * SEGMENT_BYTES // 100_000):
            pair.client.send(Message("other", os.urandom(100_000)))

        def is_expired() -> bool:
            pair.admin.brokers.delete_expired_log(pair.master.broker_name)
            return pair.client.bounds([queue])[queue] == (20, 20)

        eventually(is_expired)
        pair.slave.start_broker()
        pair.wait_equal()
        fields = {"consumerGroup": "g", "topic": "old", "queueId": "0"}
        eventually(
            lambda: (
                (pair.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields).fields or {}).get("offset")
                == "20"
            )
        )
    with (
        Cluster(pair.roots["slave"], store_settings=STORE) as promoted,
        BlockingClient(promoted.name_server, timeout_s=DEADLINE_S) as client,
    ):
        queue = MessageQueue("old", promoted.broker_name, 0)
        assert client.bounds([queue])[queue] == (20, 20)
        for number in range(3):
            assert client.send(Message("old", b"new %d" % number)).queue_offset == 20 + number
        assert client.committed_offset("g", queue) == 20
        found = [
            record.body
            for chunk in client.pull_range(queue, 20, 23)
            for record in decode_records(chunk.buffer, verify=True)
        ]
        assert found == [b"new 0", b"new 1", b"new 2"]
