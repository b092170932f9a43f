"""What must hold of messages that are popped in order, after crashes.

What a broker knows of such pops is not in the log: where each group is in each queue, and what it
popped there last, are two tables that are saved now and then, each for itself. A broker that was
killed goes on from their files. So each of its lives is replayed from what these said at its
beginning, and what they say at its end has to be true.

Clients know when they made a request and when it ended; the broker handled it in between, at an
unknown moment. Only of a pop it says when that was. So there are two answers to the question how
far a group was then: by the acknowledgements that surely counted, and by those that may have.
Whoever pops must be between them, and no earlier message may be with somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.crash.checkers import Found, check_history, some
from tests.crash.ledger import Event, key_of
from tests.crash.pop_order_history import Death, History, LastPop, LostPop, Queue, Said

from pymq.protocol.record import Record


def check_ordered_pops(
    events: Sequence[Event],
    records: Sequence[Record],
    deaths: Sequence[Death],
    *,
    topic: str,
    groups: Sequence[str],
) -> list[str]:
    """Return every violation.

    Args:
        events: the ledger of ``pop_order_consumers``.
        records: of the whole log, in order.
        deaths: of the broker; the last one is its end, when everything was acknowledged.
        topic, groups: as these used them.
    """
    sent = [event for event in events if event.request.endswith(".s")]
    there = [
        Found(one.queue_id, one.queue_offset, one.physical_offset, one.body)
        for one in records
        if one.topic == topic
    ]
    history = History(events)
    complaints = check_history(sent, sorted(there, key=lambda found: found.place))
    complaints += some(_check_messages(history, there, groups))
    complaints += some(_check_end(there, deaths[-1], groups))
    queues = {Queue(group, one.queue_id) for group in groups for one in there}
    for queue in sorted(queues | history.pops.keys()):
        complaints += some(_Replay(queue, history).run(deaths))
    return complaints


def _check_messages(
    history: History, there: Sequence[Found], groups: Sequence[str]
) -> Iterator[str]:
    """Every group popped every message, and acknowledged it; and nothing else was popped."""
    keys = {one.place: key_of(one.body) for one in there}
    popped: set[tuple[Queue, int]] = set()
    for queue, offset, key in history.keys:
        popped.add((queue, offset))
        found = keys.get((queue.queue_id, offset))
        if found != key:
            yield f"{queue} brought {key} from offset {offset}, where {found} is"
    finished = {
        (queue, said.offset) for queue, every in history.acknowledged.items() for said in every
    }
    for queue_id, offset in keys:
        for group in groups:
            place = Queue(group, queue_id), offset
            if place not in popped:
                yield f"LOST: {group} never popped offset {offset} of queue {queue_id}"
            elif place not in finished:
                yield f"LOST: {group} never acknowledged offset {offset} of queue {queue_id}"


def _check_end(there: Sequence[Found], end: Death, groups: Sequence[str]) -> Iterator[str]:
    """All groups are at the ends of all queues."""
    ends: dict[int, int] = {}
    for one in there:
        ends[one.queue_id] = max(ends.get(one.queue_id, 0), one.queue_offset + 1)
    for group in groups:
        for queue_id, wanted in sorted(ends.items()):
            at = end.offsets.get(Queue(group, queue_id), 0)
            if at != wanted:
                yield f"OPEN: in the end {group} is at {at} of {wanted} in queue {queue_id}"


class _Replay:
    """Goes through all lives of the broker for one queue."""

    def __init__(self, queue: Queue, history: History) -> None:
        self._queue = queue
        self._pops = history.pops.get(queue, [])
        self._known = {_identity(pop) for pop in self._pops}
        self._lost = [one for one in history.lost if one.group == queue.group]
        self._acknowledged = _by_pop_time(history.acknowledged.get(queue, []))
        self._changed = _by_pop_time(history.changed.get(queue, []))
        #: When this life began: the end of the one before.
        self._begin_ms = 0
        #: What the file said then of where the group was.
        self._saved = 0
        #: Where the group was when it popped last, in this life.
        self._reached = 0
        self._last: LastPop | None = None
        #: Pops of this life that nobody was told of.
        self._unanswered: list[LostPop] = []

    def run(self, deaths: Sequence[Death]) -> Iterator[str]:
        """Return what is wrong."""
        number = 0
        for death in deaths:
            self._unanswered = [
                one for one in self._lost if one.may_be(self._queue, self._begin_ms, death.at_ms)
            ]
            while number < len(self._pops) and self._pops[number].pop_time <= death.at_ms:
                pop = self._pops[number]
                number += 1
                yield from self._check_pop(pop)
                self._reached, self._last = min(pop.visible_ms), pop
            yield from self._check_saved(death)
            self._begin_ms = death.at_ms
            self._saved = self._reached = death.offsets.get(self._queue, 0)
            self._last = death.last.get(self._queue)
        for pop in self._pops[number:]:
            yield f"{self._queue}: popped after the end: {pop}"

    def _check_pop(self, pop: LastPop) -> Iterator[str]:
        offsets = list(pop.visible_ms)
        first = offsets[0]
        low, high = self._between(pop.pop_time)
        if offsets != list(range(first, first + len(offsets))):
            yield f"HOLE: {self._queue}: popped {offsets}: {pop}"
        if first > high:
            yield (
                f"SKIPPED: {self._queue}: popped {pop}, but offset "
                f"{high} was not acknowledged; {self._state()}"
            )
        elif first < low:
            yield (
                f"AGAIN: {self._queue}: popped {pop}, though all in "
                f"front of {low} were acknowledged; {self._state()}"
            )
        yield from self._check_blocked(pop)

    def _check_blocked(self, pop: LastPop) -> Iterator[str]:
        """Nobody gets a message while somebody else has one of the same queue."""
        last, until_ms = self._last, pop.pop_time
        if last is None or last.attempt_id == pop.attempt_id:
            return
        if any(one.attempt_id == last.attempt_id for one in self._unknown(until_ms)):
            return  # the messages were popped again, for another time
        done = last.acknowledged | self._counted(until_ms)[1]
        for offset, visible_ms in last.visible_ms.items():
            since_ms = self._earliest(offset, visible_ms, until_ms)
            if offset not in done and until_ms < since_ms:
                yield (
                    f"ORDER: {self._queue}: popped {pop}, but offset {offset} was with a consumer "
                    f"until {since_ms}; {self._state()}"
                )
                break

    def _check_saved(self, death: Death) -> Iterator[str]:
        """The files say what was true at some time of this life, or before it."""
        _, high = self._between(death.at_ms)
        at, last = death.offsets.get(self._queue, 0), death.last.get(self._queue)
        if not self._saved <= at <= high:
            yield (
                f"SAVED: {self._queue}: offset {at} at {death.at_ms}, expected {self._saved}.."
                f"{high}; {self._state()}"
            )
        if last is None:
            return
        if _identity(last) in self._known:
            said = {one.offset for one in self._acknowledged.get(last.pop_time, [])}
            if any(offset >= self._saved for offset in last.acknowledged - said):
                yield f"SAVED: {self._queue}: nobody acknowledged all of that: {last}"
        elif last.attempt_id not in {one.attempt_id for one in self._lost} or last.acknowledged:
            yield f"SAVED: {self._queue}: nobody popped that: {last}"

    def _between(self, until_ms: int) -> tuple[int, int]:
        """Return how far the group surely was at some time, and how far it may have been."""
        sure, maybe = self._counted(until_ms)
        low = self._reached if self._unknown(until_ms) else self._after(sure)
        return low, self._after(maybe)

    def _after(self, counted: set[int]) -> int:
        """Return where the group is once these messages are acknowledged."""
        last = self._last
        if last is None or not any(offset >= self._reached for offset in counted):
            return self._reached  # only an acknowledgement takes it on
        missing = last.visible_ms.keys() - last.acknowledged - counted
        left = [offset for offset in missing if offset >= self._reached]
        return min(left, default=max(last.visible_ms) + 1)

    def _counted(self, until_ms: int) -> tuple[set[int], set[int]]:
        """Return what of the last pop was surely acknowledged in this life, and what maybe."""
        if self._last is None:
            return set(), set()
        said = self._in_this_life(self._acknowledged.get(self._last.pop_time, []), until_ms)
        sure = {one.offset for one in said if self._is_sure(one, until_ms)}
        offsets = self._last.visible_ms.keys()
        return sure & offsets, {one.offset for one in said} & offsets

    def _earliest(self, offset: int, visible_ms: int, until_ms: int) -> int:
        """Return when a message of the last pop was visible again, at the earliest."""
        assert self._last is not None
        possible = [visible_ms]
        is_known = not self._unknown(until_ms)
        for said in self._in_this_life(self._changed.get(self._last.pop_time, []), until_ms):
            if said.offset == offset:
                if is_known and self._is_sure(said, until_ms):
                    possible.clear()
                possible.append(said.visible_ms)
        return min(possible)

    def _in_this_life(self, every: Sequence[Said], until_ms: int) -> list[Said]:
        return [one for one in every if one.begin_ms <= until_ms and one.end_ms >= self._begin_ms]

    def _is_sure(self, said: Said, until_ms: int) -> bool:
        return said.is_done and self._begin_ms < said.begin_ms and said.end_ms < until_ms

    def _unknown(self, until_ms: int) -> list[LostPop]:
        """Return pops that nobody was told of, and that may have come after the last one."""
        since_ms = max(0 if self._last is None else self._last.pop_time, self._begin_ms)
        return [one for one in self._unanswered if one.may_be(self._queue, since_ms, until_ms)]

    def _state(self) -> str:
        return f"alive since {self._begin_ms}, was at {self._reached}, had popped {self._last}"


def _by_pop_time(every: Sequence[Said]) -> dict[int, list[Said]]:
    found: dict[int, list[Said]] = {}
    for said in every:
        found.setdefault(said.pop_time, []).append(said)
    return found


def _identity(pop: LastPop) -> tuple[str, int, frozenset[int]]:
    return pop.attempt_id, pop.pop_time, frozenset(pop.visible_ms)
