"""Finds the open transactions of a store when a broker starts.

The ops from their cursor on name what is closed, and the half messages from theirs on are read
unless they are closed. Two things may be missing, because the power was lost in the middle of a
write, or because RocketMQ gathers its ops for three seconds and loses them when it stops:

* a transaction was committed, but no op says so. The committed message is one of the last ones in
  its queue, and says which half message it was;
* a half message was copied, but the older one is not closed (RocketMQ does not close it at all).
  Both have the same identity, and the copy comes later.

In both cases the op is written now, before anything else is.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from pymq.broker.state.transactions import OpenTransactions
from pymq.errors import CorruptRecord
from pymq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC
from pymq.protocol.record import Record, decode_records
from pymq.protocol.transaction_records import (
    QUEUE_ID,
    Identity,
    check_times,
    closed_offsets,
    identity,
    is_committed,
    prepared_offset,
)
from pymq.store import MessageStore, QueueKey

_log = logging.getLogger(__name__)

#: How much is read at once.
_READ_COUNT, _READ_BYTES = 256, 1 << 20
#: Committed messages without an op are looked for among those stored this long before the last
#: message of the log, and among this many of one queue.
UNRECORDED_MS = 10_000
UNRECORDED_COUNT = 2_000
#: How much is read at once on the way back.
_BACK_COUNT = 32


@dataclass(slots=True)
class Found:
    """The transactions of a store.

    Attributes:
        transactions: open ones, and what is closed.
        unrecorded: half offsets that no op closes although their transaction ended, or although
            there is a copy: (offset, offset of the copy, or None).
    """

    transactions: OpenTransactions
    unrecorded: list[tuple[int, int | None]] = field(default_factory=list)


@dataclass(slots=True)
class _Half:
    """An open half message."""

    offset: int
    physical_offset: int
    identity: Identity | None
    check_times: int | None
    prepared_offset: int | None
    places: Iterable[QueueKey]

    @property
    def is_copy(self) -> bool:
        """Was there an earlier one?"""
        return self.check_times is not None or self.prepared_offset is not None

    def is_copy_of(self, other: "_Half") -> bool:
        """Is it the copy of one with the same identity, which comes before it?

        Even that may belong to another transaction: of a message that was sent twice at once.
        """
        first = self.prepared_offset
        if first is not None and first in (other.offset, other.prepared_offset):
            return True
        times = self.check_times
        if times is None:
            return False
        # An administrator may have had the count begin again.
        return not times or other.check_times is None or other.check_times < times


#: Returns the queues where the message of a half message may be stored when it is committed.
PlacesOf: TypeAlias = Callable[[Record], Iterable[QueueKey]]


def find_transactions(
    store: MessageStore, half_cursor: int | None, op_cursor: int | None, places_of: PlacesOf
) -> Found:
    """Return the transactions of a store that nobody else uses yet.

    Args:
        store: to be read.
        half_cursor, op_cursor: the committed offsets of both topics; None: from the start.
    """
    half_first, half_end = store.queue_bounds(HALF_TOPIC, QUEUE_ID)
    op_first, op_end = store.queue_bounds(HALF_OP_TOPIC, QUEUE_ID)
    transactions = OpenTransactions(
        _within(half_cursor, half_first, half_end), _within(op_cursor, op_first, op_end)
    )
    for op in _records(store, (HALF_OP_TOPIC, QUEUE_ID), transactions.op_cursor, op_end):
        closed = [offset for offset in closed_offsets(op) if offset < half_end]
        transactions.restore(closed, op.queue_offset)
    found = Found(transactions)
    halves = _open_halves(store, found, half_end, places_of)
    _close_committed(store, found, halves)
    if halves:
        _log.info("%d transactions are open", len(halves) - len(found.unrecorded))
    return found


def _within(cursor: int | None, first: int, end: int) -> int:
    return first if cursor is None else min(max(cursor, first), end)


def _records(store: MessageStore, queue: QueueKey, offset: int, end: int) -> Iterator[Record]:
    """Yield records of a queue, as far as they exist and can be read."""
    while offset < end:
        count = min(end - offset, _READ_COUNT)
        result = store.read(*queue, offset, count_max=count, bytes_max=_READ_BYTES)
        following = min(result.next_queue_offset, end)
        try:
            result.check()
            records = [
                one for buffer in result.buffers for one in decode_records(buffer, verify=True)
            ]
        except CorruptRecord as error:
            records = []
            if following - offset == 1:
                _log.error("%s, offset %d: the message cannot be read: %s", queue, offset, error)
            for one in range(offset, following if following - offset > 1 else offset):
                yield from _records(store, queue, one, one + 1)
        yield from records
        if following <= offset:
            return
        offset = following


def _open_halves(
    store: MessageStore, found: Found, end: int, places_of: PlacesOf
) -> dict[int, _Half]:
    """Return the half messages that are not closed, and not copied, by offset."""
    transactions = found.transactions
    halves: dict[int, _Half] = {}
    same: dict[Identity, list[_Half]] = {}
    lost: set[int] = set()
    for first, last in transactions.open_runs(end):
        lost.update(range(first, last))
        for record in _records(store, (HALF_TOPIC, QUEUE_ID), first, last):
            if record.queue_offset not in lost:
                continue  # damaged
            lost.remove(record.queue_offset)
            half = _Half(
                record.queue_offset,
                record.physical_offset,
                identity(record),
                check_times(record),
                prepared_offset(record),
                places_of(record),
            )
            halves[half.offset] = half
            if half.identity is None:
                continue
            older = same.setdefault(half.identity, [])
            copied = next(filter(half.is_copy_of, older), None)
            if copied is not None:
                older.remove(copied)
                found.unrecorded.append((copied.offset, half.offset))
                del halves[copied.offset]
            older.append(half)
            if half.is_copy:
                transactions.find_copy(half.offset, half.identity)
    if lost:
        _log.error("%d half messages do not exist any more: their transactions are lost", len(lost))
    transactions.restore(sorted(lost), None)
    return halves


def _close_committed(store: MessageStore, found: Found, halves: dict[int, _Half]) -> None:
    """Close what was committed, although no op says so."""
    by_place: dict[QueueKey, list[_Half]] = {}
    for half in halves.values():
        for place in half.places:
            by_place.setdefault(place, []).append(half)
    for place, waiting in by_place.items():
        by_offset = {half.physical_offset: half.offset for half in waiting}
        # A copy may have been committed under the offset of an older one.
        by_identity = {half.identity: half.offset for half in waiting if half.is_copy}
        for record in _last_records(store, place):
            if not is_committed(record):
                continue
            offset = by_offset.pop(record.prepared_transaction_offset, None)
            if offset is None and (own := identity(record)) is not None:
                offset = by_identity.pop(own, None)
            if offset is not None and (offset, None) not in found.unrecorded:
                found.unrecorded.append((offset, None))


def _last_records(store: MessageStore, queue: QueueKey) -> Iterator[Record]:
    """Yield the records of a queue that are about as young as the last one of the log."""
    oldest_ms = store.dispatch.store_timestamp - UNRECORDED_MS
    first, end = store.queue_bounds(*queue)
    first = max(first, end - UNRECORDED_COUNT)
    while first < end:
        start = max(first, end - _BACK_COUNT)
        records = list(_records(store, queue, start, end))
        yield from records
        if not records or records[0].store_timestamp < oldest_ms:
            return
        end = start
