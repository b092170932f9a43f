"""Storing timer messages again when they are due: in their own topic, or for another round.

Source: RocketMQ TimerMessageStore.convert, doPut, TimerDequeueGetMessageService,
TimerDequeuePutMessageService.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pymq.broker.log_writer import Appends, Outcome
from pymq.broker.put_answer import is_in_log, is_never_stored
from pymq.broker.state.timer_metrics import TimerMetrics
from pymq.clock import Clock
from pymq.errors import CorruptRecord, ProtocolError
from pymq.net.said_once import SaidOnce
from pymq.net.waiting import happens
from pymq.protocol.message import REAL_TOPIC, UNIQUE_KEY, find_property
from pymq.protocol.names import TIMER_TOPIC, is_legal
from pymq.protocol.parking import (
    TIMER_DELETE_KEY,
    TIMER_DUE_MS,
    TIMER_ROLLS,
    copy_of,
    real_place,
    timer_rolls,
    with_properties,
)
from pymq.protocol.record import NewRecord, Record, decode_record
from pymq.store import PutResult, TimerStore

_log = logging.getLogger(__name__)

#: Messages stored in one turn of the event loop, and how many bytes of them are read at once.
_BATCH_COUNT, _BATCH_BYTES = 100, 4 << 20
#: Pause before messages that could not be stored are tried again, as in RocketMQ.
RETRY_S = 0.5
_LONG_DIGITS_MAX = 19
_ENQUEUED_MS, _DEQUEUED_MS = "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"
#: The time at which a message was enqueued that was due already.
NEVER_ENQUEUED = (1 << 63) - 1

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: Runs work that waits for the disk, and returns when it is done.
RunRead: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]


class Due(NamedTuple):
    """Messages that are due; arrays of shape (n,), in the order of the timer queue.

    Attributes:
        physical_offsets, record_bytes: where they wait.
        enqueued_ms: when they were enqueued.
        is_rolled: which of them wait for another round.
    """

    physical_offsets: Longs
    record_bytes: Longs
    enqueued_ms: Longs
    is_rolled: Mask

    def pick(self, rows: Longs) -> "Due":
        """Return some of them."""
        return Due(
            self.physical_offsets[rows],
            self.record_bytes[rows],
            self.enqueued_ms[rows],
            self.is_rolled[rows],
        )


class Elsewhere(NamedTuple):
    """What another broker has delivered: messages that are due before ``read_ms``, of those that
    are in the log before ``physical_end``."""

    read_ms: int
    physical_end: int


@dataclass(slots=True)
class Cancelled:
    """The messages of one slot that are cancelled, as ``topic+unique key``.

    Attributes:
        topics: the topic of each, as the cancelling message has it.
        met: those of them that were found.
    """

    topics: dict[str, str] = field(default_factory=dict)
    met: set[str] = field(default_factory=set)


class TimerDelivery:
    """Reads messages that are due and stores them again.

    Args:
        timers: where they wait.
        log_writer: stores them.
        metrics: how many wait for each topic.
        run_read: runs what reads from the disk.
        keeps_rounds: whether messages for another round are kept, and not stored again.

    Attributes:
        elsewhere: what needs no delivery; None: nothing.
        kept: physical offset -> when it is due, of messages for another round; whoever takes them
            empties it.
        rolled_end: offset in the timer queue after the last message that was put back for another
            round.
    """

    def __init__(
        self,
        timers: TimerStore,
        log_writer: Appends,
        clock: Clock,
        metrics: TimerMetrics,
        run_read: RunRead,
        *,
        keeps_rounds: bool = False,
    ) -> None:
        self._keeps_rounds = keeps_rounds
        self.elsewhere: Elsewhere | None = None
        self.kept: dict[int, int] = {}
        self._timers = timers
        self._log_writer = log_writer
        self._clock = clock
        self._metrics = metrics
        self._run_read = run_read
        self._said = SaidOnce(_log)
        self.rolled_end = 0

    async def find_cancelled(self, deletes: Due) -> Cancelled:
        """Return which messages others cancel.

        Raises:
            StoreError: they cannot be read.
        """
        found: dict[str, str] = {}
        for rows in _batches(deletes, np.arange(len(deletes.record_bytes))):
            for record in await self._read(deletes.pick(rows)):
                if record is not None:
                    key = find_property(record.properties, TIMER_DELETE_KEY.encode()) or b""
                    found[key.decode(errors="replace")] = _real_topic(record)
        return Cancelled(found)

    async def deliver(
        self, due: Due, is_done: Mask, cancelled: Cancelled, is_stopped: asyncio.Event
    ) -> None:
        """Store messages again, in order, in batches.

        Args:
            due: the messages.
            is_done: which of them are done; updated, also if it ends early.
            cancelled: those of their slot; updated.
            is_stopped: ends it after the current batch.

        Raises:
            StoreError: they cannot be read.
        """
        for rows in _batches(due, np.flatnonzero(~is_done)):
            if is_stopped.is_set():
                break
            batch = due.pick(rows)
            left = {
                row: copy
                for row, record in enumerate(await self._read(batch))
                if record is not None
                and (copy := self._try_copy(record, batch, row, cancelled)) is not None
            }
            while left and (left := await self._store(left)):
                if await happens(is_stopped, RETRY_S):
                    break
            is_done[rows] = True
            is_done[rows[list(left)]] = False

    async def _read(self, batch: Due) -> list[Record | None]:
        """Return the records of a batch; None, and a line in the log, for one that is not there."""
        read = self._timers.begin_records_read(batch.physical_offsets, batch.record_bytes)
        await self._run_read(read.run)
        found: list[Record | None] = []
        starts = iter(read.starts.tolist())
        for row, is_held in enumerate(read.is_held.tolist()):
            try:
                if not is_held:
                    raise CorruptRecord("the commit log does not hold it any more")
                record = decode_record(read.data, next(starts), verify=True)
                if record.topic != TIMER_TOPIC:
                    raise CorruptRecord(f"a message of topic {record.topic} is there")
                found.append(record)
            except CorruptRecord as error:
                _log.error(
                    "a timer message (physical offset %d) is lost and cannot be delivered: %s",
                    batch.physical_offsets[row],
                    error,
                )
                found.append(None)
        return found

    def _try_copy(
        self, record: Record, batch: Due, row: int, cancelled: Cancelled
    ) -> NewRecord | None:
        """Do the same as ``_copy``, but one message that is not as expected holds no other up."""
        try:
            return self._copy(record, batch, row, cancelled)
        except (ValueError, ProtocolError) as error:
            _log.error(
                "a timer message (physical offset %d) is not delivered: %s",
                record.physical_offset,
                error,
            )
            return None

    def _copy(self, record: Record, batch: Due, row: int, cancelled: Cancelled) -> NewRecord | None:
        """Return what is stored of a message that is due; None if nothing is."""
        is_rolled = bool(batch.is_rolled[row])
        is_delete = find_property(record.properties, TIMER_DELETE_KEY.encode()) is not None
        topic = _real_topic(record)
        if cancelled.topics and not is_rolled:
            unique = find_property(record.properties, UNIQUE_KEY.encode()) or b""
            name = f"{topic}+{unique.decode(errors='replace')}"
            if name in cancelled.topics:
                cancelled.met.add(name)
                return None
        if is_rolled and self._keeps_rounds:
            self.kept[record.physical_offset] = _due_ms(record)
            return None
        self._metrics.add(topic, 1 if is_delete else -1)
        if is_delete and not is_rolled:
            return None  # It comes too late.
        elsewhere = self.elsewhere
        if (
            elsewhere is not None
            and record.physical_offset < elsewhere.physical_end
            and _due_ms(record) < elsewhere.read_ms
        ):
            return None
        place = (TIMER_TOPIC, record.queue_id) if is_rolled else real_place(record.properties)
        if place is None or not is_legal(place[0]):
            _log.error(
                "a timer message (physical offset %d) is not delivered: it does not say for which "
                "queue it is (REAL_TOPIC, REAL_QID)",
                record.physical_offset,
            )
            return None
        changes: dict[str, str | None] = {_ENQUEUED_MS: str(batch.enqueued_ms[row])}
        if is_rolled:
            changes[TIMER_ROLLS] = str(timer_rolls(record.properties) + 1)
        changes[_DEQUEUED_MS] = str(self._clock.wall_ms())
        copy = copy_of(record, *place)
        copy.properties = with_properties(record.properties, changes)
        return copy

    async def _store(self, copies: dict[int, NewRecord]) -> dict[int, NewRecord]:
        """Store messages; return those that have to be tried again."""
        batch = _Batch(copies, asyncio.get_running_loop().create_future())
        for row, copy in copies.items():
            self._log_writer.append(copy, functools.partial(batch.done, row), wait=False)
        await batch.finished
        self.rolled_end = max(self.rolled_end, batch.rolled_end)
        if batch.left:
            self._said.warn(
                "not stored",
                "timer messages that are due cannot be stored (%s); trying again",
                batch.remark,
            )
        elif batch.stored_count:
            self._said.over("not stored", "timer messages that are due are stored again")
        return batch.left


class _Batch:
    """Messages that are stored together.

    Attributes:
        finished: set when the outcome of all is known.
        left, remark: those that have to be tried again, and why.
        stored_count: how many are in the log.
        rolled_end: as that of ``TimerDelivery``.
    """

    def __init__(self, copies: dict[int, NewRecord], finished: "asyncio.Future[None]") -> None:
        self._copies = copies
        self._pending = len(copies)
        self.finished = finished
        self.left: dict[int, NewRecord] = {}
        self.remark: str | None = None
        self.stored_count = 0
        self.rolled_end = 0

    def done(self, row: int, result: PutResult, outcome: Outcome) -> None:
        """Take the outcome of one message."""
        copy = self._copies[row]
        if is_never_stored(result, outcome):
            _log.error(
                "a timer message for topic %s can never be stored and is dropped: %s",
                copy.topic,
                result.remark,
            )
        elif not is_in_log(outcome):
            self.remark = self.remark or result.remark
            self.left[row] = copy
        else:
            self.stored_count += 1
            if copy.topic == TIMER_TOPIC:
                self.rolled_end = max(self.rolled_end, result.queue_offset + 1)
        self._pending -= 1
        if not self._pending and not self.finished.done():
            self.finished.set_result(None)


def _batches(due: Due, rows: Longs) -> Iterator[Longs]:
    """Yield rows in batches of limited count and size; one larger message is one, too."""
    ends = np.cumsum(due.record_bytes[rows])
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        fitting = int(ends.searchsorted(before + _BATCH_BYTES, "right"))
        end = min(max(fitting, first + 1), first + _BATCH_COUNT)
        yield rows[first:end]
        first = end


def _due_ms(record: Record) -> int:
    text = find_property(record.properties, TIMER_DUE_MS.encode()) or b""
    return int(text) if text.isdigit() and len(text) <= _LONG_DIGITS_MAX else 0


def _real_topic(record: Record) -> str:
    topic = find_property(record.properties, REAL_TOPIC.encode()) or b""
    return topic.decode(errors="replace")
