"""Topics, starts, ends and limits in a real Spark, with two brokers and a restart in the middle."""

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.administration import admin_of
from tests.spark.readers import HAS_LIMITS
from tests.spark.test_source_positions import GROUP, commit, moment
from tests.spark.two_brokers import Stored, TwoBrokers, numbers, wait_until

from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.record_batch import read_columns

pytestmark = pytest.mark.spark
TOPIC = "T"
DEADLINE_S = 300.0  # a machine that has other things to do

Start = Callable[..., StreamingQuery]


@pytest.fixture
def start(spark: SparkSession, two_brokers: TwoBrokers, tmp_path: Path) -> Iterator[Start]:
    """Starts a query with one checkpoint, which writes rows to files; stopped at the end."""
    queries: list[StreamingQuery] = []

    def start(*, available_now: bool = False, **options: str) -> StreamingQuery:
        reader = spark.readStream.format("pymq").option("nameServer", two_brokers.name_server)
        if "subscribePattern" not in options:
            reader.option("subscribe", TOPIC)
        # None of the brokers is silent here; one that has to wait its turn is not away.
        reader.options(requestTimeoutMs="30000", columns="pymq,brokerName", **options)
        rows = reader.load().select(*COLUMNS)
        writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        if available_now:
            writer.trigger(availableNow=True)
        queries.append(writer.start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


COLUMNS = ("brokerName", "queueId", "queueOffset", "body", "topic")
#: A first batch writes no file that would tell it.
SCHEMA = "brokerName string, queueId int, queueOffset long, body binary, topic string"


@pytest.fixture
def found(spark: SparkSession, tmp_path: Path) -> Callable[..., list[Stored]]:
    """Returns, sorted, the rows that were written."""

    def found(topic: str = TOPIC) -> list[Stored]:
        if not (tmp_path / "rows/_spark_metadata").exists():
            return []
        return to_stored(spark.read.schema(SCHEMA).parquet(str(tmp_path / "rows")), topic)

    return found


def to_stored(rows: DataFrame, topic: str = TOPIC) -> list[Stored]:
    return sorted(
        Stored(row.brokerName, row.queueId, row.queueOffset, bytes(row.body))
        for row in rows.where(f"topic = '{topic}'").collect()
    )


def wait_for(query: StreamingQuery, holds: Callable[[], bool], what: str) -> None:
    wait_until(lambda: query.exception() is not None or holds(), what, DEADLINE_S)
    assert query.exception() is None


def test_a_topic_that_was_created_again_while_the_query_was_stopped(
    start: Start, found: Callable[..., list[Stored]], two_brokers: TwoBrokers
) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    start(available_now=True, startingOffsets="earliest").awaitTermination()
    start(available_now=True).awaitTermination()  # Before 4.2 each is one batch.
    before = found()
    with bed.client() as client:
        admin_of(client).topics.delete(TOPIC)
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(100, 300))
    query = start(available_now=True)
    with pytest.raises(PySparkException, match="T on broker-a, topic T on broker-b: deleted, and"):
        query.awaitTermination()
    for _ in range(3):
        start(available_now=True, failOnDataLoss="false").awaitTermination()
    assert len(before) == 80
    assert found() == sorted(before + bed.stored(TOPIC))


@pytest.mark.by_turns("mode")
@pytest.mark.parametrize("mode", ["time", "group", "pattern", "end"])
def test_a_broker_restarts_with_the_query_and_the_query_in_the_middle(
    mode: str,
    start: Start,
    found: Callable[..., list[Stored]],
    spark: SparkSession,
    two_brokers: TwoBrokers,
) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))  # ten for each of the queues
    since = moment(bed)
    commit(bed, 10)
    bed.send(TOPIC, numbers(80, 160))
    ends = json.dumps({TOPIC: {name: dict.fromkeys("0123", 25) for name in NAMES}})
    first, end, options = {
        "time": (10, 40, {"startingTimestamp": since}),
        "group": (10, 40, {"startingOffsets": "group", "consumerGroup": GROUP}),
        "pattern": (0, 40, {"subscribePattern": "T|new.*", "topicRefreshMs": "500"}),
        "end": (0, 25, {"endingOffsets": ends}),
    }[mode]
    if first == 0:
        options["startingOffsets"] = "earliest"

    def wanted() -> list[Stored]:
        return [one for one in bed.acknowledged(TOPIC) if first <= one.offset < end]

    bed.stop("broker-b")
    query = start(**options, maxOffsetsPerTrigger="10")
    if mode == "pattern":
        bed.create_topic("new", on=["broker-a"])
        bed.send("new", numbers(40))
    bed.start("broker-b")
    wait_for(query, lambda: len(found()) > 5, "rows")
    query.stop()
    bed.send(TOPIC, numbers(160, 320))
    query = start(**options)
    bed.restart("broker-a")
    wait_for(query, lambda: len(found()) >= len(wanted()), "all rows")
    query.processAllAvailable()
    assert found() == wanted()
    if mode == "pattern":
        wait_for(query, lambda: len(found("new")) == 40, "rows of the new topic")
        assert found("new") == bed.stored("new")
    query.stop()
    batch = spark.read.format("pymq").option("nameServer", bed.name_server)
    if mode == "group":
        return
    given = options if "subscribePattern" in options else {"subscribe": TOPIC, **options}
    batch.option("columns", "pymq,brokerName")
    assert to_stored(batch.options(**given).load()) == wanted()


NAMES = ("broker-a", "broker-b")


@pytest.mark.skipif(not HAS_LIMITS, reason="this Spark does not tell a source of AvailableNow")
def test_limits_and_available_now(
    start: Start, found: Callable[..., list[Stored]], two_brokers: TwoBrokers
) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(800))
    limits = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "500"}
    limits |= {"maxOffsetsPerTrigger": "600", "maxBytesPerTrigger": "30000"}
    query = start(available_now=True, **limits, maxRecordsPerPartition="20")
    assert query.awaitTermination(DEADLINE_S) and query.exception() is None
    assert found() == bed.stored(TOPIC)
    counts = [json.loads(one.json)["numInputRows"] for one in query.recentProgress]
    assert sum(counts) == 800 and 5 <= len(counts) <= 20 and max(counts) <= 300, counts
    # Fewer messages than are worth a batch: nothing waits.
    bed.send(TOPIC, numbers(800, 840))
    assert start(available_now=True, **limits).awaitTermination(DEADLINE_S)
    assert found() == bed.stored(TOPIC)


@pytest.mark.skipif(not HAS_LIMITS, reason="this Spark does not tell a source of AvailableNow")
def test_no_batch_is_larger_than_its_bytes(
    start: Start, found: Callable[..., list[Stored]], two_brokers: TwoBrokers, seed: int
) -> None:
    """Small messages, large ones, and some of each: what batches hold is what brokers stored."""
    bed, most, chance = two_brokers, 1_000_000, random.Random(seed)
    bed.create_topic(TOPIC)
    for length in (20, 30_000, 0):
        lengths = [length or chance.choice([20, 2000, 200_000]) for _ in range(160)]
        bed.send(TOPIC, [b"%d " % number + b"x" * size for number, size in enumerate(lengths)])
    with bed.client() as client:
        sizes = {queue: stored_sizes(client, queue) for queue in client.read_queues(TOPIC)}
    query = start(available_now=True, startingOffsets="earliest", maxBytesPerTrigger=f"{most}")
    assert query.awaitTermination(DEADLINE_S) and query.exception() is None
    assert found() == bed.stored(TOPIC)
    ends = dict.fromkeys(sizes, 0)
    totals: list[int] = []
    for progress in query.recentProgress:
        offsets = json.loads(progress.json)["sources"][0]["endOffset"]
        batch: dict[MessageQueue, list[int]] = {}
        for queue, end in ends.items():
            ends[queue] = offsets[TOPIC][queue.broker_name][str(queue.queue_id)]
            batch[queue] = sizes[queue][end : ends[queue]]
        totals.append(sum(map(sum, batch.values())))
        assert totals[-1] <= most or all(len(some) <= 1 for some in batch.values())
    total = sum(map(sum, sizes.values()))
    assert sum(totals) == total and ends == {queue: len(some) for queue, some in sizes.items()}
    # One message of 200 kB for each of eight queues is more than a batch should have.
    assert len(totals) <= 10 + 2 * total / most, totals


def stored_sizes(client: BulkClient, queue: MessageQueue) -> list[int]:
    first, end = client.bounds([queue])[queue]
    chunks = client.pull_range(queue, first, end)
    return [size for chunk in chunks for size in read_columns(chunk.buffer).size.tolist()]


def test_few_messages_wait_for_others(
    start: Start, found: Callable[..., list[Stored]], two_brokers: TwoBrokers
) -> None:
    bed = two_brokers
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    limits = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "100"}
    query = start(**limits, maxTriggerDelay="10m")
    wait_for(query, lambda: query.lastProgress is not None, "the first batch")
    query.processAllAvailable()
    if HAS_LIMITS:  # before, the first batch of a run is never held back
        assert found() == []
    # Not more than are needed: a stream that sees some of them sooner takes those, and waits again.
    enough = 100 if HAS_LIMITS else 180
    bed.send(TOPIC, numbers(80, enough))
    wait_for(query, lambda: len(found()) == enough, "enough messages")
    total = enough + 40
    bed.send(TOPIC, numbers(enough, total))
    query.processAllAvailable()
    assert len(found()) == enough
    query.stop()
    began_s = time.monotonic()
    query = start(**limits, maxTriggerDelay="8s")
    wait_for(query, lambda: len(found()) == total, "the delay")
    assert not HAS_LIMITS or time.monotonic() - began_s >= 8
    assert found() == bed.stored(TOPIC)


def test_a_stream_waits_for_its_topic(
    start: Start, found: Callable[..., list[Stored]], spark: SparkSession, two_brokers: TwoBrokers
) -> None:
    bed = two_brokers
    options = {"subscribePattern": "T.*", "topicRefreshMs": "300", "startingOffsets": "latest"}
    query = start(**options)
    wait_for(query, lambda: query.lastProgress is not None, "the first batch")
    bed.create_topic(TOPIC)
    bed.send(TOPIC, numbers(80))
    wait_for(query, lambda: len(found()) == 80, "rows")
    assert found() == bed.stored(TOPIC)
    query.stop()
    reader = spark.read.format("pymq").option("nameServer", bed.name_server)
    with pytest.raises(PySparkException, match="no topic matches; there are T"):
        reader.option("subscribePattern", "U").load().count()
    kept: Any = reader.option("assign", '{"T": {"broker-b": [3]}}')
    with pytest.raises(PySparkException, match="exactly one of subscribe"):
        kept.load()
