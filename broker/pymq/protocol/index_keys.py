"""What RocketMQ's key index keeps of stored messages: a hash of topic and key for each key.

A message is found by its ``UNIQ_KEY`` property and by every blank-separated part of ``KEYS``.
The hash is Java's ``String.hashCode`` of ``topic#key``, without its sign; the hash and the number
of its slot are on-disk contract. Example: ``TopicTest#k0`` hashes
to 2746023.

Source: RocketMQ IndexService.buildIndex, IndexFile.indexKeyHashMethod.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pymq.protocol import message
from pymq.protocol.codes import TRANSACTION_MASK, MessageFlag
from pymq.protocol.hashes import java_hash
from pymq.protocol.java_hashes import Words, java_hashes, powers_of_31, unit_counts
from pymq.protocol.property_index import PropertyIndex
from pymq.protocol.record_batch import Longs, RecordColumns

UNIQUE_KEY = message.UNIQUE_KEY.encode()
KEYS = message.KEYS.encode()
_BLANK = 0x20
_ROLLED_BACK = int(MessageFlag.TRANSACTION_ROLLBACK)


class IndexKeys(NamedTuple):
    """The keys of some messages, shape (m,) each: message by message, its unique key first.

    Attributes:
        row: which message, ascending.
        key_hash: int32, not negative.
    """

    row: Longs
    key_hash: npt.NDArray[np.int32]


def key_hash(topic: str, key: str) -> int:
    """Return the hash that the index keeps of a key."""
    return _without_sign(java_hash(f"{topic}#{key}"))


def _without_sign(value: int) -> int:
    return 0 if value == -(1 << 31) else abs(value)  # the smallest has no positive counterpart


def index_keys(records: RecordColumns) -> IndexKeys:
    """Return the keys of messages; those of a rolled back transaction have none."""
    properties = PropertyIndex(*records.properties_text())
    found, starts, ends = properties.find(UNIQUE_KEY)
    rows = np.flatnonzero(found)
    starts, ends = starts[rows], ends[rows]
    more_rows, more_starts, more_ends = _parts(properties)
    if len(more_rows):
        order = np.argsort(np.concatenate([rows, more_rows]), kind="stable")
        rows = np.concatenate([rows, more_rows])[order]
        starts = np.concatenate([starts, more_starts])[order]
        ends = np.concatenate([ends, more_ends])[order]
    flags = records.sys_flag & TRANSACTION_MASK
    if (flags == _ROLLED_BACK).any():
        kept = flags[rows] != _ROLLED_BACK
        rows, starts, ends = rows[kept], starts[kept], ends[kept]
    lengths = ends - starts
    hashes = _after_topic(records, rows, unit_counts(properties.text, starts, lengths))
    hashes += java_hashes(properties.text, starts, lengths)
    signed = hashes.view(np.int32)
    np.abs(signed, out=signed)
    return IndexKeys(rows, np.maximum(signed, 0, out=signed))


def _parts(properties: PropertyIndex) -> tuple[Longs, Longs, Longs]:
    """Return (row, start, end) of every part of every KEYS property, in order."""
    found, starts, ends = properties.find(KEYS)
    rows = np.flatnonzero(found)
    starts, ends = starts[rows], ends[rows]
    blanks = np.flatnonzero(properties.text == _BLANK)
    if not len(blanks) or not len(rows):
        return rows, starts, ends
    # Every part ends at a blank inside its value or at the value's end; the next begins after it.
    owner = np.searchsorted(starts, blanks, "right") - 1
    inside = (owner >= 0) & (blanks < ends[np.maximum(owner, 0)])
    blanks, owner = blanks[inside], owner[inside]
    part_ends = np.sort(np.concatenate([blanks, ends]))
    part_starts = np.sort(np.concatenate([starts, blanks + 1]))
    owners = np.searchsorted(starts, part_starts, "right") - 1
    filled = part_ends > part_starts
    return rows[owners[filled]], part_starts[filled], part_ends[filled]


def _after_topic(records: RecordColumns, rows: Longs, unit_count: Longs) -> Words:
    """Return the hash of ``topic#`` followed by ``unit_count`` zero units."""
    if records.one_topic is not None:
        topic = records.one_topic.decode("utf-8", "replace")
        before = np.uint32(java_hash(topic + "#") & 0xFFFFFFFF)
        return before * powers_of_31(unit_count)
    start = records.topic_start
    topics = java_hashes(records.buffer, start, records.topic_end - start)
    topics = topics * np.uint32(31) + np.uint32(ord("#"))
    return topics[rows] * powers_of_31(unit_count)
