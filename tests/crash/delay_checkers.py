"""What must hold of delayed and retried messages after crashes; see ``checkers``.

A delayed message has two kinds of records: the parked one in the schedule topic, and copies in its
own topic, of which there should be one. The log tells when each was stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.crash.checkers import some
from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, body_of, key_of

from pymq.protocol.message import decode_properties
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record import Record


@dataclass(frozen=True, slots=True)
class Kill:
    """A broker was killed.

    Attributes:
        before_ms, after_ms: wall time just before and after.
        saved: what delayOffset.json says: level -> next queue offset to deliver.
    """

    before_ms: int
    after_ms: int
    saved: Mapping[int, int]


@dataclass(slots=True)
class Delayed:
    """One message that was to be in a topic later: its parked record, if any, and its copies."""

    parked: list[Record] = field(default_factory=list)
    copies: list[Record] = field(default_factory=list)


#: (topic, key) -> its records.
Items = dict[tuple[str, str], Delayed]


def check_delays(
    events: Sequence[Event],
    records: Sequence[Record],
    kills: Sequence[Kill],
    *,
    topic: str,
    group: str,
    levels_ms: Sequence[int],
) -> list[str]:
    """Return every violation.

    Args:
        events: the ledger of ``delayed_producers``.
        records: of the whole log, when everything was due long ago.
        kills: in their order.
        topic, group: as the senders used them.
        levels_ms: the delays of levels 1, 2, ...
    """
    items, complaints = _items(records)
    complaints += some(_check_ledger(events, items, topic, group))
    complaints += some(_check_times(items, levels_ms))
    complaints += some(_check_copies(items, kills))
    complaints += some(_check_order(items))
    return complaints


def _items(records: Sequence[Record]) -> tuple[Items, list[str]]:
    items: Items = {}
    complaints = []
    for record in records:
        key = key_of(record.body)
        if key is None or record.body != body_of(key):
            complaints.append(f"damaged body {record.body[:60]!r} at {record.physical_offset}")
            continue
        if record.topic == SCHEDULE_TOPIC:
            real = decode_properties(record.properties)["REAL_TOPIC"]
            items.setdefault((real, key), Delayed()).parked.append(record)
        else:
            items.setdefault((record.topic, key), Delayed()).copies.append(record)
    return items, complaints


def _check_ledger(
    events: Sequence[Event], items: Items, topic: str, group: str
) -> Iterator[str]:
    """What was acknowledged is there; what was refused, or never sent, is not."""
    settled = {event.request: event for event in events if isinstance(event, Acknowledged)}
    refused = {event.request for event in events if isinstance(event, Failed) and event.is_known}
    attempted = set()
    for event in events:
        if not isinstance(event, Attempted):
            continue
        (key,) = event.keys
        kind = event.request.rpartition(".")[2]
        place = _place(kind, topic, group)
        attempted.add((place, key))
        item = items.get((place, key), Delayed())
        level = 0 if kind in ("n", "b-1") else int(kind[1:])
        first = item.parked if level else item.copies
        if len(first) > 1:
            yield f"{event}: there {len(first)} times before any delay"
        acknowledged = settled.get(event.request)
        if acknowledged is not None and not first:
            yield f"LOST: {event}, acknowledged: nothing is there"
        elif acknowledged is not None and kind[0] in "dn":
            found = (first[0].queue_offset, (first[0].physical_offset,))
            if found != (acknowledged.first_offset, acknowledged.physical_offsets):
                yield f"{event}: at {found}, {acknowledged}"
        if event.request in refused and (item.parked or item.copies):
            yield f"{event} is there, although it was refused"
        if level and item.parked and not item.copies:
            yield f"LOST: {event} waits, but was never delivered"
        if level and item.parked and item.parked[0].queue_id != level - 1:
            yield f"{event}: waits in queue {item.parked[0].queue_id}"
    for place, key in items.keys() - attempted:
        yield f"{key} is in {place}, where nobody sent it"


def _place(kind: str, topic: str, group: str) -> str:
    if kind[0] != "b":
        return topic
    return f"%DLQ%{group}" if kind == "b-1" else f"%RETRY%{group}"


def _check_times(items: Items, levels_ms: Sequence[int]) -> Iterator[str]:
    """Nothing is delivered before its time."""
    for name, item in items.items():
        for parked in item.parked:
            due_ms = parked.store_timestamp + levels_ms[parked.queue_id]
            for copy in item.copies:
                if copy.store_timestamp < due_ms:
                    yield f"EARLY: {name} by {due_ms - copy.store_timestamp} ms"


def _check_copies(items: Items, kills: Sequence[Kill]) -> Iterator[str]:
    """A message is delivered again only if a kill came before its delivery was saved."""
    for name, item in items.items():
        copies = sorted(item.copies, key=lambda copy: copy.physical_offset)
        if not item.parked:
            if len(copies) > 1:
                yield f"{name} is there {len(copies)} times"
            continue
        level, offset = item.parked[0].queue_id + 1, item.parked[0].queue_offset
        for one, other in zip(copies, copies[1:], strict=False):
            if not any(
                one.store_timestamp <= kill.after_ms
                and kill.before_ms <= other.store_timestamp
                and kill.saved.get(level, 0) <= offset
                for kill in kills
            ):
                yield (
                    f"TWICE: {name}, level {level} offset {offset}, delivered at "
                    f"{one.store_timestamp} and {other.store_timestamp}"
                )


def _check_order(items: Items) -> Iterator[str]:
    """Messages of a level are delivered in their order."""
    levels: dict[int, list[tuple[int, int]]] = {}
    for item in items.values():
        if item.parked and item.copies:
            first = min(copy.physical_offset for copy in item.copies)
            parked = item.parked[0]
            levels.setdefault(parked.queue_id, []).append((parked.queue_offset, first))
    for queue_id, places in levels.items():
        places.sort()
        for (one, before), (other, after) in zip(places, places[1:], strict=False):
            if after < before:
                yield f"level {queue_id + 1}: message {other} was delivered before {one}"
