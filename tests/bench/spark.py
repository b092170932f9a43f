"""Speed of the Spark source and sink, beside the most that Spark's Python data sources reach.

Run it with ``./build.sh bench-spark ceiling [MILLIONS]``. In one run, taking turns:

* read a topic into ``noop``, beside a data source that yields prebuilt Arrow batches with the same
  columns and rows: what is left of the ceiling after fetching and decoding;
* write generated rows to a topic, beside a data source that encodes them and discards the result,
  and one that only counts them;
* micro-batches of a few rows: ``micro_batches``.

Messages have bodies of 100 B, a tag, a key and an id. Broker, JVM and Python workers share the
machine, as in ``local[2]``; ratios mean more than rates. The log is as users have it: not warmed.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping

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
from tests.bench.micro_batches import micro_batches
from tests.bench.serving import serving
from tests.bench.turns import ROUNDS, to_noop, turns, verdict

from pymq import spark as pymq_spark
from pymq.client.sockets.bulk_client import BulkClient
from pymq.columns.encoding import Encoded, encode_messages
from pymq.columns.unique_key_arrays import UniqueKeyArrays
from pymq.protocol.record_batch import read_columns
from pyspark_pymq.source.columns import USUAL, arrow_schema, default_schema
from pyspark_pymq.source.decode import record_batches

TASKS = 2
BODY_BYTES = 100
CHUNK_ROWS = 10_000
DECODE_TARGET = 1.5e6
#: Of the ceilings.
READ_TARGETS = {False: 0.7, True: 0.55}  # without, with properties
WRITE_TARGET = 0.75


class Prebuilt(DataSource):
    """Yields one Arrow batch again and again: the ceiling of every source.

    Options are the source's ``columns`` and ``includeProperties``, ``rows`` and ``batch``, an Arrow
    stream in hexadecimal digits.
    """

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> StructType:
        options = self.options
        return default_schema(
            options.get("columns", USUAL).split(","),
            properties=options.get("includeProperties") == "true",
        )

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


class Encoding(DataSource):
    """Encodes Arrow batches as the sink does, and discards the result."""

    @classmethod
    def name(cls) -> str:
        return "encoding"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return EncodingWriter()


class EncodingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        keys = UniqueKeyArrays(address=bytes(4), pid=1, salt=b"salt")
        for batch in iterator:
            columns = {
                name: batch.column(name).cast(pa.binary()) for name in ("body", "tags", "keys")
            }
            _encoded(columns, keys)
        return Counted()


def main() -> int:
    rows = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 1_000_000
    print(describe())
    print(f"run       local[{TASKS}], bodies of {BODY_BYTES} B, {rows} rows, {ROUNDS} rounds")
    missed = []
    with serving("async") as server, BulkClient((server.name_server,)) as client:
        spark = session()
        rate, batches = codec(client, rows)
        missed += verdict("decode to default columns, one core", rate, DECODE_TARGET, "/s")
        missed += reads(spark, server.name_server, rows, batches)
        missed += writes(spark, server.name_server, rows)
        missed += micro_batches(spark, server.name_server, batches[False])
        spark.stop()
    if missed:
        print(f"below target: {', '.join(missed)}")
    return 0


def reads(
    spark: SparkSession, name_server: str, rows: int, batches: Mapping[bool, bytes]
) -> list[str]:
    """Time reads, without and with properties; return what is below its target."""
    spark.dataSource.register(Prebuilt)
    missed = []
    for with_properties, target in READ_TARGETS.items():
        given = str(with_properties).lower()
        topic = spark.read.format("pymq").options(
            nameServer=name_server,
            subscribe="bench",
            minPartitions=TASKS,
            includeProperties=given,
        )
        ceiling = spark.read.format("prebuilt").options(
            batch=batches[with_properties].hex(), rows=rows, includeProperties=given
        )
        name = "read a topic" + ", with properties" * with_properties
        missed += turns(
            {
                name: lambda topic=topic: to_noop(topic.load()),
                "prebuilt batches": lambda ceiling=ceiling: to_noop(ceiling.load()),
            },
            {name: target},
            rows=rows,
        )
    return missed


def writes(spark: SparkSession, name_server: str, rows: int) -> list[str]:
    """Time writes; return what is below its target."""
    spark.dataSource.register(Counting)
    spark.dataSource.register(Encoding)
    generated = spark.range(0, rows, 1, TASKS).selectExpr(
        # lpad of whole bodies takes longer than writing them.
        f"concat('{'.' * (BODY_BYTES - 8)}', lpad(cast(id as string), 8, '0')) as body",
        "concat('tag-', id % 8) as tags",
        "concat('key-', id) as keys",
    )
    to_topic = generated.write.format("pymq").mode("append")
    to_topic.options(nameServer=name_server, topic="bench-written")
    return turns(
        {
            "at least once": to_topic.option("delivery", "atLeastOnce").save,
            "count": generated.write.format("counting").mode("append").save,
            "encode and discard": generated.write.format("encoding").mode("append").save,
        },
        {"at least once": WRITE_TARGET},
        rows=rows,
    )


def session() -> SparkSession:
    spark = (
        pymq_spark.tune(SparkSession.builder.master(f"local[{TASKS}]"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def codec(client: BulkClient, rows: int) -> tuple[float, dict[bool, bytes]]:
    """Fill the topic; return the rate of decoding, and decoded batches as Arrow streams.

    The batches are one without and one with properties.
    """
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
        encoded = _encoded(columns, keys)
        encoding_s += time.perf_counter() - started
        bodies = encoded.requests(0, len(ids), bytes_max=1 << 20)
        client.send_batches(queues[number % len(queues)], bodies)
    line("encode columns to records, one core", rows / encoding_s)
    queue = queues[0]
    end = client.bounds([queue])[queue][1]
    buffers = [chunk.buffer for chunk in client.pull_range(queue, 0, min(end, 100_000))]
    schema = arrow_schema(default_schema(properties=False))
    best_s = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for buffer in buffers:
            list(record_batches(read_columns(buffer), queue, schema))
        best_s = min(best_s, time.perf_counter() - started)
    count = sum(len(read_columns(buffer)) for buffer in buffers)
    return count / best_s, {
        given: decoded_batch(client, "bench", properties=given) for given in READ_TARGETS
    }


def decoded_batch(
    client: BulkClient, topic: str, columns: Iterable[str] = (USUAL,), *, properties: bool = False
) -> bytes:
    """Return the first decoded batch of a topic as an Arrow stream.

    Args:
        client: reads it.
        topic: not empty in its first queue.
        columns, properties: as the source's options ``columns`` and ``includeProperties``.
    """
    schema = arrow_schema(default_schema(columns, properties=properties))
    queue = client.read_queues(topic)[0]
    end = client.bounds([queue])[queue][1]
    chunk = next(client.pull_range(queue, 0, min(end, 100_000)))
    return _stream(next(record_batches(read_columns(chunk.buffer), queue, schema)))


def _encoded(columns: Mapping[str, pa.Array], keys: UniqueKeyArrays) -> Encoded:
    return encode_messages(
        columns, keys, month_ms=1, message_bytes_max=1 << 22, place="row {}".format
    ).records(b"bench")


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


if __name__ == "__main__":
    sys.exit(main())
