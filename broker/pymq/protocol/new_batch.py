"""A SEND_BATCH body that is to be stored; its layout is in ``batch_body``.

Works on the whole body. Only three things are done message by message, all of them in C loops
(``map``): cutting out bodies, their CRC, and joining the pieces. (Checksums of whole records, if
wanted, are a fourth.)

Source: RocketMQ MessageDecoder.encodeMessages, MessageExtEncoder (batch).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.errors import RemoteProtocolError
from pymq.protocol.batch_body import BATCH_HEAD, BATCH_OVERHEAD_BYTES
from pymq.protocol.crc32_batch import crc32_each
from pymq.protocol.hashes import crc32
from pymq.protocol.message import TAGS, find_property
from pymq.protocol.new_records import NewRecords, SharedFields, cut, items
from pymq.protocol.record import FIXED_BYTES, PROPERTIES_BYTES_MAX
from pymq.protocol.record_batch import Bytes, Longs, gather, item_starts
from pymq.protocol.record_crc import RECORD_CRC_ROOM
from pymq.protocol.record_crc_batch import cut_record_crcs
from pymq.protocol.tag_codes import tag_code

_HEAD = np.dtype(
    [("size", ">u4"), ("magic", ">u4"), ("crc", ">u4"), ("flag", ">i4"), ("body_bytes", ">u4")]
)
_HEAD_BYTES = BATCH_HEAD.size
assert _HEAD.itemsize == _HEAD_BYTES  # wire contract


class NewBatch(NewRecords):
    """One SEND_BATCH body.

    Messages of one shape (all bodies and all properties of the same length) are handled as the rows
    of a matrix; others are cut into pieces and joined.
    """

    __slots__ = ("_body_crcs", "_layout", "_properties_lengths")

    _layout: "_Matrix | _Pieces"

    def __init__(self, body: bytes, shared: SharedFields) -> None:
        """Parse a batch body.

        Args:
            body: as received.
            shared: what its messages have in common.

        Raises:
            RemoteProtocolError: the body is not a sequence of messages, or the properties of one
                of them are too long.
        """
        super().__init__(shared)
        suffix = shared.more_properties + (RECORD_CRC_ROOM if self.record_crc else b"")
        data = np.frombuffer(body, np.uint8)
        if not self._take_rows(data, suffix):
            self._take_pieces(data, body, suffix)
        self._body_crcs = self._layout.body_crcs()
        if tag := find_property(shared.more_properties, TAGS.encode()):
            self.tag_codes[:] = tag_code(tag.decode())

    def _take_rows(self, data: Bytes, suffix: bytes) -> bool:
        """Take messages of one shape; return whether they are."""
        total = len(data)
        size = int.from_bytes(data[:4])
        if size < BATCH_OVERHEAD_BYTES or total % size:
            return False
        count = total // size
        heads = np.ndarray((count,), _HEAD, data, 0, (size,))
        body_bytes = int(heads["body_bytes"][0])
        body_end = _HEAD_BYTES + body_bytes
        properties_bytes = size - BATCH_OVERHEAD_BYTES - body_bytes
        if (
            properties_bytes < 0
            or not (heads["size"] == size).all()
            or not (heads["body_bytes"] == body_bytes).all()
            or not (np.ndarray((count,), ">u2", data, body_end, (size,)) == properties_bytes).all()
        ):
            return False
        rows = data.reshape(count, size)
        starts = np.arange(0, total, size, dtype=np.int64)
        body_ends, ends = starts + body_end, starts + size
        if properties_bytes and suffix:
            # 4.x clients leave out the terminator of the last property, 5.x ones write it.
            is_bare = rows[:, -1] != 2
            if is_bare.any():
                if not is_bare.all():
                    return False
                suffix = b"\x02" + suffix
        if cut_record_crcs(data, body_ends + 2, ends) is not ends:
            return False
        self.count = count
        self._flags = heads["flag"]
        self._body_lengths = np.full(count, body_bytes)
        self._measure(np.full(count, properties_bytes + len(suffix)))
        self._layout = _Matrix(rows, body_bytes, suffix)
        self._find_properties(data, body_ends + 2, ends)
        return True

    def _take_pieces(self, data: Bytes, body: bytes, suffix: bytes) -> None:
        """Take messages of any shape."""
        starts = item_starts(data, second=0)
        if starts is None or not len(starts):
            raise RemoteProtocolError(f"batch body of {len(data)} B: a message's size is malformed")
        self.count = len(starts)
        body_ends, ends = self._parse(data, starts)
        stops = cut_record_crcs(data, body_ends + 2, ends)
        bare = (stops - body_ends > 2) & (data[stops - 1] != 2)
        if not suffix:
            bare[:] = False
        self._measure(stops - body_ends - 2 + len(suffix) + bare)
        self._layout = _Pieces(body, starts, body_ends, stops, bare, suffix)
        self._find_properties(data, body_ends + 2, stops)

    def _measure(self, properties_lengths: Longs) -> None:
        """Compute the sizes of the records from those of their properties."""
        if (most := int(properties_lengths.max())) > PROPERTIES_BYTES_MAX:
            raise RemoteProtocolError(
                f"the properties of a message of a batch take {most} B, expected "
                f"0..{PROPERTIES_BYTES_MAX}"
            )
        self._properties_lengths = properties_lengths
        sizes = self._body_lengths + properties_lengths
        sizes += FIXED_BYTES - 16 + self.host_bytes + len(self._topic_field)
        self.sizes = sizes.astype(np.int32)
        record_ends = np.cumsum(sizes)
        self.starts = record_ends - sizes
        self.record_bytes = int(record_ends[-1])

    def _parse(self, data: Bytes, starts: Longs) -> tuple[Longs, Longs]:
        """Check the sizes; return where bodies and messages end."""
        if starts[-1] + BATCH_OVERHEAD_BYTES > len(data):
            raise RemoteProtocolError(f"message of a batch at {starts[-1]} is cut short")
        heads = gather(data, starts, _HEAD)
        self._flags = heads["flag"]
        self._body_lengths = heads["body_bytes"].astype(np.int64)
        body_ends = starts + _HEAD.itemsize + self._body_lengths
        ends = starts + heads["size"]
        if not (body_ends + 2 <= ends).all():
            raise RemoteProtocolError("the body of a message of a batch runs past its end")
        lengths = data[body_ends].astype(np.int64) << 8 | data[body_ends + 1]
        if not (body_ends + 2 + lengths == ends).all():
            raise RemoteProtocolError("the fields of a message of a batch miss its end")
        return body_ends, ends

    def encode(
        self, *, physical_offset: int, queue_offset: int, store_timestamp: int, store_host: bytes
    ) -> bytes | memoryview:
        """Lay the records out; see ``NewRecords``."""
        heads = self._heads(
            self._body_crcs,
            physical_offset=physical_offset,
            queue_offset=queue_offset,
            store_timestamp=store_timestamp,
            store_host=store_host,
        )
        data = self._layout.join(heads, self._topic_field, self._properties_lengths)
        return self._with_record_crcs(data) if self.record_crc else data.data


@dataclass(slots=True)
class _Matrix:
    """Messages of one shape: row i of ``rows`` is message i."""

    rows: Bytes
    body_bytes: int
    suffix: bytes

    def body_crcs(self) -> Longs:
        count, width = self.rows.shape
        starts = np.arange(_HEAD_BYTES, count * width, width)
        return crc32_each(self.rows.reshape(-1), starts, starts + self.body_bytes)

    def join(self, heads: npt.NDArray[Any], topic: bytes, lengths: Longs) -> Bytes:
        count = len(self.rows)
        head_bytes = heads.dtype.itemsize
        middle = topic + struct.pack(">H", int(lengths[0]))
        body_at = head_bytes + self.body_bytes
        properties_at = body_at + len(middle)
        suffix_at = properties_at + self.rows.shape[1] - BATCH_OVERHEAD_BYTES - self.body_bytes
        out = np.empty((count, suffix_at + len(self.suffix)), np.uint8)
        out[:, :head_bytes] = heads.view(np.uint8).reshape(count, head_bytes)
        out[:, head_bytes:body_at] = self.rows[:, _HEAD_BYTES : _HEAD_BYTES + self.body_bytes]
        out[:, body_at:properties_at] = np.frombuffer(middle, np.uint8)
        out[:, properties_at:suffix_at] = self.rows[:, BATCH_OVERHEAD_BYTES + self.body_bytes :]
        out[:, suffix_at:] = np.frombuffer(self.suffix, np.uint8)
        return out.reshape(-1)


class _Pieces:
    """Messages of several shapes, cut into bodies and properties."""

    __slots__ = ("_bodies", "_properties", "_suffixes")

    def __init__(
        self,
        body: bytes,
        starts: Longs,
        body_ends: Longs,
        stops: Longs,
        bare: npt.NDArray[np.bool_],
        suffix: bytes,
    ) -> None:
        self._bodies = cut(body, starts + _HEAD.itemsize, body_ends)
        self._properties = cut(body, body_ends + 2, stops)
        self._suffixes: list[bytes] | None = None
        if suffix:
            self._suffixes = [suffix] * len(starts)
            for index in np.flatnonzero(bare).tolist():
                self._suffixes[index] = b"\x02" + suffix

    def body_crcs(self) -> Longs:
        return np.fromiter(map(crc32, self._bodies), np.int64, len(self._bodies))

    def join(self, heads: npt.NDArray[Any], topic: bytes, lengths: Longs) -> Bytes:
        middles = np.empty(len(heads), [("topic", f"V{len(topic)}"), ("length", ">u2")])
        middles["topic"] = np.void(topic)
        middles["length"] = lengths
        columns: list[Sequence[bytes | memoryview]] = [
            items(heads),
            self._bodies,
            items(middles),
            self._properties,
        ]
        if self._suffixes is not None:
            columns.append(self._suffixes)
        pieces: list[bytes | memoryview] = [b""] * (len(columns) * len(heads))
        for index, column in enumerate(columns):
            pieces[index :: len(columns)] = column
        return np.frombuffer(bytearray(b"").join(pieces), np.uint8)
