"""What must hold when a group of brokers has failed over: pure functions, as in ``checkers``.

Which broker acknowledged a message is in the ledger; which epoch wrote it, the epochs of the log
that is left say. Commits of consumers are told apart from messages, as ``CommitEvent``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.crash.checkers import some
from tests.crash.ledger import Acknowledged, Attempted, Event


@dataclass(frozen=True, slots=True)
class Epoch:
    """A part of the log: the number of the master's term, and the physical offset it begins at."""

    number: int
    first: int


def check_failover(events: Sequence[Event], epochs: Sequence[Epoch]) -> list[str]:
    """Return every violation.

    Args:
        events: the whole ledger.
        epochs: of the log that is left, in its order.
    """
    return some(check_one_writer(events, epochs)) + some(check_epochs_in_order(events, epochs))


def check_one_writer(events: Sequence[Event], epochs: Sequence[Epoch]) -> Iterator[str]:
    """All that was acknowledged in an epoch was acknowledged by one broker."""
    writers: dict[int, tuple[str, str]] = {}
    for event in events:
        if not isinstance(event, Acknowledged):
            continue
        for physical_offset in event.physical_offsets:
            number = epoch_at(epochs, physical_offset)
            if number is None:
                yield f"{event.request}: no epoch has physical offset {physical_offset}"
                continue
            broker, request = writers.setdefault(number, (event.broker, event.request))
            if broker != event.broker:
                yield (
                    f"TWO WRITERS of epoch {number}: {name_of(broker)} acknowledged {request}, "
                    f"{name_of(event.broker)} {event.request} at {physical_offset}"
                )


def check_epochs_in_order(events: Sequence[Event], epochs: Sequence[Epoch]) -> Iterator[str]:
    """Nothing is acknowledged in an epoch that was begun after one of a later epoch was."""
    latest, by = -1, ""
    floors: dict[str, tuple[int, str]] = {}
    for event in events:
        if isinstance(event, Attempted):
            floors[event.request] = latest, by
        elif isinstance(event, Acknowledged):
            number = epoch_at(epochs, event.physical_offsets[0])
            if number is None:
                continue
            floor, request = floors.get(event.request, (-1, ""))
            if number < floor:
                yield (
                    f"{event.request} was acknowledged in epoch {number} by "
                    f"{name_of(event.broker)}; {request} had been in epoch {floor} before it "
                    "was sent"
                )
            if number > latest:
                latest, by = number, event.request


def epoch_at(epochs: Sequence[Epoch], physical_offset: int) -> int | None:
    """Return the epoch of a byte of the log; None: none has it."""
    place = bisect_right(epochs, physical_offset, key=lambda one: one.first)
    return epochs[place - 1].number if place else None


def name_of(broker: str) -> str:
    """Return ``host:port`` of a broker as message ids name it."""
    if len(broker) != 16:
        return broker or "?"
    host = ".".join(str(int(broker[at : at + 2], 16)) for at in range(0, 8, 2))
    return f"{host}:{int(broker[8:], 16)}"


# ------------------------------------------------------------------------------ committed offsets


@dataclass(frozen=True, slots=True)
class CommitBegun:
    """An offset is about to be committed."""

    queue: str
    offset: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The broker has answered that it is."""

    queue: str
    offset: int


@dataclass(frozen=True, slots=True)
class QueryBegun:
    """It is about to be asked what is committed."""

    queue: str


@dataclass(frozen=True, slots=True)
class Queried:
    """The answer to the last question about that queue; None: nothing is committed."""

    queue: str
    offset: int | None


@dataclass(frozen=True, slots=True)
class AllDied:
    """All brokers are dead at the same time: what they had not saved yet is gone."""


CommitEvent = CommitBegun | Committed | QueryBegun | Queried | AllDied


def check_commits(events: Sequence[CommitEvent]) -> list[str]:
    """Return every violation: commits that were acknowledged are never taken back.

    What is told is not below any commit that was acknowledged before the question, and was
    committed by somebody. One consumer commits ascending offsets, one after the other. Brokers
    save offsets from time to time: when all have died, they may be any that were committed, and
    so may one be that was answered before, and whose answer was looked at afterwards.

    Args:
        events: in their order.
    """
    return some(_check_commits(events))


def _check_commits(events: Sequence[CommitEvent]) -> Iterator[str]:
    begun: dict[str, set[int]] = {}
    settled: dict[str, int] = {}
    floors: dict[str, int] = {}
    was_open_at_death = False
    for event in events:
        match event:
            case CommitBegun(queue, offset):
                begun.setdefault(queue, set()).add(offset)
                was_open_at_death = False
            case Committed(queue, offset):
                if not was_open_at_death:
                    settled[queue] = max(offset, settled.get(queue, -1))
            case AllDied():
                settled.clear()
                floors.clear()
                was_open_at_death = True
            case QueryBegun(queue):
                floors[queue] = settled.get(queue, -1)
            case Queried(queue, found):
                floor = floors.get(queue, -1)
                if (-1 if found is None else found) < floor:
                    yield f"BACKWARDS: {queue} is at {found}, {floor} had been acknowledged"
                elif found is not None and found not in begun.get(queue, ()):
                    yield f"{queue} is at {found}, which nobody committed"
