"""Which columns a query has, in a real Spark."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession
from tests.spark.two_brokers import TwoBrokers

from pymq.protocol.message import Message

pytestmark = pytest.mark.spark
DEADLINE_S = 300.0  # a machine that has other things to do


@pytest.fixture
def bed(two_brokers: TwoBrokers, topic: str) -> TwoBrokers:
    """Two brokers with two queues of the topic each, and three messages in each of these."""
    two_brokers.create_topic(topic, queue_count=2)
    with two_brokers.client() as client:
        for number, queue in enumerate(client.write_queues(topic)):
            bodies = [b"%d" % (10 * number + place) for place in range(3)]
            client.send_batch(queue, [Message(topic, body, keys=["k1", "k2"]) for body in bodies])
    return two_brokers


def reader(spark: SparkSession, bed: TwoBrokers, topic: str, **options: str) -> DataFrameReader:
    given = {"nameServer": bed.name_server, "subscribe": topic, **options}
    return spark.read.format("pymq").options(**given)


def test_kafka_s_columns(
    spark: SparkSession, bed: TwoBrokers, topic: str, tmp_path: Path
) -> None:
    """In a batch and in a stream; two brokers have the same partitions and offsets."""
    batch = reader(spark, bed, topic, columns="kafka").load()
    assert batch.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
    ]
    stream = spark.readStream.format("pymq").options(
        nameServer=bed.name_server,
        subscribe=topic,
        columns="kafka,brokerName",
        startingOffsets="earliest",
    )
    writer = stream.load().writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(DEADLINE_S)
    streamed = spark.read.parquet(str(tmp_path / "rows"))
    assert streamed.columns == [*batch.columns, "brokerName"]

    def sorted_rows(rows: Any) -> list[Any]:
        return sorted(map(tuple, rows))

    assert sorted_rows(streamed.drop("brokerName").collect()) == sorted_rows(batch.collect())
    now = datetime.datetime.now()
    for row in batch.collect():
        assert (row.key, row.topic, row.timestampType) == (b"k1 k2", topic, 1)
        assert abs(now - row.timestamp) < datetime.timedelta(minutes=10)
    rows = streamed.collect()
    assert len({(row.partition, row.offset) for row in rows}) == 6
    found = {(row.brokerName, row.partition, row.offset): bytes(row.value) for row in rows}
    assert found == {(one.broker, one.queue_id, one.offset): one.body for one in bed.stored(topic)}


def test_columns_that_are_asked_for(spark: SparkSession, bed: TwoBrokers, topic: str) -> None:
    usual = reader(spark, bed, topic).load().columns
    assert not {"msgId", "brokerName", "properties"} & set(usual)
    more = reader(spark, bed, topic, columns="pymq,msgId,brokerName", includeProperties="true")
    rows = more.load()
    assert rows.columns == [*usual, "msgId", "brokerName", "properties"]
    found = rows.collect()
    assert len({row.msgId for row in found}) == 12
    assert {row.properties["UNIQ_KEY"] for row in found} == {row.msgId for row in found}
    mixed = "offset bigint, brokerName string, value binary, queueId int, key binary"
    places = {
        (row.brokerName, row.queueId, row.offset, bytes(row.value))
        for row in reader(spark, bed, topic).schema(mixed).load().collect()
    }
    assert places == set(map(tuple, bed.stored(topic)))


def test_columns_that_there_are_not(spark: SparkSession, bed: TwoBrokers, topic: str) -> None:
    with pytest.raises(PySparkException, match="did you mean brokerName"):
        reader(spark, bed, topic, columns="pymq,brokername").load()
    rows = reader(spark, bed, topic, columns="kafka").schema("body binary").load()
    with pytest.raises(PySparkException, match="columns=kafka and a schema with other columns"):
        rows.collect()
    with pytest.raises(PySparkException, match="partition is bigint, expected int"):
        reader(spark, bed, topic).schema("partition bigint").load().collect()
