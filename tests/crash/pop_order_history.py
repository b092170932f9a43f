"""What consumers that pop in order asked for and got, and what brokers saved of it.

Read from the ledger of ``pop_order_consumers`` and from the files of two tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.crash.ledger import Acknowledged, Attempted, Event, Failed, Noted

_NEVER_MS: Final = 1 << 62


class Queue(NamedTuple):
    """One queue of the topic, as one group sees it."""

    group: str
    queue_id: int


@dataclass(slots=True)
class LastPop:
    """What was popped from a queue at one time, and what became of it.

    Attributes:
        visible_ms: of each message, by queue offset.
        counts: how often messages were popped before.
    """

    attempt_id: str
    pop_time: int
    visible_ms: dict[int, int]
    counts: dict[int, int] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"{min(self.visible_ms)}..{max(self.visible_ms)} at {self.pop_time} by "
            f"{self.attempt_id}, acknowledged {sorted(self.acknowledged)}"
        )


def last_pop(info: Any) -> LastPop | None:
    """Return what the file says of one queue, as RocketMQ spells it."""
    if info is None:
        return None
    first, *distances = info["o"]
    offsets = [first, *(first + distance for distance in distances)]
    changed = {int(at): int(ms) for at, ms in (info.get("ot") or {}).items()}
    due_ms = info["popTime"] + info["i"]
    return LastPop(
        info.get("a") or "",
        info["popTime"],
        {at: changed.get(at, due_ms) for at in offsets},
        {int(at): int(times) for at, times in (info.get("oc") or {}).items()},
        {at for number, at in enumerate(offsets) if info["cm"] >> number & 1},
    )


def saved_offsets(table: Any, topic: str) -> dict[Queue, int]:
    """Return where ``consumerOffset.json`` says that groups are in the queues of a topic."""
    return {
        Queue(group, int(queue_id)): int(offset)
        for group, queues in _of_topic(table.get("offsetTable", {}), topic)
        for queue_id, offset in queues.items()
    }


def saved_pops(table: Any, topic: str) -> dict[Queue, LastPop]:
    """Return what ``consumerOrderInfo.json`` says that groups popped last from a topic."""
    return {
        Queue(group, int(queue_id)): last
        for group, queues in _of_topic(table.get("table", {}), topic)
        for queue_id, info in queues.items()
        if (last := last_pop(info)) is not None
    }


def _of_topic(table: Any, topic: str) -> list[tuple[str, Any]]:
    found = [(*key.split("@"), value) for key, value in table.items()]
    return [(group, value) for of_topic, group, value in found if of_topic == topic]


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a life of the broker, and what the files of its tables say then.

    Attributes:
        at_ms: wall time when it was gone.
        offsets: where groups are.
        last: what they popped last.
    """

    at_ms: int
    offsets: Mapping[Queue, int]
    last: Mapping[Queue, LastPop]


@dataclass(frozen=True, slots=True)
class Said:
    """What a consumer said of a message it had popped: acknowledged it, or wanted it later.

    Attributes:
        begin_ms, end_ms: when it asked, and when that was over.
        is_done: whether the broker said that it was done.
        pop_time, offset: of the message.
        visible_ms: when it is to come again, or not before that; 0 if it is acknowledged.
    """

    begin_ms: int
    end_ms: int
    is_done: bool
    pop_time: int
    offset: int
    visible_ms: int = 0


@dataclass(frozen=True, slots=True)
class LostPop:
    """A pop that may have popped something, but nobody was told."""

    begin_ms: int
    end_ms: int
    attempt_id: str
    group: str
    queue_id: int

    def may_be(self, queue: Queue, first_ms: int, last_ms: int) -> bool:
        """Return whether it may have popped from a queue at some time."""
        return (
            self.group == queue.group
            and self.queue_id in (-1, queue.queue_id)
            and self.begin_ms <= last_ms
            and first_ms <= self.end_ms
        )


class History:
    """What consumers asked for and got.

    Attributes:
        pops: of each queue, in their order.
        keys: of each message that was popped, its key.
        lost: pops without an answer.
        acknowledged, changed: what was said of messages.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.pops: dict[Queue, list[LastPop]] = {}
        self.keys: list[tuple[Queue, int, str]] = []
        self.lost: list[LostPop] = []
        self.acknowledged: dict[Queue, list[Said]] = {}
        self.changed: dict[Queue, list[Said]] = {}
        asked: dict[str, tuple[str, ...]] = {}
        notes: dict[str, list[tuple[str, ...]]] = {}
        ended: dict[str, Acknowledged | Failed] = {}
        for event in events:
            if isinstance(event, Attempted):
                asked[event.request] = event.keys
            elif isinstance(event, Noted):
                notes.setdefault(event.request, []).append(event.words)
            else:
                ended[event.request] = event
        for request, words in asked.items():
            kind = request.rpartition(".")[2]
            end = ended.get(request)
            if kind == "p":
                self._add_pop(words, notes.get(request, []), end)
            elif kind in "ac":
                self._add_said(kind, words, notes.get(request, []), end)
        for pops in self.pops.values():  # in one ms a group gets only further
            pops.sort(key=lambda pop: (pop.pop_time, min(pop.visible_ms)))

    def _add_pop(
        self,
        words: tuple[str, ...],
        notes: list[tuple[str, ...]],
        end: Acknowledged | Failed | None,
    ) -> None:
        begin, group, attempt_id, queue_id = words
        if not isinstance(end, Acknowledged):
            if end is None or not end.is_known:
                end_ms = int(notes[0][0]) if notes else _NEVER_MS
                self.lost.append(LostPop(int(begin), end_ms, attempt_id, group, int(queue_id)))
            return
        found: dict[Queue, LastPop] = {}
        for handle, key in notes:
            queue, pop_time, invisible_ms, offset = parse_handle(handle)
            pop = found.setdefault(queue, LastPop(attempt_id, pop_time, {}))
            pop.visible_ms[offset] = pop_time + invisible_ms
            self.keys.append((queue, offset, key))
        for queue, pop in found.items():
            self.pops.setdefault(queue, []).append(pop)

    def _add_said(
        self,
        kind: str,
        words: tuple[str, ...],
        notes: list[tuple[str, ...]],
        end: Acknowledged | Failed | None,
    ) -> None:
        begin_ms = int(words[0])
        end_ms = int(notes[0][0]) if notes else _NEVER_MS
        is_done = isinstance(end, Acknowledged)
        visible_ms, table = 0, self.acknowledged
        if kind == "c":
            table = self.changed
            visible_ms = int(notes[0][1]) if is_done else begin_ms + int(words[1])
        for handle in words[1 if kind == "a" else 2 :]:
            queue, pop_time, _, offset = parse_handle(handle)
            said = Said(begin_ms, end_ms, is_done, pop_time, offset, visible_ms)
            table.setdefault(queue, []).append(said)


def parse_handle(text: str) -> tuple[Queue, int, int, int]:
    """Return queue, pop time, invisible time and queue offset of a handle of the ledger."""
    group, _, pop_time, invisible_ms, *_, queue_id, offset = text.split(":")
    return Queue(group, int(queue_id)), int(pop_time), int(invisible_ms), int(offset)
