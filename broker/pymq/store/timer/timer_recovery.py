"""Opening the files of timers: what was left is brought to a common state.

Usually the wheel is the one that was flushed with the checkpoint, and the units that were written
after that are entered into it. If it is another one, or damaged or missing, the whole timer log is
read into an empty one. If the timer log itself is missing or damaged, it is made again from the
messages in the timer queue. RocketMQ trusts log and wheel, and loses what is not in them.

Source: RocketMQ TimerMessageStore.recover.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from pymq.clock import Clock
from pymq.protocol.message import UNIQUE_KEY, find_property
from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.parking import timer_rolls
from pymq.protocol.record import Record
from pymq.store.config import StoreConfig
from pymq.store.files import Files
from pymq.store.log.commit_log import CommitLog
from pymq.store.progress import OnProgress
from pymq.store.queues.consume_queue import ConsumeQueue
from pymq.store.queues.queue_table import QueueTable
from pymq.store.searches import first_true
from pymq.store.timer.timer_checkpoint import TimerCheckpoint
from pymq.store.timer.timer_log import Longs, TimerLog, TimerMagic, Units, due_times
from pymq.store.timer.timer_queue import Waiting
from pymq.store.timer.timer_scan import TimerScan
from pymq.store.timer.timer_store import (
    CHECKPOINT_PATH,
    LOG_NAME,
    WHEEL_NAME,
    TimerStore,
)
from pymq.store.timer.timer_wheel import TimerWheel

_log = logging.getLogger(__name__)

#: The unique key of a message, when it is due, and whether it cancels the one of that key and time.
_Key: TypeAlias = tuple[bytes, int, bool]
#: A timer log of this many files is read as a whole by every start.
_VERIFIED_FILES = 2
_NONE: Longs = np.empty(0, np.int64)


def open_timers(
    config: StoreConfig,
    files: Files,
    clock: Clock,
    commit_log: CommitLog,
    queues: QueueTable,
    *,
    is_cancelled: Callable[[], bool],
    on_progress: OnProgress | None = None,
) -> TimerStore:
    """Open the files of timers, which are created when they are needed.

    Args:
        config: settings.
        files: the operating system.
        clock: for the time from which a new wheel is read.
        commit_log, queues: recovered.
        is_cancelled: asked repeatedly where much has to be read.
        on_progress: called while messages are read; see ``TimerScan``.

    Raises:
        StoreMismatch: the timer log was written with other settings; nothing was changed.
        DiskFull, FlushFailed, StoreError: the disk refused.
        StoreClosed: it was cancelled, which is for the next opening as if the process had died.
    """
    root = config.root_path
    checkpoint = TimerCheckpoint.load(files, root / CHECKPOINT_PATH)
    log = TimerLog(files, root / LOG_NAME, config.timer_log_file_bytes)
    log.load()
    wheel = TimerWheel(files, root / WHEEL_NAME)
    queue = queues.find(TIMER_TOPIC, 0)
    now_ms = clock.wall_ms()
    scan = TimerScan(root, clock, commit_log, queue, is_cancelled, on_progress)
    recovery = _Recovery(config, files, log, wheel, commit_log, queue, scan, checkpoint, now_ms)
    try:
        recovery.run()
        timers = TimerStore(
            config,
            files,
            clock,
            commit_log,
            queues,
            checkpoint=checkpoint or TimerCheckpoint(),
            log=log,
            wheel=wheel,
            read_ms=recovery.read_ms,
            queue_offset=recovery.queue_offset,
            known=recovery.known,
            units_from=recovery.units_from,
        )
        if recovery.lost_from is not None:
            _make_again(timers, commit_log, scan, recovery.lost_from)
        if recovery.is_rebuilt:
            timers.flush()
    except BaseException:
        log.close()
        raise
    return timers


def first_verified(log: TimerLog, bases: list[int], known: TimerCheckpoint) -> int:
    """Return where to read to know which messages have units, and whether the end is damaged.

    All of a small log is read.

    Args:
        log: the timer log.
        bases: of its files.
        known: the checkpoint that its wheel was flushed with.
    """
    first, last = bases[0] if bases else 0, max(0, known.log_flushed - 1)
    if len(bases) <= _VERIFIED_FILES:
        return first
    return max(first, min(known.units_from, last - last % log.file_bytes))


class _Recovery:
    """Brings log and wheel of one store to a common state.

    Attributes:
        read_ms, queue_offset: where timers go on; see ``TimerStore``.
        is_rebuilt: whether the wheel is not the one that was left.
        known: physical offsets, ascending, of messages from ``queue_offset`` on that have units.
        units_from: position of the first of these units; without any, the end of the log.
        lost_from: offset of the first message of the timer queue whose unit is lost; up to
            ``queue_offset`` they have to be made again. None: none is.
    """

    def __init__(
        self,
        config: StoreConfig,
        files: Files,
        log: TimerLog,
        wheel: TimerWheel,
        commit_log: CommitLog,
        queue: ConsumeQueue | None,
        messages: TimerScan,
        checkpoint: TimerCheckpoint | None,
        now_ms: int,
    ) -> None:
        self._files = files
        self._path = config.root_path / CHECKPOINT_PATH
        self._log = log
        self._wheel = wheel
        self._commit_log = commit_log
        self._queue = queue
        self._messages = messages
        self._checkpoint = checkpoint
        self._precision_ms = precision = config.timer_precision_ms
        self._now = now_ms // precision
        #: The first moment that is to be read.
        self._moment = 0 if checkpoint is None else checkpoint.read_ms // precision
        if checkpoint is None and queue is not None:
            _log.warning(
                "%s is missing: which timer messages were delivered is not known, and they may be "
                "delivered once more",
                self._path,
            )
        self.queue_offset = 0
        self._unsure_from = commit_log.end
        if queue is not None and queue.end_offset:
            offset = max(queue.min_offset, 0 if checkpoint is None else checkpoint.queue_offset)
            self.queue_offset = min(offset, queue.end_offset)
            if self.queue_offset < queue.end_offset:
                self._unsure_from = queue.entry(self.queue_offset)[0]
        self.lost_from: int | None = None
        self.is_rebuilt = False
        self.known: Longs = _NONE
        self.units_from = 0
        self._last_physical = -1

    @property
    def read_ms(self) -> int:
        return self._moment * self._precision_ms

    def run(self) -> None:
        """Recover.

        Raises:
            DiskFull, FlushFailed, StoreError: the disk refused.
            StoreClosed: it was cancelled.
        """
        log, known = self._log, self._checkpoint or TimerCheckpoint()
        flushed = known.log_flushed
        is_kept = known.wheel_digest is not None and log.first <= flushed
        if is_kept and self._wheel.load() and self._wheel.digest == known.wheel_digest:
            self._skip_empty(self._wheel.in_use(self._moment)[0])
            self._read(first_verified(log, log.bases, known), flushed)
            is_kept = log.end >= flushed
        else:
            is_kept = False
        if not is_kept:
            self._wheel.reset()
            if self._is_far_behind:
                moments = self._first_moments()
                self.lost_from = self._find_lost(flushed)
                self._skip_empty(moments)
            self._read(log.first, log.first)
            self.is_rebuilt = self._checkpoint is not None
        self.lost_from = self._find_lost(flushed)
        if known.wheel_digest is not None and not is_kept:
            # Should this process die, the next one must not take the wheel for that of a new log.
            replace(known, wheel_digest=None).save(self._files, self._path)
        log.cut()
        log.flush_later(flushed)

    def _find_lost(self, flushed: int) -> int | None:
        """Return the offset of the first message whose unit is lost, after all were read."""
        log = self._log
        if self._queue is None or log.end >= flushed or not log.is_damaged:
            return None
        return min(self._offset_after(self._last_physical), self.queue_offset)

    def _offset_after(self, physical_offset: int) -> int:
        """Return the offset of the first message of the queue after a physical offset."""
        queue = self._queue
        assert queue is not None
        return first_true(
            queue.min_offset, queue.end_offset, lambda at: queue.entry(at)[0] > physical_offset
        )

    # -- where to go on -----------------------------------------------------------------------

    @property
    def _is_far_behind(self) -> bool:
        return self._moment < self._now - self._wheel.length // 2

    def _skip_empty(self, moments: Longs) -> None:
        """Go on from the first slot that can be in use, if the recorded one is far behind.

        The ring may be too short to hold what waits since then: where nothing waited for days, or
        timers died before their first flush. Every message is read that is not in the timer log by
        the checkpoint: few, but without a checkpoint all that the timer queue has. The first
        deliveries will read these once more.

        Args:
            moments: of the units.
        """
        if not self._is_far_behind:
            return
        found = int(moments.min(initial=self._now))
        queue = self._queue
        if queue is not None:
            offset = self.queue_offset if self.lost_from is None else self.lost_from
            # Times of storing say nothing here: they do not go back with the clock.
            for waiting in self._messages.read(offset, queue.end_offset):
                taken_up = waiting.due_ms // self._precision_ms
                found = int(taken_up[taken_up >= self._moment].min(initial=found))
        self._moment = max(self._moment, found)

    def _first_moments(self) -> Longs:
        """Return the first moment to be read that units of each part of the log are due."""
        found = []
        for _, units in self._scan(self._log.first):
            self._note(units)
            moments = due_times(units) // self._precision_ms
            found.append(moments[moments >= self._moment].min(initial=self._now))
        return np.array(found, np.int64)

    def _scan(self, start: int) -> Iterator[tuple[Longs, Units]]:
        flushed = 0 if self._checkpoint is None else self._checkpoint.log_flushed
        for part in self._log.scan(
            start, self._commit_log.end, flushed=flushed, record_bytes=self._record_bytes
        ):
            self._messages.check_wanted()
            yield part

    def _record_bytes(self, physical_offsets: Longs) -> Longs:
        """Return what records of the commit log say of their sizes; -1: it has expired."""
        segments = self._commit_log.segments
        sizes = np.full(len(physical_offsets), -1, np.int64)
        for row, at in enumerate(physical_offsets.tolist()):
            if at >= self._commit_log.first:
                segment = segments.find(at)
                position = at - segment.first
                sizes[row] = int.from_bytes(segment.view[position : position + 4])
        return sizes

    def _note(self, units: Units) -> None:
        # Messages that were put off have a unit after those of later messages.
        self._last_physical = max(self._last_physical, int(units["physical_offset"].max()))

    def _read(self, start: int, position: int) -> None:
        """Enter the units from a position on into the wheel.

        Args:
            start: of the units that are read, to know which messages have some.
            position: the units before it are in the wheel already.
        """
        log, precision = self._log, self._precision_ms
        first, end = self._moment, self._moment + self._wheel.length
        unsure, unsure_at = [_NONE], [_NONE]
        for positions, units in self._scan(start):
            moments = due_times(units) // precision
            fits = (moments >= first) & (moments < end)
            rows = fits & (positions >= position)
            steps = np.where(units["magic"] & TimerMagic.DELETE, -1, 1)
            self._wheel.add(moments[rows], positions[rows], steps[rows])
            physical = units["physical_offset"].astype(np.int64)
            is_unsure = physical >= self._unsure_from
            unsure_at.append(positions[is_unsure][:1])
            # A message whose unit has no room in the wheel is taken up once more when there is.
            unsure.append(physical[is_unsure & fits])
            self._note(units)
        self.known = np.unique(np.concatenate(unsure))
        self.units_from = int(np.concatenate(unsure_at).min(initial=log.end))


# -- units that are lost ----------------------------------------------------------------------


def _make_again(
    timers: TimerStore, commit_log: CommitLog, messages: TimerScan, first: int
) -> None:
    """Have messages wait again whose units are lost.

    Those that were put back meanwhile have to be left out: they are due before ``read_ms``, or a
    later message of the queue is the same one, on one more round.

    Args:
        timers: where they wait, with everything after them still to come.
        commit_log, messages: where they are.
        first: offset of the first one.
    """
    end = timers.queue_offset
    _log.warning("the units of timer messages %d..%d are made again from the messages", first, end)
    rounds: dict[_Key, int] = {}
    for _, keys in _still_waiting(timers, commit_log, messages, first, timers.queue_end):
        for key, count in keys:
            if count:
                rounds[key] = max(count, rounds.get(key, 0))
    write_ms = max(timers.read_ms, timers.slot_ms(commit_log.store_timestamp))
    for waiting, keys in _still_waiting(timers, commit_log, messages, first, end):
        is_last = [not key[0] or count >= rounds.get(key, 0) for key, count in keys]
        timers.add(waiting.pick(np.array(is_last, np.bool_)), write_ms)


def _still_waiting(
    timers: TimerStore, commit_log: CommitLog, messages: TimerScan, first: int, end: int
) -> Iterator[tuple[Waiting, list[tuple[_Key, int]]]]:
    """Yield messages of a queue that are not due before ``read_ms``, and their keys and rounds."""
    for read in messages.read(first, end):
        waiting = read.pick(read.due_ms >= timers.read_ms)
        if len(waiting.due_ms):
            yield (
                waiting,
                [
                    _key_and_rounds(commit_log.record_at(place), due_ms, is_delete=is_delete)
                    for place, due_ms, is_delete in zip(
                        waiting.physical_offsets.tolist(),
                        waiting.due_ms.tolist(),
                        waiting.is_delete.tolist(),
                        strict=True,
                    )
                ],
            )


def _key_and_rounds(record: Record, due_ms: int, *, is_delete: bool) -> tuple[_Key, int]:
    key = find_property(record.properties, UNIQUE_KEY.encode()) or b""
    return (key, due_ms, is_delete), timer_rolls(record.properties)
