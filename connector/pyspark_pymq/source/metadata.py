"""``option("metadata", "topics")``: the queues of the subscribed topics as a table.

One row for each queue, as its broker described it when the query was planned. Committed offsets
are those of ``consumerGroup``, and null without that option, or where the group committed none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType

from pymq.client import operations
from pymq.client.cluster.routes import Route
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import PymqError, RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import named
from pyspark_pymq.source.columns import Column, arrow_schema, schema_of
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.source.query_start import QueryStart
from pyspark_pymq.source.subscribed_topics import SubscribedTopics
from pyspark_pymq.values.spark_types import arrow_type


@dataclass(frozen=True, slots=True)
class QueueState:
    """One row: a queue, its bounds, and how far a group is in it (None: it committed nothing)."""

    queue: MessageQueue
    first: int
    end: int
    committed: int | None

    @property
    def lag(self) -> int | None:
        """Messages that the group has not consumed yet."""
        return None if self.committed is None else max(self.end - self.committed, 0)


_States = Sequence[QueueState]
_TEXT, _INT, _LONG = StringType(), IntegerType(), LongType()


def _column(
    kind: DataType,
    value: Callable[[QueueState], object],
    *,
    may_be_null: bool = False,
) -> Column[_States]:
    arrow = arrow_type(kind)
    return Column(kind, lambda rows: pa.array(map(value, rows), arrow), may_be_null=may_be_null)


QUEUE_COLUMNS: Mapping[str, Column[_States]] = {
    "topic": _column(_TEXT, lambda row: row.queue.topic),
    "brokerName": _column(_TEXT, lambda row: row.queue.broker_name),
    "queueId": _column(_INT, lambda row: row.queue.queue_id),
    "minOffset": _column(_LONG, lambda row: row.first),
    "maxOffset": _column(_LONG, lambda row: row.end),
    "committedOffset": _column(_LONG, lambda row: row.committed, may_be_null=True),
    "lag": _column(_LONG, lambda row: row.lag, may_be_null=True),
}


def queue_schema() -> StructType:
    """Return the columns that are read when the user gives no schema."""
    return schema_of({name: column.spark_type for name, column in QUEUE_COLUMNS.items()})


@dataclass(frozen=True)
class StatesPartition(InputPartition):
    """The rows of the table; they are found out on the driver."""

    states: tuple[QueueState, ...]


class QueueStatesReader(DataSourceReader):
    """Reads the queues of the subscribed topics as rows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the brokers.

        Raises:
            RouteNotFound: there is no such topic, or a broker of ``expectedBrokers`` is away.
            PymqError: brokers could not be asked.
        """
        topics = SubscribedTopics(self._options)
        try:
            bounds = QueryStart(self._options, topics).bounds([])
        finally:
            topics.close()
        queues = sorted(bounds)
        committed = self._committed(queues, topics.routes()) if self._options.has_group else {}
        states = (QueueState(queue, *bounds[queue], committed.get(queue)) for queue in queues)
        return [StatesPartition(tuple(states))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        assert isinstance(partition, StatesPartition)
        columns = arrow_schema(self._schema)
        arrays = [QUEUE_COLUMNS[field.name].fill(partition.states) for field in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)

    def _committed(
        self, queues: Sequence[MessageQueue], routes: Sequence[Route]
    ) -> dict[MessageQueue, int | None]:
        group, by_topic = self._options.consumer_group, {route.topic: route for route in routes}
        asked = []
        for queue in queues:
            route = by_topic.get(queue.topic)
            if route is None:
                raise RouteNotFound(f"{named(queue)} has lost its route; read it again")
            address = route.read_address(queue.broker_name)
            asked.append((address, operations.query_offset(group, queue, zero_if_new=False)))
        with BulkClient(
            self._options.name_servers,
            timeout_s=self._options.request_timeout_s,
            network=self._options.network,
        ) as client:
            answers: list[Any] = client.ask_many(asked)
        for queue, answer in zip(queues, answers, strict=True):
            if isinstance(answer, PymqError):
                answer.add_note(f"asked for the offset of group {group} in {named(queue)}")
                raise answer
        return dict(zip(queues, answers, strict=True))
