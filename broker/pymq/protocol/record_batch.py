"""Many records at once: numpy columns of one buffer, without a Python loop over the records.

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
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord
from pymq.protocol.codes import HOST_IPV6_MASK, MessageFlag
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
_BORN_V6, _STORE_V6 = int(MessageFlag.BORN_HOST_IPV6), int(MessageFlag.STORE_HOST_IPV6)
#: Lanes of one walk, and how many items each should have, so that finding their starts and
#: advancing all of them costs less than a single walk.
_LANES_MIN, _LANES_MAX, _LANE_ITEMS_MIN = 128, 512, 16
#: Distance within which an item usually begins after any position.
_MARK_WITHIN_BYTES = 8192


def _converted(name: str, dtype: type) -> "functools.cached_property[npt.NDArray[Any]]":
    """Return a property that converts a field on first access."""
    return functools.cached_property(lambda columns: columns._field(name).astype(dtype))


class RecordColumns:
    """The records of one buffer, column by column; every array has shape (n,).

    ``body_start``/``body_end``, ``topic_...`` and ``properties_...`` are positions in
    ``buffer``; the hosts (8 or 20 bytes) lie at ``born_host_start`` and ``store_host_start``.
    Fields of fixed size are converted on first access.

    Attributes:
        buffer: the records, back to back.
        starts: where each starts.
        ends: where each ends.
        one_topic: the topic of all records, if they are already known to have the same; else None.
    """

    def __init__(self, buffer: Bytes, starts: Longs) -> None:
        """Find the fields of the V1 and V2 records that start at ``starts``.

        Raises:
            CorruptRecord: the records are not well-formed, or do not end where the next starts.
        """
        self.buffer = buffer
        self.starts = starts
        if len(starts) and starts[-1] + HEAD_BYTES > len(buffer):
            raise CorruptRecord(
                f"last record at {starts[-1]} has {len(buffer) - starts[-1]} B, "
                f"expected at least {OVERHEAD_BYTES}"
            )
        self._prefix = self._suffix = gather(buffer, starts, HEAD)
        wide = self._find_versions()
        self._find_hosts()
        self.body_end = self.body_start + self._suffix["body_bytes"]
        self.ends = starts + self.size
        self._require(self.ends <= len(buffer), "it runs past the buffer")
        self.one_topic: bytes | None = None
        if wide is None and self._find_one_topic():
            return
        self._find_topics(np.False_ if wide is None else wide)

    def __len__(self) -> int:
        return len(self.starts)

    size = _converted("size", np.int64)
    queue_id = _converted("queue_id", np.int32)
    queue_offset = _converted("queue_offset", np.int64)
    physical_offset = _converted("physical_offset", np.int64)
    flag = _converted("flag", np.int32)
    sys_flag = _converted("sys_flag", np.int32)
    born_timestamp = _converted("born_timestamp", np.int64)
    store_timestamp = _converted("store_timestamp", np.int64)
    reconsume_times = _converted("reconsume_times", np.int32)
    prepared_transaction_offset = _converted("prepared_transaction_offset", np.int64)
    body_crc = _converted("body_crc", np.int32)

    def properties_text(self) -> tuple[Bytes, Longs]:
        """Return all encoded properties back to back, and where each starts (n + 1 positions)."""
        lengths = self.ends - self.properties_start
        row_start = np.zeros(len(self) + 1, np.int64)
        np.cumsum(lengths, out=row_start[1:])
        if len(lengths) and lengths[0] and (lengths == lengths[0]).all():
            rows = windows(self.buffer, int(lengths[0]))[self.properties_start]
            return rows.view(np.uint8), row_start
        pieces = map(self.buffer.data.__getitem__, spans(self.properties_start, self.ends))
        return np.frombuffer(b"".join(pieces), np.uint8), row_start

    def slices(self, start: Longs, end: Longs) -> list[memoryview]:
        """Return ``buffer[start[i]:end[i]]`` for every i, as views on the buffer."""
        return list(map(self.buffer.data.__getitem__, spans(start, end)))

    def _field(self, name: str) -> Any:
        if name in _SUFFIX.fields:  # type: ignore[operator]
            return self._suffix[name]
        if name == "store_timestamp" and self._suffix is not self._prefix:
            return gather(self.buffer, self.store_host_start - 8, ">i8")
        return self._prefix[name]

    def _find_versions(self) -> npt.NDArray[np.bool_] | None:
        """Return which records are of version 2; None if there are none."""
        magic = self._prefix["magic"]
        old = magic == MAGIC_V1
        if old.all():
            return None
        wide: npt.NDArray[np.bool_] = magic == MAGIC_V2
        self._require(old | wide, "its magic is not that of a record")
        return wide

    def _find_hosts(self) -> None:
        """Find the hosts and the body after them, without another gather if all hosts are IPv4."""
        self.born_host_start = self.starts + _PREFIX.itemsize
        if not (self.sys_flag & HOST_IPV6_MASK).any():
            self.store_host_start = self.starts + 64
            self.body_start = self.starts + HEAD_BYTES
            return
        self.store_host_start = self.born_host_start + np.where(self.sys_flag & _BORN_V6, 20, 8) + 8
        suffix_at = self.store_host_start + np.where(self.sys_flag & _STORE_V6, 20, 8)
        self._require(suffix_at + _SUFFIX.itemsize <= len(self.buffer), "it is cut short")
        self._suffix = gather(self.buffer, suffix_at, _SUFFIX)
        self.body_start = suffix_at + _SUFFIX.itemsize

    def _find_one_topic(self) -> bool:
        """Find topics and properties if all records have the topic of the first one, as usual."""
        if not len(self) or self.body_end[0] + 3 > self.ends[0]:
            return False
        at = int(self.body_end[0])
        head = self.buffer[at : at + 1 + int(self.buffer[at])].tobytes()  # length, then topic
        if (self.body_end + len(head) + 2 > self.ends).any():
            return False
        if windows(self.buffer, len(head))[self.body_end].tobytes() != head * len(self):
            return False
        self.topic_start = self.body_end + 1
        self.topic_end = self.body_end + len(head)
        self.properties_start = self.topic_end + 2
        self._check_properties(gather(self.buffer, self.topic_end, ">u2"))
        self.one_topic = head[1:]
        return True

    def _find_topics(self, wide: npt.NDArray[np.bool_] | np.bool_) -> None:
        """Find topics and properties of any records."""
        length_bytes = np.where(wide, 2, 1)
        buffer, body_end = self.buffer, self.body_end
        self._require(body_end + length_bytes + 2 <= self.ends, "its body runs past its end")
        topic_bytes = buffer[np.where(wide, body_end + 1, body_end)].astype(np.int64)
        topic_bytes += np.where(wide, buffer[body_end].astype(np.int64) << 8, 0)
        self.topic_start = body_end + length_bytes
        self.topic_end = self.topic_start + topic_bytes
        self._require(self.topic_end + 2 <= self.ends, "its topic runs past its end")
        high, low = buffer[self.topic_end], buffer[self.topic_end + 1]
        self.properties_start = self.topic_end + 2
        self._check_properties(high.astype(np.int64) << 8 | low)

    def _check_properties(self, size: npt.NDArray[Any]) -> None:
        self._require(self.properties_start + size == self.ends, "its fields miss its end")

    def _require(self, good: npt.NDArray[np.bool_], what: str) -> None:
        if not good.all():
            bad = int(np.flatnonzero(~good)[0])
            raise CorruptRecord(f"record {bad} at {int(self.starts[bad])}: {what}")


def read_columns(
    buffer: bytes | bytearray | memoryview | Bytes, sizes: npt.NDArray[Any] | None = None
) -> RecordColumns:
    """Return the columns of a buffer that consists of whole V1 and V2 records.

    Args:
        buffer: concatenated records; the columns keep it alive.
        sizes: their sizes, if they are already known (a consume queue has them).

    Raises:
        CorruptRecord: the buffer is not filled exactly by well-formed records.
    """
    data = np.frombuffer(buffer, np.uint8)
    return RecordColumns(data, _record_starts(data, sizes))


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


def equal_at(data: Bytes, positions: Longs, wanted: bytes) -> npt.NDArray[np.bool_]:
    """Say for each position whether ``wanted`` is there; ``data`` reaches that far.

    Compares words, the last of which may overlap the previous one: several times faster than
    comparing rows of a matrix of bytes.
    """
    equal = np.ones(len(positions), np.bool_)
    for at, word in _words(wanted):
        words = np.ndarray((max(len(data) - word.itemsize + 1, 0),), word.dtype, data, strides=(1,))
        equal &= words[positions + at] == word
    return equal


def equal_every(data: Bytes, step: int, wanted: bytes) -> bool:
    """Say whether ``wanted``, at most ``step`` bytes, is at 0, step, 2 * step ..."""
    count = len(data) // step
    return all(
        (np.ndarray((count,), word.dtype, data, at, (step,)) == word).all()
        for at, word in _words(wanted)
    )


def _words(text: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the largest words that cover a byte string, and their positions."""
    word_bytes = max(size for size in (1, 2, 4, 8) if size <= len(text))
    for at in {*range(0, len(text) - word_bytes + 1, word_bytes), len(text) - word_bytes}:
        yield at, np.frombuffer(text, f"u{word_bytes}", 1, at)[0]


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
        raise CorruptRecord(f"buffer of {len(data)} B does not consist of whole records")
    return found


def item_starts(data: Bytes, *, second: int) -> Longs | None:
    """Return where the items of a buffer start; each begins with its own size (4 B).

    Args:
        data: the items, back to back.
        second: the 4-byte word that usually follows the size; with it one strided comparison
            recognises items of one size.

    Returns:
        int64 array, or None if the sizes do not lead exactly to the end.
    """
    total = len(data)
    if total == 0:
        return np.empty(0, np.int64)
    if total < 8:
        return None
    size = _INT.unpack_from(data.data)[0]
    if size < 8 or size > total:
        return None
    if total % size == 0 and equal_every(data, size, struct.pack(">II", size, second)):
        return np.arange(0, total, size, dtype=np.int64)
    starts = _walk_in_lanes(data, size, struct.pack(">I", second) if second else bytes(8))
    return _walk(data, total) if starts is None else starts


def _walk_in_lanes(data: Bytes, size: int, mark: bytes) -> Longs | None:
    """Follow the sizes from many positions at a time; None if that is not possible.

    A lane begins where ``mark``, which follows a size, is found next. That may be inside an item;
    but if every lane ends exactly where the next one begins, and the first begins at 0, all of them
    began at an item.

    Args:
        size: of the first item, a guess for all.
        mark: what follows the size of an item.
    """
    total = len(data)
    lane_count = min(_LANES_MAX, total // (size * _LANE_ITEMS_MIN))
    if lane_count < _LANES_MIN:
        return None
    # The last byte of a size, then the mark: a mark of zeros must not match one byte early. Without
    # that byte the search is several times faster.
    size_end = b"" if mark[0] else rb"[^\x00]"
    search, size_bytes = re.compile(size_end + re.escape(mark)).search, 3 if size_end else 4
    view = data.data
    begins = [0]
    for split in range(total // lane_count, total, total // lane_count):
        found = search(view[split : split + _MARK_WITHIN_BYTES])
        begin = split + found.start() - size_bytes if found else 0
        if begin > begins[-1]:
            following = begin + _INT.unpack_from(view, begin)[0]
            if following == total or view[following + 4 : following + 4 + len(mark)] == mark:
                begins.append(begin)
    lanes, at = np.arange(len(begins)), np.array(begins, np.int64)
    stops = np.append(at[1:], total)
    words = windows(data, 4)
    steps: list[tuple[Longs, Longs]] = []
    while len(at):
        steps.append((lanes, at))
        sizes = words[at].view(">i4")
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
