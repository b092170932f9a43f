"""What must hold of light queues after crashes: pure functions, see ``checkers``.

A light queue lists records of other topics. Their places follow from the log alone: the records
that name it, in their order, are its messages 0, 1, 2, ... A message that is only parked (delayed)
is in none, its copy is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.crash.checkers import Found, IndexEntry, check_dense, some
from tests.crash.delay_checkers import Kill, check_delays
from tests.crash.ledger import Acknowledged, Attempted, Event, Noted, key_of

from pymq.protocol.message import REAL_TOPIC, decode_properties
from pymq.protocol.multi_dispatch import DISPATCH, OFFSETS
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record import Record

#: Light queue -> the records that it should list, in its order.
Listing = dict[str, list[Record]]


def check_light(
    events: Sequence[Event],
    records: Sequence[Record],
    entries: Mapping[str, Sequence[IndexEntry]],
    kills: Sequence[Kill],
    *,
    topics: Sequence[str],
    levels_ms: Sequence[int],
) -> list[str]:
    """Return every violation.

    Args:
        events: the ledger of ``light_producers``, in the end everything was read once more.
        records: of the whole log, in order, when everything was due long ago.
        entries: of each light queue, in order.
        kills: in their order.
        topics: where messages were sent to.
        levels_ms: the delays of levels 1, 2, ...
    """
    complaints: list[str] = []
    for topic in topics:
        sent = [event for event in events if event.request.split(".")[2:3] == [topic]]
        there = [record for record in records if _final_topic(record) == topic]
        complaints += check_delays(
            [event for event in sent if not isinstance(event, Noted)],
            there,
            kills,
            topic=topic,
            group="",
            levels_ms=levels_ms,
        )
        complaints += some(check_dense([], _found(there, topic)))
    listing = listing_of(records)
    complaints += some(_check_names(events, records))
    complaints += some(_check_entries(listing, entries))
    complaints += some(_check_told(listing))
    complaints += some(_check_listed(events, records, entries))
    complaints += some(_check_read(events, listing))
    return complaints


def _final_topic(record: Record) -> str:
    if record.topic != SCHEDULE_TOPIC:
        return record.topic
    return decode_properties(record.properties)[REAL_TOPIC]


def _found(records: Sequence[Record], topic: str) -> list[Found]:
    found = [
        Found(one.queue_id, one.queue_offset, one.physical_offset, one.body)
        for one in records
        if one.topic == topic
    ]
    return sorted(found, key=lambda one: one.place)


def listing_of(records: Sequence[Record]) -> Listing:
    """Return what light queues should list, by the log."""
    listing: Listing = {}
    for record in records:
        if record.topic != SCHEDULE_TOPIC:
            for name in dict.fromkeys(_names(record)):
                listing.setdefault(name, []).append(record)
    return listing


def _names(record: Record) -> list[str]:
    value = decode_properties(record.properties).get(DISPATCH)
    return value.split(",") if value else []


def _wanted(events: Sequence[Event]) -> dict[str, list[str]]:
    """Return the light queues that each message was sent to, by key."""
    names = {
        event.request: event.words[0].split(",")
        for event in events
        if isinstance(event, Noted) and not _is_read(event)
    }
    return {
        event.keys[0]: names.get(event.request, [])
        for event in events
        if isinstance(event, Attempted)
    }


def _is_read(event: Event) -> bool:
    return event.request.endswith(".r")


def _check_names(events: Sequence[Event], records: Sequence[Record]) -> Iterator[str]:
    """Every record names the light queues that its message was sent to."""
    wanted = _wanted(events)
    for record in records:
        key, names = key_of(record.body), _names(record)
        if key in wanted and names != wanted[key]:
            yield f"{key} was sent to {wanted[key]}, its record names {names}"


def _check_entries(listing: Listing, entries: Mapping[str, Sequence[IndexEntry]]) -> Iterator[str]:
    """Light queues hold what the log says: everything once, in its order, without a hole."""
    for name in sorted(listing.keys() | entries.keys()):
        there, records = entries.get(name, ()), listing.get(name, [])
        wanted = [
            (0, offset, record.physical_offset, record.size)
            for offset, record in enumerate(records)
        ]
        found = [(one.queue_id, one.queue_offset, one.physical_offset, one.size) for one in there]
        if found != wanted:
            pairs = zip(found, wanted, strict=False)
            at = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
            if at is None:
                at = min(len(found), len(wanted))
            yield (
                f"QUEUE: {name} has {len(found)} entries, expected {len(wanted)}; from {at} on: "
                f"{found[at : at + 2]}, expected {wanted[at : at + 2]}"
            )


def _check_told(listing: Listing) -> Iterator[str]:
    """Every record says where light queues list it."""
    wanted: dict[int, dict[str, str]] = {}
    by_place: dict[int, Record] = {}
    for name, records in listing.items():
        for offset, record in enumerate(records):
            wanted.setdefault(record.physical_offset, {})[name] = str(offset)
            by_place[record.physical_offset] = record
    for place, offsets in wanted.items():
        record = by_place[place]
        told = decode_properties(record.properties).get(OFFSETS)
        right = ",".join(offsets[name] for name in _names(record))
        if told != right:
            yield f"TOLD: {record} says that it is at {told}, expected {right}"


def _check_listed(
    events: Sequence[Event],
    records: Sequence[Record],
    entries: Mapping[str, Sequence[IndexEntry]],
) -> Iterator[str]:
    """What was acknowledged is in every light queue that it named, once for each of its records.

    Of these there is one, apart from repeated deliveries of a delayed message.
    """
    wanted = _wanted(events)
    keys = {event.request: event.keys[0] for event in events if isinstance(event, Attempted)}
    copies: dict[str, list[int]] = {}
    for record in records:
        if record.topic != SCHEDULE_TOPIC:
            copies.setdefault(key_of(record.body) or "?", []).append(record.physical_offset)
    listed: dict[str, dict[int, int]] = {}
    for name, every in entries.items():
        counts = listed.setdefault(name, {})
        for entry in every:
            counts[entry.physical_offset] = counts.get(entry.physical_offset, 0) + 1
    for event in events:
        if not isinstance(event, Acknowledged):
            continue
        key = keys[event.request]
        for name in dict.fromkeys(wanted[key]):
            times = [listed.get(name, {}).get(place, 0) for place in copies.get(key, [])]
            if not times or set(times) != {1}:
                yield f"LOST: {key}, acknowledged: its records are in {name} {times} times"


def _check_read(events: Sequence[Event], listing: Listing) -> Iterator[str]:
    """What was read, before and after kills, is what is there; in the end it is all there is."""
    keys = {name: [key_of(one.body) for one in records] for name, records in listing.items()}
    ends: dict[str, int] = {}
    for event in events:
        if not isinstance(event, Noted) or not _is_read(event):
            continue
        name, at, key, told = event.words
        offset = int(at)
        if key == "refused":
            yield f"READ: {name} from {offset} on was refused with {told}"
        elif keys.get(name, [])[offset : offset + 1] != [key] or told != at:
            yield f"READ: {key} at {offset} of {name}, as it says at {told}; it is elsewhere"
        if event.request.startswith("last."):
            ends[name] = offset + 1
    for name, there in keys.items():
        if ends.get(name, 0) != len(there):
            yield f"READ: in the end {ends.get(name, 0)} of {len(there)} messages in {name}"
