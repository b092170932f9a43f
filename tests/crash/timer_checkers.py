"""What must hold of messages with a time of their own after crashes; see ``delay_checkers``.

Such a message has a parked record in the timer topic, one more for each round of the wheel, and
copies in its own topic: one, and none if it was recalled in time. A recall is answered when it is
as safe as a send, which takes a while on a slow disk: the message may have been delivered by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.crash.checkers import some
from tests.crash.ledger import Acknowledged, Attempted, Event, Noted, body_of, key_of

from pymq.protocol.message import decode_properties
from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.record import Record

#: End of the requests that recall a message.
RECALLED = ".r"
#: Length of a slot (timerPrecisionMs); it is read when it is over.
SLOT_MS = 1000


@dataclass(frozen=True, slots=True)
class TimerKill:
    """A broker was killed.

    Attributes:
        before_ms, after_ms: wall time just before and after.
        read_ms: what timercheck says: all earlier slots were delivered.
    """

    before_ms: int
    after_ms: int
    read_ms: int


@dataclass(slots=True)
class Timed:
    """Of one message the records as it was sent, those of later rounds, and the copies."""

    sent: list[Record] = field(default_factory=list)
    rounds: list[Record] = field(default_factory=list)
    copies: list[Record] = field(default_factory=list)


def check_timers(
    events: Sequence[Event], records: Sequence[Record], kills: Sequence[TimerKill]
) -> list[str]:
    """Return every violation.

    Args:
        events: the ledger of ``timer_producers``.
        records: of the whole log, when everything was due long ago.
        kills: in their order.
    """
    items, complaints = _items(records)
    complaints += some(_check_ledger(events, items))
    complaints += some(_check_copies(items, kills))
    return complaints


def _items(records: Sequence[Record]) -> tuple[dict[str, Timed], list[str]]:
    items: dict[str, Timed] = {}
    complaints = []
    for record in records:
        properties = decode_properties(record.properties)
        if "TIMER_DEL_UNIQKEY" in properties:
            continue
        key = key_of(record.body)
        if key is None or record.body != body_of(key):
            complaints.append(f"damaged body {record.body[:60]!r} at {record.physical_offset}")
            continue
        item = items.setdefault(key, Timed())
        if record.topic != TIMER_TOPIC:
            item.copies.append(record)
        elif "TIMER_ROLL_TIMES" in properties:
            item.rounds.append(record)
        else:
            item.sent.append(record)
    return items, complaints


def _check_ledger(events: Sequence[Event], items: Mapping[str, Timed]) -> Iterator[str]:
    """What was acknowledged is delivered; what was recalled is not."""
    settled = {event.request: event for event in events if isinstance(event, Acknowledged)}
    recalls = [
        event
        for event in events
        if isinstance(event, Attempted) and event.request.endswith(RECALLED)
    ]
    answered_ms = {
        event.request: int(event.words[0]) for event in events if isinstance(event, Noted)
    }
    recalled = {
        event.keys[0]: answered_ms[event.request] for event in recalls if event.request in settled
    }
    maybe_recalled = {event.keys[0] for event in recalls}
    attempted = set()
    for event in events:
        if not isinstance(event, Attempted) or event.request.endswith(RECALLED):
            continue
        (key,) = event.keys
        attempted.add(key)
        item = items.get(key, Timed())
        if len(item.sent) > 1:
            yield f"{event}: there {len(item.sent)} times before any round"
        acknowledged = settled.get(event.request)
        if acknowledged is not None:
            places = [one.physical_offset for one in item.sent or item.copies[:1]]
            if places != list(acknowledged.physical_offsets):
                yield f"LOST: {event}, {acknowledged}: it is at {places}"
        if key in recalled and recalled[key] < _over_ms(item):
            if item.copies:
                yield f"RECALLED: {event} was delivered at {item.copies[0].store_timestamp}"
        elif item.sent and not item.copies and key not in maybe_recalled:
            yield f"LOST: {event} waits, but was never delivered"
    for key in items.keys() - attempted:
        yield f"{key} is there, and nobody sent it"


def _over_ms(item: Timed) -> int:
    """Return when the slot of a message is over; 0 if it never waited in one."""
    if not item.sent:
        return 0
    return int(decode_properties(item.sent[0].properties)["TIMER_OUT_MS"]) + SLOT_MS


def _check_copies(items: Mapping[str, Timed], kills: Sequence[TimerKill]) -> Iterator[str]:
    """None is delivered early, and none again unless a kill came before that was saved."""
    for key, item in items.items():
        for copy in item.copies:
            properties = decode_properties(copy.properties)
            early_ms = int(properties["TIMER_DELIVER_MS"]) - copy.store_timestamp
            if early_ms > 0:
                yield f"EARLY: {key} by {early_ms} ms"
            slot_ms = int(properties.get("TIMER_OUT_MS", 0))
        if len(item.copies) > 1 and not (
            item.sent
            and any(
                item.sent[0].store_timestamp <= kill.after_ms
                and kill.before_ms <= item.copies[-1].store_timestamp
                and kill.read_ms <= slot_ms
                for kill in kills
            )
        ):
            times = [copy.store_timestamp for copy in item.copies]
            yield f"TWICE: {key}, due in the slot of {slot_ms}, delivered at {times}"
