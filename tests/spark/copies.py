"""Queries that copy numbered messages between topics, and can be started again and again."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter
from tests.spark.faulty_sink import FaultySource
from tests.spark.readers import HAS_LIMITS
from tests.spark.two_brokers import DEADLINE_S, TwoBrokers, numbers

ROWS = 600


def copy_of(spark: SparkSession, bed: TwoBrokers, checkpoint: Path) -> "Copy":
    """Return a query over new topics, the first one with its messages."""
    for topic in ("from", "to"):
        bed.create_topic(topic)
    bed.send("from", numbers(ROWS))
    return Copy(spark, bed, checkpoint)


def read_all(writer: DataStreamWriter) -> None:
    """Run a query, in several micro-batches, until it has read what there is."""
    if HAS_LIMITS:
        writer.trigger(availableNow=True)
    query = writer.start()
    try:
        if HAS_LIMITS:
            assert query.awaitTermination(DEADLINE_S), "the query does not end"
        else:  # AvailableNow would run a single batch
            query.processAllAvailable()
    finally:
        query.stop()


class Copy:
    """A query from topic ``from`` to topic ``to``, which can be started again and again.

    Args:
        spark: the session.
        bed: brokers with both topics.
        checkpoint: of the query.
    """

    def __init__(self, spark: SparkSession, bed: TwoBrokers, checkpoint: Path) -> None:
        self.spark, self.bed, self.checkpoint = spark, bed, checkpoint
        spark.dataSource.register(FaultySource)
        self.batch_count = 0

    def rows(self, **options: object) -> DataFrame:
        reader = self.spark.readStream.format("pymq").option("nameServer", self.bed.name_server)
        reader.option("subscribe", "from").option("startingOffsets", "earliest")
        reader.option("maxOffsetsPerTrigger", "150")
        return reader.options(**options).load().select("body")  # type: ignore[arg-type]

    def run(self, partitions: int = 2, **sink: str) -> str | None:
        """Run the query until it has read what there is; return why it failed."""
        writer = self.rows(minPartitions=partitions).writeStream.format("pymq-faulty")
        writer.options(nameServer=self.bed.name_server, topic="to", **sink)
        writer.option("checkpointLocation", str(self.checkpoint))
        try:
            read_all(writer)
        except Exception as error:
            return str(error)
        self.batch_count = self._last_batch()
        return None

    def _last_batch(self) -> int:
        return max(int(path.name) for path in self.checkpoint.glob("commits/[0-9]*"))

    def check(self, count: int = ROWS) -> None:
        """All rows are there, once."""
        found = sorted(int(one.body) for one in self.bed.stored("to"))
        assert found == list(range(count))

    def forget_last(self, count: int) -> None:
        """Set the checkpoint back by this many micro-batches, as from a backup."""
        last = self._last_batch()
        for number in range(last - count + 1, last + 1):
            for folder in ("commits", "offsets"):
                (self.checkpoint / folder / str(number)).unlink()
                (self.checkpoint / folder / f".{number}.crc").unlink(missing_ok=True)
