"""How far queries are, for people: group progress at brokers, the table of queues, lag helpers."""

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.administration import admin_of
from tests.spark.readers import HAS_LIMITS
from tests.spark.two_brokers import TwoBrokers, numbers, wait_until

from pymq.protocol.bodies import MessageQueue
from pymq.spark import LagListener, StreamLag, lag, starting_offsets

pytestmark = pytest.mark.spark
DEADLINE_S = 300.0  # a machine that has other things to do


def stream(spark: SparkSession, bed: TwoBrokers, topic: str, **options: str) -> DataFrame:
    given = {"startingOffsets": "earliest", **options}
    reader = spark.readStream.format("pymq").options(nameServer=bed.name_server, subscribe=topic)
    return reader.options(**given).load()


def of_group(bed: TwoBrokers, group: str) -> dict[MessageQueue, tuple[int, int]]:
    """What tools show: committed offset and end of each queue."""
    with bed.client() as client:
        found = admin_of(client).offsets.lag(group)
    return {one.queue: (one.consumer_offset, one.broker_offset) for one in found}


def truth(bed: TwoBrokers, topic: str) -> dict[MessageQueue, int]:
    """What is in each queue."""
    return Counter(MessageQueue(topic, one.broker, one.queue_id) for one in bed.stored(topic))


@pytest.mark.skipif(not HAS_LIMITS, reason="this Spark asks nothing after the last batch")
def test_what_is_consumed_is_the_group_s_progress(
    spark: SparkSession, two_brokers: TwoBrokers, topic: str, tmp_path: Path
) -> None:
    bed = two_brokers
    bed.create_topic(topic)
    bed.send(topic, numbers(90))
    group = {"consumerGroup": "orders-copy", "commitOffsetsToBroker": "true"}
    rows = stream(spark, bed, topic, maxOffsetsPerTrigger="30", **group)
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    ends = truth(bed, topic)
    wanted = {queue: (end, end) for queue, end in ends.items()}

    def read_and_commit() -> bool:
        assert writer.trigger(availableNow=True).start().awaitTermination(DEADLINE_S)
        return of_group(bed, "orders-copy") == wanted

    # A broker that is late takes no progress; the next run, which finds nothing new, tells it.
    wait_until(read_and_commit, "all is committed")
    assert len(ends) == 8
    bed.send(topic, numbers(90, 99))
    later = truth(bed, topic)
    assert of_group(bed, "orders-copy") == {q: (ends[q], e) for q, e in later.items()}
    with bed.client() as client:  # which tools that start from its retry topic need
        assert client.read_queues("%RETRY%orders-copy")
        members = admin_of(client).groups.members
        wait_until(lambda: members("orders-copy").connections == [], "no member is left")

    table = spark.read.format("pymq").options(
        nameServer=bed.name_server, subscribe=topic, metadata="topics"
    )
    assert {tuple(row) for row in table.load().collect()} == {
        (topic, queue.broker_name, queue.queue_id, 0, end, None, None)
        for queue, end in later.items()
    }
    shown = table.option("consumerGroup", "orders-copy").load()
    assert {tuple(row) for row in shown.collect()} == {
        (topic, queue.broker_name, queue.queue_id, 0, end, ends[queue], end - ends[queue])
        for queue, end in later.items()
    }
    assert shown.groupBy("topic").sum("lag").collect() == [(topic, 9)]


def test_progress_of_a_running_query_while_a_broker_is_frozen(
    spark: SparkSession,
    two_brokers: TwoBrokers,
    topic: str,
    running: list[StreamingQuery],
    tmp_path: Path,
) -> None:
    bed = two_brokers
    bed.create_topic(topic, queue_count=1)
    bed.send(topic, numbers(20))
    group = {"consumerGroup": "G", "commitOffsetsToBroker": "true", "requestTimeoutMs": "2000"}
    writer = stream(spark, bed, topic, **group).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    running.append(query)
    of_a, of_b = (MessageQueue(topic, name, 0) for name in ("broker-a", "broker-b"))

    def wait_progress(queue: MessageQueue, offset: int) -> None:
        def holds() -> bool:
            assert query.exception() is None
            with bed.client() as client:
                return client.committed_offset("G", queue) == offset

        wait_until(holds, f"{queue} at {offset}", DEADLINE_S)

    wait_progress(of_a, 10)
    wait_progress(of_b, 10)
    bed.freeze("broker-b")
    bed.send(topic, numbers(20, 25), to="broker-a")
    wait_progress(of_a, 15)
    bed.thaw("broker-b")
    bed.send(topic, numbers(25, 30), to="broker-b")
    wait_progress(of_b, 15)
    assert of_group(bed, "G") == {of_a: (15, 15), of_b: (15, 15)}


def test_a_group_that_may_not_be_created_fails_nothing(
    spark: SparkSession, tmp_path: Path, topic: str
) -> None:
    """But reading for it is refused; nothing is read here."""
    with TwoBrokers(tmp_path / "bed", autoCreateSubscriptionGroup="false") as bed:
        bed.create_topic(topic)
        group = {"consumerGroup": "G", "commitOffsetsToBroker": "true"}
        writer = stream(spark, bed, topic, **group).writeStream.format("noop")
        writer.option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S) and query.exception() is None
        assert of_group(bed, "G") == {}


def test_lag_and_starting_offsets(
    spark: SparkSession,
    two_brokers: TwoBrokers,
    topic: str,
    running: list[StreamingQuery],
    tmp_path: Path,
) -> None:
    """From a query's progress, from a listener's, and from a file of the checkpoint."""
    bed = two_brokers
    bed.create_topic(topic)
    bed.send(topic, numbers(80))
    reports: list[StreamLag] = []
    listener = LagListener(reports.append)
    spark.streams.addListener(listener)
    try:
        patient = {"requestTimeoutMs": "30000", "maxOffsetsPerTrigger": "16"}
        writer = stream(spark, bed, topic, **patient).writeStream.format("noop")
        checkpoint = tmp_path / "checkpoint"
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        running.append(query)
        query.processAllAvailable()
        query.stop()
        last = query.lastProgress
        assert last is not None
        wait_until(lambda: last.batchId in [one.batch_id for one in reports], "its last progress")
    finally:
        spark.streams.removeListener(listener)
    if HAS_LIMITS:
        found = lag(last)
        assert (found.query_id, found.total, len(found.queues)) == (str(query.id), 0, 8)
        behind = {one.batch_id: one.total for one in reports}
        assert [behind[batch] for batch in range(6)] == [80, 64, 48, 32, 16, 0]
    file = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    text = starting_offsets(file.read_text())
    assert text == starting_offsets(last) == starting_offsets(last.json)
    bed.send(topic, numbers(80, 90))
    options = {"nameServer": bed.name_server, "subscribe": topic, "startingOffsets": text}
    rows = spark.read.format("pymq").options(**options).load().collect()
    assert sorted(int(row.body) for row in rows) == list(range(80, 90))
    assert json.loads(text).keys() == {topic}


def test_options_that_belong_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    options = {"nameServer": "127.0.0.1:1", "subscribe": "T"}
    batch = spark.read.format("pymq").options(**options, consumerGroup="G")
    with pytest.raises(PySparkException, match="commitOffsetsToBroker=true is for streams"):
        batch.option("commitOffsetsToBroker", "true").load().collect()
    with pytest.raises(PySparkException, match="needs the option consumerGroup"):
        spark.readStream.format("pymq").options(**options, commitOffsetsToBroker="true").load()
    rows = spark.readStream.format("pymq").options(**options, metadata="topics").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match="metadata is for batch reads"):
        query.start().awaitTermination(DEADLINE_S)
    with pytest.raises(PySparkException, match="metadata='queues' is wrong: expected topics"):
        spark.read.format("pymq").options(**options, metadata="queues").load()
