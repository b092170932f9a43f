"""Tag codes: what an entry of a consume queue contains about its message's tag.

The code is the Java hash of the TAGS property, 0 without one. Of several TAGS the last non-empty
one counts, as for every reader of properties. The code of a delayed message is its delivery time
instead.

All tag codes are computed here: ``tag_code`` for a known tag, ``delayed_tag_code`` for a delayed
message, ``tag_codes`` for the properties of many messages, ``entry_tag_codes`` for stored records.

Source: RocketMQ MessageExtBrokerInner.tagsString2tagsCode, CommitLog.checkMessageAndReturnSize.
"""

import functools

import numpy as np

from pymq.protocol.batch_properties import BatchProperties
from pymq.protocol.hashes import java_hash
from pymq.protocol.java_hashes import java_hashes
from pymq.protocol.message import find_property
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record_batch import Bytes, Longs, RecordColumns, equal_at, gather

_TAGS = b"TAGS"
#: A tag follows. Properties written by pymq's clients begin like that.
_FIRST = b"TAGS\x01"
#: How many bytes are inspected if the tag should come first and be short.
_WINDOW_BYTES = 24
_DELAY = b"DELAY"
#: More digits than an ``int`` of Java has; Python refuses to read thousands of them.
_LEVEL_DIGITS_MAX = 10
#: Delay of a level that is not configured, ms.
_UNKNOWN_DELAY_MS = 1000


@functools.lru_cache(4096)
def tag_code(tag: str) -> int:
    """Return the code of one tag; 0 for an empty one, which stands for none."""
    return java_hash(tag)


def delayed_tag_code(
    properties: bytes, store_timestamp: int, delay_levels_ms: tuple[int, ...]
) -> int | None:
    """Return the tag code of a record of the schedule topic: when it is to be delivered.

    Args:
        properties: encoded.
        store_timestamp: ms.
        delay_levels_ms: delays of levels 1, 2, ...

    Returns:
        ms; None if there is no readable level: then the tag counts, as elsewhere.
    """
    level = find_property(properties, _DELAY)
    if level is None or not level.isdigit() or len(level) > _LEVEL_DIGITS_MAX:
        return None
    return store_timestamp + level_delay_ms(int(level), delay_levels_ms)


def entry_tag_codes(records: RecordColumns, delay_levels_ms: tuple[int, ...]) -> Longs:
    """Return the tag code of every record's queue entry, int64, shape (n,).

    Args:
        records: stored records.
        delay_levels_ms: delays of levels 1, 2, ...
    """
    text, row_start = records.properties_text()
    if _FIRST in text.tobytes():
        codes = tag_codes(BatchProperties(text, row_start[:-1], row_start[1:]))
    else:
        codes = np.zeros(len(records), np.int64)
    for row in _delayed(records):
        properties = text[row_start[row] : row_start[row + 1]].tobytes()
        code = delayed_tag_code(properties, int(records.store_timestamp[row]), delay_levels_ms)
        if code is not None:
            codes[row] = code
    return codes


def _delayed(records: RecordColumns) -> list[int]:
    """Return which records belong to the schedule topic; usually none do."""
    topic = SCHEDULE_TOPIC.encode()
    if records.one_topic is not None:
        return list(range(len(records))) if records.one_topic == topic else []
    rows = np.flatnonzero(records.topic_end - records.topic_start == len(topic))
    if len(rows):
        rows = rows[equal_at(records.buffer, records.topic_start[rows], topic)]
    return [int(row) for row in rows]


def level_delay_ms(level: int, levels_ms: tuple[int, ...]) -> int:
    """Return the delay of a level; one above the last counts as the last.

    Args:
        level: from 1.
        levels_ms: delays of levels 1, 2, ...
    """
    if not levels_ms or level < 1:
        return _UNKNOWN_DELAY_MS
    return levels_ms[min(level, len(levels_ms)) - 1]


def tag_codes(properties: BatchProperties) -> Longs:
    """Return the tag codes of messages, int64, shape (n,)."""
    codes = np.zeros(len(properties), np.int64)
    if not len(properties):
        return codes
    rows, columns = properties.rows, properties.columns
    if rows is not None and columns is not None:
        if (span := columns.get(_TAGS)) is not None:
            _set_codes(codes, rows[:, span[0] : span[1]])
        return codes
    if not properties.has_later_names and _set_first_codes(codes, properties):
        return codes
    codes[:] = 0
    row, start, end = properties.values_of(_TAGS)
    if len(row):
        codes[row] = java_hashes(properties.data, start, end - start).view(np.int32)
    return codes


def _set_codes(codes: Longs, tags: Bytes) -> None:
    """Set the codes of tags of one length, shape (n, bytes of one)."""
    first = tags[0].tobytes()
    if (tags == tags[0]).all():
        codes[:] = tag_code(first.decode("utf-8", "replace"))
        return
    count, width = tags.shape
    starts = np.arange(0, count * width, width)
    hashes = java_hashes(np.ascontiguousarray(tags).reshape(-1), starts, np.full(count, width))
    codes[:] = hashes.view(np.int32)


def _set_first_codes(codes: Longs, properties: BatchProperties) -> bool:
    """Set the codes if all properties begin with a short tag; return whether they do."""
    data, starts = properties.data, properties.starts
    if starts[-1] + _WINDOW_BYTES > len(data):
        return False
    if data[starts[0] : starts[0] + len(_FIRST)].tobytes() != _FIRST:
        return False
    windows = gather(data, starts, f"V{_WINDOW_BYTES}").view(np.uint8).reshape(-1, _WINDOW_BYTES)
    columns = np.ascontiguousarray(windows.T)
    if not (columns[: len(_FIRST)] == np.frombuffer(_FIRST, np.uint8)[:, np.newaxis]).all():
        return False
    lengths = properties.ends - starts
    # The same pass finds the ends of the tags, which ``java_hashes`` would need beforehand.
    hashes = np.zeros(len(starts), np.uint32)
    going = np.ones(len(starts), np.bool_)
    for step in range(len(_FIRST), _WINDOW_BYTES):
        units = columns[step]
        going &= (units != 2) & (lengths > step)
        if not going.any():
            codes[:] = hashes.view(np.int32)
            return True
        if (units >= 0x80).any() and (units[going] >= 0x80).any():
            return False
        hashes = np.where(going, hashes * np.uint32(31) + units, hashes)
    return False
