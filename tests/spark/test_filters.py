"""Filters: SQL92 that brokers evaluate, and those that Spark hands over; at two brokers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.two_brokers import TwoBrokers

from pymq.protocol.message import Message

pytestmark = pytest.mark.spark
DEADLINE_S = 300.0  # a machine that has other things to do
TOPIC = "filtered"
QUEUE_COUNT = 4  # two on each broker
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
HAS_PUSH_DOWN = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoBrokers]:
    """Two brokers that filter, and 1,000 numbers: in turns to all queues, in ten batches."""
    home = tmp_path_factory.mktemp("filters") / "bed"
    with TwoBrokers(home, enablePropertyFilter="true") as running:
        send(running, TOPIC, range(1000))
        yield running


def send(bed: TwoBrokers, topic: str, numbers: range) -> None:
    bed.create_topic(topic, queue_count=QUEUE_COUNT // 2)
    with bed.client() as client:
        queues = client.write_queues(topic)
        assert len(queues) == QUEUE_COUNT
        for start in range(numbers.start, numbers.stop, 100):
            for number, queue in enumerate(queues):
                some = range(start + number, min(start + 100, numbers.stop), QUEUE_COUNT)
                client.send_batch(queue, [message(topic, one) for one in some])


def message(topic: str, number: int) -> Message:
    properties = {"amount": str(number), "region": ["EU", "UK", "US"][number % 3]}
    return Message(topic, b"%d" % number, tags="AB"[number % 2], properties=properties)


def rows(spark: SparkSession, bed: TwoBrokers, **options: str) -> DataFrame:
    given = {"nameServer": bed.name_server, "subscribe": TOPIC, **options}
    return spark.read.format("pymq").options(**given).load()


def bodies(found: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in found.select("body").collect())


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("amount > 900 AND region = 'EU'", [n for n in range(901, 1000) if n % 3 == 0]),
        ("TAGS = 'A' AND amount BETWEEN 10 AND 20", list(range(10, 21, 2))),
        ("amount < 0", []),
        ("region IN ('EU', 'UK', 'US')", list(range(1000))),
    ],
)
def test_sql(spark: SparkSession, bed: TwoBrokers, sql: str, wanted: list[int]) -> None:
    """Gaps, also before the end of a range, are neither losses nor waited for."""
    for more in ({}, {"pullBytes": "1024", "minPartitions": "7"}):
        assert bodies(rows(spark, bed, sql=sql, **more)) == wanted
    first = {TOPIC: {name: {"0": 100, "1": 100} for name in ("broker-a", "broker-b")}}
    rest = rows(spark, bed, sql=sql, endingOffsets=json.dumps(first))
    assert bodies(rest) == [n for n in wanted if n < 400]


def test_sql_in_a_stream(
    spark: SparkSession, bed: TwoBrokers, topic: str, tmp_path: Path
) -> None:
    """The stream moves over what does not match, and ends at the end."""
    send(bed, topic, range(1000))

    def run() -> list[dict[str, Any]]:
        given = {"nameServer": bed.name_server, "subscribe": topic, "sql": "amount > 1500"}
        stream = spark.readStream.format("pymq").options(**given, startingOffsets="earliest")
        writer = stream.load().writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S)
        return [json.loads(progress.json) for progress in query.recentProgress]

    def end(progress: list[dict[str, Any]]) -> set[int]:
        brokers = progress[-1]["sources"][0]["endOffset"][topic]
        return {offset for queues in brokers.values() for offset in queues.values()}

    progress = run()
    assert sum(batch["numInputRows"] for batch in progress) == 0
    assert end(progress) == {250}
    send(bed, topic, range(1000, 2000))
    progress = run()
    assert end(progress) == {500}
    assert bodies(spark.read.parquet(str(tmp_path / "rows"))) == list(range(1501, 2000))
    assert sum(batch["numInputRows"] for batch in run()) == 0


def test_sql_that_is_refused(
    spark: SparkSession, bed: TwoBrokers, two_brokers: TwoBrokers
) -> None:
    with pytest.raises(PySparkException, match="option sql='amount >' is wrong"):
        rows(spark, bed, sql="amount >")
    with pytest.raises(PySparkException, match="options sql and tags exclude each other"):
        rows(spark, bed, sql="amount > 1", tags="A")
    with pytest.raises(PySparkException, match="give it as the option sql"):
        rows(spark, bed, tags="amount > 1")
    two_brokers.create_topic(TOPIC)
    two_brokers.send(TOPIC, [b"x"] * 8)
    with pytest.raises(PySparkException, match="does not support .* SQL92") as caught:
        rows(spark, two_brokers, sql="amount > 1").collect()
    assert "enablePropertyFilter=true" in str(caught.value)


CONDITIONS = [
    # condition, does Spark leave it to us, rows that Spark is handed (None: not looked at)
    ("brokerName = 'broker-b' AND queueId = 1", True, 250),
    ("topic = 'filtered' AND queueOffset >= 10 AND queueOffset < 20", True, 40),
    ("queueId IN (1, 7) AND brokerName <> 'broker-a'", True, 250),
    ("startswith(topic, 'other')", True, 0),
    ("queueOffset IN (3, 5)", False, 12),
    ("queueOffset = 7 AND tags = 'A'", False, 4),
    ("storeTimestamp >= '{late}'", False, None),
    ("storeTimestamp < '{late}' AND storeTimestamp > '{early}'", False, None),
    ("storeTimestamp = '{late}'", False, None),
    ("queueId = 1 OR queueOffset = 3", False, 1000),
    ("cast(body as string) = '17'", False, 1000),
]


@pytest.mark.skipif(not HAS_PUSH_DOWN, reason="this Spark hands over no filters")
@pytest.mark.parametrize(("condition", "is_ours", "scanned"), CONDITIONS)
def test_filters_that_spark_hands_over(
    spark: SparkSession,
    bed: TwoBrokers,
    condition: str,
    is_ours: bool,
    scanned: int | None,
) -> None:
    """The rows are those that Spark finds by itself, and fewer are read for them."""
    everything = rows(spark, bed, columns="pymq,brokerName")
    times = sorted(row.storeTimestamp for row in everything.select("storeTimestamp").collect())
    condition = condition.format(early=times[150], late=times[800])
    found = {}
    for setting in ("false", "true"):
        spark.conf.set(PUSH_DOWN, setting)
        try:
            some = everything.where(condition)
            found[setting] = sorted(map(repr, some.collect()))
            plan = some._jdf.queryExecution().executedPlan()  # type: ignore[operator]
        finally:
            spark.conf.unset(PUSH_DOWN)
        read = plan.collectLeaves().head().metrics().apply("numOutputRows").value()
        if setting == "false":
            assert "Filter " in plan.toString() and read == 1000
        else:
            assert ("Filter " not in plan.toString()) is is_ours
            assert read == scanned if scanned is not None else read <= 999
    assert found["true"] == found["false"]
    assert found["true"] or "other" in condition
