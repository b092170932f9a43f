"""Many records at once: numpy columns out of one buffer, and a batch body into records.

Both directions work on whole buffers. Only three things are done record by record, all of
them inside C loops (``map``): slicing bodies out, their CRC, and joining the pieces.

Worked example: a pull response of three records of 269 B is one buffer of 807 B;
``read_columns`` finds starts [0, 269, 538] with one strided comparison (all records have the
first one's size), gathers three times 88 bytes and views them as the fixed fields.

Layouts: ``record.py`` for stored records. A SEND_BATCH body is, per message, big-endian::

    4  total size       4  flag                2 + n  properties
    4  magic, 0         4 + n  body
    4  CRC, 0

Source: RocketMQ MessageDecoder.decodeMessages, MessageExtEncoder (batch).
"""

import functools
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord, RemoteProtocolError
from pymq.protocol.hashes import java_hash
from pymq.protocol.record import (
    HEAD_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    host_flags,
)

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_COMMON: list[tuple[str, str]] = [
    ("size", ">i4"),
    ("magic", ">u4"),
    ("body_crc", ">i4"),
    ("queue_id", ">i4"),
    ("flag", ">i4"),
    ("queue_offset", ">i8"),
    ("physical_offset", ">i8"),
    ("sys_flag", ">i4"),
    ("born_timestamp", ">i8"),
]
_AFTER_HOSTS: list[tuple[str, str]] = [
    ("reconsume_times", ">i4"),
    ("prepared_transaction_offset", ">i8"),
    ("body_bytes", ">u4"),
]
@functools.cache
def _head(born_bytes: int, store_bytes: int) -> np.dtype[Any]:
    """Return the layout before the body for hosts of these sizes."""
    return np.dtype(
        [
            *_COMMON,
            ("born_host", f"V{born_bytes}"),
            ("store_timestamp", ">i8"),
            ("store_host", f"V{store_bytes}"),
            *_AFTER_HOSTS,
        ]
    )


#: Everything before the body of a record with two IPv4 hosts.
HEAD = _head(8, 8)
_PREFIX = np.dtype(_COMMON)
_SUFFIX = np.dtype(_AFTER_HOSTS)
_BATCH_HEAD = np.dtype(
    [("size", ">u4"), ("magic", ">u4"), ("crc", ">u4"), ("flag", ">i4"), ("body_bytes", ">u4")]
)
assert HEAD.itemsize == HEAD_BYTES and _PREFIX.itemsize == 48  # on-disk contract
assert _BATCH_HEAD.itemsize == 20

_INT = struct.Struct(">i")
#: Lanes of one walk, and how many items each should have, so that finding their beginnings
#: and stepping all of them costs less than walking alone.
_LANES_MIN, _LANES_MAX, _LANE_ITEMS_MIN = 256, 512, 32
#: Where an item should begin after any place, usually.
_MARK_WITHIN_BYTES = 8192
#: Entries above this on average are cut into views.
_VIEW_BODY_BYTES = 600
#: Longer tags are hashed one by one.
_HASH_STEPS_MAX = 64
_BATCH_OVERHEAD_BYTES = 22


@dataclass(slots=True)
class RecordColumns:
    """The records of one buffer, column by column; every array has shape (n,).

    ``body_start``/``body_end``, ``topic_...`` and ``properties_...`` are positions in
    ``buffer``. ``fixed`` holds the fields of ``HEAD`` (big-endian) except the hosts, which
    lie at ``born_host_start`` (8 or 20 bytes) and behind the store timestamp.
    """

    buffer: Bytes
    starts: Longs
    size: Longs
    queue_id: npt.NDArray[np.int32]
    queue_offset: Longs
    physical_offset: Longs
    flag: npt.NDArray[np.int32]
    sys_flag: npt.NDArray[np.int32]
    born_timestamp: Longs
    store_timestamp: Longs
    reconsume_times: npt.NDArray[np.int32]
    prepared_transaction_offset: Longs
    body_crc: npt.NDArray[np.int32]
    born_host_start: Longs
    store_host_start: Longs
    body_start: Longs
    body_end: Longs
    topic_start: Longs
    topic_end: Longs
    properties_start: Longs
    properties_end: Longs

    def __len__(self) -> int:
        return len(self.starts)

    def slices(self, start: Longs, end: Longs) -> list[memoryview]:
        """Return ``buffer[start[i]:end[i]]`` for every i, as views on the buffer."""
        view = self.buffer.data
        return list(map(view.__getitem__, map(slice, start.tolist(), end.tolist())))


def read_columns(
    buffer: bytes | bytearray | memoryview | Bytes, sizes: npt.NDArray[Any] | None = None
) -> RecordColumns:
    """Return the columns of a buffer that consists of whole V1 and V2 records.

    Args:
        buffer: concatenated records; the columns keep it alive.
        sizes: their sizes, when somebody knows them already (a consume queue does).

    Raises:
        CorruptRecord: the buffer is not filled exactly by well-formed records.
    """
    data = np.frombuffer(buffer, np.uint8)
    starts = _record_starts(data, sizes)
    plain, prefix, suffix, born_at, store_at = _fixed_fields(data, starts)
    store_timestamp = (
        plain["store_timestamp"] if plain is not None else _gather(data, store_at - 8, ">i8")
    )
    size = prefix["size"].astype(np.int64)
    body_start = store_at + np.where(prefix["sys_flag"] & 0x20, 20, 8) + _SUFFIX.itemsize
    body_end = body_start + suffix["body_bytes"]
    ends = starts + size
    wide = prefix["magic"] == MAGIC_V2
    topic_length_bytes = np.where(wide, 2, 1)
    _require(body_end + topic_length_bytes + 2 <= ends, starts, "its body runs past its end")
    topic_bytes = data[np.where(wide, body_end + 1, body_end)].astype(np.int64)
    if wide.any():
        topic_bytes += np.where(wide, data[body_end].astype(np.int64) << 8, 0)
    topic_start = body_end + topic_length_bytes
    topic_end = topic_start + topic_bytes
    _require(topic_end + 2 <= ends, starts, "its topic runs past its end")
    properties_bytes = data[topic_end].astype(np.int64) << 8 | data[topic_end + 1]
    properties_start = topic_end + 2
    _require(properties_start + properties_bytes == ends, starts, "its fields miss its end")
    return RecordColumns(
        data,
        starts,
        size,
        prefix["queue_id"].astype(np.int32),
        prefix["queue_offset"].astype(np.int64),
        prefix["physical_offset"].astype(np.int64),
        prefix["flag"].astype(np.int32),
        prefix["sys_flag"].astype(np.int32),
        prefix["born_timestamp"].astype(np.int64),
        store_timestamp.astype(np.int64),
        suffix["reconsume_times"].astype(np.int32),
        suffix["prepared_transaction_offset"].astype(np.int64),
        prefix["body_crc"].astype(np.int32),
        born_at,
        store_at,
        body_start,
        body_end,
        topic_start,
        topic_end,
        properties_start,
        ends,
    )


def _fixed_fields(
    data: Bytes, starts: Longs
) -> tuple[Any, Any, Any, Longs, Longs]:
    """Return (HEAD rows or None, common fields, fields after the hosts, host positions).

    One gather where all hosts are IPv4, as nearly always; three otherwise.
    """
    if len(starts) and starts[-1] + HEAD_BYTES > len(data):
        raise CorruptRecord(
            f"last record at {starts[-1]} has {len(data) - starts[-1]} B, "
            f"expected at least {OVERHEAD_BYTES}"
        )
    rows = _gather(data, starts, HEAD)
    magic = rows["magic"]
    _require((magic == MAGIC_V1) | (magic == MAGIC_V2), starts, "its magic is no record's")
    if not (rows["sys_flag"] & 0x30).any():
        return rows, rows, rows, starts + 48, starts + 64
    born_at = starts + 48
    store_at = born_at + np.where(rows["sys_flag"] & 0x10, 20, 8) + 8
    suffix_at = store_at + np.where(rows["sys_flag"] & 0x20, 20, 8)
    _require(suffix_at + _SUFFIX.itemsize <= len(data), starts, "it is cut short")
    return None, rows, _gather(data, suffix_at, _SUFFIX), born_at, store_at


def _gather(data: Bytes, positions: Longs, dtype: Any) -> Any:
    """Return the items of ``dtype`` that start at ``positions``, shape (n,)."""
    dtype = np.dtype(dtype)
    if not len(positions):
        return np.empty(0, dtype)
    windows = np.lib.stride_tricks.sliding_window_view(data, dtype.itemsize)
    return windows[positions].view(dtype).reshape(-1)


def _record_starts(data: Bytes, sizes: npt.NDArray[Any] | None) -> Longs:
    if sizes is not None:
        starts = np.zeros(len(sizes), np.int64)
        np.cumsum(sizes[:-1], out=starts[1:])
        if len(sizes) and starts[-1] + sizes[-1] != len(data):
            raise CorruptRecord(
                f"buffer of {len(data)} B, expected {starts[-1] + sizes[-1]} from its sizes"
            )
        return starts
    found = item_starts(data, second=MAGIC_V1)
    if found is None:
        raise CorruptRecord(f"buffer of {len(data)} B is not filled by whole records")
    return found


def item_starts(data: Bytes, *, second: int) -> Longs | None:
    """Return where the items of a buffer start; each begins with its own size (4 B).

    Args:
        data: the items, back to back.
        second: the 4-byte word that usually follows the size; lets items of one size be
            recognised with one strided comparison.

    Returns:
        int64 array, or None when the sizes do not lead exactly to the end.
    """
    total = len(data)
    if total == 0:
        return np.empty(0, np.int64)
    if total < 8:
        return None
    size = _INT.unpack_from(data.data)[0]
    if size < 8 or size > total:
        return None
    if total % size == 0:
        table = data.reshape(-1, size)
        wanted = np.frombuffer(struct.pack(">II", size, second), np.uint8)
        if (table[:, :8] == wanted).all():
            return np.arange(0, total, size, dtype=np.int64)
    starts = _walk_in_lanes(data, size, struct.pack(">I", second) if second else bytes(8))
    return _walk(data, total) if starts is None else starts


def _walk_in_lanes(data: Bytes, size: int, mark: bytes) -> Longs | None:
    """Follow the sizes from many places at a time; None where that is not possible.

    A lane begins where ``mark``, which stands behind a size, is found next. That may be inside
    an item; but if every lane ends exactly where the next one begins, and the first begins at
    0, all of them began rightly.

    Args:
        size: of the first item, a guess for all.
        mark: what follows the size of an item.
    """
    total = len(data)
    lane_count = min(_LANES_MAX, total // (size * _LANE_ITEMS_MIN))
    if lane_count < _LANES_MIN:
        return None
    # The last byte of a size, then the mark: a mark of zeros must not be met half way.
    search = re.compile(rb"[^\x00]" + re.escape(mark), re.DOTALL).search
    view = data.data
    begins = [0]
    for split in range(total // lane_count, total, total // lane_count):
        found = search(view[split : split + _MARK_WITHIN_BYTES])
        begin = split + found.start() - 3 if found else 0
        if begin > begins[-1]:
            following = begin + _INT.unpack_from(view, begin)[0]
            if following == total or view[following + 4 : following + 4 + len(mark)] == mark:
                begins.append(begin)
    lanes, at = np.arange(len(begins)), np.array(begins, np.int64)
    stops = np.append(at[1:], total)
    windows = np.lib.stride_tricks.sliding_window_view(data, 4)
    steps: list[tuple[Longs, Longs]] = []
    while len(at):
        steps.append((lanes, at))
        sizes = windows[at].view(">i4").reshape(-1)
        at = at + sizes
        if sizes.min() < 8 or (at > stops).any():
            return None
        going = at < stops
        lanes, at, stops = lanes[going], at[going], stops[going]
        if len(at) and at[-1] > total - 8:
            return None
    table = np.full((len(begins), len(steps)), -1, np.int64)
    for step, (lanes, at) in enumerate(steps):
        table[lanes, step] = at
    starts: Longs = table[table >= 0]
    return starts


def _walk(data: Bytes, total: int) -> Longs | None:
    read = _INT.unpack_from
    view = data.data
    found: list[int] = []
    position = 0
    last = total - 8
    while position <= last:
        found.append(position)
        size = read(view, position)[0]
        if size < 8:
            return None
        position += size
    return np.array(found, np.int64) if position == total else None


def _require(good: npt.NDArray[np.bool_], starts: Longs, what: str) -> None:
    if not good.all():
        bad = int(np.flatnonzero(~good)[0])
        raise CorruptRecord(f"record {bad} at {int(starts[bad])}: {what}")


class NewBatch:
    """One SEND_BATCH body on its way into the log as consecutive records of one queue.

    Entries of one shape (all bodies as long, all properties as long) are taken and laid out
    as the rows of a matrix; others are cut into pieces and joined.

    Attributes:
        topic, queue_id: where its records go.
        count: number of records.
        record_bytes: what all of them take in the log.
        sizes: int32, shape (count,): what each takes.
        tag_codes: int64, shape (count,): Java hash of each one's tag, 0 without one.
        body_bytes_max: the longest body.
    """

    __slots__ = (
        "_bodies",
        "_body_lengths",
        "_flags",
        "_layout",
        "_properties_lengths",
        "body_bytes_max",
        "born_host",
        "born_timestamp",
        "count",
        "host_bytes",
        "queue_id",
        "reconsume_times",
        "record_bytes",
        "sizes",
        "sys_flag",
        "tag_codes",
        "topic",
    )

    def __init__(
        self,
        body: bytes,
        *,
        topic: str,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int = 0,
        more_properties: bytes = b"",
    ) -> None:
        """Take a batch body apart.

        Args:
            body: as it came over the wire.
            more_properties: encoded properties to add to every message, ``name 1 value 2``.

        Raises:
            RemoteProtocolError: the body is no sequence of batch entries, or the properties
                of one of them are too long.
        """
        self.topic = topic
        self.queue_id = queue_id
        self.sys_flag = sys_flag | host_flags(born_host, store_host)
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.reconsume_times = reconsume_times
        self.host_bytes = len(born_host) + len(store_host)
        data = np.frombuffer(body, np.uint8)
        starts = item_starts(data, second=0)
        if starts is None or not len(starts):
            raise RemoteProtocolError(f"batch body of {len(body)} B has a malformed entry size")
        self.count = len(starts)
        body_ends, ends = self._lay_out(data, starts)
        # 4.x clients leave out the terminator of the last property, 5.x ones write it.
        bare = (ends - body_ends > 2) & (data[ends - 1] != 2)
        if not more_properties:
            bare[:] = False
        lengths = ends - body_ends - 2 + len(more_properties) + bare
        if (most := int(lengths.max())) > PROPERTIES_BYTES_MAX:
            raise RemoteProtocolError(
                f"a batch entry's properties take {most} B, expected 0..{PROPERTIES_BYTES_MAX}"
            )
        self._properties_lengths = lengths
        sizes = self._body_lengths + lengths
        sizes += OVERHEAD_BYTES - 16 + self.host_bytes + len(topic.encode())
        self.sizes = sizes.astype(np.int32)
        self.record_bytes = int(sizes.sum())
        self.body_bytes_max = int(self._body_lengths.max())
        if _is_constant(ends - starts) and _is_constant(body_ends - starts) and _is_constant(bare):
            suffix = (b"\x02" if bare[0] else b"") + more_properties
            self._layout: _Matrix | _Pieces = _Matrix(
                data.reshape(self.count, -1), int(self._body_lengths[0]), suffix
            )
        else:
            self._layout = _Pieces(body, data, starts, body_ends, ends, bare, more_properties)
        self._bodies = self._layout.bodies()
        self.tag_codes = np.zeros(self.count, np.int64)
        if b"TAGS\x01" in body:
            self._layout.set_tag_codes(self.tag_codes)

    def _lay_out(self, data: Bytes, starts: Longs) -> tuple[Longs, Longs]:
        """Return where bodies and entries end, having checked that they fit."""
        if starts[-1] + _BATCH_OVERHEAD_BYTES > len(data):
            raise RemoteProtocolError(f"batch entry at {starts[-1]} is cut short")
        heads = _gather(data, starts, _BATCH_HEAD)
        self._flags = heads["flag"]
        self._body_lengths = heads["body_bytes"].astype(np.int64)
        body_ends = starts + _BATCH_HEAD.itemsize + self._body_lengths
        ends = starts + heads["size"]
        if not (body_ends + 2 <= ends).all():
            raise RemoteProtocolError("a batch entry's body runs past its end")
        lengths = data[body_ends].astype(np.int64) << 8 | data[body_ends + 1]
        if not (body_ends + 2 + lengths == ends).all():
            raise RemoteProtocolError("a batch entry's fields miss its end")
        return body_ends, ends

    def encode(
        self, *, physical_offset: int, queue_offset: int, store_timestamp: int, store_host: bytes
    ) -> bytes | memoryview:
        """Return the records, ready for the log.

        Args:
            physical_offset: where the first of them goes.
            queue_offset: of the first; the others follow.
            store_timestamp: ms, common to all.
            store_host: our packed address, as long as the one the batch was made with.
        """
        head = HEAD if self.host_bytes == 16 else _head(len(self.born_host), len(store_host))
        rows = np.empty(self.count, head)
        rows["size"] = self.sizes
        rows["magic"] = MAGIC_V1
        rows["body_crc"] = np.fromiter(map(zlib.crc32, self._bodies), np.int64) & 0x7FFFFFFF
        rows["queue_id"] = self.queue_id
        rows["flag"] = self._flags
        rows["queue_offset"] = np.arange(queue_offset, queue_offset + self.count)
        ends = np.cumsum(self.sizes, dtype=np.int64)
        rows["physical_offset"] = ends - self.sizes + physical_offset
        rows["sys_flag"] = self.sys_flag
        rows["born_timestamp"] = self.born_timestamp
        rows["born_host"] = np.void(self.born_host)
        rows["store_timestamp"] = store_timestamp
        rows["store_host"] = np.void(store_host)
        rows["reconsume_times"] = self.reconsume_times
        rows["prepared_transaction_offset"] = 0
        rows["body_bytes"] = self._body_lengths
        topic = self.topic.encode()
        return self._layout.join(rows, bytes((len(topic),)) + topic, self._properties_lengths)


@dataclass(slots=True)
class _Matrix:
    """Batch entries of one shape: row i of ``rows`` is entry i."""

    rows: Bytes
    body_bytes: int
    suffix: bytes

    def bodies(self) -> Sequence[bytes | memoryview]:
        return _cells(self.rows[:, 20 : 20 + self.body_bytes])

    def set_tag_codes(self, codes: Longs) -> None:
        properties = self.rows[:, 22 + self.body_bytes :]
        ends = np.arange(1, len(codes) + 1) * properties.shape[1]
        texts = np.ascontiguousarray(properties).reshape(-1)
        _set_tag_codes(codes, texts, ends - properties.shape[1], ends)

    def join(self, heads: npt.NDArray[Any], topic: bytes, lengths: Longs) -> memoryview:
        count = len(self.rows)
        head_bytes = heads.dtype.itemsize
        middle = topic + struct.pack(">H", int(lengths[0]))
        body_at = head_bytes + self.body_bytes
        properties_at = body_at + len(middle)
        suffix_at = properties_at + self.rows.shape[1] - 22 - self.body_bytes
        out = np.empty((count, suffix_at + len(self.suffix)), np.uint8)
        out[:, :head_bytes] = heads.view(np.uint8).reshape(count, head_bytes)
        out[:, head_bytes:body_at] = self.rows[:, 20 : 20 + self.body_bytes]
        out[:, body_at:properties_at] = np.frombuffer(middle, np.uint8)
        out[:, properties_at:suffix_at] = self.rows[:, 22 + self.body_bytes :]
        out[:, suffix_at:] = np.frombuffer(self.suffix, np.uint8)
        return out.reshape(-1).data


class _Pieces:
    """Batch entries of several shapes, cut into bodies and properties."""

    __slots__ = ("_bodies", "_data", "_ends", "_properties", "_starts", "_suffixes")

    def __init__(
        self,
        body: bytes,
        data: Bytes,
        starts: Longs,
        body_ends: Longs,
        ends: Longs,
        bare: npt.NDArray[np.bool_],
        more: bytes,
    ) -> None:
        self._data = data
        self._starts = body_ends + 2
        self._ends = ends
        # Copying a small body costs less than a view on it, which the collector has to track.
        is_large = len(body) > _VIEW_BODY_BYTES * len(starts)
        whole = memoryview(body) if is_large else body
        slices = _slices(starts + _BATCH_HEAD.itemsize, body_ends)
        self._bodies: list[bytes | memoryview] = list(map(whole.__getitem__, slices))
        slices = _slices(self._starts, ends)
        self._properties: list[bytes] = list(map(body.__getitem__, slices))
        self._suffixes: list[bytes] | None = None
        if more:
            self._suffixes = [more] * len(starts)
            for index in np.flatnonzero(bare).tolist():
                self._suffixes[index] = b"\x02" + more

    def bodies(self) -> list[bytes | memoryview]:
        return self._bodies

    def set_tag_codes(self, codes: Longs) -> None:
        _set_tag_codes(codes, self._data, self._starts, self._ends)

    def join(self, heads: npt.NDArray[Any], topic: bytes, lengths: Longs) -> bytes:
        middles = np.empty(len(heads), [("topic", f"V{len(topic)}"), ("length", ">u2")])
        middles["topic"] = np.void(topic)
        middles["length"] = lengths
        columns: list[Sequence[bytes | memoryview]] = [
            _items(heads),
            self._bodies,
            _items(middles),
            self._properties,
        ]
        if self._suffixes is not None:
            columns.append(self._suffixes)
        pieces: list[bytes | memoryview] = [b""] * (len(columns) * len(heads))
        for index, column in enumerate(columns):
            pieces[index :: len(columns)] = column
        return b"".join(pieces)


def _set_tag_codes(codes: Longs, data: Bytes, starts: Longs, ends: Longs) -> None:
    """Set the Java hash of the tag of each properties text that has one.

    The last TAGS of a text counts, and an empty one does not, as for every reader.

    Args:
        codes: int64, shape (n,), zeros.
        data: the buffer that holds the texts.
        starts, ends: where text i begins and ends in it; ascending.
    """
    at = np.flatnonzero(data == 1)  # behind every name
    for back, letter in enumerate(b"SGAT", 1):
        at = at[data[at - back] == letter]
    owner = np.minimum(ends.searchsorted(at, "right"), len(ends) - 1)
    name = at - 4
    inside = (name >= starts[owner]) & (at < ends[owner])
    inside &= (name == starts[owner]) | (data[name - 1] == 2)
    value, owner = at[inside] + 1, owner[inside]
    separators = np.append(np.flatnonzero(data == 2), len(data))
    lengths = np.minimum(separators[separators.searchsorted(value)], ends[owner]) - value
    value, owner, lengths = value[lengths > 0], owner[lengths > 0], lengths[lengths > 0]
    if len(value):
        codes[owner] = _java_hashes(data, value, lengths)


def _java_hashes(data: Bytes, starts: Longs, lengths: Longs) -> npt.NDArray[np.int32]:
    """Return the Java hash of each UTF-8 text of at least one byte."""
    hashes = np.zeros(len(starts), np.uint32)
    for step in range(longest := int(lengths.max())):
        if longest > _HASH_STEPS_MAX:
            break
        going = lengths > step
        units = data[np.where(going, starts + step, starts)]
        if (units >= 0x80).any():
            break
        hashes = np.where(going, hashes * np.uint32(31) + units, hashes)
    else:
        return hashes.view(np.int32)
    texts = map(data.tobytes().__getitem__, _slices(starts, starts + lengths))
    return np.array([_java_hash(text) for text in texts], np.int32)


@functools.lru_cache(4096)
def _java_hash(text: bytes) -> int:
    return java_hash(text.decode("utf-8", "replace"))


def _is_constant(values: npt.NDArray[Any]) -> bool:
    return bool((values == values[0]).all())


def _slices(start: Longs, end: Longs) -> Iterator["slice[int, int, None]"]:
    return map(slice, start.tolist(), end.tolist())


def _cells(matrix: Bytes) -> list[bytes]:
    """Return each row of a matrix of bytes."""
    count, width = matrix.shape
    if not width:
        return [b""] * count
    return _items(np.ascontiguousarray(matrix).view(f"V{width}").reshape(-1))


def _items(rows: npt.NDArray[Any]) -> list[bytes]:
    """Return each item of an array as its bytes."""
    found: list[bytes] = rows.view(f"V{rows.dtype.itemsize}").tolist()
    return found
