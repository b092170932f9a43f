"""What must hold after crashes: pure functions of a ledger and of what was found.

Each returns what it found wrong, as texts; none means that all is well. ``check_history`` runs
them all. A timeout is *unknown*: such a message may be there or not, but only as a whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, body_of, key_of

COMPLAINTS_MAX = 20


@dataclass(frozen=True, slots=True)
class Found:
    """A message that was read in the end."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes

    @property
    def place(self) -> tuple[int, int]:
        """Queue and offset."""
        return (self.queue_id, self.queue_offset)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One message as the log has it, or one entry of a consume queue."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    tag_code: int


def check_history(
    events: Sequence[Event], found: Sequence[Found], *, lost_power: bool = False
) -> list[str]:
    """Return every violation (``COMPLAINTS_MAX`` of each kind).

    Args:
        events: the whole ledger of the only topic's only senders.
        found: all messages of the topic, each queue in the order it was read.
        lost_power: of a batch that was not acknowledged, only the first few may be there.
    """
    complaints: list[str] = []
    for check in (
        check_dense,
        check_bodies,
        check_no_phantom,
        check_once,
        check_acknowledged,
        check_refused_absent,
        check_beginnings if lost_power else check_batches,
        check_order,
    ):
        complaints += some(check(events, found))
    return complaints


def some(complaints: Iterator[str]) -> list[str]:
    """Return complaints of one kind, ``COMPLAINTS_MAX`` of them."""
    every = list(complaints)
    if len(every) > COMPLAINTS_MAX:
        every[COMPLAINTS_MAX:] = [f"... and {len(every) - COMPLAINTS_MAX} more of these"]
    return every


def check_dense(events: Sequence[Event], found: Sequence[Found]) -> Iterator[str]:
    """Every queue holds the offsets 0, 1, 2, ... in log order."""
    for queue_id, messages in _by_queue(found).items():
        physical = -1
        for expected, message in enumerate(messages):
            if message.queue_offset != expected:
                yield f"queue {queue_id}: offset {message.queue_offset}, expected {expected}"
                break
            if message.physical_offset <= physical:
                yield (
                    f"queue {queue_id} offset {expected}: physical offset "
                    f"{message.physical_offset} after {physical}"
                )
            physical = message.physical_offset


def check_bodies(events: Sequence[Event], found: Sequence[Found]) -> Iterator[str]:
    """Every message is whole."""
    for message in found:
        key = key_of(message.body)
        if key is None or message.body != body_of(key):
            yield f"{message.place}: damaged body {message.body[:60]!r} ({len(message.body)} B)"


def check_no_phantom(events: Sequence[Event], found: Sequence[Found]) -> Iterator[str]:
    """Nothing is there that nobody attempted to send."""
    attempted = {key for event in events if isinstance(event, Attempted) for key in event.keys}
    for message in found:
        if key_of(message.body) not in attempted:
            yield f"{message.place}: nobody sent {message.body[:60]!r}"


def check_once(events: Sequence[Event], found: Sequence[Found]) -> Iterator[str]:
    """Nothing is there twice: the senders never retry."""
    for key, count in Counter(key_of(message.body) for message in found).items():
        if count > 1:
            places = [message.place for message in found if key_of(message.body) == key]
            yield f"{key} is there {count} times: {places}"


def check_acknowledged(events: Sequence[Event], found: Sequence[Found]) -> Iterator[str]:
    """Every acknowledged message is exactly where the acknowledgement said."""
    keys = _keys(events)
    at = {message.place: message for message in found}
    for event in events:
        if not isinstance(event, Acknowledged):
            continue
        sent = keys[event.request]
        if len(event.physical_offsets) != len(sent):
            yield f"{event}: expected {len(sent)} physical offsets"
            continue
        for index, key in enumerate(sent):
            place = (event.queue_id, event.first_offset + index)
            message = at.get(place)
            if message is None:
                yield f"LOST: {key}, acknowledged at {place}: nothing is there"
            elif message.body != body_of(key):
                yield f"LOST: {key}, acknowledged at {place}: {message.body[:60]!r} is there"
            elif message.physical_offset != event.physical_offsets[index]:
                yield (
                    f"{key} at {place}: physical offset {message.physical_offset}, "
                    f"acknowledged {event.physical_offsets[index]}"
                )


def check_refused_absent(events: Sequence[Event], found: Sequence[Found]) -> Iterator[str]:
    """What a client reported as certainly not stored is not there."""
    keys = _keys(events)
    there = {key_of(message.body) for message in found}
    for event in events:
        if isinstance(event, Failed) and event.is_known:
            for key in there.intersection(keys[event.request]):
                yield f"{key} is there, although the send was refused: {event.reason}"


def check_batches(events: Sequence[Event], found: Sequence[Found]) -> Iterator[str]:
    """A batch stands together: all of it or nothing, next to each other, in its order."""
    return _torn(events, found, settled=_keys(events).keys())


def check_beginnings(events: Sequence[Event], found: Sequence[Found]) -> Iterator[str]:
    """An acknowledged batch stands together; of another one the first few may.

    Records are written in order, the disk keeps pages as it likes, and nothing in the log's
    format says that records belong together.
    """
    settled = {event.request for event in events if isinstance(event, Acknowledged)}
    return _torn(events, found, settled=settled)


def _torn(
    events: Sequence[Event], found: Sequence[Found], *, settled: Collection[str]
) -> Iterator[str]:
    places = {key_of(message.body): message.place for message in found}
    for event in events:
        if not isinstance(event, Attempted) or len(event.keys) == 1:
            continue
        at = [places.get(key) for key in event.keys]
        there = [place for place in at if place is not None]
        whole = len(there) == len(at) or event.request not in settled
        if there and whole and at[: len(there)] == there:
            queue_id, first = there[0]
            whole = there == [(queue_id, first + n) for n in range(len(there))]
        elif there:
            whole = False
        if there and not whole:
            yield f"batch {event.request} is torn: {dict(zip(event.keys, at, strict=True))}"


def check_order(events: Sequence[Event], found: Sequence[Found]) -> Iterator[str]:
    """What was attempted after an acknowledgement stands behind it in its queue.

    Also for messages whose outcome was never known, and across senders.
    """
    places = {key_of(message.body): message.place for message in found}
    acknowledged: dict[int, int] = {}  # queue -> highest acknowledged offset so far
    floors: dict[str, dict[int, int]] = {}
    for event in events:
        if isinstance(event, Acknowledged):
            last = event.first_offset + len(event.physical_offsets) - 1
            acknowledged[event.queue_id] = max(last, acknowledged.get(event.queue_id, -1))
        elif isinstance(event, Attempted):
            floors[event.keys[0]] = dict(acknowledged)
    for key, floor in floors.items():
        place = places.get(key)
        if place is not None and place[1] <= floor.get(place[0], -1):
            yield (
                f"{key} is at {place}, but offset {floor[place[0]]} of that queue was "
                "acknowledged before it was sent"
            )


def check_index(entries: Sequence[IndexEntry], log: Sequence[IndexEntry]) -> list[str]:
    """Return how the consume queues differ from what the log, read again, says.

    Args:
        entries: of all queues of a topic.
        log: of all records of that topic.
    """
    there, wanted = set(entries), set(log)
    wrong = [f"entry without its record: {entry}" for entry in entries if entry not in wanted]
    wrong += [f"record without its entry: {record}" for record in log if record not in there]
    return some(iter(wrong))


def check_index_files(found: Sequence[bytes], wanted: Sequence[bytes]) -> list[str]:
    """Return how the files of the key index differ from what the log, read again, says."""
    wrong = [
        f"index file {number} differs from one made from scratch"
        for number, (one, other) in enumerate(zip(found, wanted, strict=False))
        if one != other
    ]
    if len(found) != len(wanted):
        wrong.append(f"{len(found)} index files, made from scratch {len(wanted)}")
    return wrong


def _keys(events: Sequence[Event]) -> dict[str, tuple[str, ...]]:
    return {event.request: event.keys for event in events if isinstance(event, Attempted)}


def _by_queue(found: Sequence[Found]) -> dict[int, list[Found]]:
    queues: dict[int, list[Found]] = defaultdict(list)
    for message in found:
        queues[message.queue_id].append(message)
    return queues
