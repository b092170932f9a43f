"""Appending messages of one topic together, of which nothing has to be worked out.

Either a few plain ones, which a producer sent at once, or many copies of stored ones.
"""

from collections.abc import Collection

import numpy as np

from pymq.protocol.copied_records import CopiedRecords
from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.staged_records import StagedCopies
from pymq.store.dispatch import PendingDispatch
from pymq.store.put_result import PutResult, PutStatus
from pymq.store.queues.consume_queue import ENTRY, ENTRY_STRUCT, ConsumeQueue
from pymq.store.queues.queue_table import QueueTable

_pack_entry = ENTRY_STRUCT.pack


def add_together(
    run: PendingDispatch,
    pieces: list[bytes | memoryview],
    put: PlainRecords | CopiedRecords | StagedCopies,
    table: QueueTable,
    store_host: bytes,
) -> PutResult:
    """Add records that fit.

    Args:
        run: what goes to the log with one write.
        pieces: of that.
        put: the records; their offsets are set.
        table: has their queues, or gets them.
        store_host: packed address of this broker.
    """
    if not isinstance(put, PlainRecords):
        return _add_copies(run, pieces, put, table, store_host)
    queues = _queues(table, put.topic, set(put.queue_ids))
    next_offsets = {queue_id: queue.next_offset for queue_id, queue in queues.items()}
    queue_offsets = []
    for queue_id in put.queue_ids:
        queue_offset = next_offsets[queue_id]
        queue_offsets.append(queue_offset)
        next_offsets[queue_id] = queue_offset + 1
    start = run.end
    records, sizes = put.encode(
        physical_offset=start,
        queue_offsets=queue_offsets,
        store_timestamp=run.store_timestamp,
        store_host=store_host,
    )
    groups = run.groups
    entries = map(_pack_entry, put.physical_offsets, sizes, put.tag_codes)
    for queue_id, queue_offset, entry in zip(put.queue_ids, queue_offsets, entries, strict=True):
        queue = queues[queue_id]
        group = groups.get(queue)
        if group is None:
            groups[queue] = (queue_offset, [entry])
        else:
            group[1].append(entry)
    for queue_id, queue in queues.items():
        queue.next_offset = next_offsets[queue_id]
    pieces += records
    run.end = end = start + put.record_bytes
    count = len(queue_offsets)
    return PutResult(PutStatus.OK, start, queue_offsets[0], count, end, run.store_timestamp)


def _add_copies(
    run: PendingDispatch,
    pieces: list[bytes | memoryview],
    put: CopiedRecords | StagedCopies,
    table: QueueTable,
    store_host: bytes,
) -> PutResult:
    queues = _queues(table, put.topic, np.unique(put.queue_ids).tolist())
    rows_of = {queue_id: np.flatnonzero(put.queue_ids == queue_id) for queue_id in queues}
    queue_offsets = np.empty(len(put.queue_ids), np.int64)
    for queue_id, rows in rows_of.items():
        first = queues[queue_id].next_offset
        queue_offsets[rows] = np.arange(first, first + len(rows))
    start = run.end
    pieces += put.encode(
        physical_offset=start,
        queue_offsets=queue_offsets,
        store_timestamp=run.store_timestamp,
        store_host=store_host,
    )
    entries = np.empty(len(put.queue_ids), ENTRY)
    entries["physical_offset"] = put.physical_offsets
    entries["size"] = put.sizes
    entries["tag_code"] = put.tag_codes
    for queue_id, rows in rows_of.items():
        queue = queues[queue_id]
        group = run.groups.setdefault(queue, (queue.next_offset, []))
        group[1].append(entries[rows].tobytes())
        queue.next_offset += len(rows)
    run.end = end = start + put.record_bytes
    return PutResult(
        PutStatus.OK, start, int(queue_offsets[0]), len(entries), end, run.store_timestamp
    )


def _queues(table: QueueTable, topic: str, queue_ids: Collection[int]) -> dict[int, ConsumeQueue]:
    """Return queues of a topic by id."""
    find, make = table.by_key.get, table.make
    return {queue_id: find((topic, queue_id)) or make(topic, queue_id) for queue_id in queue_ids}
