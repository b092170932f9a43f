"""What transactions should be like, beside what a store really holds.

``Truth`` reads the files of the log and knows nothing of the code under test, apart from the
formats of records. ``Model`` follows what producers were told, and says what a round of checks has
to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from tests.crash.disk import log_records
from tests.crash.transaction_run import RESERVED_HOURS, TransactionRun
from tests.unit.store.stores import read_all

from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import decode_properties
from pymq.protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    TRANSACTION_GROUP,
)
from pymq.protocol.record import Record
from pymq.protocol.transaction_records import identity

#: Where messages are once they are committed; the last one is that of delayed messages.
TOPICS: Final = ("A", "B", "LATER")
_HOUR_MS: Final = 3_600_000


class Fate(Enum):
    """What became of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    DISCARDED = "discarded"  #: and may still be decided
    LOST = "lost"  #: with the end of the log; or it never got there


@dataclass(slots=True)
class Transaction:
    """One transaction: its message says its number.

    Attributes:
        immunity: seconds, as its message says; None: it says nothing.
        is_doubtful: something was asked of it, and there was no answer.
    """

    number: int
    born_ms: int
    immunity: str | None
    fate: Fate = Fate.OPEN
    is_doubtful: bool = False


class Truth:
    """What a log holds: the half messages of each transaction, and what ended it."""

    def __init__(self, root: Path) -> None:
        found: dict[str, list[Record]] = {}
        for record in log_records(root):
            found.setdefault(record.topic, []).append(record)
        self.halves: dict[int, list[Record]] = {}
        for half in found.get(HALF_TOPIC, ()):
            self.halves.setdefault(_number(half), []).append(half)
        self.half_end = len(found.get(HALF_TOPIC, ()))
        self.ops = found.get(HALF_OP_TOPIC, [])
        self.closed = {int(op.body) for op in self.ops}
        self.visible = Counter(_number(one) for topic in TOPICS for one in found.get(topic, ()))
        self.discarded = {_number(one): one for one in found.get(CHECK_MAX_TIME_TOPIC, ())}

    def is_open(self, number: int) -> bool:
        """Is the newest half message of a transaction not closed?"""
        return self.halves[number][-1].queue_offset not in self.closed

    def is_decided(self, number: int) -> bool:
        """Does an op say that a transaction that had been checked was decided?"""
        half = self.halves[number][0]
        key = f"{decode_properties(half.properties)['UNIQ_KEY']}-{half.born_timestamp}"
        return any(decode_properties(op.properties).get("KEYS") == key for op in self.ops)

    def fate(self, number: int) -> Fate:
        """Return what became of a transaction, as far as the store can tell."""
        if number not in self.halves:
            return Fate.LOST
        if self.visible[number]:
            return Fate.COMMITTED
        if self.is_open(number):
            return Fate.OPEN
        if number in self.discarded and not self.is_decided(number):
            return Fate.DISCARDED
        return Fate.ROLLED_BACK

    def open_from(self, half_cursor: int, op_cursor: int) -> list[int]:
        """Return the half offsets that RocketMQ takes for open when it reads from cursors."""
        closed = {int(op.body) for op in self.ops if op.queue_offset >= op_cursor}
        return [offset for offset in range(half_cursor, self.half_end) if offset not in closed]


def _number(record: Record) -> int:
    return int(record.body)


@dataclass(slots=True)
class Round:
    """What a round of checks does: the numbers of the transactions."""

    asked: list[tuple[int, int]] = field(default_factory=list)  #: and how often they were
    discarded: list[int] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)


class Model:
    """All transactions of a schedule.

    Args:
        timeout_ms, check_max: settings of the broker.
    """

    def __init__(self, *, timeout_ms: int, check_max: int) -> None:
        self.all: dict[int, Transaction] = {}
        self._timeout_ms = timeout_ms
        self._check_max = check_max

    def those(self, *fates: Fate) -> list[Transaction]:
        """Return the transactions of some fates."""
        return [one for one in self.all.values() if one.fate in fates]

    # --- what must happen

    def end(self, one: Transaction, now_ms: int, *, commit: bool, is_checked: bool) -> int:
        """Return the code of the answer to an end, and let it happen."""
        if one.immunity is not None and not is_checked:
            seconds = int(one.immunity) if one.immunity.isdigit() else 0
            if now_ms - one.born_ms > max(seconds * 1000, self._timeout_ms):
                return int(ResponseCode.ILLEGAL_OPERATION)
        if one.fate in (Fate.OPEN, Fate.DISCARDED):
            one.fate = Fate.COMMITTED if commit else Fate.ROLLED_BACK
        return int(ResponseCode.SUCCESS)

    def round(self, truth: Truth, now_ms: int) -> Round:
        """Return what a round of checks has to do."""
        due = Round()
        numbers = [one.number for one in self.those(Fate.OPEN)]
        # On a full disk messages may be stored, but not be visible yet.
        open_halves = [truth.halves[number][-1] for number in numbers if number in truth.halves]
        for half in sorted(open_halves, key=lambda one: one.queue_offset):
            one = self.all[_number(half)]
            times = int(decode_properties(half.properties).get("TRANSACTION_CHECK_TIMES", "0"))
            age_ms = now_ms - one.born_ms
            if times >= self._check_max or age_ms > RESERVED_HOURS * _HOUR_MS:
                due.discarded.append(one.number)
            elif one.immunity is None:
                if 0 <= age_ms < self._timeout_ms:
                    break
                due.asked.append((one.number, times + 1))
            else:
                seconds = int(one.immunity) if one.immunity.lstrip("-").isdigit() else -1
                immune_ms = self._timeout_ms if seconds == -1 else seconds * 1000
                if age_ms < immune_ms:
                    due.copied.append(one.number)
                else:
                    due.asked.append((one.number, times + 1))
        return due

    # --- what did happen

    def reconcile(self, truth: Truth, doubtful: Iterable[Transaction]) -> None:
        """Take over what the store says of transactions nobody can know about."""
        for one in list(doubtful):
            one.fate = truth.fate(one.number)
            one.is_doubtful = False
            if one.fate is Fate.LOST:
                del self.all[one.number]

    def check(self, run: TransactionRun) -> Truth:
        """Compare what is stored, and what the broker thinks of it, with what should be."""
        truth = Truth(run.root)
        shown = [_number(one) for topic in TOPICS for one in read_all(run.store, topic)]
        assert sorted(shown) == sorted(truth.visible.elements())
        table = run.transactions.table
        newest = []
        for one in self.all.values():
            assert truth.visible[one.number] == (one.fate is Fate.COMMITTED), one
            is_open = one.fate is Fate.OPEN
            for half in truth.halves[one.number]:
                current = table.current(half.queue_offset, identity(half))
                assert (current is not None) == is_open, (one, half, current)
            if is_open:
                newest.append(truth.halves[one.number][-1].queue_offset)
                assert current == newest[-1], one
        assert truth.open_from(table.half_cursor, table.op_cursor) == sorted(newest)
        if run.saved is not None:
            half_cursor, op_cursor = (
                run.offsets.find(TRANSACTION_GROUP, topic, 0) or 0
                for topic in (HALF_TOPIC, HALF_OP_TOPIC)
            )
            assert truth.open_from(half_cursor, op_cursor) == sorted(newest)
        return truth


def is_refused(answer: Command) -> bool:
    """Does an answer say that the disk did not take it?"""
    codes = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)
    assert answer.remark is None or "Error(" not in answer.remark, answer
    # A message may be in the log, but not be visible, because its queue's file could not grow.
    return answer.code in codes or (answer.remark or "").startswith("Find prepared")
