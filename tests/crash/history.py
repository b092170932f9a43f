"""What one store was asked for and has promised over all its restarts, and what must hold then.

Several topics, each of which may be deleted and come back: a *life* of a topic has a ledger of
its own. ``check`` is a pure function of a history and of what was found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.crash.checkers import Found, IndexEntry, check_history, check_index
from tests.crash.ledger import Acknowledged, Event


@dataclass(slots=True)
class Life:
    """A topic from its first message to its deletion.

    Attributes:
        first: where the log ended when its predecessor was deleted; its records stand behind.
        events: its ledger.
        is_ending: its deletion has begun; whether it was done shows after a restart.
    """

    first: int = 0
    events: list[Event] = field(default_factory=list)
    is_ending: bool = False


@dataclass(slots=True)
class History:
    """What happened to one store.

    Attributes:
        lives: the present life of every topic.
        durable_end: everything in the log below this was said to be on the disk.
        saved: number of the last save of the state table that succeeded.
        save_begun: number of the last save that was tried.
        lost_power: whether the power was lost, once or more.
    """

    lives: dict[str, Life] = field(default_factory=dict)
    durable_end: int = 0
    saved: int = 0
    save_begun: int = 0
    lost_power: bool = False

    def end_life(self, topic: str, log_end: int) -> None:
        """Note that a topic is gone; its next records stand at ``log_end`` or behind."""
        self.lives[topic] = Life(log_end)

    def resolve_endings(self, topics: Collection[str], log_end: int) -> None:
        """Note after a restart which topics are there: a deletion was done, or not at all."""
        for topic, life in list(self.lives.items()):
            if life.is_ending and topic not in topics:
                self.end_life(topic, log_end)
            life.is_ending = False

    def forget_beyond(self, log_end: int) -> None:
        """Forget what was only acknowledged and not durable, behind a new end of the log.

        For ASYNC_FLUSH and lost power. What is forgotten counts as unknown: it may be there as
        far as the log goes, and its place may be given away again.
        """
        self.lost_power = True
        for life in self.lives.values():
            life.first = min(life.first, log_end)
            life.events = [
                event
                for event in life.events
                if not isinstance(event, Acknowledged) or event.physical_offsets[-1] < log_end
            ]


@dataclass(slots=True)
class Findings:
    """What a store shows after a restart.

    Attributes:
        log_end: where its log ends.
        messages: of every topic with any, each queue in its order.
        saved: number in the state table, 0 without one.
        log: what the records in the log say the queues should hold, by topic.
        entries: what the queue files hold.
    """

    log_end: int
    messages: Mapping[str, Sequence[Found]]
    saved: int
    log: Mapping[str, Sequence[IndexEntry]] = field(default_factory=dict)
    entries: Mapping[str, Sequence[IndexEntry]] = field(default_factory=dict)


def check(history: History, findings: Findings) -> list[str]:
    """Return everything that is wrong."""
    complaints = list(_check_whole(history, findings))
    for topic, life in history.lives.items():
        there = findings.messages.get(topic, ())
        entries = findings.entries.get(topic, ())
        log = [
            entry
            for entry in findings.log.get(topic, ())
            if entry.physical_offset >= life.first
        ]
        messages = check_history(life.events, there, lost_power=history.lost_power)
        complaints += [f"{topic}: {text}" for text in messages]
        complaints += [f"{topic}: {text}" for text in check_index(entries, log)]
    return complaints


def _check_whole(history: History, findings: Findings) -> Iterator[str]:
    if findings.log_end < history.durable_end:
        yield (
            f"LOST: the log ends at {findings.log_end}, but was said to be on the disk up to "
            f"{history.durable_end}"
        )
    for topic in sorted({*findings.messages, *findings.entries} - history.lives.keys()):
        yield f"topic {topic} was never made"
    if not history.saved <= findings.saved <= history.save_begun:
        yield (
            f"the state table holds save {findings.saved}, expected "
            f"{history.saved}..{history.save_begun}"
        )
