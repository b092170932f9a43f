"""The Spark source's readers at official brokers: filters, and progress that mqadmin shows.

Without a Spark: what its driver and tasks call is called here.
"""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark
from tests.administration import admin_of
from tests.interop.conftest import RealCluster
from tests.interop.jvm import JavaClient
from tests.interop.mqadmin import Mqadmin

from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import RequestNotSupported
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message
from pyspark_pymq.source.batch_reader import PymqBatchReader
from pyspark_pymq.source.metadata import QueueStatesReader, queue_schema
from pyspark_pymq.source.option_checks import source_options
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.source.reader import PymqStreamReader

pytestmark = [pytest.mark.interop, pytest.mark.by_turns("site")]

VERSIONS = ["5.3.3", "4.9.7"]
COUNT = 40  # messages in each of two queues
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Site:
    cluster: RealCluster
    client: BulkClient
    topic: str

    def options(self, **more: str) -> SourceOptions:
        address = self.cluster.name_server.address
        common = {"nameserver": address, "subscribe": self.topic, "requesttimeoutms": "30000"}
        return source_options({**common, **more})

    def queues(self) -> list[MessageQueue]:
        return [MessageQueue(self.topic, self.cluster.broker.name, number) for number in range(2)]


@pytest.fixture(params=VERSIONS)
def site(
    request: pytest.FixtureRequest, real_cluster: Callable[[str], RealCluster]
) -> Iterator[Site]:
    cluster = real_cluster(request.param)
    with BulkClient(cluster.name_server.address) as client:
        made = Site(cluster, client, f"source-{uuid.uuid4().hex[:12]}")
        admin_of(client).topics.create(made.topic, queue_count=2)
        for number in range(COUNT):
            for queue in made.queues():
                properties = {"n": f"{number}"}
                client.send(Message(made.topic, b"%d" % number, properties=properties), queue)
        deadline_s = time.monotonic() + DEADLINE_S
        while any(end != COUNT for _, end in client.bounds(made.queues()).values()):
            assert time.monotonic() < deadline_s  # official brokers acknowledge before that
            time.sleep(0.01)
        yield made


def rows(reader: Any, partitions: Iterable[Any]) -> list[dict[str, Any]]:
    batches: list[pa.RecordBatch] = []
    for partition in partitions:
        batches += reader.read(partition)
    return [row for batch in batches for row in batch.to_pylist()]


def test_sql(site: Site) -> None:
    options = site.options(sql="n > 9 AND n < 20", minpartitions="3")
    reader = PymqBatchReader(options, options.default_schema())
    found = sorted(int(row["body"]) for row in rows(reader, reader.partitions()))
    assert found == sorted([*range(10, 20)] * 2)


def test_starts_and_ends_at_times(site: Site) -> None:
    """Brokers of 4.9 name any message of a moment, or one nearby; rows are those since then."""
    lenient = {"startingoffsetsbytimestampstrategy": "latest"}
    options = site.options()
    reader = PymqBatchReader(options, options.default_schema())
    everything = rows(reader, reader.partitions())
    times = sorted({row["storeTimestamp"] for row in everything})
    ms = datetime.timedelta(milliseconds=1)
    for at in {one + step for one in times for step in (-ms, 0 * ms, ms)}:
        text = str(round(1000 * at.timestamp()))
        for given, expected in (
            (
                {"startingtimestamp": text, **lenient},
                [row["storeTimestamp"] >= at for row in everything],
            ),
            ({"endingtimestamp": text}, [row["storeTimestamp"] < at for row in everything]),
        ):
            options = site.options(**given)
            reader = PymqBatchReader(options, options.default_schema())
            places = [
                sorted((row["queueId"], row["queueOffset"]) for row in some)
                for some in (
                    rows(reader, reader.partitions()),
                    [row for row, is_wanted in zip(everything, expected, strict=True) if is_wanted],
                )
            ]
            assert places[0] == places[1], given


@pytest.mark.skipif(not hasattr(spark, "Filter"), reason="Spark 4.0 hands over no filters")
def test_bytes_of_batches_are_estimated(site: Site) -> None:
    """Official brokers do not know the request that pymq brokers answer exactly."""
    queue, size = site.queues()[0], 150
    assert isinstance(
        site.client.try_fitting({queue: (0, COUNT, 1000)}).failed[queue.broker_name],
        RequestNotSupported,
    )
    options = site.options(startingoffsets="earliest", maxbytespertrigger=str(20 * size))
    reader = PymqStreamReader(options, options.default_schema())
    reader.prepareForTriggerAvailableNow()
    try:
        position = reader.latestOffset(reader.initialOffset())
        counts: list[int] = []
        while (end := reader.latestOffset(position)) != position:
            counts.append(len(rows(reader, reader.partitions(position, end))))
            position = end
    finally:
        reader.stop()
    assert sum(counts) == 2 * COUNT and 3 <= len(counts) <= 10, counts


def test_times_that_spark_hands_over(site: Site) -> None:
    """Brokers of 4.9 answer with a message nearby; nothing that is wanted may be missing."""
    from pyspark_pymq.source.pushdown import FilteringBatchReader

    options = site.options()
    plain = PymqBatchReader(options, options.default_schema())
    everything = rows(plain, plain.partitions())
    assert len(everything) == 2 * COUNT
    name, ms = ("storeTimestamp",), datetime.timedelta(milliseconds=1)
    times = sorted({row["storeTimestamp"] for row in everything})
    fewer = 0
    for at in (times[0] - ms, times[0], times[len(times) // 3], times[-4] + ms, times[-1]):
        for kind, holds in (
            (spark.EqualTo, lambda time, at: time == at),
            (spark.GreaterThan, lambda time, at: time > at),
            (spark.GreaterThanOrEqual, lambda time, at: time >= at),
            (spark.LessThan, lambda time, at: time < at),
            (spark.LessThanOrEqual, lambda time, at: time <= at),
        ):
            reader = FilteringBatchReader(options, options.default_schema())
            condition = kind(name, at)
            assert list(reader.pushFilters([condition])) == [condition]
            found = rows(reader, reader.partitions())
            fewer += len(found) < len(everything)
            places = [
                sorted(
                    (row["queueId"], row["queueOffset"])
                    for row in some
                    if holds(row["storeTimestamp"], at)
                )
                for some in (found, everything)
            ]
            assert places[0] == places[1], (condition, len(found))
    assert fewer > 5


def test_mqadmin_shows_the_progress_of_a_stream(
    site: Site, java_client: Callable[[str], JavaClient]
) -> None:
    """Of a group that has never had a member."""
    group = f"group-{uuid.uuid4().hex[:12]}"
    options = site.options(
        consumergroup=group, commitoffsetstobroker="true", startingoffsets="earliest"
    )
    reader = PymqStreamReader(options, options.default_schema())
    reader.prepareForTriggerAvailableNow()
    try:
        first = reader.latestOffset(reader.initialOffset())
        end = reader.latestOffset(first)
        assert len(rows(reader, reader.partitions(first, end))) == 2 * COUNT
        assert reader.latestOffset(end) == end
    finally:
        reader.stop()
    assert [site.client.committed_offset(group, queue) for queue in site.queues()] == [COUNT] * 2
    name_server = site.cluster.name_server.address
    told = Mqadmin(java_client(site.cluster.version)).run(
        name_server, "consumerProgress", "-g", group
    )
    lines = [line.split() for line in told.splitlines() if line.startswith(site.topic)]
    assert [line[2:6] for line in lines] == [
        [str(number), str(COUNT), str(COUNT), "0"] for number in range(2)
    ], told
    assert admin_of(site.client).groups.members(group).connections == []

    table = QueueStatesReader(site.options(consumergroup=group, metadata="topics"), queue_schema())
    found = rows(table, table.partitions())
    assert [(row["committedOffset"], row["lag"]) for row in found] == [(COUNT, 0)] * 2
    other = site.options(consumergroup=f"{group}-other", metadata="topics")
    table = QueueStatesReader(other, queue_schema())
    # Brokers of 4.9 say 0 of a group that has committed nothing.
    expected = None if site.cluster.version.startswith("5.") else 0
    assert [row["committedOffset"] for row in rows(table, table.partitions())] == [expected] * 2
