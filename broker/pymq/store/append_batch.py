"""Appending a batch: its records and their queue entries, column by column."""

import numpy as np

from pymq.protocol.codes import MessageFlag
from pymq.protocol.new_records import NewRecords
from pymq.store.dispatch import PendingDispatch
from pymq.store.queues.consume_queue import ENTRY, ConsumeQueue

_PREPARED = int(MessageFlag.TRANSACTION_PREPARED)  # also set in ROLLBACK


def place_batch(
    run: PendingDispatch,
    pieces: list[bytes | memoryview],
    batch: NewRecords,
    queue: ConsumeQueue,
    store_host: bytes,
) -> int:
    """Encode a batch to the end of a run; return the queue offset of its first record.

    Records that no queue lists, such as staged ones, have offsets that count from 0.

    Raises:
        PymqError, struct.error, ValueError, OverflowError: it cannot be encoded; nothing was added.
    """
    is_listed = not batch.sys_flag & _PREPARED
    queue_offset = queue.next_offset if is_listed else 0
    data = batch.encode(
        physical_offset=run.end,
        queue_offset=queue_offset,
        store_timestamp=run.store_timestamp,
        store_host=store_host,
    )
    if len(data) != batch.record_bytes:
        raise ValueError(f"encoded to {len(data)} B, expected {batch.record_bytes}")
    if not is_listed:
        pieces.append(data)
        run.staged_count += batch.count
        run.staged_bytes += len(data)
        return queue_offset
    entries = np.empty(batch.count, ENTRY)
    entries["physical_offset"] = batch.starts + run.end
    entries["size"] = batch.sizes
    entries["tag_code"] = batch.tag_codes
    pieces.append(data)
    group = run.groups.get(queue)
    if group is None:
        run.groups[queue] = (queue_offset, [entries.tobytes()])
    else:
        group[1].append(entries.tobytes())
    queue.next_offset = queue_offset + batch.count
    return queue_offset
