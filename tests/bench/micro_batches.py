"""What a micro-batch of a few rows takes, beside a data source that has them prebuilt.

Part of ``./build.sh bench-spark ceiling``. Each query goes through ``BATCHES`` micro-batches of
``BATCH_ROWS`` rows in two tasks, with the settings of ``tune``; what counts is the median of
``triggerExecution`` in the progress that Spark reports, so that starting the query does not.
"""

import statistics
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from tests.bench.load import create_topic
from tests.bench.machine import line

from pyspark_pymq.source.columns import default_schema

TASKS = 2
BATCHES, BATCH_ROWS, ROUNDS = 40, 64, 3
#: Micro-batches at the start of a query that do not count: Python workers start in them.
WARM_UP_BATCHES = 5
#: Most that a micro-batch may take: beside prebuilt rows; of 64 queues beside 4.
LATENCY_MAX, QUEUES_MAX = 1.3, 1.5
FEW_QUEUES, MANY_QUEUES = 4, 64


class PrebuiltStream(DataSource):
    """Yields an Arrow batch again and again, in many micro-batches.

    Options are ``batch``, an Arrow stream in hexadecimal digits with the default columns, ``rows``,
    of a micro-batch, and ``batches``, the number of these.
    """

    @classmethod
    def name(cls) -> str:
        return "prebuilt-stream"

    def schema(self) -> StructType:
        return default_schema(properties=False)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self.options
        stream = bytes.fromhex(options["batch"])
        return PrebuiltStreamReader(stream, int(options["rows"]), int(options["batches"]))


class PrebuiltStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, stream: bytes, rows: int, batches: int) -> None:
        self._stream, self._rows, self._batches = stream, rows, batches

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """There is an end anyway."""

    def latestOffset(self, start: dict[str, int], limit: Any = None) -> dict[str, int]:
        return {"batch": min(start["batch"] + 1, self._batches)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(self._rows // TASKS)] * TASKS

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = pa.ipc.open_stream(self._stream).read_next_batch()
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


def micro_batches(spark: SparkSession, name_server: str, batch: bytes) -> list[str]:
    """Time micro-batches; return what takes longer than it may.

    Args:
        spark: a session with the settings of ``tune``.
        name_server: of a running broker.
        batch: rows with the default columns, as an Arrow stream.
    """
    few, many, prebuilt = f"{FEW_QUEUES} queues", f"{MANY_QUEUES} queues", "prebuilt rows"
    sources = {
        few: _topic(spark, name_server, FEW_QUEUES),
        many: _topic(spark, name_server, MANY_QUEUES),
        prebuilt: prebuilt_stream(spark, batch, BATCH_ROWS, BATCHES),
    }
    taken: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(ROUNDS):
        for name, rows in sources.items():
            taken[name].append(_batch_ms(rows))
    print(f"\n micro-batches of {BATCH_ROWS} rows, {TASKS} tasks")
    for name, found in taken.items():
        line(name, statistics.median(found), "ms")
    missed = []
    for name, peer, most in ((few, prebuilt, LATENCY_MAX), (many, few, QUEUES_MAX)):
        ratio = statistics.median(a / b for a, b in zip(taken[name], taken[peer], strict=True))
        line(f"{name} / {peer}", ratio, "x", goal=f"goal at most {most}")
        if ratio > most:
            missed.append(f"micro-batch, {name} / {peer}")
    return missed


def prebuilt_stream(spark: SparkSession, batch: bytes, rows: int, batches: int) -> DataFrame:
    """Return a stream of prebuilt rows; arguments as the options of ``PrebuiltStream``."""
    spark.dataSource.register(PrebuiltStream)
    reader = spark.readStream.format("prebuilt-stream").option("batch", batch.hex())
    return reader.options(rows=rows, batches=batches).load()


def _topic(spark: SparkSession, name_server: str, queue_count: int) -> DataFrame:
    """Fill a topic, its queues evenly; return a stream of it, so many rows at a time."""
    topic = f"few-rows-{queue_count}"
    create_topic(name_server, topic, queue_count)
    rows = spark.range(BATCHES * BATCH_ROWS).selectExpr(
        "'a body' as body", f"cast(id % {queue_count} as int) as queueId"
    )
    writer = rows.write.format("pymq").mode("append").option("nameServer", name_server)
    writer.options(topic=topic, delivery="atLeastOnce").save()
    return (
        spark.readStream.format("pymq")
        .option("nameServer", name_server)
        .options(subscribe=topic, startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=BATCH_ROWS, minPartitions=TASKS, maxPartitions=TASKS)
        .load()
    )


def _batch_ms(rows: DataFrame) -> float:
    """Run a query through all its micro-batches; return what one takes, ms."""
    with tempfile.TemporaryDirectory(prefix="pymq-bench-") as checkpoint:
        writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            query.processAllAvailable()
            found = [one for one in query.recentProgress if one.numInputRows]
        finally:
            query.stop()
    assert len(found) == BATCHES, f"{len(found)} micro-batches with rows, expected {BATCHES}"
    return statistics.median(one.durationMs["triggerExecution"] for one in found[WARM_UP_BATCHES:])
