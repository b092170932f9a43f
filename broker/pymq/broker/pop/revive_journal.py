"""The journal of popping: checkpoints and acknowledgements in the revive topic.

Everything that is in memory can be made again from the journal. The offset that the revive group
has committed in a revive queue says from where: no record before it is needed. Another offset says
up to where the journal was known. Both are saved together with the offsets of all groups, so that
after a crash the journal also tells what these have popped since.

An open checkpoint whose record is far behind is written again at the end of its queue, with what is
acknowledged already: the journal that a start reads grows with the open checkpoints, not with the
time that one has been open. A start has read an earlier record of it, or knows how old it is.

Source: RocketMQ PopReviveService, PopBufferMergeService, AckMessageProcessor.
"""

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Iterator

from pymq.broker.log_writer import Appends, Outcome
from pymq.broker.pop.checkpoint import (
    Acknowledgement,
    Checkpoint,
    CheckpointKey,
    GroupQueue,
    acknowledgement_record,
    checkpoint_record,
    is_changed,
    is_ours,
    read_revive_record,
)
from pymq.broker.pop.checkpoint_table import CheckpointTable
from pymq.broker.pop.record_reading import READ_BYTES_MAX, RecordReading
from pymq.broker.put_answer import is_in_log
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topic_ids import TopicIds
from pymq.clock import Clock
from pymq.errors import ProtocolError
from pymq.net.tasks import Tasks
from pymq.protocol.names import REVIVE_END_GROUP, REVIVE_GROUP
from pymq.protocol.record import NewRecord, Record, decode_records
from pymq.store import Arrival, MessageStore, Put, PutResult, RecordGroup

_log = logging.getLogger(__name__)

#: Records read at a time.
_READ_COUNT = 1000
#: How long a checkpoint that was read, not written here, waits for acknowledgements that RocketMQ's
#: timer delivers after it; or for consumers to come back after a restart.
FOREIGN_GRACE_MS = 2000
#: The journal of a revive queue is shortened when it is longer than this and than so many times
#: the number of its open checkpoints.
SHORTEN_LENGTH = 4096
SHORTEN_FACTOR = 4
#: Checkpoints written again in one step.
_SHORTEN_STEP = 200

#: Gets the outcome of a put; ``result.remark`` is the reason if it is not in the log.
Told = Callable[[PutResult, Outcome], None]


class ReviveJournal:
    """Writes the journal, reads it at start, and commits from where it is needed.

    Args:
        topic_ids: say where the log ended when each topic was created.
        topic, queue_count: the revive topic.
        broker_name: ours.
        host: our packed address.
    """

    def __init__(
        self,
        store: MessageStore,
        reading: RecordReading,
        log_writer: Appends,
        offsets: OffsetTable,
        table: CheckpointTable,
        clock: Clock,
        topic_ids: TopicIds,
        *,
        topic: str,
        queue_count: int,
        broker_name: str,
        host: bytes,
    ) -> None:
        self._store = store
        self._reading = reading
        self._log_writer = log_writer
        self._offsets = offsets
        self._table = table
        self._clock = clock
        self._topic_ids = topic_ids
        self.topic = topic
        self._broker_name = broker_name
        self._host = host
        #: Of each revive queue, up to where its records are known here.
        self._ends = [0] * queue_count
        #: Of each, up to where its records are visible.
        self._visible_ends = [0] * queue_count
        #: Of each, how many records of ours are being written: some of them may be visible already.
        self._writing = [0] * queue_count
        #: Of each, up to where those that waited for their outcomes were ours, when last looked at.
        self._untold_ends = [0] * queue_count
        #: Of each, records of ours at and behind that place: a checkpoint, or None.
        self._ours: list[dict[int, Checkpoint | None]] = [{} for _ in range(queue_count)]
        #: What is acknowledged in this turn of the event loop: bits, and who is to be told.
        self._pending: dict[Checkpoint, tuple[int, list[Told]]] = {}
        #: What is being written: bits whose messages end, and who is to be told.
        self._ending: dict[Checkpoint, list[tuple[int, list[Told]]]] = {}
        self._catching_up: set[int] = set()
        self._tasks = Tasks("revive journal")

    # --- writing

    def write(self, checkpoint: Checkpoint, told: Told) -> None:
        """Write a new checkpoint; it is open when it is in the log."""

        def done(result: PutResult, outcome: Outcome) -> None:
            if is_in_log(outcome):
                self._opened(checkpoint, result)
            told(result, outcome)

        self._append(checkpoint.revive_queue_id, self._record(checkpoint), done)

    def _append(self, queue_id: int, put: Put, done: Told) -> None:
        """Append records to a revive queue, among others; ``done`` says which are ours."""
        self._writing[queue_id] += 1
        self._log_writer.append(put, functools.partial(self._appended, queue_id, done))

    def _appended(self, queue_id: int, done: Told, result: PutResult, outcome: Outcome) -> None:
        self._writing[queue_id] -= 1
        done(result, outcome)
        if self._ends[queue_id] < self._visible_ends[queue_id]:
            self._follow(queue_id)  # it waited for the flush

    def _record(self, checkpoint: Checkpoint) -> NewRecord:
        now_ms = self._clock.wall_ms()
        return checkpoint_record(checkpoint, self.topic, host=self._host, now_ms=now_ms)

    def _opened(self, checkpoint: Checkpoint, place: PutResult) -> None:
        self._table.add(checkpoint)
        self._ours[checkpoint.revive_queue_id][place.queue_offset] = checkpoint

    def acknowledge(self, checkpoint: Checkpoint, bits: int, told: Told) -> None:
        """Acknowledge messages of an open checkpoint; several of one turn become one record."""
        checkpoint.acknowledging |= bits
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        known, listeners = self._pending.get(checkpoint, (0, []))
        self._pending[checkpoint] = (known | bits, [*listeners, told])

    def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        for checkpoint, (bits, listeners) in pending.items():
            record = self._acknowledgement(checkpoint, bits)
            self._begin_end(checkpoint, bits, listeners)
            done = functools.partial(self._acknowledged, checkpoint, bits, listeners)
            self._append(checkpoint.revive_queue_id, record, done)

    def _begin_end(self, checkpoint: Checkpoint, bits: int, listeners: list[Told]) -> None:
        """Note that a record is being written that ends the flight of messages."""
        checkpoint.acknowledging |= bits
        self._ending.setdefault(checkpoint, []).append((bits, listeners))

    def wait_end(self, checkpoint: Checkpoint, bit: int, told: Told) -> None:
        """Have somebody else told what becomes of a message that is being acknowledged."""
        pending = [self._pending[checkpoint]] if checkpoint in self._pending else []
        for bits, listeners in (*self._ending.get(checkpoint, ()), *pending):
            if bits & bit:
                listeners.append(told)
                return
        raise AssertionError(f"{checkpoint}: bit {bit} does not end")

    def revive(self, checkpoint: Checkpoint, bit: int, copy: NewRecord, told: Told) -> None:
        """Acknowledge one message together with storing its copy: both or neither."""
        listeners = [told]
        self._begin_end(checkpoint, bit, listeners)
        group = RecordGroup((copy, self._acknowledgement(checkpoint, bit)))

        def done(result: PutResult, outcome: Outcome) -> None:
            place = group.places[1] if is_in_log(outcome) else result
            self._acknowledged(checkpoint, bit, listeners, place, outcome)

        self._append(checkpoint.revive_queue_id, group, done)

    def replace(self, checkpoint: Checkpoint, bit: int, new: Checkpoint, told: Told) -> None:
        """Move one message from an open checkpoint to a new one of its own."""
        listeners = [told]
        self._begin_end(checkpoint, bit, listeners)
        group = RecordGroup((self._record(new), self._acknowledgement(checkpoint, bit)))

        def done(result: PutResult, outcome: Outcome) -> None:
            if is_in_log(outcome):
                self._opened(new, group.places[0])
                result = group.places[1]
            self._acknowledged(checkpoint, bit, listeners, result, outcome)

        self._append(checkpoint.revive_queue_id, group, done)

    def _acknowledgement(self, checkpoint: Checkpoint, bits: int) -> NewRecord:
        offsets = checkpoint.offsets_of(bits)
        now = self._clock.wall_ms()
        return acknowledgement_record(checkpoint, offsets, self.topic, host=self._host, now_ms=now)

    def _acknowledged(
        self,
        checkpoint: Checkpoint,
        bits: int,
        listeners: list[Told],
        place: PutResult,
        outcome: Outcome,
    ) -> None:
        others = [one for one in self._ending.pop(checkpoint) if one[1] is not listeners]
        if others:
            self._ending[checkpoint] = others
        checkpoint.acknowledging, _ = self._pending.get(checkpoint, (0, None))
        for still, _ in others:
            checkpoint.acknowledging |= still
        if is_in_log(outcome):
            self._ours[checkpoint.revive_queue_id][place.queue_offset] = None
            self._close(checkpoint, bits)
        for told in listeners:
            told(place, outcome)

    def _close(self, checkpoint: Checkpoint, bits: int) -> None:
        checkpoint.acknowledged |= bits
        if checkpoint.is_done and self._table.is_open(checkpoint):
            self.drop(checkpoint)

    def drop(self, checkpoint: Checkpoint) -> None:
        """Close a checkpoint without a record: after a restart it may be open again."""
        self._table.remove(checkpoint)
        self._commit(checkpoint.revive_queue_id)

    # --- following

    def open(self) -> list[tuple[int, Checkpoint]]:
        """Read the journal from where it is needed.

        Returns:
            The checkpoints of our pops that the saved offsets of groups may not count, also those
            that were closed later, with the physical offsets of their records, in that order.

        Raises:
            StoreError: it cannot be read.
        """
        found: list[tuple[int, Checkpoint]] = []
        firsts = self._topic_ids.first_offsets()
        for queue_id in range(len(self._ends)):
            known_end = self._offsets.find(REVIVE_END_GROUP, self.topic, queue_id) or 0
            last: Checkpoint | None = None
            seen: set[CheckpointKey] = set()
            for record in self._read_needed(queue_id):
                what = self._apply(record)
                if last is not None and is_changed(last, what):
                    found.pop()
                last = None
                if not isinstance(what, Checkpoint):
                    continue
                if record.physical_offset < firsts.get(what.topic, 0):
                    # An earlier topic of that name was deleted, and it with that (``drop``).
                    if self._table.is_open(what):
                        self._table.remove(what)
                    continue
                # What is written again is no pop: the group may have been set back since.
                is_new = what.key not in seen and record.queue_offset >= known_end
                seen.add(what.key)
                if is_new and what.differences and is_ours(record):
                    found.append((record.physical_offset, what))
                    last = what
            self._commit(queue_id)
        return sorted(found, key=lambda one: one[0])

    def has_counted(self, queue: GroupQueue) -> bool:
        """Return whether the end that is saved lies behind all checkpoints of a group's queue."""
        waiting = itertools.chain.from_iterable(ours.values() for ours in self._ours)
        return all(one is None or one.group_queue != queue for one in waiting)

    def _read_needed(self, queue_id: int) -> Iterator[Record]:
        """Yield the records of a revive queue that are needed; then its end is known."""
        committed = self._offsets.find(REVIVE_GROUP, self.topic, queue_id)
        first, end = self._store.queue_bounds(self.topic, queue_id)
        # The store may be older than the offsets.
        at = min(max(first, 0 if committed is None else committed + 1), end)
        while at < end:
            result = self._store.reads.read(
                self.topic, queue_id, at, count_max=_READ_COUNT, bytes_max=READ_BYTES_MAX
            )
            result.check()
            yield from itertools.chain.from_iterable(map(decode_records, result.buffers))
            at = max(result.next_queue_offset, at + 1)
        self._ends[queue_id] = self._visible_ends[queue_id] = at

    def take(self, arrivals: list[Arrival]) -> None:
        """Take note of what has become visible in the revive topic."""
        for arrival in arrivals:
            if arrival.topic == self.topic and arrival.queue_id < len(self._ends):
                self._visible_ends[arrival.queue_id] = arrival.queue_end
                self._follow(arrival.queue_id)

    def _follow(self, queue_id: int) -> None:
        ours = self._ours[queue_id]
        at, end = self._ends[queue_id], self._visible_ends[queue_id]
        while at < end and at in ours:
            self._place(queue_id, at)
            at += 1
        self._ends[queue_id] = at
        # The outcomes of our records are told in their order, as a rule: if one is known that lies
        # behind, or none is waited for, this is one of RocketMQ's records, which its timer wrote.
        is_told = not self._writing[queue_id] or (ours and at >= self._untold_ends[queue_id])
        if at < end and is_told and queue_id not in self._catching_up:
            self._catching_up.add(queue_id)
            self._tasks.start("foreign records", self._catch_up(queue_id))
        self._commit(queue_id)

    def _place(self, queue_id: int, offset: int) -> None:
        checkpoint = self._ours[queue_id].pop(offset)
        if checkpoint is not None:
            self._table.place(checkpoint, offset)

    async def _catch_up(self, queue_id: int) -> None:
        """Read what has become visible in a revive queue, up to what ``_appended`` goes on with."""
        ours = self._ours[queue_id]
        try:
            while (at := self._ends[queue_id]) < self._store.queue_bounds(self.topic, queue_id)[1]:
                read = await self._reading.read(self.topic, queue_id, at, _READ_COUNT)
                for number, record in enumerate(read.records):
                    offset = record.queue_offset
                    if offset < self._ends[queue_id]:
                        continue  # It was followed while it was read.
                    if offset in ours:
                        self._place(queue_id, offset)
                    elif self._writing[queue_id] and is_ours(record):
                        untold = itertools.takewhile(is_ours, read.records[number:])
                        self._untold_ends[queue_id] = offset + len([*untold])
                        return
                    else:
                        self._apply(record)
                    self._ends[queue_id] = offset + 1
                self._ends[queue_id] = max(self._ends[queue_id], read.next_queue_offset, at + 1)
                await asyncio.sleep(0)
        finally:
            self._catching_up.discard(queue_id)
            self._commit(queue_id)

    def _apply(self, record: Record) -> Checkpoint | Acknowledgement | None:
        """Take over what a record says; return it."""
        try:
            what = read_revive_record(record, broker_name=self._broker_name)
        except ProtocolError as error:
            _log.error("left out of the journal of popping: %s", error)
            return None
        if isinstance(what, Checkpoint):
            if not what.is_done:
                now = self._clock.wall_ms()  # that of another master may have been ahead
                due_ms = max(now, min(what.due_ms, now + what.invisible_ms))
                self._table.add(what, due_ms + FOREIGN_GRACE_MS)
                self._table.place(what, record.queue_offset)
        elif what is not None:
            checkpoint = self._table.find(what.key)
            if checkpoint is not None:
                self._close(checkpoint, checkpoint.bits_of(what.queue_offsets))
        return what

    def _commit(self, queue_id: int) -> None:
        """Commit from where the journal is needed: RocketMQ's offset is the one before."""
        end = self._ends[queue_id]
        self._offsets.commit(REVIVE_END_GROUP, self.topic, queue_id, end)
        first = self._table.first_place(queue_id)
        needed = end if first is None else min(first, end)
        if needed:
            self._offsets.commit(REVIVE_GROUP, self.topic, queue_id, needed - 1)

    def shorten(self) -> int:
        """Write checkpoints again whose records are far behind; return how many."""
        written = 0
        for queue_id, end in enumerate(self._ends):
            first = self._table.first_place(queue_id)
            length = max(SHORTEN_LENGTH, SHORTEN_FACTOR * self._table.count_in(queue_id))
            if first is None or end - first <= length:
                continue
            for checkpoint in self._table.oldest(queue_id, _SHORTEN_STEP):
                # What is being acknowledged is not known yet; the next step comes soon.
                if not checkpoint.acknowledging:
                    self._write_again(checkpoint)
                    written += 1
        return written

    def _write_again(self, checkpoint: Checkpoint) -> None:
        def done(result: PutResult, outcome: Outcome) -> None:
            if is_in_log(outcome):
                self._ours[checkpoint.revive_queue_id][result.queue_offset] = checkpoint

        self._append(checkpoint.revive_queue_id, self._record(checkpoint), done)

    async def close(self) -> None:
        """Stop following; idempotent."""
        await self._tasks.close()
