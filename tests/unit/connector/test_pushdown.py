"""Filters that Spark hands over: what is read then, and what Spark must still evaluate."""

import bisect
import datetime
import random
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import datasource as spark

if not hasattr(spark, "Filter"):
    pytest.skip("Spark 4.0 hands over no filters", allow_module_level=True)

from pyspark.sql.datasource import Filter
from tests.unit.connector.fake import FakeBroker
from tests.unit.connector.reading import B0, OPTIONS, Q0, Q1, SCHEMA, planned

from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Offsets, QueueRange
from pyspark_pymq.source.option_checks import source_options
from pyspark_pymq.source.pushdown import FilteringBatchReader, OffsetFilters

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
QUEUES = [MessageQueue(t, b, q) for t in ("orders", "orders-2") for b in "ab" for q in range(3)]
#: Messages of every queue: (offset, time in ms); some are stored in the same ms.
TIMES_MS = [1000, 1005, 1005, 1005, 1010, 1011, 1030]
FIRST = 3


def at(ms: float) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=ms)


def column(name: str) -> tuple[str]:
    return (name,)


def row_of(queue: MessageQueue, offset: int) -> dict[str, Any]:
    row = {
        "topic": queue.topic,
        "brokerName": queue.broker_name,
        "queueId": queue.queue_id,
        "queueOffset": offset,
        "storeTimestamp": at(TIMES_MS[offset - FIRST]),
    }
    kafka = {"partition": "queueId", "offset": "queueOffset", "timestamp": "storeTimestamp"}
    return row | {name: row[ours] for name, ours in kafka.items()}


def holds(condition: Filter, row: dict[str, Any]) -> bool:
    """What Spark makes of a filter, as its documentation says."""
    match condition:
        case spark.IsNotNull((name,)):
            return row[name] is not None
        case spark.Not(child):
            return not holds(child, row)
        case spark.EqualTo((name,), value) | spark.EqualNullSafe((name,), value):
            return bool(row[name] == value)
        case spark.GreaterThan((name,), value):
            return bool(row[name] > value)
        case spark.GreaterThanOrEqual((name,), value):
            return bool(row[name] >= value)
        case spark.LessThan((name,), value):
            return bool(row[name] < value)
        case spark.LessThanOrEqual((name,), value):
            return bool(row[name] <= value)
        case spark.In((name,), values):
            return row[name] in values
        case spark.StringStartsWith((name,), value):
            return bool(row[name].startswith(value))
    raise AssertionError(condition)


def offsets_at(wanted: Sequence[QueueRange], ms: int) -> Offsets:
    found = bisect.bisect_left(TIMES_MS, ms)
    return {part.queue: FIRST + found for part in wanted}


def random_filter(source: random.Random) -> Filter:
    name, values = source.choice(
        [
            ("topic", ["orders", "orders-2", "none"]),
            ("brokerName", ["a", "b", "c"]),
            (source.choice(["queueId", "partition"]), [0, 1, 2, 7]),
            (source.choice(["queueOffset", "offset"]), [0, 3, 5, 6, 9, 12]),
            (
                source.choice(["storeTimestamp", "timestamp"]),
                [at(ms) for ms in (900, 1000, 1004.5, 1005, 1007, 1010.001, 1030, 1031)],
            ),
        ]
    )
    kind = source.choice(
        [
            spark.EqualTo,
            spark.EqualNullSafe,
            spark.GreaterThan,
            spark.GreaterThanOrEqual,
            spark.LessThan,
            spark.LessThanOrEqual,
            spark.In,
            spark.IsNotNull,
            spark.StringStartsWith,
        ]
    )
    if kind is spark.StringStartsWith and not isinstance(values[0], str):
        kind = spark.EqualTo
    if kind is spark.IsNotNull:
        return spark.IsNotNull(column(name))
    value: Any = source.choice(values)
    if kind is spark.In:
        value = tuple(source.sample(values, source.randrange(1, 3)))
    found: Filter = kind(column(name), value)
    return spark.Not(found) if source.random() < 0.2 else found


def test_nothing_is_missing_and_nothing_too_much(seed: int) -> None:
    """Of random filters: what is left of them must hold of what is read, and be all there is."""
    source = random.Random(seed)
    narrowed = 0
    for _ in range(2000):
        conditions = [random_filter(source) for _ in range(source.randrange(1, 4))]
        filters = OffsetFilters()
        rest = [condition for condition in conditions if not filters.take(condition)]
        wanted = [QueueRange(queue, FIRST, FIRST + len(TIMES_MS)) for queue in QUEUES]
        ranges = filters.narrow(wanted, offsets_at)
        read = [(part.queue, offset) for part in ranges for offset in range(part.first, part.end)]
        everything = [(p.queue, offset) for p in wanted for offset in range(p.first, p.end)]
        narrowed += len(read) < len(everything)
        assert sorted(place for place in read if all(holds(c, row_of(*place)) for c in rest)) == [
            place for place in everything if all(holds(c, row_of(*place)) for c in conditions)
        ], conditions
    assert narrowed > 1000


@pytest.mark.parametrize(
    "condition",
    [
        spark.EqualTo(column("tags"), "A"),
        spark.IsNotNull(column("tags")),
        spark.IsNotNull(column("body")),  # null with corruptBodies=null
        spark.IsNull(column("topic")),
        spark.EqualTo(("properties", "topic"), "orders"),
        spark.EqualTo(column("topic"), None),
        spark.In(column("topic"), ("orders", None)),
        spark.Not(spark.In(column("queueId"), (1, None))),
        spark.Not(spark.EqualTo(column("queueOffset"), 5)),
        spark.EqualTo(column("queueOffset"), "5"),
        spark.GreaterThan(column("storeTimestamp"), datetime.datetime(1970, 1, 1)),
    ],
    ids=repr,
)
def test_what_spark_has_to_evaluate(condition: Filter) -> None:
    filters = OffsetFilters()
    assert not filters.take(condition)
    wanted = [QueueRange(queue, 0, 5) for queue in QUEUES]
    assert filters.narrow(wanted, offsets_at) == wanted


def test_a_broker_that_does_not_answer_is_read_in_full() -> None:
    filters = OffsetFilters()
    assert not filters.take(spark.EqualTo(column("storeTimestamp"), at(1010)))
    wanted = [QueueRange(queue, FIRST, 10) for queue in QUEUES[:2]]
    answer = filters.narrow(wanted, lambda wanted, ms: offsets_at(wanted[:1], ms))
    assert answer[1] == wanted[1] and len(answer[0]) < len(wanted[0])


def test_a_reader_plans_what_is_left(two: FakeBroker) -> None:
    reader = FilteringBatchReader(source_options(OPTIONS), SCHEMA)
    tags = spark.EqualTo(column("tags"), "A")
    since = spark.GreaterThan(column("storeTimestamp"), at(2000))
    two.offset_at[2000] = 7
    given = [
        spark.EqualTo(column("brokerName"), "broker-a"),
        tags,
        spark.LessThan(column("queueOffset"), 12),
        since,
    ]
    assert list(reader.pushFilters(given)) == [tags, since]
    assert planned(reader.partitions()) == [(0, 7, 12), (1, 7, 10)]
    assert {call[1] for call in two.calls if call[0] == "offset_by_time"} == {Q0, Q1}
    assert two.open_clients == 0
    reader.pushFilters([spark.EqualTo(column("brokerName"), "none")])
    assert reader.partitions() == []
    assert B0 in two.queues
