"""Appending the messages that a producer sent at once, when nothing is special about them."""

from pymq.protocol.plain_records import PlainRecords
from pymq.store.dispatch import PendingDispatch
from pymq.store.put_result import PutResult, PutStatus
from pymq.store.queues.consume_queue import ENTRY_STRUCT, ConsumeQueue

_pack_entry = ENTRY_STRUCT.pack


def add_plain(
    run: PendingDispatch,
    pieces: list[bytes | memoryview],
    put: PlainRecords,
    queues: dict[int, ConsumeQueue],
    store_host: bytes,
) -> PutResult:
    """Add records that fit, whose queues exist.

    Args:
        run: what goes to the log with one write.
        pieces: of that.
        put: the records; their offsets are set.
        queues: by id, those of the records.
        store_host: packed address of this broker.
    """
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
