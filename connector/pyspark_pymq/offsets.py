"""Offsets of the source: their JSON, and what is chosen and lost. No input or output.

An offset of a stream is, for every queue, the next queue offset to read::

    {"%": {"v": 1}, "topic": {"broker": {"0": 17, "1": 23}}}

``%`` alone is not a legal topic name; it holds what is not an offset. Spark compares offsets as
strings, so members are written in a fixed order: by name, queue ids by number.

A stream that began at the latest messages, or at a moment, records that moment, in ms, as
``"since": ...``: a queue that it discovers later, because its broker was away or its topic is new,
begins with what was stored after that. One that began where a consumer group stands records
``"group": "..."``: such a queue begins where that group stands in it, if it does.

Brokers of pymq say which topic of a name they have, by an id that each topic gets when it is
created. ``"ids": {"topic": {"broker": "..."}}`` has those that the offsets are of. Checkpoints of
earlier versions lack it; it is added as soon as there are other offsets to write.

Where a stream begins is determined once: asked for twice, "latest" would lose what arrives in
between. But Spark journals only where a batch ends. So the initial offset carries
``"init": true``, the first batch ends where it started, without the mark, and is always empty. A
queue that appears later is likewise journaled at its first message one batch before it is read.

The latest offsets that a query reports have ``"left": {"topic": {"broker": [0, 1]}}``: queues that
the checkpoint keeps and that are not read, because the options no longer choose them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pymq.errors import ConfigurationError, OffsetOutOfRange
from pymq.protocol.bodies import MessageQueue

#: Where the consumer group stands; never in JSON.
COMMITTED = -3
EARLIEST = -2
LATEST = -1
RESERVED = "%"
VERSION = 1

#: Queues of which an error says what was lost.
LOSSES_TOLD_MAX = 4

Offsets = dict[MessageQueue, int]
#: (topic, broker name) -> which topic of that name it is.
TopicIds = Mapping[tuple[str, str], str]
Bounds = Mapping[MessageQueue, tuple[int, int]]  # first offset kept, end (next to be assigned)
#: One spelling for each, or a queue could be named twice.
_QUEUE_ID = re.compile("0|[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class At:
    """The first message stored at a moment, ms since 1970, or later."""

    timestamp_ms: int

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


#: An offset, or one of ``EARLIEST``, ``LATEST``, ``COMMITTED``; or a moment.
Place = int | At


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends, as the user gave it.

    Attributes:
        unnamed: for queues that ``named`` does not hold; no offset.
        named: by queue.
    """

    unnamed: Place
    named: tuple[tuple[MessageQueue, Place], ...] = ()

    @property
    def moves(self) -> bool:
        """Whether it may be another one when it is asked for again."""
        places = (self.unnamed, *(place for _, place in self.named))
        return any(isinstance(place, At) or place in (LATEST, COMMITTED) for place in places)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stream stands: the next offset of each queue it knows.

    Attributes:
        offsets: by queue.
        initial: it is where the stream starts, which no checkpoint has yet.
        since_ms: queues that are discovered later begin with what was stored then or later, ms
            since 1970; None: with their first message.
        group: before that, where this consumer group stands in them.
        topic_ids: of the topics that the offsets are of, as far as brokers tell.
    """

    offsets: Offsets
    initial: bool = False
    since_ms: int | None = None
    group: str | None = None
    topic_ids: TopicIds = field(default_factory=dict)


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
    if position.group is not None:
        mark["group"] = position.group
    if position.topic_ids:
        ids = mark["ids"] = {}
        for (topic, broker_name), topic_id in sorted(position.topic_ids.items()):
            ids.setdefault(topic, {})[broker_name] = topic_id
    value: dict[str, Any] = {RESERVED: mark}
    for queue, offset in sorted(position.offsets.items()):
        brokers = value.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return value


def latest_to_json(bounds: Bounds, left: Iterable[MessageQueue]) -> dict[str, Any]:
    """Return the JSON object of where queues end, and of those that are left out."""
    value = position_to_json(Position({queue: end for queue, (_, end) in bounds.items()}))
    for queue in left:
        brokers = value[RESERVED].setdefault("left", {}).setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, []).append(queue.queue_id)
    return value


def left_out(latest: Mapping[str, Any]) -> set[MessageQueue]:
    """Return the queues that ``latest_to_json`` was told are left out."""
    return {
        MessageQueue(topic, broker_name, queue_id)
        for topic, brokers in latest[RESERVED].get("left", {}).items()
        for broker_name, queue_ids in brokers.items()
        for queue_id in queue_ids
    }


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
    for queue, offset in queue_members(value):
        if type(offset) is not int:
            raise ConfigurationError(
                f"offsets of {queue.topic} on {queue.broker_name}: '{queue.queue_id}': {offset!r} "
                f'found, expected a queue id and an offset like "0": 17'
            )
        offsets[queue] = offset
    version = mark.get("v", VERSION)
    if version != VERSION:
        raise ConfigurationError(
            f"offsets of version {version!r}, expected {VERSION}: they were written by another "
            f"version of pymq; use that one, or start a new checkpoint"
        )
    since_ms = mark.get("since")
    if since_ms is not None and type(since_ms) is not int:
        raise ConfigurationError(f"offsets with since={since_ms!r}, expected milliseconds")
    group = mark.get("group")
    if group is not None and type(group) is not str:
        raise ConfigurationError(f"offsets with group={group!r}, expected its name")
    topic_ids = dict(_topic_ids(mark.get("ids", {})))
    return Position(offsets, mark.get("init") is True, since_ms, group, topic_ids)


def _topic_ids(value: Any) -> Iterator[tuple[tuple[str, str], str]]:
    for topic, brokers in _members(value, "ids"):
        for broker_name, topic_id in _members(brokers, f"ids of {topic}"):
            if type(topic_id) is not str:
                raise ConfigurationError(f"offsets with the id {topic_id!r}, expected a string")
            yield (topic, broker_name), topic_id


def queue_members(value: Any) -> Iterator[tuple[MessageQueue, Any]]:
    """Yield what a JSON object ``{topic: {broker: {queue id: value}}}`` has for each queue.

    Raises:
        ConfigurationError: it is none.
    """
    for topic, brokers in _members(value, "topics"):
        if topic == RESERVED:
            continue
        for broker_name, queues in _members(brokers, f"brokers of {topic}"):
            for queue_id, member in _members(queues, f"queues of {topic} on {broker_name}"):
                if not _QUEUE_ID.fullmatch(queue_id):
                    raise ConfigurationError(
                        f"offsets of {topic} on {broker_name}: {queue_id!r}: {member!r} found, "
                        f'expected a queue id and an offset like "0": 17'
                    )
                yield MessageQueue(topic, broker_name, int(queue_id)), member


def _members(value: Any, what: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"{what}: {value!r:.60} found, expected an object: "
            f'{{"topic": {{"broker": {{"0": 17}}}}}}'
        )
    return value.items()


# --------------------------------------------------------------------- where to start and end


def places(bound: Bound, bounds: Bounds) -> dict[MessageQueue, Place]:
    """Return what the user's choice says of every queue in ``bounds``.

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
    return {queue: named.get(queue, bound.unnamed) for queue in bounds}


def resolve(
    bound: Bound, bounds: Bounds, found: Mapping[MessageQueue, int] | None = None
) -> Offsets:
    """Return the offset of every queue in ``bounds``, as the user's choice makes it.

    Args:
        bound: the choice.
        bounds: of the queues there are.
        found: offsets that brokers were asked for: of moments, and of a consumer group.

    Raises:
        ConfigurationError: the choice names a queue that does not exist.
    """
    offsets: Offsets = {}
    for queue, place in places(bound, bounds).items():
        first, end = bounds[queue]
        if isinstance(place, At) or place == COMMITTED:
            offsets[queue] = (found or {})[queue]
        else:
            offsets[queue] = {EARLIEST: first, LATEST: end}.get(place, place)
    return offsets


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


def named(queue: MessageQueue) -> str:
    """Return a queue as errors and logs name it."""
    return f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name}"


def listed(queues: Sequence[MessageQueue], most: int = 8) -> str:
    """Return queues as errors and logs list them."""
    texts = [f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in queues[:most]]
    if len(queues) > most:
        texts.append(f"{len(queues) - most} more")
    return ", ".join(texts) or "none"
