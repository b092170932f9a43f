"""Stored records -> the queue entries that belong to them, queue by queue.

Used where queues are rebuilt from the log, or compared with it. A put makes its entries itself.

A record with places in light queues belongs to those, too. It is found by its properties: by one
search of the whole buffer, as most stores have none.

Source: RocketMQ CommitLog.checkMessageAndReturnSize, CommitLogDispatcherBuildConsumeQueue.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pymq.protocol.codes import MessageFlag
from pymq.protocol.java_hashes import java_hashes
from pymq.protocol.message import decode_properties
from pymq.protocol.multi_dispatch import LIGHT_QUEUE_ID, OFFSETS, places
from pymq.protocol.record_batch import Longs, RecordColumns, equal_at
from pymq.protocol.tag_codes import entry_tag_codes
from pymq.store.queues.consume_queue import ENTRY, Entries

#: In the properties of records with places in light queues.
_LIGHT_MARK = re.compile(re.escape(f"{OFFSETS}\x01").encode())
#: Records with one of these have no entry. TRANSACTION_ROLLBACK has the bit of PREPARED, too.
_UNLISTED = int(MessageFlag.TRANSACTION_PREPARED | MessageFlag.INNER_BATCH)


#: Positions in an array: of one run, or any.
_Positions: TypeAlias = "slice[int, int, None] | Longs"


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
    records: RecordColumns, delay_levels_ms: tuple[int, ...], *, with_light: bool
) -> Iterator[QueueEntries]:
    """Yield the entries of all queues that records belong to.

    Half messages, rolled back ones and inner batches have none.

    Args:
        records: consecutive ones of the log.
        delay_levels_ms: delays of levels 1, 2, ...
        with_light: whether light queues list messages.
    """
    is_listed = (records.sys_flag & _UNLISTED) == 0
    codes = entry_tag_codes(records, delay_levels_ms)
    light = _by_light_queue(records, is_listed) if with_light else {}
    by_queue, queues = _by_queue(records, is_listed)
    all_offsets, all_entries = records.queue_offset[by_queue], _entries(records, codes, by_queue)
    for topic, queue_id, at in queues:
        rows, offsets = by_queue[at], all_offsets[at]
        if light and queue_id == LIGHT_QUEUE_ID and topic in light:
            # Somebody sent messages to a light queue itself.
            more_rows, more_offsets = light.pop(topic)
            rows, offsets = np.append(rows, more_rows), np.append(offsets, more_offsets)
            order = np.argsort(rows, kind="stable")
            rows, offsets = rows[order], offsets[order]
            yield QueueEntries(topic, queue_id, rows, offsets, _entries(records, codes, rows))
        else:
            yield QueueEntries(topic, queue_id, rows, offsets, all_entries[at])
    for topic, (rows, offsets) in light.items():
        yield QueueEntries(topic, LIGHT_QUEUE_ID, rows, offsets, _entries(records, codes, rows))


def _entries(records: RecordColumns, codes: Longs, rows: Longs) -> Entries:
    entries = np.empty(len(rows), ENTRY)
    entries["physical_offset"] = records.physical_offset[rows]
    entries["size"] = records.size[rows]
    entries["tag_code"] = codes[rows]
    return entries


def _by_light_queue(
    records: RecordColumns, is_listed: npt.NDArray[np.bool_]
) -> dict[bytes, tuple[Longs, Longs]]:
    """Return (rows, queue offsets) of every light queue, by its name."""
    found: dict[bytes, tuple[list[int], list[int]]] = {}
    marks = [match.start() for match in _LIGHT_MARK.finditer(records.buffer.data)]
    if not marks:
        return {}
    at = np.array(marks, np.int64)
    candidates = records.starts.searchsorted(at, "right") - 1
    inside = (at >= records.properties_start[candidates]) & (at < records.ends[candidates])
    for row in np.unique(candidates[inside & is_listed[candidates]]).tolist():
        span = records.buffer[records.properties_start[row] : records.ends[row]]
        name = records.buffer[records.topic_start[row] : records.topic_end[row]].tobytes()
        listed = places(name.decode("utf-8", "replace"), decode_properties(span.tobytes()))
        for queue, offset in listed.items():
            rows, offsets = found.setdefault(queue.encode("utf-8", "replace"), ([], []))
            rows.append(row)
            offsets.append(offset)
    return {
        queue: (np.array(rows, np.int64), np.array(offsets, np.int64))
        for queue, (rows, offsets) in found.items()
    }


def _by_queue(
    records: RecordColumns, is_listed: npt.NDArray[np.bool_]
) -> tuple[Longs, Iterator[tuple[bytes, int, _Positions]]]:
    """Return the rows that are listed, queue by queue, and (topic, queue id, positions in it)."""
    keys = records.queue_id.astype(np.int64)
    if records.one_topic is None:
        start, length = records.topic_start, records.topic_end - records.topic_start
        keys += java_hashes(records.buffer, start, length).astype(np.int64) << 32
    order = np.argsort(keys, kind="stable")
    if not is_listed.all():
        order = order[is_listed[order]]
    keys = keys[order]
    return order, _queues(records, order, (keys[1:] != keys[:-1]).nonzero()[0] + 1)


def _queues(
    records: RecordColumns, order: Longs, later_firsts: Longs
) -> Iterator[tuple[bytes, int, _Positions]]:
    """Yield (topic, queue id, positions in ``order``) of every queue."""
    if not len(order):
        return
    bounds = [0, *later_firsts.tolist(), len(order)]
    queue_ids = records.queue_id[order[bounds[:-1]]].tolist()
    for queue_id, first, end in zip(queue_ids, bounds, bounds[1:], strict=False):
        if records.one_topic:
            yield records.one_topic, queue_id, slice(first, end)
            continue
        left = np.arange(first, end)
        while len(left):  # once, unless topics share a hash
            start = records.topic_start[order[left]]
            length = records.topic_end[order[left]] - start
            topic = records.buffer[start[0] : start[0] + length[0]].tobytes()
            same = length == len(topic)
            if topic and len(left) > 1:
                same[same] = equal_at(records.buffer, start[same], topic)
            yield topic, queue_id, slice(first, end) if same.all() else left[same]
            left = left[~same]
