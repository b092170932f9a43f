"""The driver's side of the readers.

What Spark calls in which process, and what can live where, differs from call to call. So:
everything that is pickled holds frozen options only; the one long-lived object is the stream
reader in its own process, which keeps a ``SubscribedTopics``; progress lives in Spark's checkpoint.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pymq.client.routes import Route
from pymq.errors import OffsetOutOfRange, PymqError
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
    missed_ends,
    named,
    plan,
    position_from_json,
    position_to_json,
    ranges,
    refuse_losses,
    resolve,
    told,
    within,
)
from pyspark_pymq.options import SourceOptions
from pyspark_pymq.read_task import read_ranges
from pyspark_pymq.subscribed_topics import SubscribedTopics

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

#: What Spark has no limit for.
NO_LIMIT = (1 << 63) - 1
#: Clocks of drivers and brokers differ: rather read a little twice than miss something.
CLOCK_SKEW_MS = 1_000


@dataclass(frozen=True)
class QueuesPartition(InputPartition):
    """What one task reads, and the routes that the driver knew."""

    ranges: tuple[QueueRange, ...]
    routes: tuple[Route, ...] = ()


class _Source:
    """What stream and batch readers share: the executor's side, and how they are pickled."""

    _to_start_elsewhere = ""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._topics = SubscribedTopics(options)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition; Spark passes None for a batch without any."""
        if not isinstance(partition, QueuesPartition):
            return iter(())
        return read_ranges(self._options, self._schema, partition.ranges, partition.routes)

    def _partitions(self, wanted: Sequence[QueueRange]) -> list[QueuesPartition]:
        options = self._options
        tasks = plan(wanted, tasks_min=options.partitions_min, tasks_max=options.partitions_max)
        return [QueuesPartition(tuple(task), self._routes(task)) for task in tasks]

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

    def _warn_of_tags(self) -> None:
        """Say that something else than a list of tags may be meant by a comma; to be said once."""
        for tag in self._options.tags:
            if "," in tag:
                LOG.warning(
                    "option tags: %r is one tag, with a comma in it; several are separated by ||",
                    tag,
                )


class PymqBatchReader(_Source, DataSourceReader):
    """Reads what the topics hold between two bounds, fixed when the job is planned."""

    _to_start_elsewhere = "set startingOffsets to what there is"

    def partitions(self) -> Sequence[QueuesPartition]:
        """Return the tasks of the job.

        Raises:
            OffsetOutOfRange: offsets that were asked for are not there.
            RouteNotFound: there is no such topic, or a broker of ``expectedBrokers`` is away.
            PymqError: brokers could not be asked.
        """
        options = self._options
        self._warn_of_tags()
        try:
            bounds = self._topics.all_bounds()
            starts = resolve(options.starting or Bound(EARLIEST), bounds)
            ends = resolve(options.ending or Bound(LATEST), bounds)
            bounds = self._check_losses(starts, bounds)
        finally:
            self._topics.close()
        missed = missed_ends(starts, ends, bounds)
        if missed and options.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"endingOffsets: {told(missed)}; set failOnDataLoss to false to read what there is"
            )
        if missed:
            LOG.warning(
                "data loss accepted (failOnDataLoss=false), endingOffsets: %s", told(missed)
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
    batch there. So the first batch is empty there only if it must be: for a start at the latest
    messages, which after a crash would be another one.

    While a broker is away the stream goes on with the others, until ``retryTimeoutMs`` is over;
    with trigger AvailableNow it waits for that broker before it ends.

    Args:
        options: of the source.
        schema: the columns wanted.
        wall_s: the clock that tells when a stream began.
    """

    _to_start_elsewhere = "use another checkpoint, and startingOffsets"

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(options, schema)
        self._starting = options.starting or Bound(LATEST)
        self._wall_s = wall_s
        self._initial: Position | None = None
        self._planned: Position | None = None
        self._ended: Position | None = None  # of the last batch that this process has begun
        self._is_bounded = False  # trigger AvailableNow
        self._target: dict[MessageQueue, int] | None = None  # where it ends, once that is known

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
        unlimited = ReadAllAvailable is not None and isinstance(limit, ReadAllAvailable)
        if position.initial:
            if unlimited:  # although ``getDefaultReadLimit`` said something else
                LOG.warning(
                    "trigger once runs a single batch, and the first batch of a new query has no "
                    "rows: it records where reading starts. Use trigger(availableNow=True), which "
                    "reads all there is"
                )
            return position_to_json(replace(position, initial=False))
        offsets_max = None if unlimited else self._options.offsets_max
        end = self._end_of_batch(position, offsets_max)
        while self._is_bounded and end == position and self._topics.waits_for(position.offsets):
            end = self._end_of_batch(position, offsets_max)
        self._ended = end
        return position_to_json(end)

    def getDefaultReadLimit(self) -> Any:
        """Return a limit that tells the other triggers from once, which has another one."""
        return ReadMaxRows(self._options.offsets_max or NO_LIMIT)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the queues, as last seen, for the query's progress."""
        bounds = self._topics.known_bounds()
        if not bounds:
            return None
        return position_to_json(Position({queue: end for queue, (_, end) in bounds.items()}))

    def prepareForTriggerAvailableNow(self) -> None:
        """Have the query end at what there is at its first question.

        What the checkpoint knows is told later only: of queues whose broker is away now, the
        end is what they have when it is back.
        """
        self._is_bounded = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[QueuesPartition]:
        """Return the tasks of a batch: a pure function of its two offsets.

        But for the first batch of a stream before Spark 4.2, run again after a crash: its start is
        asked for again, and a broker that is away by now must not be left out.
        """
        begin, self._planned = position_from_json(start), position_from_json(end)
        if begin == self._initial and not begin.initial and self._planned != self._ended:
            begin = self._with_all_queues(begin, self._planned)
        return self._partitions(ranges(begin, self._planned))

    def stop(self) -> None:
        """Close connections. Spark mostly ends the process instead, and nothing depends on it."""
        self._topics.close()

    def _with_all_queues(self, begin: Position, end: Position) -> Position:
        """Return where the first batch starts, with the queues that only its end has."""
        missing = end.offsets.keys() - begin.offsets.keys()
        bounds = self._topics.bounds(end.offsets, at_once=True) if missing else {}
        while self._topics.waits_for(missing):
            bounds = self._topics.bounds(end.offsets)
        there = {queue: bounds[queue] for queue in missing & set(bounds)}
        found = resolve(Bound(self._starting.unnamed), there)
        return replace(begin, offsets=begin.offsets | found)

    def _end_of_batch(self, position: Position, offsets_max: int | None) -> Position:
        """Return where the batch that starts at ``position`` ends: there, if nothing is new."""
        bounds = self._check_losses(position.offsets, self._bounds(position, offsets_max))
        position = replace(position, offsets=within(position.offsets, bounds))
        if self._is_bounded:
            bounds = bounded(bounds, self._targets(position, bounds))
        new = sorted(set(bounds) - set(position.offsets))
        discovered = None
        if new and position.since_ms is not None:
            discovered = self._topics.offsets_at(new, position.since_ms)
        return end_of_batch(position, bounds, discovered=discovered, offsets_max=offsets_max)

    def _targets(self, position: Position, bounds: Bounds) -> Mapping[MessageQueue, int]:
        """Return where trigger AvailableNow ends each queue that has been seen."""
        if self._target is None:
            self._target = {}
            new = set(bounds)
        else:
            new = set(bounds) & set(position.offsets) - set(self._target)
        self._target |= {queue: bounds[queue][1] for queue in new}
        return self._target

    def _bounds(self, position: Position, offsets_max: int | None) -> Bounds:
        """Return bounds that tell what the next batch has; asks only if it must.

        What was known before is enough when the query ends there (AvailableNow), or when it
        fills a batch up to its cap.
        """
        known = self._topics.known_bounds()
        topics = self._options.topics
        is_complete = all(q in known for q in position.offsets if q.topic in topics)
        if known and self._target is not None and is_complete:
            return known
        waiting = sum(backlog(position.offsets, known).values())
        if offsets_max is not None and waiting >= offsets_max:
            return known
        return self._topics.bounds(position.offsets)

    def _start(self) -> Position:
        """Return the initial position, asked for once."""
        if self._initial is None:
            self._warn_of_tags()
            since_ms = int(self._wall_s() * 1000) - CLOCK_SKEW_MS
            bounds = self._topics.all_bounds()
            offsets = resolve(self._starting, bounds)
            first_is_empty = ReadAllAvailable is not None or self._starting.has_latest
            is_latest = self._starting.unnamed == LATEST
            self._initial = Position(offsets, first_is_empty, since_ms if is_latest else None)
            if self._is_bounded:
                self._targets(self._initial, bounds)
            for queue, offset in sorted(offsets.items()):
                LOG.info("%s: starting at %d, it holds %s", named(queue), offset, bounds[queue])
        return self._initial


class RefusedStreamReader(DataSourceStreamReader):
    """Says at the first question why there is no reader.

    An error of ``DataSource.streamReader`` itself Spark 4.0 to 4.3 show behind one of their own.

    Args:
        reason: what is wrong.
    """

    def __init__(self, reason: PymqError) -> None:
        self._reason = reason

    def initialOffset(self) -> dict[str, Any]:
        """Raise the reason."""
        raise self._reason

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Raise the reason."""
        raise self._reason

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Raise the reason."""
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the reason."""
        raise self._reason
