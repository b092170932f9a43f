"""Offsets of the source: their JSON, and every decision about them. No input or output.

An offset of a stream is, for every queue, the next queue offset to read::

    {"%": {"v": 1}, "topic": {"broker": {"0": 17, "1": 23}}}

``%`` alone is not a legal topic name; it holds what is not an offset. Spark compares offsets as
strings, so members are written in a fixed order: by name, queue ids by number.

A stream that began at the latest messages records when, in ms, as ``"since": ...``: a queue that
it discovers later, because its broker was away, begins with what was stored after that.

Where a stream begins is determined once: asked for twice, "latest" would lose what arrives in
between. But Spark journals only where a batch ends. So the initial offset carries
``"init": true``, the first batch ends where it started, without the mark, and is always empty. A
queue that appears later is likewise journaled at its first message one batch before it is read.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pymq.errors import ConfigurationError, OffsetOutOfRange
from pymq.protocol.bodies import MessageQueue

EARLIEST = -2
LATEST = -1
RESERVED = "%"
VERSION = 1

#: A task takes tens of milliseconds to start: fewer rows than this are not worth one of their own.
TASK_ROWS_MIN = 20_000
#: A task above this is cut, so that several cores, and a retry, have less to do.
TASK_ROWS_MAX = 1_000_000
#: Queues of which an error says what was lost.
LOSSES_TOLD_MAX = 4

Offsets = dict[MessageQueue, int]
Bounds = Mapping[MessageQueue, tuple[int, int]]  # first offset kept, end (next to be assigned)
_Item = TypeVar("_Item")
#: One spelling for each, or a queue could be named twice.
_QUEUE_ID = re.compile("0|[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends, as the user gave it.

    Attributes:
        unnamed: ``EARLIEST`` or ``LATEST``, for queues that ``named`` does not hold.
        named: offsets by queue; they may be ``EARLIEST`` and ``LATEST``, too.
    """

    unnamed: int
    named: tuple[tuple[MessageQueue, int], ...] = ()

    @property
    def has_latest(self) -> bool:
        """Whether an end is part of it, which is another one when it is asked for again."""
        return LATEST in (self.unnamed, *(offset for _, offset in self.named))


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stream stands: the next offset of each queue it knows.

    Attributes:
        offsets: by queue.
        initial: it is where the stream starts, which no checkpoint has yet.
        since_ms: when a stream began at the latest messages, ms since 1970; None: it did not,
            or an earlier version of this connector began it.
    """

    offsets: Offsets
    initial: bool = False
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages ``first <= queue offset < end`` of one queue."""

    queue: MessageQueue
    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first


# ------------------------------------------------------------------------------------ JSON


def position_to_json(position: Position) -> dict[str, Any]:
    """Return the JSON object of a position; equal positions give equal strings."""
    mark: dict[str, Any] = {"v": VERSION}
    if position.initial:
        mark["init"] = True
    if position.since_ms is not None:
        mark["since"] = position.since_ms
    value: dict[str, Any] = {RESERVED: mark}
    for queue, offset in sorted(position.offsets.items()):
        brokers = value.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return value


def position_from_json(value: Any) -> Position:
    """Return the position a JSON object holds.

    Raises:
        ConfigurationError: it is not ``{topic: {broker: {queue id: offset}}}``, or a newer
            version of this connector wrote it.
    """
    offsets: Offsets = {}
    mark: dict[str, Any] = {}
    for topic, brokers in _members(value, "topics"):
        if topic == RESERVED:
            mark = dict(_members(brokers, RESERVED))
            continue
        for broker_name, queues in _members(brokers, f"brokers of {topic}"):
            for queue_id, offset in _members(queues, f"queues of {topic} on {broker_name}"):
                if not _QUEUE_ID.fullmatch(queue_id) or type(offset) is not int:
                    raise ConfigurationError(
                        f"offsets of {topic} on {broker_name}: {queue_id!r}: {offset!r} found, "
                        f'expected a queue id and an offset like "0": 17'
                    )
                offsets[MessageQueue(topic, broker_name, int(queue_id))] = offset
    version = mark.get("v", VERSION)
    if version != VERSION:
        raise ConfigurationError(
            f"offsets of version {version!r}, expected {VERSION}: they were written by another "
            f"version of pymq; use that one, or start a new checkpoint"
        )
    since_ms = mark.get("since")
    if since_ms is not None and type(since_ms) is not int:
        raise ConfigurationError(f"offsets with since={since_ms!r}, expected milliseconds")
    return Position(offsets, mark.get("init") is True, since_ms)


def _members(value: Any, what: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"{what}: {value!r:.60} found, expected an object: "
            f'{{"topic": {{"broker": {{"0": 17}}}}}}'
        )
    return value.items()


# --------------------------------------------------------------------- where to start and end


def resolve(bound: Bound, bounds: Bounds) -> Offsets:
    """Return the offset of every queue in ``bounds``, as the user's choice makes it.

    Raises:
        ConfigurationError: the choice names a queue that does not exist.
    """
    named = dict(bound.named)
    unknown = sorted(set(named) - set(bounds))
    if unknown:
        raise ConfigurationError(
            f"offsets are given for queues that do not exist: {listed(unknown)}; there are "
            f"{listed(sorted(bounds))} (queues of a broker that is down are not known)"
        )
    offsets: Offsets = {}
    for queue, (first, end) in bounds.items():
        offset = named.get(queue, bound.unnamed)
        offsets[queue] = {EARLIEST: first, LATEST: end}.get(offset, offset)
    return offsets


def end_of_batch(
    start: Position,
    bounds: Bounds,
    *,
    discovered: Mapping[MessageQueue, int] | None = None,
    offsets_max: int | None = None,
) -> Position:
    """Return where the batch that starts at ``start`` ends.

    Args:
        start: where the stream stands. Every queue it knows is kept, with or without bounds:
            a queue of a broker that is away for a while is neither lost nor started again.
        bounds: of the queues there are now.
        discovered: where queues begin that the stream does not know yet; None: at their first
            message. Those that are not named are left for a later batch.
        offsets_max: messages the batch may have; each queue that has some gets one at least.
    """
    if start.initial:
        return replace(start, initial=False)
    # Where the first messages are gone already there is nothing to count before the next ones.
    offsets = {
        queue: max(offset, bounds[queue][0]) if queue in bounds else offset
        for queue, offset in start.offsets.items()
    }
    for queue, count in share(backlog(offsets, bounds), offsets_max).items():
        offsets[queue] += count
    # What is new is journaled first and read from the next batch on, see above.
    if discovered is None:
        discovered = {queue: first for queue, (first, _) in bounds.items()}
    return replace(start, offsets={**discovered, **offsets})


def backlog(offsets: Offsets, bounds: Bounds) -> dict[MessageQueue, int]:
    """Return how many messages wait in each queue that has any."""
    return {
        queue: bounds[queue][1] - offset
        for queue, offset in offsets.items()
        if queue in bounds and bounds[queue][1] > offset
    }


def share(waiting: Mapping[_Item, int], most: int | None) -> dict[_Item, int]:
    """Return how much of what waits each gets when ``most`` are shared out in proportion.

    Everybody who has something gets one at least, so that a small queue beside a large one
    does not starve; the sum may exceed ``most`` by that.
    """
    total = sum(waiting.values())
    if most is None or total <= most:
        return dict(waiting)
    return {
        item: min(count, max(1, math.floor(most * count / total)))
        for item, count in waiting.items()
        if count
    }


def bounded(bounds: Bounds, target: Mapping[MessageQueue, int]) -> Bounds:
    """Return ``bounds`` as they were when ``target`` was taken: nothing newer, no newer queue."""
    return {
        queue: (first, min(end, target[queue]))
        for queue, (first, end) in bounds.items()
        if queue in target
    }


# ------------------------------------------------------------------------------- what is lost


def losses(offsets: Mapping[MessageQueue, int], bounds: Bounds) -> dict[MessageQueue, str]:
    """Return, for queues that no longer hold what is to be read next, what happened.

    A queue without bounds is on a broker that is away, and is no loss.
    """
    found = {}
    for queue, offset in sorted(offsets.items()):
        if queue not in bounds:
            continue
        first, end = bounds[queue]
        if offset < first:
            found[queue] = (
                f"{named(queue)}: messages {offset}..{first - 1} are gone, the first kept is "
                f"{first}: the broker deleted them before they were read"
            )
        elif offset > end:
            found[queue] = (
                f"{named(queue)}: offset {offset} is expected next, but the queue ends at {end}: "
                f"the topic was deleted, or created again, or its broker lost its latest messages"
            )
    return found


def told(losses_by_queue: Mapping[MessageQueue, str]) -> str:
    """Return losses as errors and logs tell them: of many queues some."""
    texts = list(losses_by_queue.values())
    if len(texts) > LOSSES_TOLD_MAX:
        texts[LOSSES_TOLD_MAX:] = [f"and likewise {len(texts) - LOSSES_TOLD_MAX} more queues"]
    return "; ".join(texts)


def missed_ends(
    starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], bounds: Bounds
) -> dict[MessageQueue, str]:
    """Return, for queues in which a batch cannot end where it is to end, what is wrong."""
    found = {}
    for queue, end in sorted(ends.items()):
        first_kept, last = bounds[queue]
        first = min(max(starts[queue], first_kept), last)
        if end > last:
            found[queue] = f"{named(queue)} ends at {last}, {end} was asked for"
        elif end < first:
            found[queue] = (
                f"{named(queue)}: reading starts at {first}, after the end asked for, {end} (the "
                f"first message kept is {first_kept})"
            )
    return found


def refuse_losses(losses_by_queue: Mapping[MessageQueue, str], *, otherwise: str) -> None:
    """Raise what was lost, with the ways out.

    Args:
        losses_by_queue: what was.
        otherwise: how to read something else.

    Raises:
        OffsetOutOfRange: something was.
    """
    if losses_by_queue:
        raise OffsetOutOfRange(
            f"{told(losses_by_queue)}. To continue at the next message there is, set the option "
            f"failOnDataLoss to false; to start elsewhere, {otherwise}"
        )


def within(offsets: Mapping[MessageQueue, int], bounds: Bounds) -> Offsets:
    """Return ``offsets``, those beyond the end of their queue moved back to it.

    An offset before the first message stays: the reader skips to what there is.
    """
    return {
        queue: min(offset, bounds[queue][1]) if queue in bounds else offset
        for queue, offset in offsets.items()
    }


# ----------------------------------------------------------------------------------- planning


def ranges(start: Position, end: Position) -> list[QueueRange]:
    """Return what a batch consists of, the queues in order; a pure function of both offsets.

    Queues that only ``end`` knows have just been discovered: they are read from the next
    batch on. A queue that moved back (a loss the user accepted) has nothing to read.
    """
    if start.initial:
        return []
    return [
        QueueRange(queue, start.offsets[queue], offset)
        for queue, offset in sorted(end.offsets.items())
        if start.offsets.get(queue, offset) < offset
    ]


def plan(
    wanted: Sequence[QueueRange], *, tasks_min: int = 1, tasks_max: int | None = None
) -> list[list[QueueRange]]:
    """Cut ranges into tasks of nearly equal size: small queues together, large ones in parts.

    There are as many tasks as queues, but none below ``TASK_ROWS_MIN`` or above
    ``TASK_ROWS_MAX`` rows; the user's bounds come before these.

    Args:
        wanted: what to read, in order; every row lands in exactly one task.
        tasks_min: lower bound on their number, as long as each has a row.
        tasks_max: upper bound.
    """
    rows = sum(map(len, wanted))
    if not rows:
        return []
    worthwhile = min(len(wanted), math.ceil(rows / TASK_ROWS_MIN))
    count = max(worthwhile, math.ceil(rows / TASK_ROWS_MAX), min(tasks_min, rows))
    if tasks_max is not None:
        count = min(count, tasks_max)
    tasks: list[list[QueueRange]] = []
    parts = (part for part in wanted if len(part))
    part = next(parts)
    for number in range(count):
        room = rows * (number + 1) // count - rows * number // count
        task = []
        while room:
            if not len(part):
                part = next(parts)
            taken = min(room, len(part))
            task.append(QueueRange(part.queue, part.first, part.first + taken))
            part = QueueRange(part.queue, part.first + taken, part.end)
            room -= taken
        tasks.append(task)
    return tasks


def named(queue: MessageQueue) -> str:
    """Return a queue as errors and logs name it."""
    return f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name}"


def listed(queues: Sequence[MessageQueue], most: int = 8) -> str:
    """Return queues as errors and logs list them."""
    texts = [f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in queues[:most]]
    if len(queues) > most:
        texts.append(f"{len(queues) - most} more")
    return ", ".join(texts) or "none"
