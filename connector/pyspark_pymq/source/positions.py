"""Where queries start and end: what the user chose, turned into offsets by asking brokers."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import ConfigurationError, OffsetOutOfRange, PymqError, RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import (
    COMMITTED,
    EARLIEST,
    LATEST,
    At,
    Bound,
    Bounds,
    Offsets,
    Place,
    Position,
    listed,
    named,
    places,
    resolve,
)
from pyspark_pymq.source.lookups import offset_at
from pyspark_pymq.source.masters import asks_master
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.source.query_start import QueryStart
from pyspark_pymq.source.subscribed_topics import SubscribedTopics

LOG = logging.getLogger(__name__)

#: Clocks of drivers and brokers differ: rather read a little twice than miss something.
CLOCK_SKEW_MS = 10_000


@dataclass(frozen=True, slots=True)
class Start:
    """Where a query starts.

    Attributes:
        offsets: by queue.
        reasons: why there; for the log.
    """

    offsets: Offsets
    reasons: Mapping[MessageQueue, str]


class Positions:
    """Finds where one query starts and ends. Lives in one driver process.

    Args:
        options: of the source.
        topics: whom to ask.
        start: whom to ask while the query starts.
    """

    def __init__(self, options: SourceOptions, topics: SubscribedTopics, start: QueryStart) -> None:
        self._options = options
        self._topics = topics
        self._start = start
        self._group = options.consumer_group
        #: Why some brokers have not said where their new queues begin, by name.
        self.unanswered: dict[str, PymqError] = {}

    def start(self, bound: Bound, bounds: Bounds) -> Start:
        """Return where a new query starts.

        Raises:
            ConfigurationError: a queue is named that does not exist, or the group has committed
                nothing and ``groupOffsetFallback`` is fail.
            OffsetOutOfRange: no message was stored at or after a moment, and
                ``startingOffsetsByTimestampStrategy`` is error.
            PymqError: a broker could not be asked.
        """
        chosen = places(bound, bounds)
        found = self._at_times(chosen, bounds)
        late = sorted(queue for queue, offset in found.items() if offset >= bounds[queue][1])
        if late and self._options.is_strict_about_times:
            raise _nothing_so_late(late, chosen)
        reasons = {queue: _told(place) for queue, place in chosen.items()}
        reasons |= {queue: f"{reasons[queue]}, after its last message" for queue in late}
        committed = self._committed([q for q, place in chosen.items() if place == COMMITTED])
        for queue, offset in committed.items():
            reasons[queue] = f"group {self._group} committed it"
            if offset is None:
                fallback = self._options.group_fallback
                offset = bounds[queue][1 if fallback == LATEST else 0]
                reasons[queue] = f"group {self._group} committed nothing: {_told(fallback)}"
            found[queue] = offset
        return Start(resolve(bound, bounds, found), reasons)

    def ends(self, bound: Bound, bounds: Bounds) -> Offsets:
        """Return where a batch ends; where nothing is stored at or after a moment: at the end.

        That is never beyond the end in ``bounds``, even if messages have come since.

        Raises:
            ConfigurationError: a queue is named that does not exist.
            PymqError: a broker could not be asked.
        """
        found = self._at_times(places(bound, bounds), bounds)
        return resolve(bound, bounds, {q: min(at, bounds[q][1]) for q, at in found.items()})

    def for_later_queues(self, start: Position, place: Place, since_ms: int) -> Position:
        """Return where a stream starts, with what queues need to know that it meets later.

        Args:
            start: where it starts.
            place: what the user said of all queues.
            since_ms: when it starts, by the clocks of all brokers.
        """
        group = None
        if place == COMMITTED:
            group, place = self._group, self._options.group_fallback or EARLIEST
        if isinstance(place, At):
            # What a queue gets from now on is read, also before a moment that is still to come.
            is_past = place.timestamp_ms <= since_ms + CLOCK_SKEW_MS
            return replace(start, since_ms=place.timestamp_ms if is_past else since_ms)
        return replace(start, since_ms=since_ms if place == LATEST else None, group=group)

    def later(self, position: Position, bounds: Bounds) -> Offsets:
        """Return where queues begin that a stream does not know yet.

        That is journaled, and so must not depend on when it is asked: as the stream itself began.
        Queues that cannot be asked now are left out, see ``unanswered``.

        Raises:
            PymqError: a broker refused.
        """
        new = sorted(set(bounds) - set(position.offsets))
        found: Offsets = {}
        failed: dict[str, PymqError] = {}
        reason = "its first message"
        if new and position.group is not None:
            group = position.group
            committed, failed = self._topics.look_up(
                new, lambda client, queue: _commit_within(client, group, queue, bounds[queue])
            )
            found = {queue: offset for queue, offset in committed.items() if offset is not None}
            reason = f"where group {group} stands, or {reason}"
        rest = [q for q in new if q not in found and q.broker_name not in failed]
        if rest and position.since_ms is not None:
            since_ms, reason = position.since_ms, f"the first message since {At(position.since_ms)}"
            times, failures = self._topics.look_up(
                rest, lambda client, queue: self._offset_at(client, queue, since_ms, bounds)
            )
            found |= {queue: max(offset, bounds[queue][0]) for queue, offset in times.items()}
            failed |= failures
        else:
            found |= {queue: bounds[queue][0] for queue in rest}
        if found:
            LOG.info("new queues, each is read from %s on: %s", reason, _each(found))
        for name in failed.keys() - self.unanswered.keys():
            text = "queues of broker %s are new, and are looked at later: %s"
            LOG.warning(text, name, failed[name])
        self.unanswered = failed
        return found

    def _at_times(self, chosen: Mapping[MessageQueue, Place], bounds: Bounds) -> Offsets:
        """Return the offsets of moments: the end or more where no message is so late."""
        times = {q: place.timestamp_ms for q, place in chosen.items() if isinstance(place, At)}
        found = self._start.look_up(
            times, lambda client, queue: self._offset_at(client, queue, times[queue], bounds)
        )
        return {queue: max(offset, bounds[queue][0]) for queue, offset in found.items()}

    def _offset_at(
        self, client: BulkClient, queue: MessageQueue, timestamp_ms: int, bounds: Bounds
    ) -> int:
        return offset_at(client, queue, timestamp_ms, bounds=bounds[queue], group=self._group)

    def _committed(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int | None]:
        """Return what the group has committed.

        Raises:
            ConfigurationError: nothing, and ``groupOffsetFallback`` is fail.
            PymqError: a broker could not be asked.
        """
        group = self._group
        found = self._start.look_up(
            queues, lambda client, queue: client.stored_commit(group, queue)
        )
        without = sorted(queue for queue, offset in found.items() if offset is None)
        if without and self._options.group_fallback is None:
            raise ConfigurationError(
                f"startingOffsets=group: consumerGroup {group} has committed nothing in "
                f"{listed(without)}; check its name, or set groupOffsetFallback to earliest or "
                f"latest"
            )
        return found


def _commit_within(
    client: BulkClient, group: str, queue: MessageQueue, bounds: tuple[int, int]
) -> int | None:
    """Return what a group has committed in a new queue, moved to where the queue has messages.

    It may be of a topic of the same name that was deleted, or older than what is kept.

    Args:
        bounds: of the queue, as far as the query reads it, or as they were a while ago.

    Raises:
        PymqError: there is no answer, or only that of a slave that lags behind.
    """
    committed = client.stored_commit(group, queue)
    if committed is None or bounds[0] <= committed <= bounds[1]:
        return committed
    answer = client.try_bounds([queue])
    if queue not in answer.found:
        raise answer.failed[queue.broker_name]
    first, end = answer.found[queue]
    if committed > end and not asks_master(client, queue):
        raise RouteNotFound(f"the master of broker {queue.broker_name} is away, and its slave lags")
    offset = min(max(committed, first), end)
    if offset != committed:
        LOG.warning(
            "%s is new, and group %s has committed %d there, but it holds %d up to %d: it is read "
            "from %d on",
            named(queue),
            group,
            committed,
            first,
            end,
            offset,
        )
    return offset


def _nothing_so_late(
    late: list[MessageQueue], chosen: Mapping[MessageQueue, Place]
) -> OffsetOutOfRange:
    times = ", ".join(sorted({str(chosen[queue]) for queue in late})[:4])
    return OffsetOutOfRange(
        f"no message was stored at or after {times} in {listed(late)}. Choose an earlier moment, "
        f"or set startingOffsetsByTimestampStrategy to latest: then these queues are read from "
        f"their end on"
    )


def _told(place: Place | None) -> str:
    if isinstance(place, At):
        return f"timestamp {place}"
    return {EARLIEST: "earliest", LATEST: "latest"}.get(place or 0, "startingOffsets")


def _each(offsets: Offsets, most: int = 8) -> str:
    texts = [f"{named(queue)} from {offset} on" for queue, offset in list(offsets.items())[:most]]
    if len(offsets) > most:
        texts.append(f"and {len(offsets) - most} more")
    return ", ".join(texts)
