"""Looks at the files of timers: the timer log, the wheel over it, and how far they were flushed.

Every message that waits must have its unit in the timer log, and every unit its place in the
wheel; otherwise nobody delivers it. What the next start of a broker makes again is no damage: the
wheel, which it makes from the timer log, and units where it reads them all, which it makes from the
messages. Of a timer log of more than two files it reads the end only, if the wheel is the one that
was flushed. The rules are those of ``pymq.store.timer.timer_recovery``.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pymq.errors import OffsetOutOfRange
from pymq.protocol.codes import MessageFlag
from pymq.protocol.names import TIMER_TOPIC
from pymq.store.inspection.findings import Findings, Kind, Severity
from pymq.store.inspection.layout import StoreLayout
from pymq.store.inspection.log import Block
from pymq.store.log.segment import parse_segment_name
from pymq.store.timer.timer_checkpoint import TimerCheckpoint
from pymq.store.timer.timer_log import (
    UNIT_BYTES,
    TimerLog,
    TimerMagic,
    Units,
    are_whole,
    due_times,
)
from pymq.store.timer.timer_queue import Waiting, parse_queued, topics_equal
from pymq.store.timer.timer_recovery import first_verified
from pymq.store.timer.timer_store import CHECKPOINT_PATH, LOG_NAME, WHEEL_NAME
from pymq.store.timer.timer_wheel import SLOT_BYTES, TimerWheel

_NONE = parse_queued(b"", np.empty(0, np.int64), np.empty(0, np.int64)).waiting
_PREPARED = int(MessageFlag.TRANSACTION_PREPARED)  # Also set in ROLLBACK, not in COMMIT.
#: Units read at once.
_CHUNK_UNITS = 1 << 16

Mask = npt.NDArray[np.bool_]


class TimerCheck:
    """Compares the files of timers with the messages that wait.

    Memory: about 100 bytes per message that waits.

    Args:
        layout: the store.
        findings: what is found is added there.
    """

    def __init__(self, layout: StoreLayout, findings: Findings) -> None:
        self._layout = layout
        self._findings = findings
        self._root = layout.root
        self._checkpoint_path = layout.root / CHECKPOINT_PATH
        known = TimerCheckpoint.load(layout.files, self._checkpoint_path)
        self._is_known = known is not None
        self._known = known or TimerCheckpoint()
        self._precision_ms = layout.config.timer_precision_ms
        self._collected: list[Waiting] = []
        self._message_count = 0
        self._wheel: TimerWheel | None = None

    def take(self, block: Block) -> None:
        """Note those of a block's records that wait, and must have units."""
        columns = block.columns
        # What an exactly-once sink has staged is in no queue, and waits for nothing.
        is_listed = columns.sys_flag & _PREPARED == 0
        rows = np.flatnonzero(topics_equal(columns, TIMER_TOPIC.encode()) & is_listed)
        self._message_count += len(rows)
        rows = rows[columns.queue_offset[rows] < self._known.queue_offset]
        if not len(rows):
            return
        starts, sizes = columns.starts[rows], columns.size[rows]
        ends = (starts + sizes).tolist()
        pieces = [
            columns.buffer[start:end].tobytes()
            for start, end in zip(starts.tolist(), ends, strict=True)
        ]
        waiting = parse_queued(b"".join(pieces), block.physical[rows], sizes).waiting
        self._collected.append(waiting.pick(waiting.due_ms >= self._known.read_ms))

    def finish(self, *, newest_ms: int) -> None:
        """Look at the files.

        Args:
            newest_ms: the latest store time in the log.
        """
        layout = self._layout
        bases, file_bytes = self._log_files()
        if not self._is_known:
            if self._message_count and not layout.unclean and not layout.in_use:
                self._add(
                    Kind.TIMER_CHECKPOINT,
                    Severity.DAMAGE,
                    self._checkpoint_path,
                    f"missing, and there are {self._message_count} timer messages",
                )
            return
        # What was due before a message that is newer may have been delivered without a unit.
        waiting = _joined(self._collected, due_from_ms=newest_ms)
        if not layout.in_use:
            # A slave has its master's checkpoint, and neither timer log nor wheel.
            self._wheel = self._read_wheel(is_needed=bool(bases) or len(waiting.due_ms) > 0)
        log = TimerLog(layout.files, self._root / LOG_NAME, file_bytes)
        is_read_from = first_verified(log, bases, self._known) if self._is_flushed else 0
        units = _UnitCheck(self._known, waiting, is_read_from, self._findings)
        for base in bases:
            if units.is_at_end:
                break
            self._read_units(log, base, units)
        if not units.finish(log, bases):
            return
        if self._wheel is not None:
            self._compare_wheel(self._wheel, units)

    @property
    def _is_flushed(self) -> bool:
        """Whether the wheel is the one that was flushed with the checkpoint."""
        digest = self._known.wheel_digest
        if self._layout.in_use:
            return digest is not None
        return self._wheel is not None and self._wheel.digest == digest

    # -- the timer log --------------------------------------------------------------------------

    def _log_files(self) -> tuple[list[int], int]:
        """Return (positions of the first bytes of the files that are adjacent, their size)."""
        path = self._root / LOG_NAME
        listed = self._layout.files.list_directory(path)
        sizes = Counter(entry.size for entry in listed if entry.size)
        if not sizes:
            return [], UNIT_BYTES * 2
        size = sizes.most_common(1)[0][0]
        bases: list[int] = []
        severity = Severity.NOTE if self._layout.in_use else Severity.DAMAGE
        for entry in listed:
            base = parse_segment_name(entry.name)
            if base is None or base % size or entry.size not in (0, size):
                expected = f"{size} B like the others, and a name that is a multiple of it"
                found = f"{entry.size} B"
                self._add(Kind.TIMER_LOG, severity, path / entry.name, found, expected)
            elif entry.size and (not bases or base == bases[-1] + size):
                bases.append(base)
            else:
                found = "empty" if not entry.size else "the file before it is missing"
                self._add(Kind.TIMER_LOG, Severity.REPAIR, path / entry.name, found)
                break
        return bases, size

    def _read_units(self, log: TimerLog, base: int, check: "_UnitCheck") -> None:
        end = base + log.units_bytes
        for position in range(base, end, _CHUNK_UNITS * UNIT_BYTES):
            try:
                units = log.read(position, min(end, position + _CHUNK_UNITS * UNIT_BYTES))
            except OffsetOutOfRange:
                return  # A broker deletes files whose messages are deleted.
            check.take(log.path_of(base), position - base, position, units)
            if check.is_at_end:
                return

    # -- the wheel ------------------------------------------------------------------------------

    def _read_wheel(self, *, is_needed: bool) -> TimerWheel | None:
        path = self._root / WHEEL_NAME
        size = next(
            (one.size for one in self._layout.files.list_directory(self._root)
             if one.name == WHEEL_NAME),
            0,
        )  # fmt: skip
        slots = size // SLOT_BYTES
        if slots < 2 or slots % 2 or size % SLOT_BYTES:
            if self._known.log_flushed and is_needed:
                found = f"{size} B" if size else "missing"
                self._add(Kind.TIMER_WHEEL, Severity.REPAIR, path, found)
            return None
        wheel = TimerWheel(self._layout.files, path, slots // 2)
        wheel.load()
        return wheel

    def _compare_wheel(self, wheel: TimerWheel, units: "_UnitCheck") -> None:
        path, known = self._root / WHEEL_NAME, self._known
        if not self._is_flushed:
            if self._layout.unclean:
                return
            if known.wheel_digest is not None:
                what = "not the one that was flushed with timercheck"
                self._add(Kind.TIMER_WHEEL, Severity.REPAIR, path, what)
                return
        precision = self._precision_ms
        first = known.read_ms // precision
        # That is 0 until the log is flushed; the last slot in use says where the ring is.
        first = max(first, int(wheel.in_use(first)[0].max(initial=0)) - wheel.length + 1)
        expected = TimerWheel(self._layout.files, path, wheel.length // 2)
        for positions, rows in units.waiting:
            moments = due_times(rows) // precision
            fits = (moments < first + wheel.length) & (positions < known.log_flushed)
            steps = np.where(rows["magic"] & TimerMagic.DELETE, -1, 1)
            expected.add(moments[fits], positions[fits], steps[fits])
        wanted, found = (
            {int(moment): slot.item() for moment, slot in zip(*one.in_use(first), strict=True)}
            for one in (expected, wheel)
        )
        wrong = sorted(
            moment
            for moment in wanted.keys() | found.keys()
            if wanted.get(moment, ())[:4] != found.get(moment, ())[:4]
        )
        if wrong:
            moment = wrong[0]
            self._findings.add(
                Kind.TIMER_WHEEL,
                # What RocketMQ left is made again by the next start.
                Severity.DAMAGE if self._is_flushed else Severity.REPAIR,
                path,
                moment % wheel.length * SLOT_BYTES,
                f"time {moment * precision}: {_slot_text(found.get(moment))}",
                f"{_slot_text(wanted.get(moment))}, by the timer log",
                count=len(wrong),
            )

    def _add(
        self, kind: Kind, severity: Severity, path: Path, found: str, expected: str = ""
    ) -> None:
        self._findings.add(kind, severity, path, None, found, expected)


class _UnitCheck:
    """Compares units of the timer log with the messages that wait.

    Attributes:
        is_at_end: whether what follows does not count.
        waiting: (positions, units) of what is not due before the read time.
    """

    def __init__(
        self, known: TimerCheckpoint, waiting: Waiting, read_from: int, findings: Findings
    ) -> None:
        self._known = known
        self._messages = waiting
        self._has_unit = np.zeros(len(waiting.due_ms), np.bool_)
        self._read_from = read_from
        self._findings = findings
        self._end = 0
        self._is_repaired = self._is_damaged = False
        self.is_at_end = False
        self.waiting: list[tuple[npt.NDArray[np.int64], Units]] = []

    def take(self, path: Path, place: int, position: int, units: Units) -> None:
        """Look at units of one file that follow each other."""
        positions = position + np.arange(len(units), dtype=np.int64) * UNIT_BYTES
        good = are_whole(units)
        bad = np.flatnonzero(~good)
        for row in bad.tolist():
            self.is_at_end = int(positions[row]) >= self._known.log_flushed
            if not self.is_at_end:
                self._is_repaired = self.is_at_end = int(positions[row]) >= self._read_from
                severity = Severity.REPAIR if self.is_at_end else Severity.DAMAGE
                self._is_damaged = True
                at = place + row * UNIT_BYTES
                self._findings.add(Kind.TIMER_LOG, severity, path, at, "no unit is there")
            if self.is_at_end:
                good[row:] = False
                self._end = int(positions[row])
                break
        else:
            self._end = position + len(units) * UNIT_BYTES
        self._compare(path, place, units, good)
        kept = good & (due_times(units) >= self._known.read_ms)
        if kept.any():
            self.waiting.append((positions[kept], units[kept]))

    def _compare(self, path: Path, place: int, units: Units, good: Mask) -> None:
        """Look whether units are right about their messages."""
        messages = self._messages
        if not len(messages.due_ms):
            return
        physical = units["physical_offset"].astype(np.int64)
        at = np.minimum(messages.physical_offsets.searchsorted(physical), len(self._has_unit) - 1)
        mine = np.flatnonzero(good & (messages.physical_offsets[at] == physical))
        rows, at = units[mine], at[mine]
        self._has_unit[at] = True
        is_rolled = rows["magic"] & TimerMagic.ROLL != 0
        wrong = rows["record_bytes"] != messages.record_bytes[at]
        wrong |= rows["topic_hash"] != messages.topic_hashes[at]
        wrong |= (rows["magic"] & TimerMagic.DELETE != 0) != messages.is_delete[at]
        wrong |= ~is_rolled & (due_times(rows) < messages.due_ms[at])
        for row in mine[wrong].tolist():
            self._findings.add(
                Kind.TIMER_LOG,
                Severity.DAMAGE,
                path,
                place + row * UNIT_BYTES,
                "size, topic or time of another message",
                f"those of the message at physical offset {physical[row]}",
            )

    def finish(self, log: TimerLog, bases: list[int]) -> bool:
        """Report what is missing; return whether all units are there."""
        flushed = self._known.log_flushed
        end = log.path_of(bases[-1]) if bases else log.path_of(0).parent
        if not self._is_repaired and log.after(self._end, 0) < log.after(flushed, 0):
            where = f"it ends at {self._end}", f"{flushed}, up to where it was flushed"
            self._findings.add(Kind.TIMER_LOG, Severity.REPAIR, end, None, *where)
            self._is_repaired = True
        missing = int(len(self._has_unit) - self._has_unit.sum())
        if missing and not self._is_repaired:
            physical = self._messages.physical_offsets[~self._has_unit][0]
            self._findings.add(
                Kind.TIMER_LOG,
                Severity.DAMAGE,
                end.parent if bases else end,
                None,
                f"no unit of the message at physical offset {physical}, which waits",
                "one of every message that waits",
                count=missing,
            )
        return not self._is_repaired and not self._is_damaged


def _joined(parts: list[Waiting], *, due_from_ms: int) -> Waiting:
    """Return messages in the order of their physical offsets."""
    if not parts:
        return _NONE
    every = Waiting(*map(np.concatenate, zip(*parts, strict=True)))
    return every.pick(every.due_ms >= due_from_ms)


def _slot_text(slot: tuple[int, ...] | None) -> str:
    return "nothing" if slot is None else f"{slot[3]} messages, units {slot[1]} to {slot[2]}"
