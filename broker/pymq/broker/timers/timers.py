"""Timer messages: taken from the timer queue into the wheel, stored again when they are due.

Three tasks. One reads on in the timer queue and has messages wait; one waits until the next slot is
over and stores its messages again, in their own topics or for another round; one flushes.

Time goes in slots (RocketMQ timerPrecisionMs): the slot of a message is over when its time has
come, and not before. Slots are read in order, each when everything is taken up that was in the
timer queue when it was over: so messages and what cancels them meet also after a long downtime. (In
RocketMQ they may not.) What comes after its slot was read is stored again at once. When the clock
is set back, slots that were read are filled again: the store's own times, which do not go back,
would have messages come early or late for as long as the clock was ahead. Only if it was so for
days, and messages wait for a time in those, they count until the wheel has room for both.

Source: RocketMQ TimerMessageStore.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from pymq.broker.disk_executor import DiskExecutor
from pymq.broker.log_writer import Appends
from pymq.broker.state.timer_metrics import TimerMetrics
from pymq.broker.timers.delivery import (
    NEVER_ENQUEUED,
    Cancelled,
    Due,
    Elsewhere,
    TimerDelivery,
)
from pymq.broker.timers.slots import Late, Slot
from pymq.clock import Clock
from pymq.errors import FlushFailed, StoreError
from pymq.net.tasks import Tasks
from pymq.net.waiting import happens
from pymq.protocol.names import TIMER_TOPIC
from pymq.store import Arrival, TimerMagic, TimerStore

_log = logging.getLogger(__name__)

#: Messages read at once from the timer queue, and how many bytes of them.
_READ_COUNT, _READ_BYTES = 1000, 4 << 20
#: Pause after the disk refused something.
RETRY_S = 1.0
#: Without messages that wait, how often the time is looked at.
_LOOK_INTERVAL_S = 60.0
#: What a flush that failed is about.
_UNSAVED = "timers are not saved until this succeeds"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerSettings:
    """How timers behave.

    Attributes:
        precision_ms: length of a slot.
        flush_interval_ms: from one flush to the next.
        stops_enqueue: do messages stay in the timer queue?
        stops_dequeue: do messages that are due stay in the wheel?
        keeps_rounds: do messages for another round stay in the wheel, without a copy in the log?
    """

    precision_ms: int
    flush_interval_ms: int
    stops_enqueue: bool = False
    stops_dequeue: bool = False
    keeps_rounds: bool = False


class Timers:
    """Has timer messages wait and delivers them.

    Args:
        timers: the files.
        log_writer: stores messages again.
        clock: the machine's.
        metrics: how many messages wait for each topic.
        readers, writers: executors for work on the disk.
    """

    def __init__(
        self,
        timers: TimerStore,
        log_writer: Appends,
        clock: Clock,
        metrics: TimerMetrics,
        settings: TimerSettings,
        *,
        readers: Executor,
        writers: Executor,
    ) -> None:
        self._timers = timers
        self._metrics = metrics
        self._settings = settings
        self._reading = DiskExecutor(readers)
        self._writing = DiskExecutor(writers)
        self._delivery = TimerDelivery(
            *(timers, log_writer, clock, metrics, self._run_read),
            keeps_rounds=settings.keeps_rounds,
        )
        #: Time of the slot of now: what is due earlier may be delivered.
        self._write_ms = 0
        self._late: Late | None = None
        self._slot: Slot | None = None
        #: The slot that is being read or delivered.
        self._reading_ms: int | None = None
        #: The slot that is read next, and the offset in the timer queue that it waits for.
        self._awaiting_ms, self._awaited = -1, 0
        self._arrived = asyncio.Event()
        self._added = asyncio.Event()
        self._is_stopped = asyncio.Event()
        self._reported: dict[str, str] = {}
        self._tasks = Tasks("timers")
        self._working: list[asyncio.Task[None]] = []

    # --- life

    def start(self) -> None:
        """Begin."""
        self._working = [
            self._tasks.start("enqueue", self._enqueue_all()),
            self._tasks.start("dequeue", self._dequeue_all()),
        ]
        self._tasks.repeat("flush", self.flush, self._settings.flush_interval_ms / 1000)

    def take_back(self, read_ms: int, physical_end: int) -> bool:
        """Deliver nothing that a slave has delivered while it acted; False: it has not.

        Args:
            read_ms: it has delivered what is due before this time,
            physical_end: of the messages before this physical offset.
        """
        known = self._delivery.elsewhere
        is_ahead = read_ms > (self._timers.read_ms if known is None else known.read_ms)
        if is_ahead:  # of several slaves, the one that has come furthest counts
            self._delivery.elsewhere = Elsewhere(read_ms, physical_end)
        return is_ahead

    def take(self, arrivals: Sequence[Arrival]) -> None:
        """Look at what has arrived: messages of the timer topic are read."""
        for arrival in arrivals:
            if arrival.topic == TIMER_TOPIC:
                self._arrived.set()

    async def look_again(self) -> None:
        """Have the time looked at: slots may be over."""
        self._added.set()

    async def _enqueue_all(self) -> None:
        while not self._is_stopped.is_set():
            self._arrived.clear()
            if not await self._attempt("timer messages are not taken up", self.enqueue):
                # What is held up now is looked at again soon.
                pause_s = RETRY_S if self._timers.queue_behind else _LOOK_INTERVAL_S
                await happens(self._arrived, pause_s)

    async def _dequeue_all(self) -> None:
        while not self._is_stopped.is_set():
            self._added.clear()
            if not await self._attempt("timer messages are not delivered", self.dequeue):
                pause_s = _LOOK_INTERVAL_S
                if self._is_waiting and not self._settings.stops_dequeue:
                    slot_end_ms = self._write_ms + self._settings.precision_ms
                    pause_s = max(1, slot_end_ms - self.now_ms()) / 1000
                await happens(self._added, pause_s)

    async def _attempt(self, what: str, step: Callable[[], Awaitable[int]]) -> int:
        """Do a step; after an error pause, and return that there is more to do."""
        try:
            count = await step()
        except StoreError as error:
            self._report(what, error)
        except Exception:
            _log.exception("%s; trying again in %g s", what, RETRY_S)
        else:
            if self._reported.pop(what, None) is not None:
                _log.warning("the error is over: %s", what)
            return count
        await happens(self._is_stopped, RETRY_S)
        return 1

    def _report(self, what: str, error: StoreError) -> None:
        """Log a failure, once for as long as it stays the same."""
        if self._reported.get(what) != str(error):
            self._reported[what] = str(error)
            _log.error("%s: %s", what, error)

    async def close(self) -> None:
        """Stop between two batches of messages; idempotent."""
        self._is_stopped.set()
        self._arrived.set()
        self._added.set()
        if self._working:
            await asyncio.wait(self._working)
        await self._tasks.close()
        for work in (self._reading, self._writing):
            await work.close(functools.partial(self._report, "timers"))

    async def _run_read(self, work: Callable[[], None]) -> None:
        await self._reading.run(work, lambda: None)

    # --- time

    def now_ms(self) -> int:
        """Return the time that messages are due by."""
        return self._timers.now_ms

    def _go_on(self) -> int:
        """Move the slot of now forward; return its time."""
        self._write_ms = max(self._write_ms, self._timers.slot_ms(self.now_ms()))
        return self._write_ms

    def _turn_back(self) -> bool:
        """Fill slots again if the clock was set back; return False if one is being delivered."""
        write_ms = self._timers.slot_ms(self.now_ms())
        if write_ms < self._timers.read_ms:
            if self._reading_ms is not None:
                return False
            self._timers.turn_back(write_ms)
            self._write_ms = write_ms
            self._added.set()
        return True

    @property
    def _is_waiting(self) -> bool:
        return self._timers.last_due_ms >= self._timers.read_ms

    # --- messages that begin to wait

    async def enqueue(self) -> int:
        """Have messages of the timer queue wait, at most one batch; return how many were read.

        Raises:
            StoreError: they cannot be read, or the timer log cannot be written.
        """
        timers = self._timers
        if self._late is not None:
            return await self._deliver_late(self._late)
        if self._settings.stops_enqueue:
            return 0
        first = timers.queue_offset
        read = timers.begin_queue_read(_READ_COUNT, _READ_BYTES)
        if read is None:
            return 0
        await self._run_read(read.run)
        if not self._turn_back():
            return 0  # What is added now would be taken for late, and be delivered early.
        queued = timers.finish_queue_read(read)
        for physical_offset, what in queued.refused:
            _log.error(
                "a message of topic %s (physical offset %d) cannot be delivered: %s",
                TIMER_TOPIC,
                physical_offset,
                what,
            )
        was_waiting = self._is_waiting
        write_ms = self._go_on()
        is_late = queued.waiting.due_ms < self._closed_ms
        timers.add(queued.waiting.pick(~is_late), write_ms)
        if not was_waiting:
            self._added.set()
        for topic, count in queued.topics:
            self._metrics.add(topic, count)
        late = queued.waiting.pick(is_late)
        is_done = np.zeros(len(late.due_ms), np.bool_)
        self._late = Late(late, is_done, read.end)
        await self._deliver_late(self._late)
        return read.end - first

    async def _deliver_late(self, late: Late) -> int:
        """Deliver messages that came after their slot."""
        waiting, is_done = late.waiting, late.is_done
        count = len(waiting.due_ms)
        if count:
            due = Due(
                waiting.physical_offsets,
                waiting.record_bytes,
                np.full(count, NEVER_ENQUEUED, np.int64),
                np.zeros(count, np.bool_),
            )
            await self._delivery.deliver(due, is_done, Cancelled(), self._is_stopped)
            rest = waiting.pick(~is_done)
            if len(rest.due_ms):  # The next start delivers them.
                rest = rest._replace(due_ms=np.maximum(rest.due_ms, self._closed_ms))
                self._timers.add(rest, self._write_ms)
        self._late = None
        self._timers.progress(queue_offset=late.end)
        if late.end >= self._awaited:
            self._added.set()
        return count

    # --- messages that are due

    async def dequeue(self) -> int:
        """Deliver the messages of one slot that is over; return 0 if there is none.

        Raises:
            StoreError: they cannot be read; the next call goes on with this slot.
        """
        timers = self._timers
        if self._slot is None:
            self._write_ms = write_ms = timers.slot_ms(self.now_ms())
            timers.turn_back(write_ms)
            if self._settings.stops_dequeue:
                return 0
            due_ms = timers.next_due(write_ms)
            if self._is_enqueue_behind(write_ms if due_ms is None else due_ms):
                return 0
            if due_ms is None:
                if write_ms > timers.read_ms:
                    timers.progress(read_ms=write_ms)
                return 0
            self._reading_ms = due_ms
            self._slot = await self._read_slot(due_ms)
        await self._deliver_slot(self._slot)
        self._slot = self._reading_ms = None
        return 1

    def _is_enqueue_behind(self, slot_ms: int) -> bool:
        """Return whether messages that came before a slot was looked at are not taken up yet.

        They may belong to it or to earlier ones, or cancel messages that do.
        """
        timers = self._timers
        if self._awaiting_ms != slot_ms:
            self._awaiting_ms = slot_ms
            self._awaited = max(timers.queue_end, self._delivery.rolled_end)
        return not self._settings.stops_enqueue and timers.queue_offset < self._awaited

    @property
    def _closed_ms(self) -> int:
        """The time of the first slot that messages may still be added to."""
        if self._reading_ms is None:
            return self._timers.read_ms
        return self._reading_ms + self._settings.precision_ms

    async def _read_slot(self, due_ms: int) -> Slot:
        read = self._timers.begin_read(due_ms)
        await self._run_read(read.run)
        if read.lost_count:
            _log.error(
                "%d timer messages that were due at %d are missing: their part of the timer log is "
                "damaged, or old and deleted. If it is damaged, stop the broker and delete the "
                "directory timerlog: it is made again from the messages",
                read.lost_count,
                due_ms,
            )
        units = read.units
        is_rolled = units["magic"] & TimerMagic.ROLL != 0
        is_delete = (units["magic"] & TimerMagic.DELETE != 0) & ~is_rolled
        due = Due(
            units["physical_offset"].astype(np.int64),
            units["record_bytes"].astype(np.int64),
            units["write_ms"].astype(np.int64),
            is_rolled,
        )
        cancelled = await self._delivery.find_cancelled(due.pick(np.flatnonzero(is_delete)))
        return Slot(due_ms, units, due, is_delete, cancelled)

    async def _deliver_slot(self, slot: Slot) -> None:
        timers, cancelled = self._timers, slot.cancelled
        await self._delivery.deliver(slot.due, slot.is_done, cancelled, self._is_stopped)
        if self._delivery.kept:
            precision_ms = self._settings.precision_ms
            again = slot.waiting(self._delivery.kept, slot.due_ms + precision_ms)
            timers.add(again, self._write_ms)
            self._delivery.kept = {}  # Not before: the next try has to add them if that failed.
        if slot.is_done.all():
            for key, topic in cancelled.topics.items():
                if key not in cancelled.met:
                    self._metrics.add(topic, 1)  # It was counted as one less, but there was none.
        else:
            rest = ~slot.is_done | slot.is_delete
            precision_ms = self._settings.precision_ms
            timers.put_off(slot.units[rest], slot.due_ms + precision_ms, self._write_ms)
        timers.finish_slot(slot.due_ms, int(slot.is_done.sum()))

    # --- flush

    async def flush(self) -> None:
        """Flush the files, if anything has changed."""
        flush = self._timers.begin_flush()
        if flush is None:
            return
        try:
            await self._writing.run(flush.run, functools.partial(self._timers.finish_flush, flush))
        except FlushFailed as error:
            self._report("timers are not saved any more, until the broker is restarted", error)
        except StoreError as error:
            self._report(_UNSAVED, error)
        else:
            self._reported.pop(_UNSAVED, None)
