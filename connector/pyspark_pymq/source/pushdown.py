"""Filters of batch queries that decide which queues, and which of their offsets, are read.

Spark hands filters over when ``spark.sql.python.filterPushdown.enabled`` is true, in a process of
its own. In any other process a reader that takes filters is an error: ``data_source`` makes a
``FilteringBatchReader`` only there.

=============================================  ==============================================
conditions on                                  what becomes of them
=============================================  ==============================================
topic, brokerName, queueId (partition)         queues are left out; Spark does not look again
queueOffset (offset): ``= < <= > >=``          ranges are cut; Spark does not look again
queueOffset (offset): ``IN``                   ranges are cut to what lies between
storeTimestamp (timestamp): ``= < <= > >=``,   ranges are cut where brokers find the time; Spark
``IN``                                         evaluates the condition
everything else                                Spark evaluates it
=============================================  ==============================================

Times in a queue ascend, unless its broker's clock was set back: what was stored with a time of the
past may then be left out, as it is for everybody who looks for a time in a queue.
"""

import datetime
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Offsets, QueueRange, TopicIds
from pyspark_pymq.source.batch_reader import PymqBatchReader
from pyspark_pymq.source.columns import BODY_COLUMNS, COLUMNS
from pyspark_pymq.source.lookups import offset_at
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.source.source import QueuesPartition

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS = datetime.timedelta(milliseconds=1)

#: Columns of Kafka's names -> what they are here.
_OURS = {"partition": "queueId", "offset": "queueOffset", "timestamp": "storeTimestamp"}
_OF_QUEUES: dict[str, tuple[type, Callable[[MessageQueue], Any]]] = {
    "topic": (str, operator.attrgetter("topic")),
    "brokerName": (str, operator.attrgetter("broker_name")),
    "queueId": (int, operator.attrgetter("queue_id")),
}
#: A body that cannot be decompressed is null with ``corruptBodies=null``.
_NEVER_NULL = {name for name, column in COLUMNS.items() if not column.may_be_null} - BODY_COLUMNS

Comparison: TypeAlias = (
    EqualTo
    | EqualNullSafe
    | GreaterThan
    | GreaterThanOrEqual
    | LessThan
    | LessThanOrEqual
    | In
    | StringStartsWith
    | StringEndsWith
    | StringContains
)
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, values: value in values,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}


class OffsetFilters:
    """What the filters of one query leave of the ranges it would read."""

    def __init__(self) -> None:
        self._queue_tests: list[Callable[[MessageQueue], bool]] = []
        self._first = 0
        self._end: int | None = None
        self._since_ms: int | None = None
        self._until_ms: int | None = None  # inclusive

    def take(self, condition: Filter) -> bool:
        """Take a filter over, as far as that is possible.

        Returns:
            Whether every row that is read from now on fulfils it.
        """
        match condition:
            case IsNotNull((column,)):
                return column in _NEVER_NULL
            case Not(child):
                return self._take_queue_test(child, is_negated=True)
        name, value = _operands(condition)
        if name in _OF_QUEUES:
            return self._take_queue_test(condition)
        if name == "queueOffset":
            return self._take_offsets(condition, value)
        if name == "storeTimestamp":
            self._take_times(condition, value)
        return False

    def narrow(
        self,
        wanted: Iterable[QueueRange],
        offsets_at: Callable[[Sequence[QueueRange], int], Offsets],
    ) -> list[QueueRange]:
        """Return what is left of some ranges.

        Args:
            wanted: the ranges.
            offsets_at: asks brokers for the first messages since a moment (ms) in ranges; queues
                of those that do not answer are left out.
        """
        kept = [part for part in wanted if all(test(part.queue) for test in self._queue_tests)]
        starts: Offsets = {}
        if self._since_ms is not None:
            starts = offsets_at(kept, max(self._since_ms, 0))
        ends: Offsets = {}
        if self._until_ms is not None:
            ends = offsets_at(kept, max(self._until_ms + 1, 0))
        narrowed = []
        for part in kept:
            first = max(part.first, self._first, starts.get(part.queue, part.first))
            end = min(part.end, ends.get(part.queue, part.end))
            if self._end is not None:
                end = min(end, self._end)
            if first < end:
                narrowed.append(QueueRange(part.queue, first, end))
        return narrowed

    def _take_queue_test(self, condition: Filter, *, is_negated: bool = False) -> bool:
        name, value = _operands(condition)
        compare = _COMPARISONS.get(type(condition))
        if name not in _OF_QUEUES or compare is None:
            return False
        kind, read = _OF_QUEUES[name]
        values = value if isinstance(condition, In) else (value,)
        if any(type(one) is not kind for one in values):  # NULL among them: never true
            return False
        self._queue_tests.append(lambda queue: compare(read(queue), value) is not is_negated)
        return True

    def _take_offsets(self, condition: Filter, value: Any) -> bool:
        values = value if isinstance(condition, In) else (value,)
        if not values or any(type(one) is not int for one in values):
            return False
        match condition:
            case EqualTo() | EqualNullSafe() | In():
                self._cut(first=min(values), end=max(values) + 1)
            case GreaterThan():
                self._cut(first=value + 1)
            case GreaterThanOrEqual():
                self._cut(first=value)
            case LessThan():
                self._cut(end=value)
            case LessThanOrEqual():
                self._cut(end=value + 1)
            case _:
                return False
        return not isinstance(condition, In)

    def _cut(self, *, first: int = 0, end: int | None = None) -> None:
        self._first = max(self._first, first)
        if end is not None:
            self._end = end if self._end is None else min(self._end, end)

    def _take_times(self, condition: Filter, value: Any) -> None:
        values = value if isinstance(condition, In) else (value,)
        if not values or not all(
            isinstance(one, datetime.datetime) and one.tzinfo is not None for one in values
        ):
            return
        times_ms = [(one - _EPOCH) // _MS for one in values]
        if isinstance(condition, (EqualTo, EqualNullSafe, In, GreaterThan, GreaterThanOrEqual)):
            since_ms = min(times_ms)
            self._since_ms = max(since_ms, since_ms if self._since_ms is None else self._since_ms)
        if isinstance(condition, (EqualTo, EqualNullSafe, In, LessThan, LessThanOrEqual)):
            until_ms = max(times_ms)
            self._until_ms = min(until_ms, until_ms if self._until_ms is None else self._until_ms)


def _operands(condition: Filter) -> tuple[str | None, Any]:
    """Return the column of a filter, by the name it has here, and what it is compared with."""
    if not isinstance(condition, Comparison) or len(condition.attribute) != 1:
        return None, None
    (name,) = condition.attribute
    return _OURS.get(name, name), condition.value


class FilteringBatchReader(PymqBatchReader):
    """A batch reader that reads what some filters leave."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._filters = OffsetFilters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters over; return those that Spark must evaluate."""
        return [condition for condition in filters if not self._filters.take(condition)]

    def _partitions(
        self, wanted: Sequence[QueueRange], topic_ids: TopicIds
    ) -> list[QueuesPartition]:
        try:
            return super()._partitions(
                self._filters.narrow(wanted, self._offsets_at), topic_ids
            )
        finally:
            self._topics.close()

    def _offsets_at(self, wanted: Sequence[QueueRange], timestamp_ms: int) -> Offsets:
        bounds = {part.queue: (part.first, part.end) for part in wanted}
        found, _ = self._topics.look_up(
            sorted(bounds),
            lambda client, queue: offset_at(
                client,
                queue,
                timestamp_ms,
                bounds=bounds[queue],
                group=self._options.consumer_group,
            ),
        )
        return found
