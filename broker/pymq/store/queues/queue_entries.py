"""Stored records -> the queue entries that belong to them, queue by queue.

Used where queues are rebuilt from the log, or compared with it. A put makes its entries itself.

Source: RocketMQ CommitLog.checkMessageAndReturnSize, CommitLogDispatcherBuildConsumeQueue.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pymq.protocol.codes import MessageFlag
from pymq.protocol.java_hashes import java_hashes
from pymq.protocol.record_batch import Longs, RecordColumns, equal_at
from pymq.protocol.tag_codes import entry_tag_codes
from pymq.store.queues.consume_queue import ENTRY, Entries

#: Records with one of these have no entry. TRANSACTION_ROLLBACK has the bit of PREPARED, too.
_UNLISTED = int(MessageFlag.TRANSACTION_PREPARED | MessageFlag.INNER_BATCH)


class QueueEntries(NamedTuple):
    """The entries of one queue, in log order.

    Attributes:
        topic: as in the records; possibly malformed UTF-8.
        queue_id: may be negative in a damaged record.
        rows: which records, shape (n,), ascending.
        offsets: their queue offsets, int64, shape (n,).
        entries: dtype ENTRY, shape (n,).
    """

    topic: bytes
    queue_id: int
    rows: Longs
    offsets: Longs
    entries: Entries


def queue_entries(
    records: RecordColumns, delay_levels_ms: tuple[int, ...]
) -> Iterator[QueueEntries]:
    """Yield the entries of all queues that records belong to.

    Half messages, rolled back ones and inner batches have none.

    Args:
        records: consecutive ones of the log.
        delay_levels_ms: delays of levels 1, 2, ...
    """
    is_listed = (records.sys_flag & _UNLISTED) == 0
    codes = entry_tag_codes(records, delay_levels_ms)
    for topic, queue_id, rows in _by_queue(records):
        rows = rows[is_listed[rows]]
        if len(rows):
            entries = np.empty(len(rows), ENTRY)
            entries["physical_offset"] = records.physical_offset[rows]
            entries["size"] = records.size[rows]
            entries["tag_code"] = codes[rows]
            yield QueueEntries(topic, queue_id, rows, records.queue_offset[rows], entries)


def _by_queue(records: RecordColumns) -> Iterator[tuple[bytes, int, Longs]]:
    """Yield (topic, queue id, rows) of every queue."""
    keys = records.queue_id.astype(np.int64)
    start, length = records.topic_start, records.topic_end - records.topic_start
    if records.one_topic is None:
        hashes = java_hashes(records.buffer, start, length)
        keys += hashes.astype(np.int64) << 32
    order = np.argsort(keys, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(order) else ():
        queue_id = int(records.queue_id[rows[0]])
        while len(rows):  # once, unless topics share a hash
            at = start[rows[0]]
            topic = records.buffer[at : at + length[rows[0]]].tobytes()
            same = np.ones(len(rows), np.bool_)
            if topic and records.one_topic is None and len(rows) > 1:
                same = length[rows] == len(topic)
                same[same] = equal_at(records.buffer, start[rows[same]], topic)
            yield topic, queue_id, rows[same]
            rows = rows[~same]
