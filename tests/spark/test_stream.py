"""Streaming queries in a real Spark: what a checkpoint promises."""

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery
from tests.spark.readers import HAS_LIMITS

from pymq.testing import Cluster

pytestmark = pytest.mark.spark
DEADLINE_S = 300.0  # a machine that has other things to do


@pytest.fixture
def reader(spark: SparkSession, cluster: Cluster, topic: str) -> DataStreamReader:
    options = {"nameServer": cluster.name_server, "subscribe": topic}
    return spark.readStream.format("pymq").options(**options)


@pytest.fixture
def available_now(cluster: Cluster, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs a query into a topic until it has read what there is; returns its progress."""

    def run(rows: DataFrame, target: str) -> list[dict[str, Any]]:
        writer = rows.writeStream.format("pymq").option("nameServer", cluster.name_server)
        writer.option("topic", target).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S)
        return [json.loads(progress.json) for progress in query.recentProgress]

    return run


@pytest.fixture
def bodies(spark: SparkSession, cluster: Cluster) -> Callable[[str], list[int]]:
    def bodies(topic: str) -> list[int]:
        options = {"nameServer": cluster.name_server, "subscribe": topic}
        rows = spark.read.format("pymq").options(**options).schema("body binary").load().collect()
        return sorted(int(row.body) for row in rows)

    return bodies


def numbers(*bounds: int) -> list[bytes]:
    return [b"%d" % number for number in range(*bounds)]


def wait_until(holds: Callable[[], bool], query: StreamingQuery) -> None:
    """Wait for a condition while a query works on it."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert query.exception() is None
        assert time.monotonic() < deadline, query.lastProgress
        query.awaitTermination(0.05)


def test_available_now_with_caps_and_a_restart(
    reader: DataStreamReader,
    topic: str,
    send: Callable[..., None],
    available_now: Callable[..., list[dict[str, Any]]],
    bodies: Callable[[str], list[int]],
    tmp_path: Path,
) -> None:
    send(topic, numbers(1000))
    reader.option("startingOffsets", "earliest")
    if HAS_LIMITS:
        reader.option("maxOffsetsPerTrigger", "300")
    copy = reader.load().selectExpr("body", "tags")
    progress = available_now(copy, "copy-1")
    counts = [batch["numInputRows"] for batch in progress]
    assert sum(counts) == 1000
    assert counts == [1000] if not HAS_LIMITS else counts[0] == 0 and max(counts) <= 303
    assert bodies("copy-1") == list(range(1000))

    assert sum(batch["numInputRows"] for batch in available_now(copy, "copy-1")) == 0
    assert bodies("copy-1") == list(range(1000))

    send(topic, numbers(1000, 1100))
    assert sum(batch["numInputRows"] for batch in available_now(copy, "copy-1")) == 100
    assert bodies("copy-1") == list(range(1100))

    # A crash before the last batch was recorded as done: the same range is read once more, and
    # the sink knows it.
    last = max(tmp_path.glob("checkpoint/commits/[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (tmp_path / "checkpoint/commits" / f".{last.name}.crc").unlink(missing_ok=True)
    available_now(copy, "copy-1")
    assert bodies("copy-1") == list(range(1100))


def test_a_latest_start_loses_nothing(
    spark: SparkSession,
    reader: DataStreamReader,
    topic: str,
    send: Callable[..., None],
    running: list[StreamingQuery],
    tmp_path: Path,
) -> None:
    """Messages arrive all the time while the query starts, and after a kill in batch 0."""
    sent = itertools.count(100)
    send(topic, numbers(100))

    def keep_sending() -> bool:
        send(topic, numbers(next(sent), next(sent)))
        return False

    checkpoint = str(tmp_path / "checkpoint")
    rows = reader.load().select("queueId", "queueOffset", "body")
    writer = rows.writeStream.format("memory").queryName("latest").outputMode("append")
    query = writer.option("checkpointLocation", checkpoint).start()
    running.append(query)
    first = tmp_path / "checkpoint/offsets/0"
    wait_until(lambda: keep_sending() or first.exists(), query)
    query.stop()
    start = json.loads(first.read_text().splitlines()[2])[topic]["broker-a"]
    for path in (tmp_path / "checkpoint").glob("commits/*"):
        path.unlink()  # as if it had been killed before batch 0 was done
    for path in (tmp_path / "checkpoint").glob("offsets/*[1-9]*"):
        path.unlink()
    send(topic, numbers(next(sent), next(sent)))

    files = str(tmp_path / "rows")
    writer = rows.writeStream.format("parquet").option("path", files)
    query = writer.option("checkpointLocation", checkpoint).start()
    running.append(query)
    send(topic, numbers(10_000, 10_050))
    wanted = {b"%d" % n for n in range(10_000, 10_050)}

    def written() -> list[Row]:
        is_there = (tmp_path / "rows/_spark_metadata").exists()
        return spark.read.schema(rows.schema).parquet(files).collect() if is_there else []

    wait_until(lambda: wanted <= {bytes(row.body) for row in written()}, query)
    query.stop()
    last = written()
    found = {(row.queueId, row.queueOffset): bytes(row.body) for row in last}
    for queue_id, offset in start.items():
        of_queue = sorted(o for q, o in found if q == int(queue_id))
        assert of_queue == list(range(offset, offset + len(of_queue))), (start, queue_id)
    assert len(found) == len(last)


def test_a_broker_that_restarts(
    reader: DataStreamReader,
    cluster: Cluster,
    topic: str,
    send: Callable[..., None],
    running: list[StreamingQuery],
    bodies: Callable[[str], list[int]],
    tmp_path: Path,
) -> None:
    """Queries survive it; a copy is at least once, and its new topic is found by itself."""
    send(topic, numbers(50))
    rows = reader.option("startingOffsets", "earliest").load().select("body")
    writer = rows.writeStream.format("pymq").option("nameServer", cluster.name_server)
    writer.option("topic", "copy-2").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    running.append(query)
    query.processAllAvailable()
    wait_until(lambda: bodies("copy-2") == list(range(50)), query)
    cluster.restart_broker()
    send(topic, numbers(50, 100))
    # Not processAllAvailable: a trigger that began before, and waited for the broker, ends that.
    wait_until(lambda: sorted(set(bodies("copy-2"))) == list(range(100)), query)
    assert query.isActive


def test_complete_mode_writes_the_whole_result(
    reader: DataStreamReader,
    cluster: Cluster,
    topic: str,
    send: Callable[..., None],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    send(topic, numbers(30), tags="A")
    counts = reader.option("startingOffsets", "earliest").load().groupBy("tags").count()
    writer = counts.selectExpr("tags", "cast(count as string) as body").writeStream.format("pymq")
    writer.options(nameServer=cluster.name_server, topic="counts").outputMode("complete")
    writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(DEADLINE_S)
    options = {"nameServer": cluster.name_server, "subscribe": "counts"}
    found = spark.read.format("pymq").options(**options).load().select("tags", "body").collect()
    assert [(row.tags, row.body) for row in found] == [("A", b"30")]


def test_wrong_streams_say_why(
    spark: SparkSession,
    reader: DataStreamReader,
    cluster: Cluster,
    topic: str,
    send: Callable[..., None],
    tmp_path: Path,
) -> None:
    send(topic, numbers(1))
    options = {"nameServer": cluster.name_server, "subscribe": "nowhere"}
    with pytest.raises(PySparkException, match="did you mean tags"):
        spark.readStream.format("pymq").options(**options, tag="x").load()

    def run(rows: DataFrame, sink: str, **more: str) -> None:
        checkpoint = str(tmp_path / sink)
        writer = rows.writeStream.format(sink).options(**more, checkpointLocation=checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination(DEADLINE_S)

    rows = reader.load().selectExpr("body", "tags as tag")
    with pytest.raises(PySparkException, match="did you mean tags"):
        run(rows, "pymq", nameServer=cluster.name_server, topic="t")
    with pytest.raises(PySparkException, match="nowhere"):
        run(spark.readStream.format("pymq").options(**options).load(), "noop")
    with pytest.raises(PySparkException, match="endingOffsets=latest is for batch reads") as caught:
        run(reader.option("endingOffsets", "latest").load(), "noop")
    assert "UnboundLocalError" not in str(caught.value)  # which Spark itself would add
