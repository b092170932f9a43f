"""Many records at once: numpy columns out of one buffer, without a Python loop per record.

Worked example: a pull response of three records of 269 B is one buffer of 807 B;
``read_columns`` finds starts [0, 269, 538] with one strided comparison (all records have the
first one's size), gathers three times 88 bytes and views them as the fixed fields.

Layouts: ``record.py``. The other direction: ``new_records.py``.

Source: RocketMQ MessageDecoder.decodes.
"""

import functools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord
from pymq.protocol.record import HEAD_BYTES, MAGIC_V1, MAGIC_V2, OVERHEAD_BYTES

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
def head_layout(born_bytes: int, store_bytes: int) -> np.dtype[Any]:
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
HEAD = head_layout(8, 8)
_PREFIX = np.dtype(_COMMON)
_SUFFIX = np.dtype(_AFTER_HOSTS)
assert HEAD.itemsize == HEAD_BYTES and _PREFIX.itemsize == 48  # on-disk contract

_INT = struct.Struct(">i")
#: Lanes of one walk, and how many items each should have, so that finding their beginnings
#: and stepping all of them costs less than walking alone.
_LANES_MIN, _LANES_MAX, _LANE_ITEMS_MIN = 256, 512, 32
#: Where an item should begin after any place, usually.
_MARK_WITHIN_BYTES = 8192


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
        return list(map(self.buffer.data.__getitem__, spans(start, end)))


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
        plain["store_timestamp"] if plain is not None else gather(data, store_at - 8, ">i8")
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
    rows = gather(data, starts, HEAD)
    magic = rows["magic"]
    _require((magic == MAGIC_V1) | (magic == MAGIC_V2), starts, "its magic is no record's")
    if not (rows["sys_flag"] & 0x30).any():
        return rows, rows, rows, starts + 48, starts + 64
    born_at = starts + 48
    store_at = born_at + np.where(rows["sys_flag"] & 0x10, 20, 8) + 8
    suffix_at = store_at + np.where(rows["sys_flag"] & 0x20, 20, 8)
    _require(suffix_at + _SUFFIX.itemsize <= len(data), starts, "it is cut short")
    return None, rows, gather(data, suffix_at, _SUFFIX), born_at, store_at


def spans(start: Longs, end: Longs) -> Iterator["slice[int, int, None]"]:
    """Yield ``slice(start[i], end[i])`` for every i."""
    return map(slice, start.tolist(), end.tolist())


def gather(data: Bytes, positions: Longs, dtype: Any) -> Any:
    """Return the items of ``dtype`` that start at ``positions``, shape (n,)."""
    dtype = np.dtype(dtype)
    if not len(positions):
        return np.empty(0, dtype)
    return windows(data, dtype.itemsize)[positions].view(dtype)


def windows(data: Bytes, width: int) -> npt.NDArray[np.void]:
    """Return the ``width`` bytes at every position of a buffer, as one item each: a view.

    Raises:
        CorruptRecord: the buffer is shorter than that.
    """
    if len(data) < width:
        raise CorruptRecord(f"buffer of {len(data)} B, expected at least {width}")
    return np.ndarray((len(data) - width + 1,), f"V{width}", data.data, strides=(1,))


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
