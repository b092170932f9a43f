"""What consume queues hold by the log: stored records -> entries, queue by queue.

Used wherever queues are made from, or compared with, what is on the disk. A put makes its
entries itself, from what it knows already.

Source: RocketMQ CommitLog.checkMessageAndReturnSize, CommitLogDispatcherBuildConsumeQueue.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pymq.protocol.java_hashes import java_hashes
from pymq.protocol.property_index import PropertyIndex
from pymq.protocol.record_batch import Longs, RecordColumns, equal_at
from pymq.store.queues.consume_queue import ENTRY, Entries

#: The topic that holds delayed messages: the tag code of their entries is the time of delivery.
SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
_TAG = b"TAGS"
_DELAY = b"DELAY"
#: Delay of a level that is not configured, ms.
_UNKNOWN_DELAY_MS = 1000
_PREPARED = 0x4  # Set in TRANSACTION_PREPARED and TRANSACTION_ROLLBACK, not in COMMIT.
_INNER_BATCH = 0x80


class QueueEntries(NamedTuple):
    """The entries of one queue, in log order.

    Attributes:
        topic: as in the records; may be no UTF-8.
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
    is_indexed = (records.sys_flag & (_PREPARED | _INNER_BATCH)) == 0
    codes = tag_codes(records, delay_levels_ms)
    for topic, queue_id, rows in _by_queue(records):
        rows = rows[is_indexed[rows]]
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


def tag_codes(records: RecordColumns, delay_levels_ms: tuple[int, ...]) -> Longs:
    """Return the tag code of every record's entry, int64, shape (n,).

    The Java hash of the tag, 0 without one; for delayed messages the time of delivery, ms.
    """
    codes = np.zeros(len(records), np.int64)
    properties = PropertyIndex(*records.properties_text())
    found, start, end = properties.find(_TAG)
    hashes = java_hashes(properties.text, start[found], (end - start)[found])
    codes[found] = hashes.view(np.int32)
    delayed = _delayed(records)
    if delayed:
        found, start, end = properties.find(_DELAY)
    for row in delayed:
        level = properties.text[start[row] : end[row]].tobytes() if found[row] else b""
        if level.isdigit():
            delay_ms = _delay_ms(int(level), delay_levels_ms)
            codes[row] = int(records.store_timestamp[row]) + delay_ms
    return codes


def _delayed(records: RecordColumns) -> list[int]:
    """Return which records belong to the schedule topic; usually none does."""
    if records.one_topic is not None:
        return list(range(len(records))) if records.one_topic == SCHEDULE_TOPIC else []
    rows = np.flatnonzero(records.topic_end - records.topic_start == len(SCHEDULE_TOPIC))
    if len(rows):
        rows = rows[equal_at(records.buffer, records.topic_start[rows], SCHEDULE_TOPIC)]
    return [int(row) for row in rows]


def _delay_ms(level: int, levels_ms: tuple[int, ...]) -> int:
    if not levels_ms or level < 1:
        return _UNKNOWN_DELAY_MS
    return levels_ms[min(level, len(levels_ms)) - 1]
