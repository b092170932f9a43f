"""The driver's side of ``spark.readStream``.

What Spark calls in which process, and what can live where, differs from call to call. So:
everything that is pickled holds frozen options only; the one long-lived object is the stream
reader in its own process, which keeps a ``SubscribedTopics``; progress lives in Spark's checkpoint.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from pymq.errors import ConnectionFailed
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import (
    LATEST,
    Bound,
    Bounds,
    Position,
    latest_to_json,
    listed,
    position_from_json,
    position_to_json,
    resolve,
    within,
)
from pyspark_pymq.source.batch_bytes import BatchBytes
from pyspark_pymq.source.limits import (
    TriggerDelay,
    backlog,
    bounded,
    end_of_batch,
    share,
    take_all,
)
from pyspark_pymq.source.lookups import average_size
from pyspark_pymq.source.message_sizes import MessageSizes
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.source.planning import ranges
from pyspark_pymq.source.positions import CLOCK_SKEW_MS
from pyspark_pymq.source.progress import GroupProgress
from pyspark_pymq.source.source import QueuesPartition, Source
from pyspark_pymq.source.start_log import NO_LONGER_CHOSEN, start_told
from pyspark_pymq.source.stream_end import StreamEnd
from pyspark_pymq.source.topic_identity import (
    TopicIdentity,
    created_again,
    first_messages,
    with_ids,
)

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


class PymqStreamReader(Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query; lives in a driver process as long as the query runs.

    From 4.2 on Spark hands in where the stream stands. Before, it does not: the position then
    comes from the last call of ``partitions`` (after a restart there is one, with start equal
    to end, before anything else), or is the initial one. And trigger AvailableNow runs a single
    batch there. So the first batch is empty there only if it must be: for a start at the latest
    messages, at a time or where a group stands, which after a crash might be another one.

    While a broker is away the stream goes on with the others, until ``retryTimeoutMs`` is over;
    with trigger AvailableNow it waits for that broker before it ends.

    Args:
        options: of the source.
        schema: the columns wanted.
        wall_s: the clock that tells when a stream began.
        monotonic_s: the clock that tells how long ago the last batch was.
    """

    _to_start_elsewhere = "use another checkpoint, and startingOffsets"

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        *,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(options, schema)
        self._starting = options.start(LATEST)
        self._end = StreamEnd(options.end(), self._topics, options.consumer_group, wall_s)
        self._delay = TriggerDelay(options.offsets_min, options.trigger_delay_s, monotonic_s)
        sizes = MessageSizes(self._average_size, monotonic_s)
        self._bytes = BatchBytes(self._topics.fitting, sizes, monotonic_s)
        self._progress = GroupProgress(options)
        self._identity = TopicIdentity(
            self._topics,
            fail_on_data_loss=options.fail_on_data_loss,
            otherwise=self._to_start_elsewhere,
        )
        self._wall_s = wall_s
        self._reasons: Mapping[MessageQueue, str] = {}  # of the initial position
        self._has_told = False  # where the query resumes
        self._no_longer_chosen: Collection[MessageQueue] | None = None  # known when it resumes
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
            ConfigurationError: the checkpoint has other topics than the options choose.
            OffsetOutOfRange: messages are gone, and ``failOnDataLoss`` is true.
            PymqError: brokers could not be asked.
        """
        if start is not None:
            position = position_from_json(start)
        else:
            position = self._planned or self._start()
        if not position.initial:
            self._check_checkpoint(position)
        unlimited = ReadAllAvailable is not None and isinstance(limit, ReadAllAvailable)
        if position.initial:
            if unlimited:  # although ``getDefaultReadLimit`` said something else
                LOG.warning(
                    "trigger once runs a single batch, and the first batch of a new query has no "
                    "rows: it records where reading starts. Use trigger(availableNow=True), which "
                    "reads all there is"
                )
            self._tell_start(position, self._topics.known_bounds())
            return position_to_json(replace(position, initial=False))
        end = self._end_of_batch(position, unlimited=unlimited)
        asked_s = self._topics.now_s()
        while self._is_bounded and end == position and self._waits(position, asked_s):
            end = self._end_of_batch(position, unlimited=unlimited)
        self._ended = end
        self._end.tell_once(position.offsets, is_expected=self._is_bounded)
        is_done = self._is_bounded and end == position
        self._progress.publish(position.offsets, self._topics.routes(), at_once=is_done)
        return position_to_json(end)

    def getDefaultReadLimit(self) -> Any:
        """Return a limit that tells the other triggers from once, which has another one."""
        return ReadMaxRows(self._options.offsets_max or NO_LIMIT)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the queues, as last seen, for the query's progress."""
        bounds = self._topics.known_bounds()
        if not bounds:
            return None
        return latest_to_json(bounds, self._no_longer_chosen or ())

    def prepareForTriggerAvailableNow(self) -> None:
        """Have the query end at what there is at its first question.

        What the checkpoint knows is told later only: of queues whose broker is away now, the
        end is what they have when it is back.
        """
        self._is_bounded = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[QueuesPartition]:
        """Return the tasks of a batch: a pure function of its two offsets.

        But for a batch that is run again after a crash, which may no longer be what it was: the
        first one of a stream before Spark 4.2, whose start is asked for again, and a broker that
        is away by now must not be left out; and one of a topic that was created again.
        """
        begin, self._planned = position_from_json(start), position_from_json(end)
        # Where a first batch starts, which was not done, is asked for again: these options choose.
        self._check_checkpoint(self._planned)
        if begin == self._initial and not begin.initial and self._planned != self._ended:
            begin = self._with_all_queues(begin, self._planned)
        wanted = ranges(begin, self._planned)
        if wanted and self._planned.topic_ids and self._planned != self._ended:
            # It was planned by an earlier process, and its topics may be others now.
            self._topics.bounds(self._planned.offsets, at_once=True)
            others = self._identity.others(self._planned, self._planned.offsets)
            wanted = [one for one in wanted if one.queue not in others]
        return self._partitions(wanted, self._planned.topic_ids)

    def stop(self) -> None:
        """Close connections. Spark mostly ends the process instead, and nothing depends on it."""
        self._topics.close()
        self._progress.close()

    def _with_all_queues(self, begin: Position, end: Position) -> Position:
        """Return where the first batch starts, with the queues that only its end has."""
        missing = end.offsets.keys() - begin.offsets.keys()
        bounds = self._topics.bounds(end.offsets, at_once=True) if missing else {}
        while self._topics.waits_for(missing):
            bounds = self._topics.bounds(end.offsets)
        there = {queue: bounds[queue] for queue in missing & set(bounds)}
        found = resolve(Bound(self._starting.unnamed), there)
        return replace(begin, offsets=begin.offsets | found)

    def _end_of_batch(self, position: Position, *, unlimited: bool) -> Position:
        """Return where the batch that starts at ``position`` ends: there, if nothing is new."""
        bounds = self._bounds(position, unlimited=unlimited)
        self._tell_start(position, bounds)
        others = self._identity.others(position, self._end.unfinished(position.offsets))
        if others:
            bounds = {**bounds, **self._topics.known_bounds()}
            self._forget(others)
        begun_again = first_messages(others, bounds)
        kept = {queue: offset for queue, offset in position.offsets.items() if queue not in others}
        bounds = self._check_losses(kept, self._end.cap(bounds, kept))
        if created_again(position, self._end.unfinished(kept), self._topics.topic_ids):
            # It was so while a loss was looked into.
            return self._end_of_batch(position, unlimited=unlimited)
        position = replace(position, offsets=within(kept, bounds))
        if self._is_bounded:
            bounds = bounded(bounds, self._targets(position, bounds))
        elsewhere = {queue: some for queue, some in bounds.items() if queue not in others}
        discovered = self._positions.later(position, elsewhere) | begun_again
        takes = take_all if unlimited else self._takes
        end = end_of_batch(position, bounds, discovered=discovered, takes=takes)
        if end.offsets == kept:
            return end  # Ids alone make no batch.
        return with_ids(end, self._topics.topic_ids)

    def _forget(self, queues: Iterable[MessageQueue]) -> None:
        """Forget where queues end: their topic is another one now."""
        self._end.forget(queues)
        for queue in queues:
            (self._target or {}).pop(queue, None)

    def _waits(self, position: Position, since_s: float) -> bool:
        """Say whether a broker has more to say about what a query reads that is to end.

        Raises:
            ConnectionFailed: it has not done so for ``retryTimeoutMs``, and ``failOnDataLoss`` is
                true.
        """
        new = (self._target or {}).keys() - position.offsets.keys()
        if self._topics.waits_for([*self._end.unfinished(position.offsets), *new]):
            return True  # Outages have an end of their own.
        if not new and not self._end.is_unclear:
            return False
        if self._topics.now_s() - since_s < self._options.retry_timeout_s:
            return True
        reasons = {**self._positions.unanswered, **self._end.unanswered}
        told = ", ".join(f"{name} ({reason})" for name, reason in sorted(reasons.items()))
        text = (
            f"{told or listed(sorted(new))}: for {self._options.retry_timeout_s:.0f} s there was "
            f"no answer about where queues begin, or end"
        )
        if self._options.fail_on_data_loss:
            raise ConnectionFailed(f"{text}; start the query again when there is")
        LOG.warning("ending without them (failOnDataLoss=false): %s", text)
        return False

    def _check_losses(self, offsets: Mapping[MessageQueue, int], bounds: Bounds) -> Bounds:
        """Do it for the queues that have not been read up to their end."""
        checked = super()._check_losses(self._end.unfinished(offsets), bounds)
        return bounds if checked is bounds else self._end.cap(checked, offsets)

    def _takes(
        self, offsets: Mapping[MessageQueue, int], waiting: Mapping[MessageQueue, int]
    ) -> Mapping[MessageQueue, int]:
        """Return how much of what waits a batch takes, by the user's limits."""
        # Before 4.2 the first batch of a run may be the only one: that of trigger AvailableNow.
        may_wait = ReadAllAvailable is not None or self._ended is not None
        if not self._is_bounded and may_wait and self._delay.holds_back(sum(waiting.values())):
            return {}
        taken = share(waiting, self._options.offsets_max)
        if self._options.bytes_max is not None:
            return self._bytes.fitting(offsets, taken, self._options.bytes_max)
        return taken

    def _average_size(self, queue: MessageQueue, offset: int) -> float | None:
        """Return the size of the next messages of a queue; None: that cannot be asked now."""
        found, failed = self._topics.look_up(
            [queue],
            lambda client, _: average_size(
                client, queue, offset, group=self._options.consumer_group
            ),
        )
        for error in failed.values():
            LOG.debug("no sample of the sizes of messages: %s", error)
        return found.get(queue)

    def _check_checkpoint(self, position: Position) -> None:
        """Check once that the checkpoint is of the topics that the options choose.

        Raises:
            ConfigurationError: it has none of them.
        """
        if self._no_longer_chosen is not None:
            return
        choice = self._options.choice
        self._no_longer_chosen = left = choice.no_longer_taken(position.offsets.keys())
        if left:
            LOG.warning(
                "%s does not choose %s, which the checkpoint has: they keep their place in it and "
                "are not read; if they are chosen again, reading continues there",
                choice,
                listed(left),
            )

    def _tell_start(self, position: Position, bounds: Bounds) -> None:
        """Log where the query resumes, and why; once."""
        if self._has_told:
            return
        self._has_told = True
        reasons = dict.fromkeys(position.offsets, "checkpoint")
        if self._initial is not None and self._initial.offsets == position.offsets:
            reasons |= self._reasons
        reasons |= dict.fromkeys(self._no_longer_chosen or (), NO_LONGER_CHOSEN)
        choice = self._options.choice
        LOG.info("stream of %s: %s", choice, start_told(position.offsets, reasons, bounds))
        there = {*position.offsets, *bounds}
        if absent := sorted(queue for queue in choice.assigned if not queue.is_among(there)):
            LOG.warning(
                "assign: %s not found; reading begins when it is there",
                ", ".join(map(str, absent)),
            )

    def _targets(self, position: Position, bounds: Bounds) -> Mapping[MessageQueue, int]:
        """Return where trigger AvailableNow ends each queue that has been seen."""
        if self._target is None:
            self._target = {}
            new = set(bounds)
        else:
            new = set(bounds) & set(position.offsets) - set(self._target)
        self._target |= {queue: bounds[queue][1] for queue in new}
        return self._target

    def _bounds(self, position: Position, *, unlimited: bool) -> Bounds:
        """Return bounds that tell what the next batch has; asks only if it must.

        What was known before is enough, for a while, when the query ends there (AvailableNow), or
        when it fills a batch up to its cap. For longer it would hide a topic that is created again.
        """
        known = self._topics.known_bounds()
        takes = self._options.choice.takes
        is_complete = all(queue in known for queue in position.offsets if takes(queue))
        target = self._target
        has_begun = target is not None and target.keys() <= position.offsets.keys()
        is_enough = is_complete and has_begun and not self._end.is_unclear
        if known and is_enough and self._topics.is_recent:
            return known
        waiting = sum(backlog(position.offsets, known).values())
        offsets_max = None if unlimited else self._options.offsets_max
        if offsets_max is not None and waiting >= offsets_max and self._topics.is_recent:
            return known
        return self._topics.bounds(position.offsets)

    def _start(self) -> Position:
        """Return the initial position, asked for once."""
        if self._initial is None:
            self._warn_of_options()
            since_ms = int(self._wall_s() * 1000) - CLOCK_SKEW_MS
            named = [queue for queue, _ in (*self._starting.named, *self._options.end().named)]
            bounds = self._query_start.bounds(named, may_be_none=True)
            if not bounds:
                LOG.warning(
                    "%s: no topic matches yet; the query waits for one", self._options.choice
                )
            start = self._positions.start(self._starting, bounds)
            first_is_empty = ReadAllAvailable is not None or self._starting.moves
            self._reasons = start.reasons
            initial = with_ids(Position(start.offsets, first_is_empty), self._topics.topic_ids)
            self._initial = self._positions.for_later_queues(
                initial, self._starting.unnamed, since_ms
            )
            if self._is_bounded:
                self._targets(self._initial, self._end.cap(bounds, start.offsets))
        return self._initial
