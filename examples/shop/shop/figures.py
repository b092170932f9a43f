"""Figures of the shop, by Spark: ``python -m shop.figures --broker ... --checkpoint ...``.

A Structured Streaming query reads ``orderTopic`` and ``payTopic``, and whenever something has come
writes a ``Figure`` of each minute and goods that it changes to ``shop-figures``.

It is one aggregation. Relays send some messages twice, so what is kept of a minute and goods is
*sets* (ids of orders, payments with their amounts), whose sizes and sums are the figures: a copy
changes nothing. Each event has its time from its message, so that a copy falls into the same
minute. Two events come of a payment: turnover, when it was paid, and the conversion of the minute
in which its order was confirmed.

Sets of minutes that ended ``LATE`` before the newest event are dropped: what comes later is not
counted, and the log says so. What is kept in memory is therefore an hour of ids.

A message that cannot be read changes no figure but ``unreadable``: of the minute in which it was
stored, with its place. So is one whose time is in the future, as it would drop everything else.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from pymq import Admin
from pymq import spark as pymq_spark
from shop import money
from shop.settings import PATIENT, from_arguments
from shop.topics import (
    CREATE_TIME,
    FIGURES_TOPIC,
    NO_GOODS,
    ORDER_CANCEL,
    ORDER_CONFIRMED,
    ORDER_TOPIC,
    PAID,
    PAY_TOPIC,
)

_log = logging.getLogger(__name__)

LATE = "1 hour"
#: How far ahead of the brokers' clocks those of services may be.
AHEAD_MS = 60_000
SHOWN_COUNT = 5
QUEUE_COUNT = 4
#: Parts of the state, for good: another number needs another checkpoint.
PARTITIONS = 2
#: State of old minutes is dropped by the next micro-batch with messages, not by one of its own.
NO_EMPTY = ("spark.sql.streaming.noDataMicroBatches.enabled", "false")
_BODY = "orderId string, goodsId string, payId string, payAmount string"
_BODY += ", confirmTime bigint, payTime bigint"
_PLACE = "topic string, brokerName string, queueId int, queueOffset long, storeTimestamp timestamp"
_AMOUNT = "decimal(38, 2)"


def _events() -> Column:
    """What a message means: an array of {kind, at, goodsId, id, amount}."""
    tag, value = f.col("tags"), f.col("value")
    order, goods = value["orderId"], value["goodsId"]
    stored = f.unix_millis("storeTimestamp")

    def event(kind: str, at: Column, goods: Column, name: Column) -> Column:
        amount = value["payAmount"] if kind == "paid" else f.lit(None)
        return f.struct(
            f.lit(kind).alias("kind"),
            at.alias("at"),
            goods.alias("goodsId"),
            name.alias("id"),
            amount.try_cast(_AMOUNT).alias("amount"),
        )

    def known(at: Column, *others: Column) -> Column:
        found = at.between(0, stored + AHEAD_MS)
        for other in others:
            found &= other.isNotNull()
        return f.coalesce(found, f.lit(False))

    cancelled_at = f.col("properties")[CREATE_TIME].try_cast("bigint")
    paid_at, confirmed_at = value["payTime"], value["confirmTime"]
    was_confirmed = known(confirmed_at, order)
    paid = event("paid", paid_at, f.coalesce(goods, f.lit(NO_GOODS)), value["payId"])
    is_amount = f.coalesce(value["payAmount"].rlike(f"^{money.PATTERN}$"), f.lit(False))
    place = f.concat_ws("/", "topic", "brokerName", "queueId", "queueOffset")
    return (
        f.when(
            (tag == ORDER_CONFIRMED) & known(confirmed_at, order, goods),
            f.array(event("confirmed", confirmed_at, goods, order)),
        )
        .when(
            (tag == ORDER_CANCEL) & known(cancelled_at, order, goods),
            f.array(event("cancelled", cancelled_at, goods, order)),
        )
        .when(
            (tag == PAID) & known(paid_at, value["payId"]) & is_amount & was_confirmed
            & goods.isNotNull(),
            f.array(paid, event("converted", confirmed_at, goods, order)),
        )
        .when(
            (tag == PAID) & known(paid_at, value["payId"]) & is_amount & confirmed_at.isNull(),
            f.array(paid),
        )
        .otherwise(f.array(event("unreadable", stored, f.lit(NO_GOODS), place)))
    )


def _sums() -> list[Column]:
    """The figures of a group of events."""

    def ids(kind: str) -> Column:
        return f.collect_set(f.when(f.col("kind") == kind, f.col("id")))

    payments = f.collect_set(f.when(f.col("kind") == "paid", f.struct("id", "amount")))
    nothing = f.lit("0.00").cast(_AMOUNT)
    turnover = f.aggregate(
        payments, nothing, lambda total, one: (total + one["amount"]).cast(_AMOUNT)
    )
    counts = [f.size(ids(kind)).alias(kind) for kind in ("confirmed", "converted", "cancelled")]
    unreadable = f.sort_array(ids("unreadable"))
    return [
        *counts,
        f.size(payments).alias("paid"),
        turnover.cast("string").alias("turnover"),
        f.size(unreadable).alias("unreadable"),
        f.slice(unreadable, 1, SHOWN_COUNT).alias("unreadableAt"),
    ]


def figures(
    spark: SparkSession, broker: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return a stream of figures, to be written in output mode update.

    Args:
        spark: where it runs.
        broker: address of the name server.
        options: more of the source, such as ``maxOffsetsPerTrigger``.

    Returns:
        Columns ``value``, a struct with the members of a ``Figure``, ``keys`` and ``shardingKey``.
    """
    messages = (
        spark.readStream.format("pymq")
        .option("nameServer", broker)
        .option("subscribe", f"{ORDER_TOPIC},{PAY_TOPIC}")
        .option("tags", f"{ORDER_CONFIRMED} || {ORDER_CANCEL} || {PAID}")
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("badRecords", "null")
        .options(**options or {})
        .schema(f"{_PLACE}, tags string, properties map<string, string>, value struct<{_BODY}>")
        .load()
    )
    events = messages.select(f.explode(_events()).alias("event")).select("event.*")
    sums = (
        events.withColumn("at", f.timestamp_millis("at"))
        .withWatermark("at", LATE)
        .groupBy(f.window("at", "1 minute").alias("window"), "goodsId")
        .agg(*_sums())
    )
    value = f.struct(
        f.unix_millis("window.start").alias("minute"),
        *[name for name in sums.columns if name != "window"],
        # The time of the micro-batch: the same when it is run again.
        f.unix_millis(f.current_timestamp()).alias("asOf"),
    )
    goods = f.col("goodsId")
    return sums.select(value.alias("value"), goods.alias("keys"), goods.alias("shardingKey"))


def start(
    spark: SparkSession,
    broker: str,
    checkpoint: str,
    *,
    every: str | None = None,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start the query; it goes on from its checkpoint.

    Args:
        spark: where it runs.
        broker: address of the name server.
        checkpoint: folder of the query's progress.
        every: how often it looks for messages, ``5 seconds``; ``None``: it ends when all that is
            there has been read.
        options: as in ``figures``.
    """

    def write(batch: DataFrame, _: int) -> None:
        # Written once, however often the micro-batch is run: its number is known to the broker.
        (
            batch.write.format("pymq")
            .mode("append")
            .option("nameServer", broker)
            .option("topic", FIGURES_TOPIC)
            .option("valueFormat", "json")
            .option("txnAppId", f"{FIGURES_TOPIC} {_query_id(batch)}")
            .save()
        )

    query = (
        figures(spark, broker, options)
        .writeStream.outputMode("update")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(write)
    )
    if every is None:
        return query.trigger(availableNow=True).start()
    return query.trigger(processingTime=every).start()


def _query_id(batch: DataFrame) -> str:
    """The id that is in the checkpoint: another one is another sink."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found is not None, "this is called by foreachBatch"
    return found


class LateListener(StreamingQueryListener):
    """Logs what came too late."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is late yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Say how much was not counted."""
        late = sum(one.numRowsDroppedByWatermark for one in event.progress.stateOperators)
        if late:
            _log.warning(
                "micro-batch %d: events of %d minutes and goods came more than %s after newer ones "
                "and are not counted",
                *(event.progress.batchId, late, LATE),
            )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Its caller is told."""


def session(master: str) -> SparkSession:
    """Return a session for this job."""
    builder = SparkSession.builder.master(master).appName(FIGURES_TOPIC)
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        NO_EMPTY[0]: NO_EMPTY[1],
    }
    return pymq_spark.tune(builder.config(map=settings)).getOrCreate()


async def _create_topics(broker: str) -> None:
    async with Admin(broker, network=PATIENT) as admin:
        there = await admin.topics.names()
        for topic in (ORDER_TOPIC, PAY_TOPIC, FIGURES_TOPIC):
            if topic not in there:
                await admin.topics.create(topic, queue_count=QUEUE_COUNT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the query until it fails; return the exit status.

    It is ended by any signal, at any time: what it has written is known to the brokers, and the
    JVM ends with this process.
    """
    parser = argparse.ArgumentParser(prog="python -m shop.figures")
    parser.add_argument(
        "--checkpoint", default="shop-data/figures", help="folder of the job's progress"
    )
    parser.add_argument("--every", default="2 seconds", help="how often it looks for messages")
    parser.add_argument("--master", default="local[2]", help="of Spark")
    settings, given = from_arguments(parser, arguments)
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(message)s"
    )
    asyncio.run(_create_topics(settings.broker))
    spark = session(given.master)
    spark.sparkContext.setLogLevel("ERROR")  # its warnings are the same for each micro-batch
    spark.streams.addListener(LateListener())
    start(spark, settings.broker, given.checkpoint, every=given.every).awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
