"""The columns of messages in numpy: what ``ColumnBatch`` shows."""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.columns.binary_column import BinaryColumn
from pymq.columns.compressed_bodies import Rows, unpacked
from pymq.errors import RemoteProtocolError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import KEYS, TAGS, UNIQUE_KEY
from pymq.protocol.property_index import PropertyIndex
from pymq.protocol.record_batch import RecordColumns, equal_at, read_columns

#: Bodies that are decompressed at a time: all.
_PLAIN_BYTES_MAX = 1 << 40
_NUMBERS = ("queue_offset", "flag", "sys_flag", "reconsume_times")
_TIMES = ("born_timestamp", "store_timestamp")
_PROPERTIES = {"tags": TAGS, "keys": KEYS, "message_id": UNIQUE_KEY}


class ColumnValues:
    """Some rows of the records of one queue.

    Args:
        records: the records.
        rows: which of them, ascending.
        queue: where they are.

    Attributes:
        count: how many rows.
    """

    def __init__(self, records: RecordColumns, rows: Rows, queue: MessageQueue) -> None:
        self.records = records
        self.rows = rows
        self.queue = queue
        self.count = len(records.starts[rows])

    def column(self, name: str) -> npt.NDArray[Any] | BinaryColumn:
        """Return one of the columns that ``ColumnBatch`` names."""
        if name in _NUMBERS:
            return self._field(name)
        if name in _TIMES:
            return self._field(name).astype("datetime64[ms]")
        if name in _PROPERTIES:
            return self.property(_PROPERTIES[name])
        match name:
            case "body":
                return self._bodies()
            case "topic":
                return np.full(self.count, self.queue.topic)
            case "broker_name":
                return np.full(self.count, self.queue.broker_name)
            case "queue_id":
                return np.full(self.count, self.queue.queue_id, np.int32)
        assert name == "properties", name
        start, end = self._field("properties_start"), self._field("ends")
        return BinaryColumn(self.records.buffer, start, end)

    def _field(self, name: str) -> "npt.NDArray[Any]":
        found: npt.NDArray[Any] = getattr(self.records, name)[self.rows]
        return found

    @cached_property
    def _index(self) -> PropertyIndex:
        return PropertyIndex(*self.records.properties_text())

    def property(self, name: str) -> BinaryColumn:
        """Return the values of a property."""
        index = self._index
        found, start, end = index.find(name.encode())
        rows = self.rows
        return BinaryColumn(index.text, start[rows], end[rows], found[rows])

    @cached_property
    def plain(self) -> dict[int, bytes | None]:
        """The bodies that were compressed, by row."""
        plain: dict[int, bytes | None] = {}
        for part in unpacked(self.records, self.rows, bytes_max=_PLAIN_BYTES_MAX):
            for row, why in part.corrupt.items():
                offset = self._field("queue_offset")[row]
                raise RemoteProtocolError(
                    f"topic {self.queue.topic!r}, {self.queue.broker_name}:{self.queue.queue_id}: "
                    f"the message at offset {offset} cannot be read: {why}. The other columns can"
                )
            plain |= part.plain
        return plain

    def _bodies(self) -> BinaryColumn:
        data, start, end = self.records.buffer, self._field("body_start"), self._field("body_end")
        if not self.plain:
            return BinaryColumn(data, start, end)
        rows = np.array(list(self.plain), np.int64)
        bodies = [body or b"" for body in self.plain.values()]
        ends = len(data) + np.cumsum([len(body) for body in bodies], dtype=np.int64)
        start, end = start.copy(), end.copy()
        start[rows[0]], start[rows[1:]], end[rows] = len(data), ends[:-1], ends
        return BinaryColumn(
            np.concatenate([data, np.frombuffer(b"".join(bodies), np.uint8)]), start, end
        )


def column_values(
    records: memoryview, queue: MessageQueue, tags: frozenset[str] = frozenset()
) -> ColumnValues:
    """Return records as columns.

    Args:
        records: back to back, as they are stored.
        queue: where they are from.
        tags: keep only messages with exactly one of these; empty: all. Brokers compare hashes.

    Raises:
        CorruptRecord: these are no records.
    """
    columns = read_columns(records)
    values = ColumnValues(columns, slice(0, len(columns)), queue)
    if tags:
        wanted = _with_tags(values.property(TAGS), tags)
        if not wanted.all():
            return ColumnValues(columns, np.flatnonzero(wanted), queue)
    return values


def _with_tags(column: BinaryColumn, tags: frozenset[str]) -> "npt.NDArray[np.bool_]":
    lengths = column.lengths
    wanted = np.zeros(len(column), np.bool_)
    for tag in tags:
        text = tag.encode()
        same = np.flatnonzero(lengths == len(text))
        wanted[same[equal_at(column.data, column.start[same], text)]] = True
    return wanted
