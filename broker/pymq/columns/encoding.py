"""Arrow batches -> the bodies of requests, without a Python statement per message.

Two layouts, big-endian. A message of SEND_BATCH, which every broker takes:
``pymq.protocol.batch_body``. A pre-encoded record, which pymq brokers take, is a stored one
(``pymq.protocol.record``) with zeros in what only the broker knows::

    4  size        68  zeros          1 + n  topic
    4  magic       4 + n  body        2 + n  properties
    8  zeros (CRC, queue, ...)

Arrow joins the columns ``head, body, middle, properties`` row by row in one pass: the values
buffer of the result is what is sent, its offsets are where requests may be cut.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pymq.columns.arrow_arrays import (
    Bytes,
    byte_lengths,
    contents,
    cuts,
    fixed_width,
    map_entries,
    repeated,
    shown,
)
from pymq.columns.arrow_package import pa, pc
from pymq.columns.unique_key_arrays import NAME_END, VALUE_END, UniqueKeyArrays
from pymq.errors import LocalProtocolError
from pymq.protocol.batch_body import BATCH_HEAD, BATCH_OVERHEAD_BYTES
from pymq.protocol.message import (
    DELAY,
    KEYS,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_S,
    TIMER_DELIVERY_MS,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
)
from pymq.protocol.preencoded_records import pack_sizes
from pymq.protocol.record import HEAD_BYTES, MAGIC_V1, OVERHEAD_BYTES, PROPERTIES_BYTES_MAX
from pymq.protocol.records_body import RecordsBody

#: Columns that delay a row: of a level, from 1; of a time, ms since the epoch.
DELAY_COLUMNS = ("delayLevel", "deliverTimestamp")
#: A column that is made of them: how a row is delayed.
DELAY_KIND = "delay"

_TIMES = (DELAY, TIMER_DELAY_S, TIMER_DELAY_MS, TIMER_DELIVERY_MS)
#: Properties that make a message of a batch something a batch cannot carry.
_NOT_IN_BATCHES = {
    **dict.fromkeys(_TIMES, "delayed messages"),
    TRANSACTION_PREPARED: "transactional messages",
}

#: Column -> the property it fills.
_PROPERTIES = {
    "tags": TAGS,
    "keys": KEYS,
    "shardingKey": SHARDING_KEY,
    "dedupKey": UNIQUE_KEY,
    "delayLevel": DELAY,
    "deliverTimestamp": TIMER_DELIVERY_MS,
}
#: What says when a message is delivered: not taken from a map if there is a column for it.
_OF_DELAYS = (*_TIMES, "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Messages in one of the two layouts, back to back.

    Attributes:
        text: their bytes.
        start: int64, shape (n + 1,): where each starts, and the end.
        are_records: pre-encoded records, not entries.
    """

    text: Bytes
    start: npt.NDArray[np.int64]
    are_records: bool = False

    def requests(
        self, first: int, end: int, *, bytes_max: int
    ) -> Iterator[memoryview | RecordsBody]:
        """Yield messages ``first..end`` as bodies of at most ``bytes_max`` bytes.

        The bodies are views on this object's memory.
        """
        start = self.start[first : end + 1]
        sizes = np.diff(start)
        for low, high in cuts(sizes, rows_max=len(start), bytes_max=bytes_max):
            body = self.text[start[low] : start[high]].data
            if self.are_records:
                yield RecordsBody(body, pack_sizes(sizes[low:high]), high - low)
            else:
                yield body

    def message(self, row: int, messages: "Messages") -> tuple[memoryview, str, int]:
        """Return body, properties and flag of one.

        Args:
            row: its number.
            messages: what these were made of.
        """
        body_at = int(self.start[row]) + (HEAD_BYTES if self.are_records else BATCH_HEAD.size)
        end = int(self.start[row + 1])
        properties = self.text[end - int(messages.properties_bytes[row]) : end].tobytes()
        body = self.text[body_at : body_at + int(messages.body_bytes[row])].data
        flag = 0 if messages.flags is None else int(messages.flags[row])
        return body, properties.decode(), flag - (1 << 32) if flag >> 31 else flag


#: A column of binary values, null for nothing, or the same bytes in every row.
_Piece: TypeAlias = "pa.Array | bytes"


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages whose properties are encoded; made by ``encode_messages``.

    Attributes:
        body: binary, shape (n,).
        properties: what makes each one's properties text when it is joined.
        body_bytes, properties_bytes: int64, shape (n,).
        flags: 32 bits each, shape (n,); None: all are 0.
    """

    body: pa.Array
    properties: list[_Piece]
    body_bytes: npt.NDArray[np.int64]
    properties_bytes: npt.NDArray[np.int64]
    flags: npt.NDArray[np.int64] | None = None

    def entries(self) -> Encoded:
        """Return them as entries of SEND_BATCH."""
        head = np.zeros((len(self.body), BATCH_HEAD.size // 4), ">u4")
        head[:, 0] = BATCH_OVERHEAD_BYTES + self.body_bytes + self.properties_bytes
        if self.flags is not None:
            head[:, 3] = self.flags
        head[:, -1] = self.body_bytes
        return self._encoded(head, [b""], are_records=False)

    def records(self, topics: bytes | pa.Array) -> Encoded:
        """Return them as pre-encoded records.

        Args:
            topics: of all, or binary of shape (n,); legal names.
        """
        if isinstance(topics, bytes):
            topic_bytes: Any = len(topics)
            before: list[_Piece] = [bytes((topic_bytes,)) + topics]
        else:
            topic_bytes = pc.binary_length(topics).to_numpy(zero_copy_only=False)
            before = [fixed_width(topic_bytes.astype(np.uint8).reshape(-1, 1)), topics, b""]
        head = np.zeros((len(self.body), HEAD_BYTES // 4), ">u4")
        head[:, 0] = OVERHEAD_BYTES + self.body_bytes + topic_bytes + self.properties_bytes
        head[:, 1] = MAGIC_V1
        if self.flags is not None:
            head[:, 4] = self.flags
        head[:, -1] = self.body_bytes
        return self._encoded(head, before, are_records=True)

    def _encoded(
        self, head: npt.NDArray[Any], before: list[_Piece], *, are_records: bool
    ) -> Encoded:
        """Join heads, bodies, what comes ``before`` the properties, their lengths, and them.

        What is the same in every row goes into the table of lengths: each piece of a join
        costs as much as thirty bytes.
        """
        *between, lead = before
        after = self.properties
        first = after[0] if isinstance(after[0], bytes) else b""
        assert isinstance(lead, bytes)
        lengths = repeated(lead + bytes(2) + first, len(self.body))
        at = len(lead)
        lengths[:, at : at + 2] = self.properties_bytes.astype(">u2").view(np.uint8).reshape(-1, 2)
        same = [fixed_width(head), self.body, *between, fixed_width(lengths)]
        return Encoded(*contents(_joined([*same, *after[bool(first) :]])), are_records)


def encode_messages(
    columns: Mapping[str, pa.Array],
    keys: UniqueKeyArrays,
    *,
    month_ms: int,
    message_bytes_max: int,
    place: Callable[[int], str],
) -> Messages:
    """Return the rows of a batch as messages.

    Args:
        columns: ``body``, and where there are such ``tags``, ``keys``, ``shardingKey`` and
            ``dedupKey``, all binary, ``properties``, a map of strings, ``flag``, int32, and what
            ``delays.add_delays`` has made of delays.
        keys: makes the messages' ids.
        month_ms: the time, see ``UniqueKeyArrays.take``.
        message_bytes_max: what an entry of SEND_BATCH may take.
        place: names a row of the columns, for errors.

    Raises:
        LocalProtocolError: a row cannot be a message of a batch; the text names it.
    """
    body = columns["body"]
    rows = len(body)
    if body.null_count:
        raise LocalProtocolError(
            f"{place(_first(body.is_null()))}: body is null, and a message needs one: filter "
            f"such rows out, or coalesce(body, '')"
        )
    pieces: list[_Piece] = []
    if "tags" in columns:  # first, where a broker finds them soonest
        pieces += _encode_one(TAGS, columns["tags"], "tags", place)
    if "shardingKey" in columns:
        pieces += _encode_one(SHARDING_KEY, columns["shardingKey"], "shardingKey", place)
    has_key = None
    if "properties" in columns:
        texts, has_key = _encode_maps(columns["properties"], columns, place)
        pieces.append(texts)
    for name in DELAY_COLUMNS:
        if name in columns:
            pieces += _encode_one(_PROPERTIES[name], columns[name], name, place)
    if "keys" in columns:
        pieces += _encode_one(KEYS, columns["keys"], "keys", place)
    if "dedupKey" in columns:
        pieces += _encode_ids(columns["dedupKey"], place)
    elif has_key is not None and has_key.any():
        made = keys.take(rows, month_ms=month_ms)
        pieces.append(pc.if_else(pa.array(has_key), pa.scalar(None, pa.binary()), made))
    else:
        last = pieces.pop() if pieces and isinstance(pieces[-1], bytes) else b""
        pieces.append(keys.take(rows, month_ms=month_ms, before=last))
    pieces = _merged(pieces)
    lengths = np.zeros(rows, np.int64)
    for piece in pieces:
        lengths += len(piece) if isinstance(piece, bytes) else byte_lengths(piece)
    body_bytes = byte_lengths(body)
    _check_sizes(lengths, body_bytes, message_bytes_max, place)
    flags = None
    if "flag" in columns:
        flags = pc.fill_null(columns["flag"], 0).to_numpy(zero_copy_only=False)
        flags = flags.astype(np.int64) & 0xFFFFFFFF
    return Messages(body, pieces, body_bytes, lengths, flags)


def _joined(pieces: list[_Piece]) -> pa.Array:
    """Join pieces row by row; a null is nothing."""
    columns = [_constant(piece) if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(
        *columns, _constant(b""), null_handling="replace", null_replacement=""
    )


def _merged(pieces: list[_Piece]) -> list[_Piece]:
    """Return pieces with constant neighbours as one."""
    merged: list[_Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def _constant(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


# --------------------------------------------------------------------------------- properties


def _encode_one(
    name: str, values: pa.Array, column: str, place: Callable[[int], str]
) -> list[_Piece]:
    """Return what joins to ``name 0x01 value 0x02``, and to nothing where there is no value."""
    _check_marks(values, lambda row: f"{place(row)}: {column}")
    before = name.encode() + NAME_END
    empty = pc.equal(pc.binary_length(values), 0)
    some_empty = pc.any(empty).as_py()
    if not some_empty and not values.null_count:
        return [before, values, VALUE_END]
    if some_empty:  # an empty value is no value to any reader
        values = pc.if_else(pc.fill_null(empty, True), pa.scalar(None, pa.binary()), values)
    return [
        pc.binary_join_element_wise(
            _constant(before), values, _constant(VALUE_END), _constant(b"")
        )
    ]


def _encode_ids(ids: pa.Array, place: Callable[[int], str]) -> list[_Piece]:
    """Return what joins to the property with a row's own id, which every row must have."""
    missing = pc.fill_null(pc.equal(pc.binary_length(ids), 0), True)
    if pc.any(missing).as_py():
        raise LocalProtocolError(
            f"{place(_first(missing))}: the column of option dedupKey is null or empty, and its "
            "text is the message's id: filter such rows out, or coalesce() it"
        )
    return _encode_one(UNIQUE_KEY, ids, "dedupKey", place)


def _encode_maps(
    maps: pa.Array, columns: Mapping[str, pa.Array], place: Callable[[int], str]
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return the encoded properties of a map column, and which rows have an id of their own.

    What there is a column for is not taken from the map; entries without a name or a value
    are left out, as no reader would see them.
    """
    offsets, names, values = map_entries(maps)
    names, values = names.cast(pa.binary()), values.cast(pa.binary())

    def entry_place(entry: int) -> str:
        row = int(np.searchsorted(offsets, entry, side="right")) - 1
        return f"{place(row)}: property {shown(names[entry])!r}"

    _check_marks(names, entry_place)
    _check_marks(values, entry_place)
    given = {name for column, name in _PROPERTIES.items() if column in columns}
    if DELAY_KIND in columns:
        given.update(_OF_DELAYS)
    _refuse_special(names, given, entry_place)
    absent = pc.fill_null(pc.equal(pc.binary_length(values), 0), True)
    absent = pc.or_(absent, pc.equal(pc.binary_length(names), 0))
    for name in given:
        absent = pc.or_(absent, pc.equal(names, name.encode()))
    texts = _joined([names, NAME_END, values, VALUE_END])
    if pc.any(absent).as_py():
        texts = pc.if_else(absent, _constant(b""), texts)
    own_key = pc.and_(pc.equal(names, UNIQUE_KEY.encode()), pc.invert(absent))
    has_key = np.zeros(len(maps), np.bool_)
    own = np.flatnonzero(own_key.to_numpy(zero_copy_only=False))
    has_key[np.searchsorted(offsets, own, side="right") - 1] = True
    # The entries of a row lie back to back: together they are the row's properties.
    text, start = contents(texts)
    row_start = start[offsets].astype(np.int32)
    joined = pa.Array.from_buffers(
        pa.binary(), len(maps), [None, pa.py_buffer(row_start), pa.py_buffer(text)]
    )
    return joined, has_key


def _refuse_special(names: pa.Array, given: set[str], place: Callable[[int], str]) -> None:
    refused = [name.encode() for name in _NOT_IN_BATCHES if name not in given]
    special = pc.is_in(names, pa.array(refused, pa.binary()))
    if pc.any(special).as_py():
        entry = _first(special)
        name = names[entry].as_py().decode()
        raise LocalProtocolError(
            f"{place(entry)}: {_NOT_IN_BATCHES[name]} cannot be sent in batches, as this sink "
            f"does; leave it out: map_filter(properties, (k, v) -> k <> '{name}'). Delays have "
            "columns of their own, delayLevel and deliverTimestamp"
        )


def _check_marks(values: pa.Array, place: Callable[[int], str]) -> None:
    """Refuse values that hold the bytes which separate properties."""
    text, start = contents(values)
    if not ((text == 1) | (text == 2)).any():
        return
    bad = int(np.flatnonzero((text == 1) | (text == 2))[0])
    row = int(np.searchsorted(start, bad, side="right")) - 1
    raise LocalProtocolError(
        f"{place(row)} holds the character U+000{text[bad]}, which separates properties and "
        f"cannot be part of one"
    )


def _check_sizes(
    lengths: npt.NDArray[np.int64],
    body_bytes: npt.NDArray[np.int64],
    message_bytes_max: int,
    place: Callable[[int], str],
) -> None:
    sizes = BATCH_OVERHEAD_BYTES + body_bytes + lengths
    if len(sizes) and lengths.max() > PROPERTIES_BYTES_MAX:
        row = int(lengths.argmax())
        raise LocalProtocolError(
            f"{place(row)}: tags, keys and properties take {lengths[row]} B, expected "
            f"0..{PROPERTIES_BYTES_MAX}"
        )
    if len(sizes) and sizes.max() > message_bytes_max:
        row = int(sizes.argmax())
        raise LocalProtocolError(
            f"{place(row)}: message of {sizes[row]} B (body {body_bytes[row]} B), "
            f"expected at most {message_bytes_max} (body_bytes_max of a producer, in Spark the "
            "option maxMessageSize; the broker's maxMessageSize limits it, too)"
        )


def _first(mask: pa.Array) -> int:
    return int(np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))[0])
