"""What popping should be like, beside what a store really holds.

``Truth`` reads the files of the log and knows nothing of the code under test, apart from the
formats of records. ``Model`` follows what consumers were told: where each group is in each queue,
and what is in flight until when.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.cluster.pops import PoppedMessage
from tests.crash.disk import log_records

from pymq.protocol.message import decode_properties
from pymq.protocol.receipt_handles import topic_of_kind
from pymq.protocol.record import Record

TOPIC: Final = "T"
#: After a start consumers have this long to come back.
GRACE_MS: Final = 2000


class Place(NamedTuple):
    """A queue, as a group sees it."""

    group: str
    topic: str
    queue_id: int


class FlightKey(NamedTuple):
    """A message of one checkpoint."""

    place: Place
    start_offset: int
    pop_time: int
    offset: int


class Stored(NamedTuple):
    """A message of a queue."""

    body: bytes
    tag: str
    attempts: int


@dataclass(slots=True)
class Flight:
    """A message that was popped, and is neither acknowledged nor visible again.

    Attributes:
        due_ms: when it becomes visible.
        message: as a consumer got it; None: no consumer did.
    """

    due_ms: int
    message: PoppedMessage | None = None


def wants(group: str, message: Stored) -> bool:
    """Does a group want a message? One group selects by tag."""
    return group != "h" or message.tag == "a"


def key_of(group: str, message: PoppedMessage) -> FlightKey:
    """Return what the handle of a message says."""
    start, pop_time, _, _, kind, _, queue_id, offset = message.handle.split(" ")
    place = Place(group, topic_of_kind(TOPIC, group, kind), int(queue_id))
    return FlightKey(place, int(start), int(pop_time), int(offset))


class Truth:
    """What a log holds.

    Attributes:
        queues: the messages of each queue.
        flights: what is in flight, and until when.
        popped: every message that was popped, whatever became of it since.
    """

    def __init__(self, root: Path, revive_topic: str) -> None:
        self.queues: dict[tuple[str, int], list[Stored]] = {}
        self.flights: dict[FlightKey, int] = {}
        self.popped: set[FlightKey] = set()
        for record in log_records(root):
            if record.topic == revive_topic:
                self._revive_record(record)
            else:
                queue = self.queues.setdefault((record.topic, record.queue_id), [])
                assert record.queue_offset == len(queue)
                queue.append(stored_of(record))

    def _revive_record(self, record: Record) -> None:
        tag = decode_properties(record.properties)["TAGS"]
        said: dict[str, Any] = json.loads(record.body)
        place = Place(said["c"], said["t"], said["q"])
        start, pop_time = said["so"], said["pt"]
        if tag == "ck":
            offsets = [start + distance for distance in said["d"]]
            assert said["n"] == len(offsets)
            for number, offset in enumerate(offsets):
                key = FlightKey(place, start, pop_time, offset)
                self.popped.add(key)
                if said["bm"] >> number & 1:
                    self.flights.pop(key, None)
                else:
                    self.flights[key] = pop_time + said["it"]
        else:
            for offset in [said["ao"]] if tag == "ack" else said["aol"]:
                self.flights.pop(FlightKey(place, start, pop_time, offset), None)

    def stored(self, key: FlightKey) -> Stored:
        """Return the message of a flight."""
        return self.queues[key.place.topic, key.place.queue_id][key.offset]


def stored_of(record: Record) -> Stored:
    """Return a record as a message."""
    tag = decode_properties(record.properties).get("TAGS", "")
    return Stored(record.body, tag, record.reconsume_times)


@dataclass
class Model:
    """What must be.

    Args:
        retry_topics: group -> where its messages go that nobody acknowledged in time.

    Attributes:
        queues: as in ``Truth``.
        cursors: the next message that a group gets from a queue.
        lowest: that is not known, but it is not below this: a pop may have failed, or power was
            lost. Then messages may be delivered twice, but none may be left out.
        popped: all that was ever in flight.
        flights: what is in flight.
        ended: what is so no longer.
        resets: offsets that a group goes on at when it pops next.
        done: the messages that a group has acknowledged.
        passed: those that it was set past.
        stale: messages whose handles are worth nothing any more.
    """

    retry_topics: dict[str, str]
    queues: dict[tuple[str, int], list[Stored]] = field(default_factory=dict)
    cursors: dict[Place, int] = field(default_factory=dict)
    lowest: dict[Place, int] = field(default_factory=dict)
    popped: set[FlightKey] = field(default_factory=set)
    flights: dict[FlightKey, Flight] = field(default_factory=dict)
    ended: set[FlightKey] = field(default_factory=set)
    resets: dict[Place, int] = field(default_factory=dict)
    done: dict[str, set[bytes]] = field(default_factory=dict)
    passed: dict[str, set[bytes]] = field(default_factory=dict)
    stale: list[tuple[str, PoppedMessage]] = field(default_factory=list)

    # --- what must happen

    def put(self, topic: str, queue_id: int, message: Stored) -> None:
        """A message is stored."""
        self.queues.setdefault((topic, queue_id), []).append(message)

    def adopt_queues(self, truth: Truth) -> None:
        """Take over the messages of a log."""
        self.queues = {key: list(queue) for key, queue in truth.queues.items()}

    def offered(self, place: Place) -> list[int]:
        """Return the offsets of the messages that a group gets next from a queue."""
        first = self.resets.get(place, self.cursors.get(place, 0))
        return self._wanted(place, first, len(self._queue(place)))

    def _queue(self, place: Place) -> list[Stored]:
        return self.queues.get((place.topic, place.queue_id), [])

    def _wanted(self, place: Place, first: int, end: int) -> list[int]:
        queue = self._queue(place)
        return [at for at in range(first, end) if wants(place.group, queue[at])]

    def found_by(self, group: str, queue_id: int) -> list[tuple[Place, int]]:
        """Return what a pop of a queue, or of any with -1, must find."""
        places = [
            Place(group, topic, number)
            for topic, number in self.queues
            if topic == self.retry_topics[group] or (topic == TOPIC and queue_id in (-1, number))
        ]
        return [
            (place, at)
            for place in places
            if place not in self.lowest
            for at in self.offered(place)
        ]

    def pop(
        self,
        group: str,
        messages: Sequence[PoppedMessage],
        truth: Callable[[], Truth],
        *,
        is_faulty: bool,
    ) -> None:
        """A group has got messages.

        Args:
            group: who.
            messages: all that it got at that time.
            truth: returns what is in the log.
            is_faulty: whether pops may fail.
        """
        by_place: dict[Place, dict[FlightKey, PoppedMessage]] = {}
        for message in messages:
            key = key_of(group, message)
            of_place = by_place.setdefault(key.place, {})
            assert key not in of_place, f"{key} twice"
            of_place[key] = message
        for place, found in by_place.items():
            for key in [key for key in found if self._is_unheard(key)]:
                self.flights[key].message = found.pop(key)  # its answer waited for the disk
            if not found:
                continue
            self.take_reset(place)
            offsets = sorted(key.offset for key in found)
            if place in self.lowest:
                self._check_again(place, offsets, truth())
                self.cursors[place] = max(offsets[-1] + 1, self.cursors.get(place, 0))
                if not is_faulty:
                    del self.lowest[place]
                    self.cursors[place] = offsets[-1] + 1
            else:
                offered = self.offered(place)
                assert offsets == offered[: len(offsets)], (place, offsets, offered)
                self.cursors[place] = offsets[-1] + 1
            for key, message in found.items():
                stored = self._queue(place)[key.offset]
                assert stored_of(message.record) == stored, (key, message, stored)
                assert key not in self.popped, f"{key} again"
                self._fly(key, message)

    def _is_unheard(self, key: FlightKey) -> bool:
        """Is it known to be in flight from the log alone?"""
        return key in self.flights and self.flights[key].message is None

    def _fly(self, key: FlightKey, message: PoppedMessage) -> None:
        invisible_ms = int(message.handle.split(" ")[2])
        self.flights[key] = Flight(key.pop_time + invisible_ms, message)
        self.popped.add(key)

    def pass_to(self, place: Place, offset: int) -> None:
        """A group may be set to another offset: it need not get what lies before."""
        before = self.lowest.get(place, self.cursors.get(place, 0))
        end = min(offset, len(self._queue(place)))
        queue, passed = self._queue(place), self.passed.setdefault(place.group, set())
        passed |= {queue[at].body for at in self._wanted(place, before, end)}

    def take_reset(self, place: Place) -> None:
        """Have a group go on where it was set, if it was."""
        if place in self.resets:
            reached = min(self.resets.pop(place), len(self._queue(place)))
            self.cursors[place] = reached
            if place in self.lowest:
                self.lowest[place] = min(self.lowest[place], reached)

    def _check_again(self, place: Place, offsets: list[int], truth: Truth) -> None:
        """Check a pop from where nobody knows."""
        lowest = self.lowest[place]
        assert offsets[0] >= lowest, (place, offsets, lowest)
        known = {key.offset for key in truth.popped if key.place == place}
        passed, queue = self.passed.get(place.group, set()), self._queue(place)
        missing = [
            at
            for at in self._wanted(place, lowest, offsets[-1])
            if at not in known and queue[at].body not in passed
        ]
        assert not missing, f"{place}: {missing} were left out before {offsets}"

    def acknowledge(self, group: str, message: PoppedMessage) -> None:
        """A message was acknowledged, whether that counts or not."""
        key = key_of(group, message)
        if self.flights.pop(key, None) is not None:
            self._end(key, message)
            self.done.setdefault(group, set()).add(message.body)

    def _end(self, key: FlightKey, message: PoppedMessage | None) -> None:
        self.ended.add(key)
        if message is not None:
            self.stale.append((key.place.group, message))

    def change(self, group: str, before: PoppedMessage, after: PoppedMessage) -> None:
        """A message has another handle, if it was changed in time."""
        key = key_of(group, before)
        if self.flights.pop(key, None) is not None:
            self._end(key, before)
            assert (new := key_of(group, after)) not in self.flights, new
            self._fly(new, after)

    def due(self, now_ms: int) -> list[FlightKey]:
        """Return what is to become visible."""
        return [key for key, flight in self.flights.items() if flight.due_ms <= now_ms]

    def revive(self, keys: Iterable[FlightKey]) -> Counter[tuple[str, Stored]]:
        """Messages become visible; return what becomes of them, and where."""
        copies: Counter[tuple[str, Stored]] = Counter()
        for key in keys:
            copies[self._copy(key)] += 1
            self._end(key, self.flights.pop(key).message)
        return copies

    def _copy(self, key: FlightKey) -> tuple[str, Stored]:
        place = key.place
        target = self.retry_topics[place.group] if place.topic == TOPIC else place.topic
        before = self._queue(place)[key.offset]
        return target, before._replace(attempts=before.attempts + 1)

    # --- what did happen

    def restarted(
        self,
        truth: Truth,
        now_ms: int,
        *,
        doubtful: set[FlightKey],
        unheard: set[str],
        is_torn: bool = False,
    ) -> None:
        """A broker was started: find out what nobody could know, and check the rest.

        Args:
            truth: what it started on.
            now_ms: the time.
            doubtful: flights that somebody wanted to end, without an answer.
            unheard: groups that popped, or changed something, without an answer.
            is_torn: was the power lost during a write? Then of what was written together, and not
                flushed, there may be a part: a copy without the end of its flight.
        """
        self.resync(truth, doubtful=doubtful, unheard=unheard, is_torn=is_torn)
        self._wait_for_consumers(truth, now_ms)

    def lost_power(self, truth: Truth, now_ms: int, *, doubtful: set[FlightKey]) -> None:
        """A broker was started that may have forgotten what consumers were told."""
        for key in (doubtful & truth.popped) - truth.flights.keys():
            # Somebody acknowledged it, and heard nothing; or there is a copy, which comes again.
            self.done.setdefault(key.place.group, set()).add(truth.stored(key).body)
        self.stale.clear()
        self.ended.clear()
        self.adopt_queues(truth)
        self.flights = {
            key: Flight(due_ms, self.flights[key].message if key in self.flights else None)
            for key, due_ms in truth.flights.items()
        }
        self.popped = set(truth.popped)
        self.lowest = dict.fromkeys({*self.cursors, *(key.place for key in truth.popped)}, 0)
        self._wait_for_consumers(truth, now_ms)

    def _wait_for_consumers(self, truth: Truth, now_ms: int) -> None:
        for key, flight in self.flights.items():
            flight.due_ms = max(truth.flights[key], now_ms) + GRACE_MS

    def resync(
        self,
        truth: Truth,
        *,
        doubtful: set[FlightKey],
        unheard: set[str],
        is_torn: bool = False,
    ) -> None:
        """Compare with a log, and take over what nobody could know; arguments as above."""
        for key in truth.popped - self.popped:
            assert key.place.group in unheard, f"{key} was popped"
            self.cursors[key.place] = max(self.cursors.get(key.place, 0), key.offset + 1)
        self.popped |= truth.popped
        for key in truth.flights.keys() - self.flights.keys():
            assert key.place.group in unheard, f"{key} is in flight"
            assert key not in self.ended, f"{key} is in flight again"
        gone = self.flights.keys() - truth.flights.keys()
        assert doubtful >= gone, f"{gone - doubtful} are not in flight any more"
        copies, revived = Counter(map(self._copy, gone)), Counter[tuple[str, Stored]]()
        torn = (doubtful & self.flights.keys()) - gone if is_torn else set[FlightKey]()
        possible = copies + Counter(map(self._copy, torn))
        for (topic, queue_id), queue in truth.queues.items():
            known = self.queues.get((topic, queue_id), [])
            assert queue[: len(known)] == known
            if topic != TOPIC:
                found = Counter((topic, one) for one in queue[len(known) :])
                assert found <= possible, f"{topic}: {found - possible} out of nowhere"
                revived += found
        for key in gone:
            if revived[self._copy(key)]:
                revived[self._copy(key)] -= 1
            else:
                self.done.setdefault(key.place.group, set()).add(truth.stored(key).body)
            self._end(key, self.flights.pop(key).message)
        for key in truth.flights.keys() - self.flights.keys():
            self.flights[key] = Flight(truth.flights[key])
        self.adopt_queues(truth)

    def check(self, truth: Truth) -> None:
        """Compare a log with what must be in it."""
        assert truth.queues == self.queues
        odd = truth.flights.keys() ^ self.flights.keys()
        assert not odd, f"in flight, or not: {odd}"
