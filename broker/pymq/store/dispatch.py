"""Commit log -> consume queues: makes records visible.

The queue entries of records are added here when the records are written to the log, and written
to the queues when they may be visible: at once with ``FlushMode.ASYNC``, after the flush that
covers them with ``FlushMode.SYNC``. (RocketMQ since 5.3.2 does the same: its confirm offset is
the flushed one under SYNC_FLUSH.) In a group with a controller they also wait for the members of
its sync state set.

Entries are written at their final positions: after a failure, writing is repeated.

Source: RocketMQ ReputMessageService, CommitLogDispatcherBuildConsumeQueue.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pymq.errors import StoreError
from pymq.protocol.multi_dispatch import is_light
from pymq.store.config import ENTRY_BYTES
from pymq.store.log.commit_log import CommitLog
from pymq.store.queues.consume_queue import (
    BLANK_SIZE,
    ENTRY,
    ENTRY_STRUCT,
    ConsumeQueue,
    Entries,
)
from pymq.store.queues.offset_lookup import end_before
from pymq.store.queues.queue_table import QueueTable
from pymq.store.write_gate import WriteGate

#: Bit maps of consecutive records; None where a record has none.
BitMaps: TypeAlias = Sequence[bytes | None]
#: Writes consecutive entries of a queue from an offset on, and makes them visible; returns the bit
#: maps of their records, if they have any.
WriteEntries: TypeAlias = Callable[[ConsumeQueue, int, bytes], BitMaps | None]
#: Returns the bit map of a record, which filters may match it, by its topic and its bytes as they
#: are stored. Must not raise.
BitMapOf: TypeAlias = Callable[[str, memoryview], bytes | None]

#: Queues whose new entries are held back.
HeldQueues: TypeAlias = tuple[ConsumeQueue, ...]


@dataclass(slots=True)
class Arrival:
    """Records of one queue that have just become visible: offsets [queue_first, queue_end).

    ``bit_maps`` are those in their units, one per record; None: they have none.
    """

    topic: str
    queue_id: int
    queue_first: int
    queue_end: int
    entries: bytes
    bit_maps: BitMaps | None = None

    @property
    def tag_codes(self) -> npt.NDArray[np.int64]:
        """The tag codes of these records, shape (queue_end - queue_first,)."""
        return np.frombuffer(self.entries, ENTRY)["tag_code"].astype(np.int64)


@dataclass(slots=True)
class PendingDispatch:
    """The queue entries of one write to the log: per queue the first offset and the entries.

    ``staged_count`` records of ``staged_bytes`` have none: they are no messages yet.
    """

    end: int
    store_timestamp: int
    groups: dict[ConsumeQueue, tuple[int, list[bytes]]]
    staged_count: int = 0
    staged_bytes: int = 0

    def counts(self) -> dict[ConsumeQueue, int]:
        """Return how many pieces of entries each queue has."""
        return {queue: len(pieces) for queue, (_, pieces) in self.groups.items()}

    def take_back(self, counts: dict[ConsumeQueue, int]) -> None:
        """Remove the entries of single records that were added since ``counts``."""
        for queue, (_, pieces) in list(self.groups.items()):
            count = counts.get(queue, 0)
            queue.next_offset -= len(pieces) - count
            del pieces[count:]
            if not pieces:
                del self.groups[queue]


@dataclass(slots=True)
class _HeldEntries:
    """Entries of a queue that are held back: the first offset, and the entries."""

    is_released: bool = False
    first: int = 0
    pieces: list[bytes] = field(default_factory=list)


class ExtendedEntries:
    """Writes entries whose tag codes are in units of the queue's extension.

    Source: RocketMQ ConsumeQueue.putMessagePositionInfoWrapper with enableConsumeQueueExt.
    """

    def __init__(self, log: CommitLog, queues: QueueTable, bit_map_of: BitMapOf | None) -> None:
        self._log = log
        self._queues = queues
        self._bit_map_of = bit_map_of

    def write(self, queue: ConsumeQueue, first: int, entries: bytes) -> BitMaps | None:
        """Write units and entries; ``entries`` hold tag codes, their records are in the log.

        Light queues have no extensions, as in RocketMQ.

        Returns:
            The bit maps.

        Raises:
            DiskFull, FlushFailed, StoreError: as ``ConsumeQueue.write``; it can be repeated.
        """
        if is_light(queue.topic):
            queue.write(first, entries)
            return None
        rows = np.frombuffer(bytearray(entries), ENTRY)
        is_blank = rows["size"] == BLANK_SIZE
        if is_blank.any():
            real = self._with_units(queue, rows[~is_blank])[0]
            rows[~is_blank] = real
            bit_maps = None
        else:
            rows, bit_maps = self._with_units(queue, rows)
        queue.write(first, rows.tobytes())
        self._queues.extension_of(queue).keep()
        return bit_maps

    def _with_units(self, queue: ConsumeQueue, rows: Entries) -> tuple[Entries, BitMaps | None]:
        """Write the units of entries; return the entries, with their addresses, and bit maps."""
        physical = rows["physical_offset"].astype(np.int64)
        bit_maps = None
        if self._bit_map_of is not None:
            places = zip(physical.tolist(), rows["size"].tolist(), strict=True)
            bit_maps = [self._bit_map_of(queue.topic, self._record(*place)) for place in places]
        extension = self._queues.extension_of(queue)
        rows["tag_code"] = extension.put(
            rows["tag_code"].astype(np.int64), self._log.store_times(physical), bit_maps
        )
        return rows, bit_maps

    def _record(self, physical_offset: int, size: int) -> memoryview:
        segment = self._log.segments.find(physical_offset)
        start = physical_offset - segment.first
        return segment.view[start : start + size]


class Dispatch:
    """Makes records visible, in log order.

    Args:
        log: where the records are; everything in it so far is visible.
        gate: records failures.
        write: writes entries of a queue.
        waits_for_flush: whether records become visible when they are flushed, not before.

    Attributes:
        end: physical offset up to which everything is visible, but for queues that are held.
        store_timestamp: store time of the last visible record, ms.
        limit: physical offset above which nothing becomes visible, because it may be cut off
            again (RocketMQ confirmOffset); None: there is no such limit.
        listener: called with what has just become visible, from inside ``MessageStore.put`` and
            the ``finish_...`` methods of ``Durability``. It must not call the store's writing
            methods.
    """

    def __init__(
        self, log: CommitLog, gate: WriteGate, write: WriteEntries, *, waits_for_flush: bool
    ) -> None:
        self._log = log
        self._gate = gate
        self._write = write
        self._pending: deque[PendingDispatch] = deque()
        self._held: dict[ConsumeQueue, _HeldEntries] = {}
        #: What ``complete`` was before the first of the held entries.
        self._complete: tuple[int, int] | None = None
        self.waits_for_flush = waits_for_flush
        self.end = log.end
        self.store_timestamp = log.store_timestamp
        self.limit: int | None = None
        self.listener: Callable[[list[Arrival]], None] | None = None

    @property
    def is_behind(self) -> bool:
        """Whether entries wait to be written."""
        return bool(self._pending) or self._complete is not None

    @property
    def complete(self) -> tuple[int, int]:
        """Physical offset below which all queues have their entries, and its store time (ms)."""
        return self._complete or (self.end, self.store_timestamp)

    @property
    def behind_bytes(self) -> int:
        """Bytes written to the log that are not visible yet."""
        return self._log.end - self.end if self._pending else 0

    def add(self, pending: PendingDispatch) -> None:
        """Add the queue entries of one write to the log."""
        self._pending.append(pending)

    def reach(self, queue: ConsumeQueue) -> int:
        """Return where the last record of a queue ends in the log, visible or not; -1: none."""
        waiting = [self._held[queue].pieces] if queue in self._held else []
        waiting += [one.groups[queue][1] for one in self._pending if queue in one.groups]
        ends = [queue.physical_end]
        for pieces in waiting:
            if pieces:
                offset, size, _ = ENTRY_STRUCT.unpack(pieces[-1][-ENTRY_BYTES:])
                ends.append(offset + size)
        return max(ends)

    def hold(self, queues: HeldQueues, *, since: int | None = None) -> None:
        """Keep what comes into queues invisible until ``release``; nobody else holds them.

        Args:
            queues: which.
            since: at a start, also what they show of records at this physical offset or behind.
        """
        for queue in queues:
            assert queue not in self._held, "a queue is held by one at a time"
            self._held[queue] = _HeldEntries()
            if since is not None:
                self._hide(queue, since)

    def _hide(self, queue: ConsumeQueue, since: int) -> None:
        """Take entries back that recovery has made visible; they stay in the files."""
        first = end_before(queue, since)
        if first == queue.end_offset:
            return
        rows = queue.entries(first, queue.end_offset - first).copy()
        rows["tag_code"] = queue.tag_codes(rows)[0]
        self._held[queue].first, self._held[queue].pieces = first, [rows.tobytes()]
        queue.end_offset = first
        if self._complete is None or since < self._complete[0]:
            self._complete = since, self._log.store_time_at(since) or 0

    def release(self, queues: HeldQueues) -> None:
        """Have what came into queues become visible, all at once, with the next ``advance``."""
        for queue in queues:
            self._held[queue].is_released = True

    def is_holding(self, queues: HeldQueues) -> bool:
        """Whether what came into one of these queues is invisible, released or not."""
        return any(queue in self._held for queue in queues)

    def advance(self) -> bool:
        """Make visible what may be visible; return False if queues could not be written.

        Called after puts, commits and flushes; after a full disk, a later call does the rest.
        """
        arrivals: list[Arrival] = []
        is_done = True
        try:
            if self._held:
                arrivals = self._apply_released()
            end = self._log.flushed if self.waits_for_flush else self._log.committed
            arrivals += self._apply_below(end if self.limit is None else min(end, self.limit))
        except StoreError as error:
            self._gate.record_error(error)
            is_done = False
        if arrivals and self.listener is not None:
            self.listener(arrivals)
        return is_done

    def _apply_below(self, limit: int) -> list[Arrival]:
        """Make everything below a physical offset visible.

        Raises:
            DiskFull, FlushFailed, StoreError: all of it stays pending; call again later.
        """
        pending = self._pending
        if not pending or pending[0].end > limit:
            return []
        due = pending.popleft()
        while pending and pending[0].end <= limit:
            _merge(due, pending.popleft())
        try:
            arrivals = self._apply(due)
        except BaseException:
            pending.appendleft(due)
            raise
        self.end = due.end
        self.store_timestamp = due.store_timestamp
        return arrivals

    def _apply(self, pending: PendingDispatch) -> list[Arrival]:
        held = self._held
        arrivals = [
            self._show(queue, first, pieces)
            for queue, (first, pieces) in pending.groups.items()
            if not queue.removed and queue not in held
        ]
        for queue in held.keys() & pending.groups.keys() if held else ():
            first, pieces = pending.groups[queue]
            if not held[queue].pieces:
                held[queue].first = first
            held[queue].pieces += pieces
            self._complete = self.complete
        return arrivals

    def _apply_released(self) -> list[Arrival]:
        """Make visible what is held no longer: all of it, or nothing.

        Raises:
            DiskFull, FlushFailed, StoreError: it stays invisible; call again later.
        """
        released = {queue: held for queue, held in self._held.items() if held.is_released}
        before = [(queue, queue.end_offset, queue.physical_end) for queue in released]
        try:
            arrivals = [
                self._show(queue, held.first, held.pieces)
                for queue, held in released.items()
                if held.pieces and not queue.removed
            ]
        except BaseException:
            # Those that were written would show a part of a batch.
            for queue, end_offset, physical_end in before:
                queue.end_offset, queue.physical_end = end_offset, physical_end
            raise
        for queue in released:
            del self._held[queue]
        if not any(held.pieces for held in self._held.values()):
            self._complete = None
        return arrivals

    def _show(self, queue: ConsumeQueue, first: int, pieces: list[bytes]) -> Arrival:
        """Write entries of a queue."""
        entries = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        bit_maps = self._write(queue, first, entries)
        end = first + len(entries) // ENTRY_BYTES
        return Arrival(queue.topic, queue.queue_id, first, end, entries, bit_maps)


def _merge(into: PendingDispatch, later: PendingDispatch) -> None:
    groups = into.groups
    for queue, group in later.groups.items():
        known = groups.get(queue)
        if known is None:
            groups[queue] = group
        else:
            known[1].extend(group[1])
    into.end = later.end
    into.store_timestamp = later.store_timestamp
