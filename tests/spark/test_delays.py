"""Rows that are delivered later, written by a real Spark."""

import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import decode_properties
from pymq.protocol.record import Record, decode_records
from pymq.testing import Cluster

pytestmark = pytest.mark.spark

ROWS = 400
DEADLINE_S = 240.0
#: Of level 1; and how much later than it should be a message may come on a busy machine.
LEVEL_MS, LATE_MS = 1000, 60_000
TIME_MS = 4000


def delayed(rows: DataFrame, time_ms: int) -> DataFrame:
    """Return rows of which one in four is delayed by a level, one until a time, one until 1970."""
    return rows.selectExpr(
        "cast(id as string) as body",
        "concat('tag-', id % 4) as tags",
        "cast(id % 3 as string) as shardingKey",
        "if(id % 4 = 1, 1, if(id % 8 = 0, 0, null)) as delayLevel",
        f"case id % 4 when 2 then timestamp_millis({time_ms}) when 3 then timestamp_millis(0) end"
        " as deliverTimestamp",
    )


def read_all(client: BlockingClient, topic: str, count: int) -> list[Record]:
    """Return the messages of a topic, once there are that many."""
    deadline_s = time.monotonic() + DEADLINE_S
    queues = client.read_queues(topic)
    while True:
        bounds = client.bounds(queues)
        if sum(end - first for first, end in bounds.values()) >= count:
            break
        assert time.monotonic() < deadline_s, bounds
        time.sleep(0.05)
    return [
        record
        for queue, (first, end) in bounds.items()
        for chunk in client.pull_range(queue, first, end)
        for record in decode_records(chunk.buffer, verify=True)
    ]


def check(
    client: BlockingClient, topic: str, *, begun_ms: int, ended_ms: int, time_ms: int
) -> None:
    messages = read_all(client, topic, ROWS)
    assert Counter(int(one.body) for one in messages) == Counter(range(ROWS))
    queues: dict[int, set[int]] = {}
    for message in messages:
        number, stored_ms = int(message.body), message.store_timestamp
        assert decode_properties(message.properties)["TAGS"] == f"tag-{number % 4}"
        queues.setdefault(number % 3, set()).add(message.queue_id)
        if number % 4 == 0:
            assert begun_ms <= stored_ms <= ended_ms
        elif number % 4 == 1:
            assert begun_ms + LEVEL_MS <= stored_ms <= ended_ms + LEVEL_MS + LATE_MS
        elif number % 4 == 2:
            assert time_ms <= stored_ms <= max(time_ms, ended_ms) + LATE_MS
        else:
            assert begun_ms <= stored_ms <= ended_ms + LATE_MS
    assert all(len(ids) == 1 for ids in queues.values())  # of a key, delayed or not
    time.sleep(0.5)
    assert len(read_all(client, topic, ROWS)) == ROWS


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_rows_come_when_they_should(
    spark: SparkSession, cluster: Cluster, client: BlockingClient, topic: str, delivery: str
) -> None:
    begun_ms = time.time_ns() // 1_000_000
    time_ms = begun_ms + TIME_MS
    rows = delayed(spark.range(0, ROWS, 1, 3), time_ms)
    writer = rows.write.format("pymq").mode("append")
    writer.options(nameServer=cluster.name_server, topic=topic, delivery=delivery).save()
    ended_ms = time.time_ns() // 1_000_000
    check(client, topic, begun_ms=begun_ms, ended_ms=ended_ms, time_ms=time_ms)


def test_a_query_that_is_started_again(
    spark: SparkSession,
    cluster: Cluster,
    client: BlockingClient,
    topic: str,
    tmp_path: Path,
) -> None:
    """Its last batch is written again, and nothing of it waits twice."""
    spark.range(0, ROWS).write.parquet(str(tmp_path / "rows"))
    begun_ms = time.time_ns() // 1_000_000
    time_ms = begun_ms + TIME_MS
    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):
        rows = spark.readStream.schema("id bigint").parquet(str(tmp_path / "rows"))
        query = (
            delayed(rows, time_ms)
            .writeStream.format("pymq")
            .options(nameServer=cluster.name_server, topic=topic, delivery="exactlyOnce")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(DEADLINE_S)
        ended_ms = time.time_ns() // 1_000_000
        (commit,) = (checkpoint / "commits").glob("[0-9]*")
        commit.unlink()
        for crc in (checkpoint / "commits").glob(".*.crc"):
            crc.unlink()
    check(client, topic, begun_ms=begun_ms, ended_ms=ended_ms, time_ms=time_ms)


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_a_time_too_far_away(
    spark: SparkSession, cluster: Cluster, topic: str, delivery: str
) -> None:
    time_ms = time.time_ns() // 1_000_000 + 10 * 86_400_000
    rows = spark.range(3).selectExpr("'x' as body", f"{time_ms} as deliverTimestamp")
    writer = rows.write.format("pymq").mode("append")
    with pytest.raises(PySparkException) as caught:
        writer.options(nameServer=cluster.name_server, topic=topic, delivery=delivery).save()
    for piece in (topic, str(time_ms), str(3 * 86_400_000)):
        assert piece in str(caught.value)
