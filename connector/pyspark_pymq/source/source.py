"""What the readers of streams and batches share: cutting ranges into tasks, and reading them."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pymq.client.cluster.routes import Route
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Bounds, QueueRange, TopicIds, losses, refuse_losses, told
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.source.planning import plan
from pyspark_pymq.source.positions import Positions
from pyspark_pymq.source.query_start import QueryStart
from pyspark_pymq.source.read_task import read_ranges
from pyspark_pymq.source.subscribed_topics import SubscribedTopics

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueuesPartition(InputPartition):
    """What one task reads, the routes that the driver knew, and which topics it is of."""

    ranges: tuple[QueueRange, ...]
    routes: tuple[Route, ...]
    topic_ids: TopicIds


class Source:
    """The driver's questions, the executor's side, and how readers are pickled."""

    _to_start_elsewhere = ""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._has_told_of_tasks = False
        self._topics = SubscribedTopics(options)
        self._query_start = QueryStart(options, self._topics)
        self._positions = Positions(options, self._topics, self._query_start)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition; Spark passes None for a batch without any."""
        if not isinstance(partition, QueuesPartition):
            return iter(())
        return read_ranges(
            self._options,
            self._schema,
            partition.ranges,
            partition.routes,
            partition.topic_ids,
        )

    def _partitions(
        self, wanted: Sequence[QueueRange], topic_ids: TopicIds
    ) -> list[QueuesPartition]:
        options = self._options
        tasks = plan(
            wanted,
            tasks_min=options.partitions_min,
            tasks_max=options.partitions_max,
            rows_max=options.task_rows_max,
        )
        if len(tasks) > (options.partitions_max or len(tasks)) and not self._has_told_of_tasks:
            self._has_told_of_tasks = True
            LOG.warning(
                "a batch has %d tasks: maxRecordsPerPartition=%s comes before maxPartitions=%s",
                len(tasks),
                options.task_rows_max,
                options.partitions_max,
            )
        return [
            QueuesPartition(tuple(task), self._routes(task), _ids_of(task, topic_ids))
            for task in tasks
        ]

    def _routes(self, task: Sequence[QueueRange]) -> tuple[Route, ...]:
        queues = {part.queue for part in task}
        topics = {queue.topic for queue in queues}
        return tuple(
            route.only(queues) for route in self._topics.routes() if route.topic in topics
        )

    def _check_losses(self, offsets: Mapping[MessageQueue, int], bounds: Bounds) -> Bounds:
        """Return the bounds, having refused or logged what is no longer there.

        Raises:
            OffsetOutOfRange: something is not, and ``failOnDataLoss`` is true.
        """
        if losses(offsets, bounds):
            # The answer may be older than the offsets; what is away now keeps its bounds.
            bounds = {**bounds, **self._topics.bounds(offsets, at_once=True)}
            found = losses(offsets, bounds)
            for queue in found:
                if not self._topics.asks_master(queue):
                    found[queue] += " (so says a slave, which may lag behind its master)"
            if self._options.fail_on_data_loss:
                refuse_losses(found, otherwise=self._to_start_elsewhere)
            if found:
                LOG.warning(
                    "data loss accepted (failOnDataLoss=false), reading continues at the first "
                    "message kept, or at the end of a queue that is shorter now: %s",
                    told(found),
                )
        return bounds

    def _warn_of_options(self) -> None:
        """Say which options may mean something else than the user thinks; to be said once."""
        for text in self._options.overridden():
            LOG.warning("%s", text)
        for tag in self._options.tags:
            if "," in tag:
                LOG.warning(
                    "option tags: %r is one tag, with a comma in it; several are separated by ||",
                    tag,
                )


def _ids_of(task: Sequence[QueueRange], topic_ids: TopicIds) -> TopicIds:
    topics = {(part.queue.topic, part.queue.broker_name) for part in task}
    return {one: topic_ids[one] for one in sorted(topics) if one in topic_ids}
