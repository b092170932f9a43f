"""Our Spark source and sink beside Kafka's: one session, the same rows, in turns.

``./build.sh bench-spark kafka`` runs it in Spark 4.2, the newest that Kafka's source and sink are
made for. The Kafka broker has 1 GiB of heap, and its sink writes batches of 512 KiB with 10 ms of
linger; pymq's broker is as users have it, and its log has not been warmed up. Both have the same
number of partitions or queues, of messages with a key and a body.

Kafka's source depends on how its topic was written, so there are two: by its sink with the default
settings, and by the tuned sink, in large batches. A third source yields prebuilt Arrow batches with
our columns: a goal that it misses no data source in Python can reach.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.administration import admin_of
from tests.bench.kafka import Kafka
from tests.bench.machine import describe, used_memory
from tests.bench.micro_batches import prebuilt_stream
from tests.bench.serving import serving
from tests.bench.spark import Prebuilt, decoded_batch
from tests.bench.turns import to_noop, turns
from tests.interop.jars import SPARK_KAFKA, class_path

from pymq import spark as pymq_spark
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.client.sockets.bulk_client import BulkClient
from pyspark_pymq.source.columns import USUAL

TASKS, PARTITIONS, ROUNDS = 2, 8, 5
#: Bytes of a body -> rows of a topic that is read, and of each write, by a scale of 1.
SIZES = {100: (5_000_000, 1_000_000), 1000: (1_500_000, 500_000)}
STREAM_BATCHES = 5
#: Digits that tell the bodies apart.
NUMBER_BYTES = 8
TUNED = {"kafka.batch.size": str(512 << 10), "kafka.linger.ms": "10"}
CEILING = "prebuilt batches"
#: Columns for which both read the same.
OURS_ALIKE = ("keys", "body", "topic", "queueId", "queueOffset", "storeTimestamp")
KAFKAS_ALIKE = ("key", "value", "topic", "partition", "offset", "timestamp")


class Bench:
    """The two brokers, and how Spark reads and writes each."""

    def __init__(self, spark: SparkSession, name_server: str, kafka: str, scratch: Path) -> None:
        self.spark = spark
        self._name_server = name_server
        self._kafka = kafka
        self._scratch = scratch
        self._checkpoints = 0

    # ---------------------------------------------------------------------------- pymq

    def create_topic(self, topic: str) -> None:
        with BlockingClient(self._name_server) as client:
            admin_of(client).topics.create(topic, queue_count=PARTITIONS)

    def write_pymq(self, rows: DataFrame, topic: str, delivery: str) -> None:
        writer = rows.selectExpr("key as keys", "value as body").write.format("pymq").mode("append")
        options = {"nameServer": self._name_server, "topic": topic, "delivery": delivery}
        writer.options(**options).save()

    def read_pymq(self, topic: str, columns: Sequence[str] = (USUAL,)) -> DataFrame:
        reader = self.spark.read.format("pymq").option("nameServer", self._name_server)
        return reader.option("subscribe", topic).option("columns", ",".join(columns)).load()

    def stream_pymq(self, topic: str, batch_rows: int) -> None:
        reader = self.spark.readStream.format("pymq").option("nameServer", self._name_server)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        self._drain(reader.option("maxOffsetsPerTrigger", str(batch_rows)).load())

    # --------------------------------------------------------------------------- Kafka

    def write_kafka(self, rows: DataFrame, topic: str, options: dict[str, str]) -> None:
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", self._kafka)
        writer.option("topic", topic).options(**options).save()

    def read_kafka(self, topic: str) -> DataFrame:
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self._kafka)
        return reader.option("subscribe", topic).load()

    def stream_kafka(self, topic: str, batch_rows: int) -> None:
        reader = self.spark.readStream.format("kafka")
        reader = reader.option("kafka.bootstrap.servers", self._kafka)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        self._drain(reader.option("maxOffsetsPerTrigger", str(batch_rows)).load())

    # ------------------------------------------------------------------ the API's ceiling

    def prebuilt(self, topic: str, columns: Sequence[str], rows: int) -> DataFrame:
        self.spark.dataSource.register(Prebuilt)
        with BulkClient((self._name_server,)) as client:
            batch = decoded_batch(client, topic, columns)
        reader = self.spark.read.format("prebuilt").option("columns", ",".join(columns))
        return reader.options(batch=batch.hex(), rows=rows).load()

    def stream_prebuilt(self, topic: str, batch_rows: int) -> None:
        with BulkClient((self._name_server,)) as client:
            batch = decoded_batch(client, topic)
        self._drain(prebuilt_stream(self.spark, batch, batch_rows, STREAM_BATCHES))

    # --------------------------------------------------------------------------- all

    def generated(self, rows: int, size: int) -> DataFrame:
        """Return rows with a key and a body of a size.

        ``lpad`` pads byte by byte: padding whole bodies takes longer than any sink does.
        """
        number = f"lpad(cast(id as string), {NUMBER_BYTES}, '0')"
        return self.spark.range(0, rows, 1, TASKS).selectExpr(
            "concat('key-', id) as key",
            f"cast(concat('{'.' * (size - NUMBER_BYTES)}', {number}) as binary) as value",
        )

    def _drain(self, rows: DataFrame) -> None:
        self._checkpoints += 1
        writer = rows.writeStream.format("noop").trigger(availableNow=True)
        checkpoint = self._scratch / str(self._checkpoints)
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def reads(bench: Bench, size: int, scale: float) -> list[str]:
    """Time reads of a topic, as batches and as a stream."""
    rows = int(SIZES[size][0] * scale)
    large, small = f"large-{size}", f"small-{size}"
    bench.create_topic(large)
    for first in range(0, rows, part := rows // STREAM_BATCHES):
        some = bench.generated(min(part, rows - first), size)
        bench.write_pymq(some, large, "atLeastOnce")
        bench.write_kafka(some, large, TUNED)
        bench.write_kafka(some, small, {})
    assert bench.read_pymq(large).count() == bench.read_kafka(large).count() == rows

    def compare(title: str, target: float, actions: dict[str, Callable[[], Any]]) -> list[str]:
        print(f"\n {title}, {size} B")
        targets = dict.fromkeys(list(actions)[:-1], target)
        missed = turns(actions, targets, rows=rows, rounds=ROUNDS)
        return [f"{title}, {size} B: {one}" for one in missed]

    def kafka(topic: str, *columns: str) -> Callable[[], None]:
        return lambda: to_noop(bench.read_kafka(topic).select(*columns or ["*"]))

    def ours(*columns: str) -> dict[str, Callable[[], Any]]:
        # Spark tells Python sources of no projection: their users say which columns they want.
        topic, prebuilt = bench.read_pymq(large, columns), bench.prebuilt(large, columns, rows)
        return {"pymq": lambda: to_noop(topic), CEILING: lambda: to_noop(prebuilt)}

    alike = ours(*OURS_ALIKE)
    missed = compare(
        "batch read, columns alike", 3.0, {**alike, "Kafka": kafka(small, *KAFKAS_ALIKE)}
    )
    missed += compare(
        "batch read, columns alike, Kafka's topic in large batches",
        {100: 1.5, 1000: 1.3}[size],
        {**alike, "Kafka": kafka(large, *KAFKAS_ALIKE)},
    )
    missed += compare(
        "batch read, default columns", 2.5, {**ours(USUAL), "Kafka": kafka(small)}
    )
    missed += compare(
        "stream with trigger availableNow",
        {100: 1.8, 1000: 1.5}[size],
        {
            "pymq": lambda: bench.stream_pymq(large, part),
            CEILING: lambda: bench.stream_prebuilt(large, part),
            "Kafka": lambda: bench.stream_kafka(small, part),
        },
    )
    return missed


def writes(bench: Bench, size: int, scale: float) -> list[str]:
    """Time writes."""
    rows = int(SIZES[size][1] * scale)
    print(f"\n batch write, {size} B")
    bench.create_topic(f"written-{size}")
    some = bench.generated(rows, size)
    missed = turns(
        {
            "at least once": lambda: bench.write_pymq(some, f"written-{size}", "atLeastOnce"),
            "exactly once": lambda: bench.write_pymq(some, f"written-{size}", "exactlyOnce"),
            "Kafka": lambda: bench.write_kafka(some, f"written-{size}", TUNED),
        },
        {"at least once": 1.5, "exactly once": 1.0},
        rows=rows,
        rounds=ROUNDS,
    )
    return [f"batch write, {size} B: {one}" for one in missed]


def session() -> SparkSession:
    """Return a session that has Kafka's source and sink, with our settings."""
    jars = sorted(str(path) for path in Path(class_path(SPARK_KAFKA)).parent.glob("*.jar"))
    builder = pymq_spark.tune(SparkSession.builder.master(f"local[{TASKS}]"))
    spark = (
        builder.config("spark.jars", ",".join(jars))
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> int:
    parser = argparse.ArgumentParser(description="Our Spark source and sink beside Kafka's.")
    parser.add_argument("scale", nargs="?", type=float, default=1.0, help="of the rows")
    parser.add_argument("--only", choices=("reads", "writes"), help="one half")
    parser.add_argument("--size", type=int, choices=SIZES, help="one size")
    parser.add_argument(
        "--used-memory", action="store_true", help="have the logs grow into memory that is reused"
    )
    given = parser.parse_args()
    print(describe())
    memory = "used" if given.used_memory else "as it is"
    print(f"run       local[{TASKS}], {PARTITIONS} partitions, memory {memory}", end="")
    print(f", medians of {ROUNDS} rounds in turns")
    missed = []
    with ExitStack() as stack:
        if given.used_memory:
            stack.enter_context(used_memory())
        server = stack.enter_context(serving("async"))
        kafka = stack.enter_context(Kafka(PARTITIONS))
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="pymq-bench-")))
        spark = session()
        stack.callback(spark.stop)
        bench = Bench(spark, server.name_server, kafka.address, scratch)
        for size in [given.size] if given.size else SIZES:
            if given.only != "writes":
                missed += reads(bench, size, given.scale)
            if given.only != "reads":
                missed += writes(bench, size, given.scale)
    if missed:
        print("\nbelow target:", *missed, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
