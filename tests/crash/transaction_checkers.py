"""What must hold of transactions after crashes, when every check was answered; see ``checkers``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.crash.checkers import some
from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, body_of, key_of
from tests.crash.transaction_producers import is_committed

from pymq.protocol.codes import MessageFlag
from pymq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC
from pymq.protocol.record import Record

_COMMIT = int(MessageFlag.TRANSACTION_COMMIT)


@dataclass(slots=True)
class Item:
    """What the log holds of one message."""

    halves: list[Record] = field(default_factory=list)
    committed: list[Record] = field(default_factory=list)


def check_transactions(
    events: Sequence[Event], records: Sequence[Record], *, topic: str
) -> list[str]:
    """Return every violation.

    Args:
        events: the ledger of ``transaction_producers``.
        records: of the whole log.
        topic: as the producers used it.
    """
    items: dict[str, Item] = {}
    closed: set[int] = set()
    complaints = []
    for record in records:
        if record.topic == HALF_OP_TOPIC:
            closed.add(int(record.body))
            continue
        key = key_of(record.body)
        if key is None or record.body != body_of(key):
            complaints.append(f"damaged body {record.body[:60]!r} at {record.physical_offset}")
        elif record.topic == HALF_TOPIC:
            items.setdefault(key, Item()).halves.append(record)
        elif record.topic == topic:
            items.setdefault(key, Item()).committed.append(record)
        else:
            complaints.append(f"{key} is in topic {record.topic}")
    complaints += some(_check_ledger(events, items))
    complaints += some(_check_outcomes(items, closed))
    return complaints


def _check_ledger(events: Sequence[Event], items: dict[str, Item]) -> Iterator[str]:
    """What was acknowledged is there; what was refused, or never sent, is not."""
    settled = {event.request: event for event in events if isinstance(event, Acknowledged)}
    refused = {event.request for event in events if isinstance(event, Failed) and event.is_known}
    attempted = set()
    for event in events:
        if not isinstance(event, Attempted):
            continue
        (key,) = event.keys
        kind = event.request.rpartition(".")[2]
        item = items.get(key, Item())
        attempted.add(key)
        acknowledged = settled.get(event.request)
        if kind == "h":
            first = [(half.queue_offset, half.physical_offset) for half in item.halves[:1]]
            if acknowledged is not None:
                place = (acknowledged.first_offset, acknowledged.physical_offsets[0])
                if first != [place]:
                    yield f"LOST: {event}, acknowledged at {place}, is at {first}"
            if event.request in refused and item.halves:
                yield f"{event} is there, although it was refused"
        elif kind == "c" and acknowledged is not None and not item.committed:
            yield f"LOST: {event}, acknowledged: the message is not there"
    for key in items.keys() - attempted:
        yield f"{key} is there, and nobody sent it"


def _check_outcomes(items: dict[str, Item], closed: set[int]) -> Iterator[str]:
    """Every transaction ended as its producers wanted it, once."""
    for key, item in items.items():
        count = len(item.committed)
        if count != is_committed(key):
            kind = "TWICE" if count > 1 else "WRONG" if count else "LOST"
            yield f"{kind}: {key} was committed {count} times"
        places = {half.physical_offset for half in item.halves}
        for message in item.committed:
            if message.sys_flag & 0xC != _COMMIT or message.queue_id > 3:
                yield f"{key} is no committed message: {message}"
            if message.prepared_transaction_offset not in places:
                yield f"{key} was committed for {message.prepared_transaction_offset}, not {places}"
        still_open = [one.queue_offset for one in item.halves if one.queue_offset not in closed]
        if still_open:
            yield f"OPEN: {key} at {still_open}, and nobody asks for it"
