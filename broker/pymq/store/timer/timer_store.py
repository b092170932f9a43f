"""The messages that wait for a time of their own, by the moment they are due.

Messages that wait are in the queue of the timer topic. Each gets a unit in the timer log, which the
wheel finds by its moment. What is due is put back by whoever owns the store; what would wait longer
than the wheel turns is due halfway, and put back into the timer topic for another round.

What is recorded on the disk never promises too much: a message that was put back counts when its
copy in the commit log is flushed, a message that was put into the timer log when that is.

Source: RocketMQ TimerMessageStore.
"""

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pymq.clock import Clock
from pymq.errors import FlushFailed
from pymq.protocol.names import TIMER_TOPIC
from pymq.store.config import StoreConfig
from pymq.store.files import Files
from pymq.store.log.commit_log import CommitLog
from pymq.store.queues.queue_table import QueueTable
from pymq.store.searches import among
from pymq.store.timer.timer_checkpoint import TimerCheckpoint
from pymq.store.timer.timer_jobs import QueueRead, RecordsRead, SlotRead, TimerFlush
from pymq.store.timer.timer_log import UNIT, UNIT_BYTES, Longs, TimerLog, TimerMagic, Units
from pymq.store.timer.timer_queue import Queued, Waiting
from pymq.store.timer.timer_wheel import TimerWheel

LOG_NAME, WHEEL_NAME = "timerlog", "timerwheel"
CHECKPOINT_PATH = Path("config") / "timercheck"
#: Rates are those of this many flushes, and of no less time than this.
_SAMPLES_KEPT, _RATE_LEAST_S = 10, 1.0
#: Slots that are never used for rounds: so much the wheel may be behind.
BLANK_SLOTS = 60
#: A unit has 4 bytes for a delay; what is overdue by more seems to have been written later.
_DELAY_MS_MAX = (1 << 31) - 1


class _Mark(NamedTuple):
    """How far timers are once the commit log is flushed up to ``physical_end``."""

    physical_end: int
    read_ms: int
    queue_offset: int
    units_from: int  # position of the first unit of a message from ``queue_offset`` on


class TimerStore:
    """Timer log, wheel and checkpoint of one store; belongs to its thread.

    Attributes:
        read_ms: time of the next slot to be read: messages of earlier slots were put back.
        queue_offset: of the first message of the timer queue that is not in the log yet.
        waiting_count: messages that wait, less those that cancel one.
        last_due_ms: time of the last slot that messages wait in; 0: none does.
        checkpoint: what the file says.
    """

    def __init__(
        self,
        config: StoreConfig,
        files: Files,
        clock: Clock,
        commit_log: CommitLog,
        queues: QueueTable,
        *,
        checkpoint: TimerCheckpoint,
        log: TimerLog,
        wheel: TimerWheel,
        read_ms: int,
        queue_offset: int,
        known: Longs,
        units_from: int,
    ) -> None:
        """Use recovered parts; ``timer_recovery`` makes them.

        Args:
            known: physical offsets, ascending, of messages from ``queue_offset`` on that have
                units already.
            units_from: position of the first of these units; without any, the end of the log.
        """
        self._files = files
        self._clock = clock
        self._commit_log = commit_log
        self._queues = queues
        self._log = log
        self._wheel = wheel
        self._path = config.root_path / CHECKPOINT_PATH
        self._precision_ms = precision = config.timer_precision_ms
        roll_slots = config.timer_roll_window_slots
        slots_most = wheel.length // 2 - BLANK_SLOTS
        if not 2 <= roll_slots <= slots_most:
            roll_slots = slots_most
        self._roll_ms = roll_slots * precision
        self._short_roll_ms = roll_slots // 2 * precision
        #: What is left after a round may be less than a third of one: then that is cut short.
        self._rest_ms = roll_slots // 3 * precision
        self.checkpoint = checkpoint
        self.read_ms = read_ms
        self.queue_offset = queue_offset
        self._known = known
        self._units_from = units_from
        self.waiting_count = 0
        self.last_due_ms = 0
        if log.bases:
            moments, slots = wheel.in_use(read_ms // precision)
            self.waiting_count = int(slots["count"].sum())
            self.last_due_ms = int(moments.max(initial=0)) * precision
        self._marks: deque[_Mark] = deque()
        self._safe = _Mark(0, checkpoint.read_ms, checkpoint.queue_offset, units_from)
        self._is_changed = False
        self._is_broken = False
        #: How many messages began to wait, and ceased to, since the start; and samples of both.
        self._counts = (0, 0)
        self._samples = deque([(clock.monotonic_s(), self._counts)], _SAMPLES_KEPT)

    def use(self, commit_log: CommitLog, queues: QueueTable) -> None:
        """Go on with a log and queues after the files were opened with copies of them."""
        self._commit_log, self._queues = commit_log, queues

    # -- time ---------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The clock's time; the log's while messages wait too far ahead for a wheel of now."""
        now_ms, ring_ms = self._clock.wall_ms(), self._wheel.length * self._precision_ms
        is_near = self.last_due_ms < self.slot_ms(now_ms) + ring_ms
        return now_ms if is_near else max(now_ms, self._commit_log.store_timestamp)

    def slot_ms(self, time_ms: int) -> int:
        """Return the time of the slot of a time."""
        return time_ms - time_ms % self._precision_ms

    def congestion(self, due_ms: int) -> int:
        """Return how many messages wait in a slot."""
        slot = self._wheel.find(due_ms // self._precision_ms)
        return 0 if slot is None else slot.message_count

    def next_due(self, write_ms: int) -> int | None:
        """Return the time of the first slot in use before a time; None: nothing is due."""
        precision = self._precision_ms
        moment = self._wheel.next_used(self.read_ms // precision, write_ms // precision)
        return None if moment is None else moment * precision

    def turn_back(self, write_ms: int) -> None:
        """Have slots from a time on filled again, after the clock was set back to it.

        What they held was put back.
        """
        if write_ms < self.read_ms:
            precision = self._precision_ms
            self._wheel.erase(write_ms // precision, self.read_ms // precision)
            self.progress(read_ms=write_ms)

    # -- the timer queue ----------------------------------------------------------------------

    @property
    def queue_end(self) -> int:
        """Offset after the last visible message of the timer queue."""
        queue = self._queues.find(TIMER_TOPIC, 0)
        return 0 if queue is None else queue.end_offset

    @property
    def queue_behind(self) -> int:
        """How many messages of the timer queue are not in the timer log yet."""
        queue = self._queues.find(TIMER_TOPIC, 0)
        return 0 if queue is None else queue.end_offset - max(self.queue_offset, queue.min_offset)

    def begin_queue_read(self, count_max: int, bytes_max: int) -> QueueRead | None:
        """Return a job that reads on in the timer queue; None: nothing more is visible.

        Args:
            count_max: messages at most.
            bytes_max: bytes of their records at most, but one message in any case.

        Raises:
            CorruptRecord, StoreError: the queue cannot be read.
        """
        queue = self._queues.find(TIMER_TOPIC, 0)
        if queue is None:
            return None
        first = max(self.queue_offset, queue.min_offset)
        if first >= queue.end_offset:
            return None
        count = min(count_max, queue.end_offset - first)
        return QueueRead(self._commit_log, queue, first, count, bytes_max)

    def finish_queue_read(self, read: QueueRead) -> Queued:
        """Return what a job has read, without messages that have units already."""
        queued, known = read.queued, self._known
        if not len(known):
            return queued
        is_new = ~among(queued.waiting.physical_offsets, known)
        return queued._replace(waiting=queued.waiting.pick(is_new))

    def begin_records_read(self, physical_offsets: Longs, record_bytes: Longs) -> RecordsRead:
        """Return a job that reads records of the commit log.

        Raises:
            StoreError: the process has too many open files.
        """
        return RecordsRead(self._commit_log, physical_offsets, record_bytes)

    # -- messages that wait -------------------------------------------------------------------

    def add(self, waiting: Waiting, write_ms: int) -> None:
        """Have messages wait for the time they are due.

        Args:
            waiting: none is due before ``read_ms``.
            write_ms: time of the slot of now.

        Raises:
            DiskFull, FlushFailed, StoreError: none of them does; call again later.
        """
        due, is_rolled = self._round(waiting.due_ms, write_ms)
        units = np.zeros(len(due), UNIT)
        units["magic"] = (
            TimerMagic.DEFAULT + TimerMagic.ROLL * is_rolled + TimerMagic.DELETE * waiting.is_delete
        )
        units["physical_offset"] = waiting.physical_offsets
        units["record_bytes"] = waiting.record_bytes
        units["topic_hash"] = waiting.topic_hashes
        self._append(units, due, write_ms)

    def put_off(self, units: Units, due_ms: int, write_ms: int) -> None:
        """Have messages of a slot that was read wait in a later one.

        Args:
            units: of the messages.
            due_ms: time of that slot.
            write_ms: time of the slot of now.

        Raises:
            DiskFull, FlushFailed, StoreError: none of them does.
        """
        self._append(units.copy(), np.full(len(units), due_ms, np.int64), write_ms)

    def _append(self, units: Units, due: Longs, write_ms: int) -> None:
        moments = due // self._precision_ms
        positions = self._log.positions(len(units))
        units["size"] = UNIT_BYTES
        units["previous"] = self._wheel.previous(moments, positions)
        units["write_ms"] = written = np.clip(write_ms, due - _DELAY_MS_MAX, due + _DELAY_MS_MAX)
        units["delay_ms"] = due - written
        self._log.append(units)
        self.last_due_ms = max(self.last_due_ms, int(due.max(initial=0)))
        steps = np.where(units["magic"] & TimerMagic.DELETE, -1, 1)
        self._wheel.add(moments, positions, steps)
        self.waiting_count += int(steps.sum())
        self._count(len(units), 0)
        self._is_changed = True

    def _round(self, due_ms: Longs, write_ms: int) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """Return (when messages leave the wheel, which of them will wait for another round).

        What would take a slot of days ago, not read yet, leaves the wheel in the last free one.

        Source: RocketMQ TimerMessageStore.doEnqueue.
        """
        beyond = due_ms - write_ms - self._roll_ms
        is_rolled: npt.NDArray[np.bool_] = beyond >= 0
        rounds = np.where(beyond < self._rest_ms, self._short_roll_ms, self._roll_ms)
        due = np.where(is_rolled, write_ms + rounds, due_ms)
        last_ms = self.read_ms + (self._wheel.length - 1) * self._precision_ms
        return np.minimum(due, last_ms), is_rolled | (due >= last_ms + self._precision_ms)

    def begin_read(self, due_ms: int) -> SlotRead:
        """Return a job that reads the units of a slot."""
        slot = self._wheel.find(due_ms // self._precision_ms)
        assert slot is not None, f"nothing waits for {due_ms}"
        return SlotRead(self._log, due_ms // self._precision_ms, self._precision_ms, slot)

    def finish_slot(self, due_ms: int, count: int) -> None:
        """Record that everything of a slot, some number of messages, was put back."""
        self._count(0, count)
        self.waiting_count -= self.congestion(due_ms)
        self._is_changed = True
        self.progress(read_ms=due_ms + self._precision_ms)

    def progress(self, *, read_ms: int | None = None, queue_offset: int | None = None) -> None:
        """Record how far timers are; it counts once the commit log is flushed up to its end."""
        if read_ms is not None:
            self.read_ms = read_ms
            if self.last_due_ms < read_ms:
                self.last_due_ms = 0  # also when the clock is set back to before that slot
        if queue_offset is not None and queue_offset != self.queue_offset:
            self.queue_offset = queue_offset
            self._is_changed = True
            self._forget_known()
        end = self._commit_log.end
        if self._marks and self._marks[-1].physical_end == end:
            self._marks.pop()
        self._marks.append(_Mark(end, self.read_ms, self.queue_offset, self._units_from))

    def _forget_known(self) -> None:
        """Forget units of messages before ``queue_offset``."""
        queue = self._queues.find(TIMER_TOPIC, 0)
        if len(self._known) and queue is not None and self.queue_offset > queue.min_offset:
            taken_up = queue.entry(self.queue_offset - 1)[0]
            self._known = self._known[self._known > taken_up]
        if not len(self._known):
            self._units_from = self._log.end

    # -- figures ------------------------------------------------------------------------------

    def _count(self, added: int, finished: int) -> None:
        self._counts = self._counts[0] + added, self._counts[1] + finished

    def rates(self) -> tuple[float, float]:
        """Return how many messages a second began to wait, and ceased to, in the last seconds."""
        since_s, before = self._samples[0]
        elapsed_s = max(self._clock.monotonic_s() - since_s, _RATE_LEAST_S)
        added, finished = (now - then for now, then in zip(self._counts, before, strict=True))
        return added / elapsed_s, finished / elapsed_s

    @property
    def read_behind_ms(self) -> int:
        """How long the first messages that are overdue have been."""
        due_ms = self.next_due(self.slot_ms(self.now_ms))
        return 0 if due_ms is None else self.now_ms - due_ms - self._precision_ms

    # -- flush --------------------------------------------------------------------------------

    def begin_flush(self) -> TimerFlush | None:
        """Return a job that flushes log, wheel and checkpoint; None: nothing has changed.

        None, too, after a flush has failed for good: the checkpoint before it stays, and the next
        start goes on from there.
        """
        self._samples.append((self._clock.monotonic_s(), self._counts))
        flushed = self._commit_log.flushed
        while self._marks and self._marks[0].physical_end <= flushed:
            self._safe = self._marks.popleft()
        if not self._is_changed or self._is_broken:
            return None
        self._is_changed = bool(self._marks)
        known, (_, read_ms, queue_offset, units_from) = self.checkpoint, self._safe
        end, log_flush = self._log.end, self._log.begin_flush()
        wheel_flush = self._wheel.begin_flush()
        is_ahead = (known.read_ms, known.queue_offset) != (read_ms, queue_offset)
        checkpoint = replace(
            known,
            read_ms=read_ms,
            log_flushed=end,
            queue_offset=queue_offset,
            master_queue_offset=queue_offset,
            version_ms=self._clock.wall_ms() if is_ahead else known.version_ms,
            version_counter=known.version_counter + is_ahead,
            wheel_digest=self._wheel.digest,
            units_from=units_from,
        )
        return TimerFlush(
            self._files, self._path, checkpoint, log_flush, wheel_flush, self._log,
            self._commit_log.first,
        )  # fmt: skip

    def finish_flush(self, flush: TimerFlush) -> None:
        """Record the outcome of a job.

        Raises:
            FlushFailed: it failed; final.
            StoreError: files could not be opened or written; the next job tries again.
        """
        is_done = flush.error is None
        self._log.finish_flush(flush.log_flush, is_done=is_done)
        self._wheel.finish_flush(flush.wheel_flush, is_done=is_done)
        if flush.error is not None:
            self._is_changed = True
            self._is_broken = isinstance(flush.error, FlushFailed)
            raise flush.error
        self.checkpoint = flush.checkpoint
        if flush.kept_from is not None:
            self._log.forget_before(flush.kept_from)

    def flush(self) -> None:
        """Flush in this thread, after a flush of the commit log.

        Raises:
            FlushFailed, StoreError: as ``finish_flush``.
        """
        if not self._log.bases and not self.queue_offset:
            return  # Timers were never used.
        self.progress()
        self._is_changed = True
        flush = self.begin_flush()
        if flush is not None:
            flush.run()
            self.finish_flush(flush)

    def close(self) -> None:
        """Close the files."""
        self._log.close()
