"""What must hold of popped messages after crashes.

Everything a broker was told of them lies in its log: a checkpoint for every pop, a record for every
acknowledgement, and a copy in the retry topic of what came back. SIGKILL takes nothing away from a
log, so there is no window in which a consumer may be told something that is forgotten: a message is
popped once from its place, comes back when its time ran out and not before, and never after its
acknowledgement counted. It counts if it came in time: by then no copy of the message was stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.crash.checkers import some
from tests.crash.ledger import Acknowledged, Attempted, Event, Noted, body_of, key_of

from pymq.protocol.message import decode_properties
from pymq.protocol.names import pop_retry_topic, revive_topic
from pymq.protocol.receipt_handles import topic_of_kind
from pymq.protocol.record import Record

REVIVE_TOPIC = revive_topic("DefaultCluster")


class Place(NamedTuple):
    """Where a group finds a message."""

    group: str
    topic: str
    queue_id: int
    offset: int


class Handle(NamedTuple):
    """A message of one checkpoint."""

    place: Place
    start_offset: int
    pop_time: int


@dataclass(slots=True)
class Flight:
    """From a pop, or a change of the invisible time, to its end.

    Attributes:
        opened, ended: the records that say so.
        due_ms: when the message is to come back.
    """

    handle: Handle
    opened: Record
    due_ms: int
    ended: Record | None = None


@dataclass(slots=True)
class Life:
    """A message as one group sees it.

    Attributes:
        records: the message, and its copies in the retry topic, by the number of attempts.
    """

    group: str
    records: dict[int, Record] = field(default_factory=dict)


@dataclass(slots=True)
class Flights:
    """What a log says.

    Attributes:
        lives: by group and key.
        by_place, by_handle: everything that was popped.
        complaints: what cannot be.
    """

    lives: dict[tuple[str, str], Life] = field(default_factory=dict)
    by_place: dict[Place, list[Flight]] = field(default_factory=dict)
    by_handle: dict[Handle, Flight] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def is_over(self) -> bool:
        """Return whether every message was popped, and nothing is in flight any more."""
        return all(
            flights and all(one.ended is not None for one in flights)
            for life in self.lives.values()
            for record in life.records.values()
            for flights in [self.by_place.get(place_of(life.group, record))]
        )

    def add_message(self, record: Record, groups: Sequence[str]) -> None:
        """Add a message, or its copy for one of the groups."""
        key = key_of(record.body)
        if key is None or record.body != body_of(key):
            self.complaints.append(f"damaged body {record.body[:60]!r} in {record.topic}")
            return
        for group in groups:
            life = self.lives.setdefault((group, key), Life(group))
            if record.reconsume_times in life.records:
                self.complaints.append(
                    f"TWICE: {key} is there twice with {record.reconsume_times} attempts: "
                    f"{life.records[record.reconsume_times]}, {record}"
                )
            life.records[record.reconsume_times] = record

    def add_revive_record(self, record: Record) -> None:
        """Add what a record of the revive topic says."""
        said: dict[str, Any] = json.loads(record.body)
        tag = decode_properties(record.properties)["TAGS"]
        start, pop_time = said["so"], said["pt"]
        if tag == "ck":
            offsets = [start + distance for distance in said["d"]]
        else:
            offsets = [said["ao"]] if tag == "ack" else said["aol"]
        for number, offset in enumerate(offsets):
            handle = Handle(Place(said["c"], said["t"], said["q"], offset), start, pop_time)
            if tag == "ck":
                self._open(handle, record, pop_time + said["it"], bool(said["bm"] >> number & 1))
            else:
                self._end(handle, record)

    def _open(self, handle: Handle, record: Record, due_ms: int, is_ended: bool) -> None:
        known = self.by_handle.get(handle)
        if known is not None:  # the journal was shortened
            if is_ended != (known.ended is not None):
                self.complaints.append(f"{handle} was written again, as if it had (not) ended")
            return
        flight = Flight(handle, record, due_ms)
        self.by_handle[handle] = flight
        self.by_place.setdefault(handle.place, []).append(flight)

    def _end(self, handle: Handle, record: Record) -> None:
        flight = self.by_handle.get(handle)
        if flight is None:
            self.complaints.append(f"{handle} ended, and never began: {record}")
        elif flight.ended is None:
            flight.ended = record


def place_of(group: str, record: Record) -> Place:
    """Return where a group finds a record."""
    return Place(group, record.topic, record.queue_id, record.queue_offset)


def parse_handle(text: str, topic: str) -> Handle:
    """Return a handle of the ledger of ``pop_consumers``."""
    group, start, pop_time, _, _, kind, _, queue_id, offset = text.split(":")
    popped = topic_of_kind(topic, group, kind)
    return Handle(Place(group, popped, int(queue_id), int(offset)), int(start), int(pop_time))


def read_flights(records: Sequence[Record], *, topic: str, groups: Sequence[str]) -> Flights:
    """Return what a log says.

    Args:
        records: all of it, in order.
        topic: where messages are sent to.
        groups: that pop it.
    """
    found = Flights()
    retry_topics = {pop_retry_topic(topic, group, v2=False): group for group in groups}
    for record in records:
        if record.topic == REVIVE_TOPIC:
            found.add_revive_record(record)
        elif record.topic == topic:
            found.add_message(record, groups)
        elif record.topic in retry_topics:
            found.add_message(record, [retry_topics[record.topic]])
        else:
            found.complaints.append(f"a record in topic {record.topic}: {record}")
    return found


def check_pops(
    events: Sequence[Event], records: Sequence[Record], *, topic: str, groups: Sequence[str]
) -> list[str]:
    """Return every violation.

    Args:
        events: the ledger of ``pop_consumers``.
        records: of the whole log, in order, when everything was acknowledged.
        topic, groups: as these used them.
    """
    flights = read_flights(records, topic=topic, groups=groups)
    asked = _Asked(events, topic)
    complaints = flights.complaints
    complaints += some(_check_sends(events, flights, groups))
    complaints += some(_check_lives(flights, asked))
    complaints += some(_check_pops(asked, flights))
    complaints += some(_check_acknowledgements(asked, flights))
    return complaints


class _Asked:
    """What consumers asked for.

    Attributes:
        acknowledged, changed: the handles of which somebody said so, answered or not.
        answered: (handles, time) of acknowledgements that were answered.
        popped: of each message that was popped the handle, the record's topic, attempts, key, time.
    """

    def __init__(self, events: Sequence[Event], topic: str) -> None:
        self.acknowledged: set[Handle] = set()
        self.changed: set[Handle] = set()
        self.answered: list[tuple[list[Handle], int]] = []
        self.popped: list[tuple[Handle, str, int, str, int]] = []
        about: dict[str, list[Handle]] = {}
        for event in events:
            kind = event.request.rpartition(".")[2]
            if isinstance(event, Attempted) and kind in "ac":
                handles = about[event.request] = [parse_handle(one, topic) for one in event.keys]
                (self.acknowledged if kind == "a" else self.changed).update(handles)
            elif isinstance(event, Noted) and kind == "a":
                self.answered.append((about[event.request], int(event.words[0])))
            elif isinstance(event, Noted) and kind == "p":
                text, of_topic, attempts, key, time_ms = event.words
                handle = parse_handle(text, topic)
                self.popped.append((handle, of_topic, int(attempts), key, int(time_ms)))


def _check_sends(events: Sequence[Event], flights: Flights, groups: Sequence[str]) -> Iterator[str]:
    """What was acknowledged is there, and nothing that nobody sent."""
    settled = {event.request: event for event in events if isinstance(event, Acknowledged)}
    attempted = set()
    for event in events:
        if not (isinstance(event, Attempted) and event.request.endswith(".s")):
            continue
        (key,) = event.keys
        attempted.add(key)
        life = flights.lives.get((groups[0], key), Life(groups[0]))
        there = [one.physical_offset for times, one in life.records.items() if times == 0]
        acknowledged = settled.get(event.request)
        if acknowledged is not None and there != list(acknowledged.physical_offsets):
            yield f"LOST: {event}, {acknowledged}: it is at {there}"
    for key in {key for _, key in flights.lives} - attempted:
        yield f"{key} is there, and nobody sent it"


def _check_lives(flights: Flights, asked: _Asked) -> Iterator[str]:
    """Every message was popped, came back as often as its copies say, and ended by a consumer."""
    for (group, key), life in flights.lives.items():
        if sorted(life.records) != list(range(len(life.records))):
            yield f"{key} for {group}: attempts {sorted(life.records)}, expected 0, 1, 2, ..."
        for attempts, record in life.records.items():
            popped = flights.by_place.get(place_of(group, record), [])
            copy = life.records.get(attempts + 1)
            if not popped:
                yield f"LOST: {group} never popped {key}, attempt {attempts}"
                continue
            for before, after in zip(popped, popped[1:], strict=False):
                yield from _check_change(before, after, asked)
            last = popped[-1]
            if last.ended is None:
                yield f"OPEN: {key} for {group}: {last}"
            elif copy is None:
                if last.handle not in asked.acknowledged:
                    yield f"LOST: nobody acknowledged {key} for {group}: {last}"
            elif copy.store_timestamp < last.due_ms:
                early_ms = last.due_ms - copy.store_timestamp
                yield f"EARLY: {key} came back to {group} {early_ms} ms early: {last}, {copy}"
            elif copy.physical_offset > last.ended.physical_offset:
                yield f"TWICE: {key} came back to {group} after its end: {last}, {copy}"


def _check_change(before: Flight, after: Flight, asked: _Asked) -> Iterator[str]:
    """A message that is popped has another handle only because somebody wanted that."""
    ended = before.ended
    if ended is None or ended.physical_offset < after.opened.physical_offset:
        yield f"TWICE: {before} was popped again: {after}"
    elif before.handle not in asked.changed:
        yield f"TWICE: {before} was changed by nobody: {after}"


def _check_pops(asked: _Asked, flights: Flights) -> Iterator[str]:
    """What consumers got is what the log says, and each got it alone."""
    seen: dict[Handle, int] = {}
    for handle, topic, attempts, key, time_ms in asked.popped:
        place = handle.place
        life = flights.lives.get((place.group, key), Life(place.group))
        record = life.records.get(attempts)
        if record is None or place_of(place.group, record) != place:
            yield f"{handle} brought {key}, attempt {attempts}, which is elsewhere: {record}"
        elif handle not in flights.by_handle:
            yield f"{handle} was popped at {time_ms}, and the log does not say so"
        elif record.store_timestamp > time_ms:
            yield f"{handle} was popped at {time_ms}, before it was stored"
        if attempts and topic not in (place.topic, life.records[0].topic):
            yield f"{handle} brought a message of {topic}"
        if handle in seen:
            yield f"TWICE: {handle} was handed out at {seen[handle]} and at {time_ms}"
        seen[handle] = time_ms


def _check_acknowledgements(asked: _Asked, flights: Flights) -> Iterator[str]:
    """What was acknowledged does not come back, unless its time had run out before."""
    copies = _copies(flights)
    for handles, answered_ms in asked.answered:
        for handle in handles:
            copy = copies.get(handle.place)
            if copy is not None and copy.store_timestamp > answered_ms:
                yield (
                    f"LOST ACKNOWLEDGEMENT: {handle}, answered at {answered_ms}, came back: {copy}"
                )


def _copies(flights: Flights) -> Mapping[Place, Record]:
    """Return what messages came back as."""
    return {
        place_of(life.group, record): life.records[attempts + 1]
        for life in flights.lives.values()
        for attempts, record in life.records.items()
        if attempts + 1 in life.records
    }
