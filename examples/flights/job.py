"""The Spark job: departures, mean delay and cancellations for each carrier and hour.

Reads the flights' topic with ``format("pymq")``, decodes Avro, aggregates hours under a watermark
and writes each finished hour as one JSON message with ``writeStream.format("pymq")``. Needs
nothing of this folder but ``flight.avsc``, so that it can be handed to spark-submit::

    spark-submit examples/flights/job.py --name-server 127.0.0.1:9876 --checkpoint DIR

Standard output gets one JSON object for each micro-batch.
"""

import argparse
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

SCHEMA_FILE = Path(__file__).with_name("flight.avsc")
#: Hours stay open this much longer than the latest flight seen: the order of messages is kept
#: within a queue only, and a producer in a hurry puts days between the queues.
LATENESS_DAYS = 7
#: Messages of a micro-batch. Without it the first one takes all there is: no failure, but a
#: stream whose results come in one piece.
OFFSETS_MAX = 60_000

#: What the job uses of a flight, for Spark and for Arrow.
FLIGHT = "carrier STRING, scheduled TIMESTAMP, delay_minutes INT"
ARROW_FLIGHT = pa.schema(
    {
        "carrier": pa.string(),
        "scheduled": pa.timestamp("us", tz="UTC"),
        "delay_minutes": pa.int32(),
    }
)

Batches = Iterator[pa.RecordBatch]


def session() -> SparkSession:
    """Return a session with settings for a small machine; spark-submit's own come first."""
    settings = {
        "spark.master": "local[2]",
        # A third less CPU time for a run of seconds. One of days is better off without.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        # Recommended for Python data sources: no TCP between the JVM and its workers.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.buffer.size": "1048576",
        "spark.sql.shuffle.partitions": "2",
        # Hours are those of UTC, wherever this runs.
        "spark.sql.session.timeZone": "UTC",
    }
    from pyspark import SparkConf

    given = SparkConf()
    builder = SparkSession.builder.appName("flights")
    for name, value in settings.items():
        if not given.contains(name):
            builder = builder.config(name, value)
    return builder.getOrCreate()


def decoder(schema: dict[str, Any]) -> Callable[[Batches], Batches]:
    """Return a function for ``mapInArrow`` that makes flights of Avro bodies."""

    def decode(batches: Batches) -> Batches:
        import fastavro

        parsed = fastavro.parse_schema(schema)
        for batch in batches:
            flights = [
                fastavro.schemaless_reader(io.BytesIO(body), parsed, None)
                for body in batch.column("body").to_pylist()
            ]
            columns = {name: [flight[name] for flight in flights] for name in ARROW_FLIGHT.names}
            yield pa.RecordBatch.from_pydict(columns, schema=ARROW_FLIGHT)

    return decode


def hourly(flights: DataFrame, lateness: timedelta) -> DataFrame:
    """Return one row for each carrier and hour of scheduled departure.

    Nothing may be filtered between here and the source: Spark moves such filters before the
    watermark, which then would not see the closing marker.
    """
    departed = f.count("delay_minutes")
    return (
        flights.withWatermark("scheduled", f"{int(lateness.total_seconds())} seconds")
        .groupBy("carrier", f.window("scheduled", "1 hour").alias("hour"))
        .agg(
            departed.alias("departures"),
            (f.count("*") - departed).alias("cancelled"),
            f.avg("delay_minutes").alias("mean_delay"),
        )
    )


def as_messages(results: DataFrame) -> DataFrame:
    """Return results in the sink's columns: tag carrier, key carrier and hour, body JSON."""
    hour = f.date_format("hour.start", "yyyy-MM-dd'T'HH:mm:ssXXX").alias("hour")
    body = f.struct("carrier", hour, "departures", "cancelled", "mean_delay")
    return results.select(
        f.col("carrier").alias("tags"),
        f.concat_ws("-", "carrier", f.date_format("hour.start", "yyyyMMdd'T'HHmm")).alias("keys"),
        f.to_json(body, {"ignoreNullFields": "false"}).alias("body"),
    )


def start(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    """Start the query."""
    messages = (
        spark.readStream.format("pymq")
        .option("nameServer", options.name_server)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.max_offsets)
        .schema("body BINARY")  # all other columns would be made for nothing
        .load()
    )
    schema = json.loads(SCHEMA_FILE.read_text())
    flights = messages.mapInArrow(decoder(schema), FLIGHT)
    writer = (
        as_messages(hourly(flights, timedelta(days=options.lateness_days)))
        .writeStream.format("pymq")
        .option("nameServer", options.name_server)
        .option("topic", options.result_topic)
        .option("checkpointLocation", options.checkpoint)
        .outputMode("append")
    )
    if options.available_now:
        writer = writer.trigger(availableNow=True)
    return writer.start()


class Progress:
    """Reports each micro-batch of a query once.

    Args:
        query: whose.
        report: takes the values of one micro-batch.
    """

    def __init__(self, query: StreamingQuery, report: Callable[[dict[str, Any]], None]) -> None:
        self._query = query
        self._report = report
        self._last_batch = -1
        self._rows = 0
        #: What the latest micro-batch took for the watermark; None before there is one.
        self.watermark: datetime | None = None

    def update(self) -> None:
        """Report what has been finished since the last time."""
        for progress in self._query.recentProgress:
            if progress.batchId <= self._last_batch or "addBatch" not in progress.durationMs:
                continue  # known, or a sign of life of an idle query
            self._last_batch = progress.batchId
            self._rows += progress.numInputRows
            watermark = progress.eventTime.get("watermark")
            if watermark is not None:
                self.watermark = datetime.fromisoformat(watermark)
            self._report(
                {
                    "batch": progress.batchId,
                    "rows": progress.numInputRows,
                    "rowsTotal": self._rows,
                    "rowsTooLate": sum(
                        state.numRowsDroppedByWatermark for state in progress.stateOperators
                    ),
                    "resultsWritten": progress.sink.numOutputRows,
                    "seconds": progress.durationMs["triggerExecution"] / 1000,
                    "watermark": watermark,
                }
            )


def run(options: argparse.Namespace) -> None:
    """Run the query until it ends, or has passed ``--until``, or is told to end."""
    spark = session()
    spark.sparkContext.setLogLevel("ERROR")
    query = None
    try:
        query = start(spark, options)
        progress = Progress(query, lambda values: print(json.dumps(values), flush=True))
        ended = False
        while not ended:
            ended = query.awaitTermination(0.2)
            progress.update()
            if options.until and progress.watermark and progress.watermark >= options.until:
                break
    finally:
        if query is not None:
            query.stop()
        spark.stop()


def instant(text: str) -> datetime:
    """Return a time with its zone."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text}: expected a time with a zone, such as {text}Z")
    return time


def main() -> int:
    """Run the job."""
    parser = argparse.ArgumentParser(description="Delays of flights by carrier and hour.")
    parser.add_argument("--name-server", default="127.0.0.1:9876", metavar="HOST:PORT[;...]")
    parser.add_argument("--topic", default="flights", help="default: %(default)s")
    parser.add_argument("--result-topic", default="flight-delays", help="default: %(default)s")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="progress and state")
    parser.add_argument(
        "--lateness-days",
        type=float,
        default=LATENESS_DAYS,
        metavar="N",
        help="how far behind the latest flight an hour is closed (%(default)s)",
    )
    parser.add_argument(
        "--max-offsets",
        type=int,
        default=OFFSETS_MAX,
        metavar="N",
        help="messages of a micro-batch, at most (%(default)s)",
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "--available-now", action="store_true", help="end when everything that is there now is done"
    )
    end.add_argument(
        "--until",
        type=instant,
        metavar="TIME",
        help="end when the hours before this time are closed",
    )
    options = parser.parse_args()
    # The way out of `run` also stops the JVM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(options)
    except PySparkException as error:
        cause, _, _ = str(error).partition("\n=== Streaming Query ===")  # its plan: pages of it
        print(f"job.py: {cause}", file=sys.stderr)
        return 1
    except (Py4JError, OSError) as error:
        print(f"job.py: Spark's Java process is gone: {error!r}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
