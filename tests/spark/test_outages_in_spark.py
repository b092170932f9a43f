"""Queries in a real Spark while brokers restart, freeze and die under load: each row once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.spark.readers import HAS_LIMITS
from tests.spark.two_brokers import Stored, TwoBrokers, numbers, wait_until

pytestmark = pytest.mark.spark
DEADLINE_S = 300.0  # a machine that has other things to do
OUTAGES = (("restart", "broker-a"), ("kill", "broker-b"), ("freeze", "broker-a"))


def source(spark: SparkSession, bed: TwoBrokers, *topics: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("pymq").option("nameServer", bed.name_server)
    reader.option("subscribe", ",".join(topics)).option("startingOffsets", "earliest")
    reader.option("columns", "pymq,brokerName")
    rows = reader.options(**options).load()
    return rows.select("brokerName", "queueId", "queueOffset", "body", "topic")


def written(spark: SparkSession, path: Path, topic: str) -> list[Stored]:
    """Return, sorted, the rows of one topic in what a query wrote."""
    rows = spark.read.parquet(str(path)).collect()
    return sorted(
        Stored(row.brokerName, row.queueId, row.queueOffset, bytes(row.body))
        for row in rows
        if row.topic == topic
    )


def test_a_query_survives_what_happens_to_brokers(
    spark: SparkSession, two_brokers: TwoBrokers, running: list[StreamingQuery], tmp_path: Path
) -> None:
    bed = two_brokers
    bed.create_topic("both")
    bed.create_topic("one", on=["broker-a"])  # has no route at all while broker-a is away
    rows = source(spark, bed, "both", "one", requestTimeoutMs="1000", minPartitions="2")
    writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    running.append(query)

    def wait_batches(count: int) -> None:
        def done() -> int:
            progress = query.lastProgress
            return -1 if progress is None else int(progress["batchId"])

        wanted = done() + count
        wait_until(
            lambda: done() >= wanted or query.exception() is not None, "batches", DEADLINE_S
        )
        assert query.exception() is None

    with bed.load("both") as both, bed.load("one") as one:
        wait_batches(2)
        for outage, name in OUTAGES:
            both.wait_acknowledged(50)
            if outage == "restart":
                bed.restart(name)
            elif outage == "kill":
                bed.kill(name)
                both.wait_acknowledged(50)
                bed.start(name)
            else:
                bed.freeze(name)
                both.wait_acknowledged(5)  # of the other one
                bed.thaw(name)
            one.wait_acknowledged(20)
            wait_batches(1)
    rows_of: dict[str, list[Stored]] = {}

    def is_complete() -> bool:
        assert query.exception() is None
        for topic in ("both", "one"):
            rows_of[topic] = written(spark, tmp_path / "rows", topic)
        return all(found == bed.stored(topic) for topic, found in rows_of.items())

    # Not processAllAvailable: that ends while a broker that was away is not asked again yet.
    wait_until(is_complete, "each row once")
    query.stop()
    for topic, found in rows_of.items():
        assert set(bed.acknowledged(topic)) <= set(found)
        bodies = [row.body for row in found]
        assert len(set(bodies)) == len(bodies) and set(bodies) <= set(bed.attempted(topic))


@pytest.mark.skipif(not HAS_LIMITS, reason="this Spark does not tell a source of AvailableNow")
def test_available_now_waits_for_a_broker_and_then_fails(
    spark: SparkSession, two_brokers: TwoBrokers, tmp_path: Path
) -> None:
    bed = two_brokers
    bed.create_topic("T")
    bed.send("T", numbers(80))

    def start(**options: str) -> StreamingQuery:
        writer = source(spark, bed, "T", **options).writeStream.format("parquet")
        writer.option("path", str(tmp_path / "rows"))
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    assert start().awaitTermination(DEADLINE_S)
    bed.send("T", numbers(80, 160))
    bed.stop("broker-b")
    with pytest.raises(PySparkException, match="broker-b has given no answer"):
        start(retryTimeoutMs="1000").awaitTermination(DEADLINE_S)
    query = start()
    wait_until(lambda: len(written(spark, tmp_path / "rows", "T")) == 120, "broker-a's rows")
    assert query.isActive
    bed.start("broker-b")
    assert query.awaitTermination(DEADLINE_S) and query.exception() is None
    assert written(spark, tmp_path / "rows", "T") == bed.acknowledged("T") == bed.stored("T")


def test_a_batch_says_which_broker_is_missing(
    spark: SparkSession, two_brokers: TwoBrokers, topic: str
) -> None:
    bed = two_brokers
    bed.create_topic(topic)
    bed.send(topic, numbers(80))
    bed.stop("broker-b")
    reader: Callable[..., DataFrame] = (
        spark.read.format("pymq").options(nameServer=bed.name_server, subscribe=topic).load
    )
    assert reader(retryTimeoutMs="500").count() == 40  # nothing names what is not there
    with pytest.raises(PySparkException, match="broker-b not found"):
        reader(retryTimeoutMs="500", expectedBrokers="broker-a,broker-b").count()
    bed.start("broker-b")
    assert reader(expectedBrokers="broker-a,broker-b").count() == 80
