"""Disk work of timers: ``run`` in any thread, then the ``TimerStore`` that began it finishes it."""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pymq.errors import CorruptRecord, OffsetOutOfRange, StoreError
from pymq.store.files import Files
from pymq.store.log.commit_log import CommitLog
from pymq.store.log.segment import Segment
from pymq.store.queues.consume_queue import ConsumeQueue
from pymq.store.queues.queue_files import QueueFlush
from pymq.store.timer.timer_checkpoint import TimerCheckpoint
from pymq.store.timer.timer_log import (
    UNIT,
    UNIT_BYTES,
    Longs,
    TimerLog,
    TimerMagic,
    Units,
    due_times,
)
from pymq.store.timer.timer_queue import Mask, parse_queued
from pymq.store.timer.timer_wheel import Slot, WheelFlush

_log = logging.getLogger(__name__)

#: Units read at once when a chain is followed.
_WINDOW_LEAST, _WINDOW_MOST = 64, 1 << 16


class SlotRead:
    """Reads the units of a slot: ``run`` in any thread.

    Attributes:
        units: of the slot, in the order of their messages; each message once.
        lost_count: how many are missing: they are damaged, or in files of the timer log that are
            deleted, because their messages are.
    """

    def __init__(self, log: TimerLog, moment: int, precision_ms: int, slot: Slot) -> None:
        self._log = log
        self._end = log.end
        self._moment = moment
        self._precision_ms = precision_ms
        self._slot = slot
        self.units: Units = np.empty(0, UNIT)
        self.lost_count = 0

    def run(self) -> None:
        """Read.

        Raises:
            StoreError: the log cannot be read.
        """
        pieces = self._follow()
        if pieces is None:
            pieces = self._search()
            magic = np.concatenate(pieces)["magic"] if pieces else self.units["magic"]
            found = len(magic) - 2 * int((magic & TimerMagic.DELETE != 0).sum())
            self.lost_count = max(0, self._slot.message_count - found)
            _log.warning(
                "the wheel and the timer log do not fit what is due at %d; all of the timer log "
                "was read for it",
                self._moment * self._precision_ms,
            )
        if pieces:
            units = np.concatenate(pieces, dtype=UNIT)  # By itself it makes native numbers of them.
            self.units = units[np.unique(units["physical_offset"], return_index=True)[1]]

    def _follow(self) -> list[Units] | None:
        """Return the units of the chain; None: it is broken.

        They are often close together, so the chain is not followed from one to the next: all of a
        part of the log are read, and those of the slot picked.
        """
        log, low, position = self._log, self._slot.first, self._slot.last
        pieces: list[Units] = []
        window = _WINDOW_LEAST
        while True:
            base = position - position % log.file_bytes
            begin = max(base, position - (window - 1) * UNIT_BYTES)
            try:
                units = log.read(begin, position + UNIT_BYTES)
            except OffsetOutOfRange:
                self.lost_count = max(1, self._slot.message_count - sum(map(len, pieces)))
                break
            mine = self._picked(units)
            mine = mine[mine * UNIT_BYTES >= low - begin]
            if not len(mine) or int(mine[-1]) != len(units) - 1:
                return None
            pieces.append(units[mine])
            earliest = begin + int(mine[0]) * UNIT_BYTES
            position = int(units["previous"][mine[0]])
            if position < 0 and earliest == low:
                break
            if not 0 <= position < earliest:
                return None
            low = min(low, position)
            is_dense = len(mine) * 8 > len(units)
            window = min(_WINDOW_MOST, window * 4) if is_dense else max(_WINDOW_LEAST, window // 4)
        return pieces[::-1]

    def _search(self) -> list[Units]:
        """Return all units of this slot's moment that the log holds."""
        log, position = self._log, self._log.first
        pieces = []
        while position < self._end:
            base = position - position % log.file_bytes
            end = min(self._end, base + log.file_bytes, position + _WINDOW_MOST * UNIT_BYTES)
            units = log.read(position, end)
            pieces.append(units[self._picked(units)])
            position = log.after(position, len(units))
        return pieces

    def _picked(self, units: Units) -> Longs:
        is_whole = units["size"] == UNIT_BYTES
        return np.flatnonzero(is_whole & (due_times(units) // self._precision_ms == self._moment))


class RecordsRead:
    """Reads records of the commit log: ``run`` in any thread, once.

    By ``pread``, because old ones have to come from the disk: see ``PrefetchJob``.

    Attributes:
        is_held: which of them the commit log holds.
        starts: int64, where each of those begins in ``data``.
        data: those, back to back.
    """

    def __init__(self, log: CommitLog, physical_offsets: Longs, record_bytes: Longs) -> None:
        """Prepare.

        Args:
            log: the commit log.
            physical_offsets, record_bytes: of the records, ascending.

        Raises:
            StoreError: the process has too many open files.
        """
        ends = physical_offsets + record_bytes
        self.is_held: Mask = (physical_offsets >= log.first) & (ends <= log.committed)
        starts, ends, sizes = (
            column[self.is_held] for column in (physical_offsets, ends, record_bytes)
        )
        self.starts: Longs = np.cumsum(sizes) - sizes
        self.data = b""
        self._files = log.files
        self._descriptors: dict[int, int] = {}
        self._places: list[tuple[int, int, int]] = []
        is_first, is_last = np.ones((2, len(starts)), np.bool_)
        is_first[1:] = is_last[:-1] = starts[1:] != ends[:-1]
        for start, end in zip(starts[is_first].tolist(), ends[is_last].tolist(), strict=True):
            segment = log.segments.find(start)
            self._places.append((self._descriptor(segment), start - segment.first, end - start))

    def _descriptor(self, segment: Segment) -> int:
        if segment.first not in self._descriptors:
            self._descriptors[segment.first] = self._files.duplicate(segment.fd)
        return self._descriptors[segment.first]

    def run(self) -> None:
        """Read.

        Raises:
            StoreError: the log cannot be read.
        """
        try:
            self.data = b"".join(self._files.pread(fd, size, at) for fd, at, size in self._places)
        finally:
            for fd in self._descriptors.values():
                self._files.close(fd)
            self._descriptors.clear()


class QueueRead:
    """Reads a part of the timer queue: ``run`` in any thread, once.

    Attributes:
        end: offset in the queue of the first message after it.
        queued: what is there.
    """

    def __init__(
        self, log: CommitLog, queue: ConsumeQueue, first: int, count_max: int, bytes_max: int
    ) -> None:
        """Prepare.

        Args:
            log: the commit log.
            queue: the queue of the timer topic.
            first: offset of the first message.
            count_max: messages at most; there are so many.
            bytes_max: bytes of their records at most, but one message in any case.

        Raises:
            CorruptRecord: a file of the queue is gone.
            StoreError: the process has too many open files.
        """
        entries = queue.entries(first, count_max)
        if not len(entries):
            raise CorruptRecord(f"{queue.path}: entry {first} is gone; restart to rebuild it")
        sizes = entries["size"].astype(np.int64)
        count = max(1, int(np.cumsum(sizes).searchsorted(bytes_max, "right")))
        self._physical = entries["physical_offset"][:count].astype(np.int64)
        self._sizes = sizes[:count]
        self.end = first + len(self._sizes)
        self._records = RecordsRead(log, self._physical, self._sizes)
        self.queued = parse_queued(b"", self._physical[:0], self._sizes[:0])

    def run(self) -> None:
        """Read.

        Raises:
            StoreError: the log cannot be read.
        """
        self._records.run()
        held = self._records.is_held
        self.queued = parse_queued(self._records.data, self._physical[held], self._sizes[held])


@dataclass(slots=True)
class TimerFlush:
    """One flush of the timer log, the wheel and the checkpoint, in this order.

    ``run`` in any thread, then ``TimerStore.finish_flush``. Files of the timer log whose messages
    are all deleted are deleted, too.

    Attributes:
        checkpoint: what will be saved.
        kept_from: position of the first file that is kept, if others were deleted.
    """

    files: Files
    path: Path
    checkpoint: TimerCheckpoint
    log_flush: QueueFlush
    wheel_flush: WheelFlush
    log: TimerLog
    log_first: int
    kept_from: int | None = None
    error: StoreError | None = None

    def run(self) -> None:
        """Flush. Never raises: ``finish_flush`` does."""
        try:
            self.log_flush.run()
            self.wheel_flush.run()
            self.checkpoint.save(self.files, self.path)
            self.kept_from = self.log.delete_expired(self.log_first)
        except StoreError as error:
            self.error = error
