"""What is stored of parked messages that are due: copies of many at a time, where that is possible.

Nearly all messages are alike in what matters here: they have IPv4 hosts, carry no checksum of the
whole record, and say for which queue they are. These are copied without being decoded. If anything
about one of them is special, all of its batch are decoded, one by one.
"""

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pymq.errors import CorruptRecord
from pymq.protocol.batch_properties import BatchProperties
from pymq.protocol.codes import HOST_IPV6_MASK, MessageFlag
from pymq.protocol.copied_records import CopiedRecords
from pymq.protocol.hashes import crc32
from pymq.protocol.message import REAL_TOPIC, TAGS
from pymq.protocol.multi_dispatch import DISPATCH_MARK
from pymq.protocol.names import HALF_TOPIC
from pymq.protocol.parking import copy_of, is_deliverable, is_usual_place, real_place
from pymq.protocol.record import NewRecord, Record, decode_record, record_place
from pymq.protocol.record_batch import HEAD, gather, read_columns, spans
from pymq.protocol.record_crc import RECORD_CRC_PREFIX
from pymq.protocol.tag_codes import tag_codes
from pymq.store import QueueKey, ReadResult, StoreConfig

_log = logging.getLogger(__name__)

_SPECIAL_FLAGS = HOST_IPV6_MASK | int(MessageFlag.TRANSACTION_PREPARED)
_REAL_TOPIC, _TAGS = f"\x02{REAL_TOPIC}\x01".encode(), f"{TAGS}\x01".encode()
_CRC_MASK = 0x7FFFFFFF
_LENGTH_BYTES = 2


@dataclass(slots=True)
class Due:
    """What is to be stored in place of some parked messages.

    Attributes:
        offsets: their queue offsets.
        copy: None: nothing can be stored; the log says why.
    """

    offsets: list[int]
    copy: NewRecord | CopiedRecords | None


class DueMessages:
    """Makes the copies of messages of delay levels.

    Args:
        store_host: our packed address.
        one_by_one: whether each is to be a ``NewRecord``.
    """

    def __init__(
        self, store_config: StoreConfig, store_host: bytes, *, one_by_one: bool = False
    ) -> None:
        self._copies_many = not one_by_one and store_config.takes_plain(store_host)
        self._bytes_max = store_config.together_bytes_max

    def of(self, result: ReadResult, level: int, *, one_by_one: bool) -> list[Due]:
        """Return what is stored of the messages of a result, all of which are due.

        Args:
            result: of a read of the queue of a level.
            level: its number, for the log.
            one_by_one: whether not all of them may be stored.
        """
        if result.count and self._copies_many and not one_by_one:
            due = _copies_of_many(result)
            if due is not None and all(one.record_bytes <= self._bytes_max for _, one in due):
                return [Due(offsets, copy) for offsets, copy in due]
        return _copies_of_each(result, level)


def _copies_of_many(result: ReadResult) -> list[tuple[list[int], CopiedRecords]] | None:
    """Return copies of all messages in their order; None if one is special.

    Those of one topic that follow one another are together.
    """
    data = b"".join(result.buffers)
    if RECORD_CRC_PREFIX in data or DISPATCH_MARK in data:
        return None
    try:
        columns = read_columns(data, result.sizes)
    except CorruptRecord:
        return None
    if columns.one_topic is None or (columns.sys_flag & _SPECIAL_FLAGS).any():
        return None
    bodies = [data[cut] for cut in spans(columns.body_start, columns.body_end)]
    if [crc32(body) & _CRC_MASK for body in bodies] != columns.body_crc.tolist():
        return None
    tails = [data[cut] for cut in spans(columns.properties_start - 2, columns.ends)]
    places = _places(tails)
    if places is None:
        return None
    heads = gather(columns.buffer, columns.starts, HEAD)
    codes = np.zeros(len(tails), np.int64)
    if _TAGS in data:
        starts = columns.properties_start
        codes = tag_codes(BatchProperties(columns.buffer, starts, columns.ends))
    offsets = result.queue_offsets()
    queue_ids = np.array([queue_id for _, queue_id in places])
    topic = places[0][0]
    if all(place[0] == topic for place in places):
        return [(offsets, CopiedRecords(topic, queue_ids, heads, bodies, tails, tag_codes=codes))]
    due, end = [], 0
    for topic, there in itertools.groupby(topic for topic, _ in places):
        start, end = end, end + sum(1 for _ in there)
        rows = slice(start, end)
        copies = CopiedRecords(
            topic, queue_ids[rows], heads[rows], bodies[rows], tails[rows], tag_codes=codes[rows]
        )
        due.append((offsets[rows], copies))
    return due


def _places(tails: list[bytes]) -> list[QueueKey] | None:
    """Return the queue of each message; None if one is not usual.

    Args:
        tails: the properties of each, behind the two bytes of their length.
    """
    # Where we parked the messages their properties end with the place: many ends are the same.
    ends = [tail[tail.rfind(_REAL_TOPIC) :] for tail in tails]
    known = {end: real_place(end) for end in set(ends)}
    places = []
    for tail, end in zip(tails, ends, strict=True):
        place = known[end] or real_place(tail[_LENGTH_BYTES:])
        if place is None:
            return None
        places.append(place)
    return places if all(is_usual_place(*place) for place in set(places)) else None


def _copies_of_each(result: ReadResult, level: int) -> list[Due]:
    """Return the copy of each message, decoded."""
    return [
        Due([offset], None if record is None else _copy_of(record, level))
        for offset, record in _records(result, level)
    ]


def _records(result: ReadResult, level: int) -> Iterator[tuple[int, Record | None]]:
    """Yield the records of a result with their queue offsets; None for a damaged one."""
    for buffer, (first, _) in zip(result.buffers, result.heads, strict=True):
        position, offset = 0, first
        while position < len(buffer):
            size, physical_offset = record_place(buffer, position)
            try:
                yield offset, decode_record(buffer, position, verify=True)
            except CorruptRecord as error:
                _log.error(
                    "delay level %d: message %d (physical offset %d) is damaged and cannot be "
                    "delivered: %s",
                    level,
                    offset,
                    physical_offset,
                    error,
                )
                yield offset, None
            position += size
            offset += 1


def _copy_of(record: Record, level: int) -> NewRecord | None:
    """Return what is stored of a message that is due; None, and a line in the log, if nothing."""
    place = real_place(record.properties)
    if place is None or not is_deliverable(place[0]):
        _log.error(
            "delay level %d: message %d (physical offset %d) is not delivered: %s",
            level,
            record.queue_offset,
            record.physical_offset,
            "it does not say for which queue it is (REAL_TOPIC, REAL_QID)"
            if place is None or place[0] != HALF_TOPIC
            else "half messages cannot be delayed",
        )
        return None
    return copy_of(record, *place)
