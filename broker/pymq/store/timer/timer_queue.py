"""The queue of the timer topic: the messages that are to wait, and what their properties say.

A message that waits has the topic ``rmq_sys_wheel_timer`` and queue 0, and among its properties
``TIMER_OUT_MS`` (when it is due), ``REAL_TOPIC`` and ``REAL_QID`` (where it goes then), and
``TIMER_DEL_UNIQKEY`` if it cancels another one.

Source: RocketMQ TimerMessageStore.enqueue, doEnqueue.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord
from pymq.protocol.java_hashes import java_hashes
from pymq.protocol.message import REAL_TOPIC
from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.parking import TIMER_DELETE_KEY, TIMER_DUE_MS
from pymq.protocol.property_index import PropertyIndex
from pymq.protocol.record_batch import Bytes, Longs, RecordColumns, equal_at, gather, spans

_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}")
#: Times have this many digits until the year 2286.
_DIGITS = 13
_POWERS = 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64)

Mask = npt.NDArray[np.bool_]


class Waiting(NamedTuple):
    """Messages that are to wait, in the order of the timer queue; arrays of shape (n,).

    Attributes:
        physical_offsets, record_bytes: where their records are.
        due_ms: when they are due (TIMER_OUT_MS).
        is_delete: which of them cancel another message.
        topic_hashes: int32, Java hashes of the topics they are for.
    """

    physical_offsets: Longs
    record_bytes: Longs
    due_ms: Longs
    is_delete: Mask
    topic_hashes: npt.NDArray[np.int32]

    def pick(self, rows: Mask) -> "Waiting":
        """Return some of them."""
        return Waiting(
            self.physical_offsets[rows],
            self.record_bytes[rows],
            self.due_ms[rows],
            self.is_delete[rows],
            self.topic_hashes[rows],
        )


class Queued(NamedTuple):
    """A run of the timer queue.

    Attributes:
        waiting: those of its messages that can wait.
        topics: (topic, how many messages for it, less those that cancel one).
        refused: (physical offset, what is wrong) of the others.
    """

    waiting: Waiting
    topics: list[tuple[str, int]]
    refused: list[tuple[int, str]]


_NOTHING = Queued(
    Waiting(
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        np.empty(0, np.bool_),
        np.empty(0, np.int32),
    ),
    [],
    [],
)


def parse_queued(data: bytes, physical_offsets: Longs, record_bytes: Longs) -> Queued:
    """Return what a run of the timer queue holds.

    Args:
        data: its records, back to back.
        physical_offsets, record_bytes: of the records, from the queue's entries.
    """
    if not len(record_bytes):
        return _NOTHING
    try:
        return _parse(data, physical_offsets, record_bytes)
    except CorruptRecord as error:
        if len(record_bytes) == 1:
            return _NOTHING._replace(refused=[(int(physical_offsets[0]), str(error))])
    # One record is damaged: it must not keep the others from being delivered.
    parts, start = [], 0
    for row, size in enumerate(record_bytes.tolist()):
        one = slice(row, row + 1)
        parts.append(
            parse_queued(data[start : start + size], physical_offsets[one], record_bytes[one])
        )
        start += size
    return Queued(
        Waiting(*map(np.concatenate, zip(*(part.waiting for part in parts), strict=True))),
        [topic for part in parts for topic in part.topics],
        [refused for part in parts for refused in part.refused],
    )


def _parse(data: bytes, physical_offsets: Longs, record_bytes: Longs) -> Queued:
    starts = np.cumsum(record_bytes) - record_bytes
    records = RecordColumns(np.frombuffer(data, np.uint8), starts)
    text, row_start = records.properties_text()
    properties = PropertyIndex(text, row_start)
    due_ms, is_number = _numbers(text, *properties.find(TIMER_DUE_MS.encode()))
    has_topic, topic_start, topic_end = properties.find(REAL_TOPIC.encode())
    is_ours = topics_equal(records, TIMER_TOPIC.encode())
    is_ours &= (records.size == record_bytes) & (records.physical_offset == physical_offsets)
    good = is_ours & is_number & has_topic
    topic_start, topic_bytes = topic_start[good], (topic_end - topic_start)[good]
    waiting = Waiting(
        physical_offsets[good],
        record_bytes[good],
        due_ms[good],
        properties.find(TIMER_DELETE_KEY.encode())[0][good],
        java_hashes(text, topic_start, topic_bytes).view(np.int32),
    )
    refused = [
        (
            int(physical_offsets[row]),
            f"not a record of topic {TIMER_TOPIC}" if not is_ours[row]
            else f"no time in {TIMER_DUE_MS}" if not is_number[row]
            else f"no topic in {REAL_TOPIC}",
        )
        for row in np.flatnonzero(~good).tolist()
    ]  # fmt: skip
    steps = np.where(waiting.is_delete, -1, 1)
    topics = [
        (topic, int(steps[rows].sum()))
        for topic, rows in _by_topic(text, topic_start, topic_bytes, waiting.topic_hashes)
    ]
    return Queued(waiting, topics, refused)


def topics_equal(records: RecordColumns, topic: bytes) -> Mask:
    """Return which records have a topic."""
    if records.one_topic is not None:
        return np.full(len(records), records.one_topic == topic)
    found: Mask = records.topic_end - records.topic_start == len(topic)
    found[found] = equal_at(records.buffer, records.topic_start[found], topic)
    return found


def _numbers(text: Bytes, found: Mask, start: Longs, end: Longs) -> tuple[Longs, Mask]:
    """Return (numbers, which of them are there and readable)."""
    numbers = np.zeros(len(start), np.int64)
    usual = np.flatnonzero(found & (end - start == _DIGITS))
    if len(usual):
        digits = gather(text, start[usual], f"V{_DIGITS}").view(np.uint8).reshape(-1, _DIGITS)
        digits = digits - np.uint8(ord("0"))
        plain = (digits <= 9).all(1)
        usual = usual[plain]
        numbers[usual] = digits[plain].astype(np.int64) @ _POWERS
    is_number = np.zeros(len(start), np.bool_)
    is_number[usual] = True
    others = np.flatnonzero(found & ~is_number)
    for row, span in zip(others.tolist(), spans(start[others], end[others]), strict=True):
        value = text[span].tobytes()
        if _NUMBER.fullmatch(value):
            numbers[row] = int(value)
            is_number[row] = True
    return numbers, is_number


def _by_topic(
    text: Bytes, start: Longs, length: Longs, hashes: npt.NDArray[np.int32]
) -> Iterator[tuple[str, Longs]]:
    """Yield (topic, rows) of every topic."""
    for value in np.unique(hashes).tolist():
        rows = np.flatnonzero(hashes == value)
        while len(rows):  # once, unless topics share a hash
            topic = text[start[rows[0]] : start[rows[0]] + length[rows[0]]].tobytes()
            same = length[rows] == len(topic)
            same[same] = equal_at(text, start[rows[same]], topic)
            yield topic.decode("utf-8", "replace"), rows[same]
            rows = rows[~same]
