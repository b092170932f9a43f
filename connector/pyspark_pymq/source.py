"""The driver's side of the readers.

What Spark calls in which process, and what can live where, differs from call to call. So:
everything that is pickled holds frozen options only; the one long-lived object is the stream
reader in its own process, which keeps a ``QueueWatch``; progress lives in Spark's checkpoint.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pymq.errors import OffsetOutOfRange
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    Bounds,
    Position,
    QueueRange,
    backlog,
    bounded,
    end_of_batch,
    losses,
    named,
    plan,
    position_from_json,
    position_to_json,
    ranges,
    refuse_losses,
    resolve,
    within,
)
from pyspark_pymq.options import SourceOptions
from pyspark_pymq.reader import read_ranges
from pyspark_pymq.watch import QueueWatch

try:  # Spark 4.2 and later
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # earlier ones never call what needs these

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for a mixin that this Spark does not have."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment,misc]

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueuesPartition(InputPartition):
    """What one task reads."""

    ranges: tuple[QueueRange, ...]


class _Source:
    """What stream and batch readers share: the executor's side, and how they are pickled."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._watch = QueueWatch(options)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition; Spark passes None for a batch without any."""
        if not isinstance(partition, QueuesPartition):
            return iter(())
        return read_ranges(self._options, self._schema, partition.ranges)

    def _partitions(self, wanted: Sequence[QueueRange]) -> list[QueuesPartition]:
        options = self._options
        tasks = plan(wanted, tasks_min=options.partitions_min, tasks_max=options.partitions_max)
        return [QueuesPartition(tuple(task)) for task in tasks]

    def _check_losses(self, offsets: Mapping[MessageQueue, int], bounds: Bounds) -> Bounds:
        """Return the bounds, having refused or logged what is no longer there.

        Raises:
            OffsetOutOfRange: something is not, and ``failOnDataLoss`` is true.
        """
        if losses(offsets, bounds):
            # The answer may be older than the offsets; what has lost its route keeps its bounds.
            bounds = {**bounds, **self._watch.bounds(at_once=True)}
            found = losses(offsets, bounds)
            if self._options.fail_on_data_loss:
                refuse_losses(found)
            for text in found.values():
                LOG.warning("data loss accepted (failOnDataLoss=false): %s", text)
        return bounds


class PymqBatchReader(_Source, DataSourceReader):
    """Reads what the topics hold between two bounds, fixed when the job is planned."""

    def partitions(self) -> Sequence[QueuesPartition]:
        """Return the tasks of the job.

        Raises:
            OffsetOutOfRange: offsets that were asked for are not there.
            PymqError: brokers could not be asked.
        """
        options = self._options
        try:
            bounds = self._watch.bounds()
            starts = resolve(options.starting or Bound(EARLIEST), bounds)
            ends = resolve(options.ending or Bound(LATEST), bounds)
            bounds = self._check_losses(starts, bounds)
            late = {queue: end for queue, end in ends.items() if end > bounds[queue][1]}
        finally:
            self._watch.close()
        if late and options.fail_on_data_loss:
            queue, end = min(late.items())
            raise OffsetOutOfRange(
                f"endingOffsets: {named(queue)} ends at {bounds[queue][1]}, {end} was asked for; "
                f"set failOnDataLoss to false to read what there is"
            )
        wanted = [
            QueueRange(queue, max(start, bounds[queue][0]), min(ends[queue], bounds[queue][1]))
            for queue, start in sorted(starts.items())
            if max(start, bounds[queue][0]) < min(ends[queue], bounds[queue][1])
        ]
        return self._partitions(wanted)


class PymqStreamReader(_Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query; lives in a driver process as long as the query runs.

    From 4.2 on Spark hands in where the stream stands. Before, it does not: the position then
    comes from the last call of ``partitions`` (after a restart there is one, with start equal
    to end, before anything else), or is the initial one. And trigger AvailableNow runs a single
    batch there. So that this is not the empty one, there is none where it can be done without:
    only for a start at the end, which after a crash would be another one.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._starting = options.starting or Bound(LATEST)
        self._initial: Position | None = None
        self._planned: Position | None = None
        self._target: dict[MessageQueue, int] | None = None  # of trigger AvailableNow

    def initialOffset(self) -> dict[str, Any]:
        """Return where the stream starts; if it is marked, an empty first batch fixes it."""
        return position_to_json(self._start())

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return where the next batch ends; ``start`` itself when there is nothing new.

        Args:
            start: end of the last batch that is done; None before Spark 4.2.
            limit: what ``getDefaultReadLimit`` returned, or all there is.

        Raises:
            OffsetOutOfRange: messages are gone, and ``failOnDataLoss`` is true.
            PymqError: brokers could not be asked.
        """
        if start is not None:
            position = position_from_json(start)
        else:
            position = self._planned or self._start()
        if position.initial:
            return position_to_json(Position(position.offsets))
        unlimited = ReadAllAvailable is not None and isinstance(limit, ReadAllAvailable)
        offsets_max = None if unlimited else self._options.offsets_max
        bounds = self._check_losses(position.offsets, self._bounds(position, offsets_max))
        position = Position(within(position.offsets, bounds))
        if self._target is not None:
            bounds = bounded(bounds, self._target)
        return position_to_json(end_of_batch(position, bounds, offsets_max=offsets_max))

    def getDefaultReadLimit(self) -> Any:
        """Return a limit that tells triggers with caps from those without."""
        if self._options.offsets_max is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.offsets_max)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the queues, as last seen, for the query's progress."""
        bounds = self._watch.known()
        if not bounds:
            return None
        return position_to_json(Position({queue: end for queue, (_, end) in bounds.items()}))

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where the query ends: at what there is now."""
        bounds = self._watch.bounds(at_once=True)
        self._target = {queue: end for queue, (_, end) in bounds.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[QueuesPartition]:
        """Return the tasks of a batch: a pure function of its two offsets."""
        self._planned = position_from_json(end)
        return self._partitions(ranges(position_from_json(start), self._planned))

    def stop(self) -> None:
        """Close connections. Spark mostly ends the process instead, and nothing depends on it."""
        self._watch.close()

    def _bounds(self, position: Position, offsets_max: int | None) -> Bounds:
        """Return bounds that tell what the next batch has; asks only if it must.

        What was known before is enough when the query ends there (AvailableNow), or when it
        fills a batch up to its cap.
        """
        known = self._watch.known()
        if known and self._target is not None:
            return known
        waiting = sum(backlog(position.offsets, known).values())
        if offsets_max is not None and waiting >= offsets_max:
            return known
        return self._watch.bounds()

    def _start(self) -> Position:
        """Return the initial position, asked for once."""
        if self._initial is None:
            bounds = self._watch.bounds()
            offsets = resolve(self._starting, bounds)
            first_is_empty = ReadAllAvailable is not None or self._starting.has_latest
            self._initial = Position(offsets, initial=first_is_empty)
            for queue, offset in sorted(offsets.items()):
                LOG.info("%s: starting at %d, it holds %s", named(queue), offset, bounds[queue])
        return self._initial
