"""Speed of the Spark source and sink, beside the most that Spark's Python data sources reach.

Run it with ``./build.sh bench-spark ceiling [MILLIONS]``. In one run, taking turns:

* read a topic into ``noop``, beside a data source that yields prebuilt Arrow batches with the same
  columns and rows: what is left of the ceiling after fetching and decoding;
* write generated rows to a topic, beside a data source that only counts them.

Messages have bodies of 100 B, a tag, a key and an id. Broker, JVM and Python workers share the
machine, as in ``local[2]``; ratios mean more than rates. The log's pages are warmed before writes
(``Serving.warm_log``).
"""

import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from tests.bench.machine import describe, line
from tests.bench.serving import serving
from tests.bench.turns import ROUNDS, to_noop, turns, verdict

from pymq.client.bulk_client import BulkClient
from pymq.protocol.record_batch import read_columns
from pyspark_pymq.sink.encode import encode_messages
from pyspark_pymq.sink.unique_keys import UniqueKeyArrays
from pyspark_pymq.source.columns import arrow_schema, default_schema
from pyspark_pymq.source.decode import record_batches

TASKS = 2
BODY_BYTES = 100
CHUNK_ROWS = 10_000
READ_TARGET, WRITE_TARGET, DECODE_TARGET = 0.55, 0.60, 1.5e6


class Prebuilt(DataSource):
    """Yields one Arrow batch again and again: the ceiling of every source."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> StructType:
        return default_schema(properties=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return PrebuiltReader(bytes.fromhex(self.options["batch"]), int(self.options["rows"]))


class PrebuiltReader(DataSourceReader):
    def __init__(self, stream: bytes, rows: int) -> None:
        self._stream = stream
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // TASKS)] * TASKS

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = pa.ipc.open_stream(self._stream).read_next_batch()
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


class Counted(WriterCommitMessage):
    pass


class Counting(DataSource):
    """Takes Arrow batches and counts their rows: the ceiling of every sink."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CountingWriter()


class CountingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        assert sum(batch.num_rows for batch in iterator) >= 0
        return Counted()


def main() -> int:
    rows = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 1_000_000
    print(describe())
    print(f"run       local[{TASKS}], bodies of {BODY_BYTES} B, {rows} rows, {ROUNDS} rounds")
    missed = []
    with serving("async") as server, BulkClient((server.name_server,)) as client:
        name_server = server.name_server
        spark = session()
        rate, batch = codec(client, rows)
        missed += verdict("decode to default columns, one core", rate, DECODE_TARGET, "/s")
        spark.dataSource.register(Prebuilt)
        spark.dataSource.register(Counting)
        read = spark.read.format("pymq").options(
            nameServer=name_server, subscribe="bench", minPartitions=TASKS
        )
        ceiling = spark.read.format("prebuilt").options(batch=batch.hex(), rows=rows)
        missed += turns(
            {
                "read a topic": lambda: to_noop(read.load()),
                "prebuilt batches": lambda: to_noop(ceiling.load()),
            },
            {"read a topic": READ_TARGET},
            rows=rows,
        )
        generated = spark.range(0, rows, 1, TASKS).selectExpr(
            f"lpad(cast(id as string), {BODY_BYTES}, '.') as body",
            "concat('tag-', id % 8) as tags",
            "concat('key-', id) as keys",
        )
        to_topic = generated.write.format("pymq").mode("append")
        to_topic.options(nameServer=name_server, topic="bench-written")
        missed += turns(
            {
                "write a topic": to_topic.save,
                "count": generated.write.format("counting").mode("append").save,
            },
            {"write a topic": WRITE_TARGET},
            rows=rows,
            before=server.warm_log,
        )
        spark.stop()
    if missed:
        print(f"below target: {', '.join(missed)}")
    return 0


def session() -> SparkSession:
    spark = (
        SparkSession.builder.master(f"local[{TASKS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.buffer.size", str(1 << 20))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def codec(client: BulkClient, rows: int) -> tuple[float, bytes]:
    """Fill the topic; return the rate of decoding and one decoded batch as an Arrow stream."""
    keys = UniqueKeyArrays(address=bytes(4), pid=1, salt=b"salt")
    queues = client.write_queues("bench")
    encoding_s = 0.0
    for number, first in enumerate(range(0, rows, CHUNK_ROWS)):
        ids = range(first, min(first + CHUNK_ROWS, rows))
        columns = {
            "body": pa.array([b"%0*d" % (BODY_BYTES, i) for i in ids], pa.binary()),
            "tags": pa.array([b"tag-%d" % (i % 8) for i in ids], pa.binary()),
            "keys": pa.array([b"key-%d" % i for i in ids], pa.binary()),
        }
        started = time.perf_counter()
        encoded = encode_messages(
            columns, keys, month_ms=1, message_bytes_max=1 << 22, place="row {}".format
        ).records(b"bench")
        encoding_s += time.perf_counter() - started
        bodies = encoded.requests(0, len(ids), bytes_max=1 << 20)
        client.send_batches(queues[number % len(queues)], bodies)
    line("encode columns to records, one core", rows / encoding_s)
    schema = arrow_schema(default_schema(properties=False))
    queue = queues[0]
    end = client.bounds([queue])[queue][1]
    buffers = [chunk.buffer for chunk in client.pull_range(queue, 0, min(end, 100_000))]
    best_s, count, first_batch = float("inf"), 0, None
    for _ in range(5):
        started = time.perf_counter()
        for buffer in buffers:
            batches = list(record_batches(read_columns(buffer), queue, schema))
            first_batch = first_batch or batches[0]
        best_s = min(best_s, time.perf_counter() - started)
    count = sum(len(read_columns(buffer)) for buffer in buffers)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(first_batch)
    return count / best_s, sink.getvalue().to_pybytes()


if __name__ == "__main__":
    sys.exit(main())
