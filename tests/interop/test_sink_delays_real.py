"""Delayed rows of the Spark sink at official brokers: a task's own code, without a Spark."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pytest
from tests.administration import admin_of
from tests.interop.conftest import RealCluster

from pymq.client.cluster.config import ClientConfig
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import ConfigurationError, LocalProtocolError
from pymq.protocol.message import decode_properties
from pymq.protocol.record import Record, decode_records
from pyspark_pymq.sink.options import SinkOptions
from pyspark_pymq.sink.send_task import SendTask

pytestmark = [pytest.mark.interop, pytest.mark.by_turns("site")]

ROWS: Final = 300
DEADLINE_S: Final = 120.0
LEVEL_MS: Final = 1000
#: How much later than it should be a message may come on a busy machine.
LATE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Site:
    """An official broker and a new topic on it."""

    version: str
    client: BulkClient
    topic: str
    options: SinkOptions

    def write(self, **columns: Any) -> None:
        task = SendTask(self.client, self.options, {name: name for name in columns})
        task.run([pa.RecordBatch.from_pydict(columns)])

    def stored(self, count: int) -> list[Record]:
        """Return all messages, once there are that many."""
        deadline_s = time.monotonic() + DEADLINE_S
        queues = self.client.read_queues(self.topic)
        while True:
            bounds = self.client.bounds(queues)
            if sum(end - first for first, end in bounds.values()) >= count:
                break
            assert time.monotonic() < deadline_s, bounds
            time.sleep(0.05)
        return [
            record
            for queue, (first, end) in bounds.items()
            for chunk in self.client.pull_range(queue, first, end)
            for record in decode_records(chunk.buffer, verify=True)
        ]


@pytest.fixture(params=["5.3.3", "4.9.7"])
def site(
    request: pytest.FixtureRequest, real_cluster: Callable[[str], RealCluster]
) -> Iterator[Site]:
    servers = (real_cluster(request.param).name_server.address,)
    config = ClientConfig(name_servers=servers, timeout_s=20.0, read_deadline_s=60.0)
    with BulkClient(servers, config=config) as client:
        topic = f"delays-{uuid.uuid4().hex[:12]}"
        admin_of(client).topics.create(topic, queue_count=4)
        options = SinkOptions(name_servers=servers, topic=topic, request_timeout_s=20.0)
        yield Site(request.param, client, topic, options)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_levels(site: Site) -> None:
    levels = [(None, 1, 0)[row % 3] for row in range(ROWS)]
    begun_ms = now_ms()
    site.write(
        body=[b"%d" % row if row else b"" for row in range(ROWS)],
        tags=["é"] * ROWS,
        keys=[str(row) for row in range(ROWS)],
        delayLevel=pa.array(levels, pa.int32()),
    )
    ended_ms = now_ms()
    found = site.stored(ROWS)
    keys = Counter(int(decode_properties(one.properties)["KEYS"]) for one in found)
    assert keys == Counter(range(ROWS))
    for one in found:
        properties = decode_properties(one.properties)
        assert properties["TAGS"] == "é" and len(properties["UNIQ_KEY"]) == 32
        number = int(properties["KEYS"])
        assert one.body == (b"%d" % number if number else b"")
        wait_ms = LEVEL_MS if number % 3 == 1 else 0
        assert begun_ms + wait_ms <= one.store_timestamp
        assert one.store_timestamp <= ended_ms + wait_ms + (LATE_MS if wait_ms else 0)


def test_an_empty_body(site: Site) -> None:
    with pytest.raises(LocalProtocolError, match="row 1 of the task.*its body is empty"):
        site.write(body=[b"x", b""], delayLevel=pa.array([None, 1], pa.int32()))


def test_times(site: Site) -> None:
    begun_ms = now_ms()
    time_ms = begun_ms + 5000
    times = [(None, time_ms, begun_ms - 1000)[row % 3] for row in range(ROWS)]
    columns = {
        "body": [b"%d" % row for row in range(ROWS)],
        "deliverTimestamp": pa.array(times, pa.int64()),
    }
    if site.version == "4.9.7":
        with pytest.raises(ConfigurationError, match=r"row 1 .*before 5\.0.*at once.*levels"):
            site.write(**columns)
        time.sleep(0.5)
        # What is not delayed has been sent before.
        assert len(site.stored(ROWS // 3)) == ROWS // 3
        return
    site.write(**columns)
    ended_ms = now_ms()
    found = site.stored(ROWS)
    assert Counter(int(one.body) for one in found) == Counter(range(ROWS))
    for one in found:
        if int(one.body) % 3 == 1:
            assert time_ms <= one.store_timestamp <= max(time_ms, ended_ms) + LATE_MS
        else:
            assert begun_ms <= one.store_timestamp <= ended_ms
    far_ms = now_ms() + 4 * 86_400_000
    with pytest.raises(LocalProtocolError) as caught:
        site.write(body=[b"x"], deliverTimestamp=pa.array([far_ms], pa.int64()))
    for piece in ("row 0 of the task", site.topic, str(far_ms), str(3 * 86_400_000)):
        assert piece in str(caught.value)
