"""Stored records -> Arrow record batches; the columns there are, and which a schema asks for.

No Python statement runs once per message here. Variable fields are cut out of the received
bytes by Arrow: a binary array is laid over the buffer whose offsets delimit
``gap, field, gap, field ...``, and ``take`` copies every second element. Exceptions
(compressed bodies, malformed properties or UTF-8, hosts of two sizes) are handled for the rows
concerned and cost the others nothing.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from pymq.errors import ConfigurationError
from pymq.protocol.addresses import join_address
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import MessageFlag
from pymq.protocol.property_index import PropertyIndex
from pymq.protocol.record import offset_message_id, unpack_host
from pymq.protocol.record_batch import RecordColumns
from pyspark_pymq.compressed_bodies import Longs, Rows, Unpacked, unpacked

#: Measured best for the way to the JVM: from 10,000 rows of 100 B, from 1,000 of 1 KiB.
BATCH_ROWS_MAX = 16_384
BATCH_BYTES_MAX = 8 << 20

_BORN_IPV6 = int(MessageFlag.BORN_HOST_IPV6)
_STORE_IPV6 = int(MessageFlag.STORE_HOST_IPV6)
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_MAP = pa.map_(pa.string(), pa.string())


class Piece:
    """Some rows of one decoded buffer, as Arrow arrays.

    Args:
        records: the buffer's records.
        rows: which of them, ascending.
        queue: whose they are.
        plain: bodies of compressed ones, by their place among the rows.
    """

    def __init__(
        self,
        records: RecordColumns,
        rows: Rows,
        queue: MessageQueue,
        plain: Mapping[int, bytes | None] | None = None,
    ) -> None:
        self.records = records
        self.rows = rows
        self.queue = queue
        self._plain = plain or {}
        self.count = len(records.starts[rows])

    def field(self, name: str) -> npt.NDArray[Any]:
        """Return one of the fields of ``RecordColumns`` for these rows."""
        return getattr(self.records, name)[self.rows]

    @cached_property
    def properties(self) -> PropertyIndex:
        """Where names and values stand in these rows' properties."""
        texts = cut_out(
            self.records.buffer, self.field("properties_start"), self.field("ends")
        )
        return PropertyIndex(*contents(texts))

    def constant(self, text: str) -> pa.Array:
        """Return a string column with one value."""
        return pa.repeat(pa.scalar(text, pa.string()), self.count)

    def topics(self) -> pa.Array:
        """Return the topics: the queue's own, but for queues that collect several topics'."""
        if self.records.one_topic == self.queue.topic.encode():
            return self.constant(self.queue.topic)
        return as_text(
            cut_out(self.records.buffer, self.field("topic_start"), self.field("topic_end"))
        )

    def bodies(self) -> pa.Array:
        """Return the bodies, compressed ones as their producer wrote them."""
        bodies = cut_out(self.records.buffer, self.field("body_start"), self.field("body_end"))
        if not self._plain:
            return bodies
        order = np.arange(self.count)
        order[list(self._plain)] = self.count + np.arange(len(self._plain))
        plain = pa.array(list(self._plain.values()), pa.binary())
        return pa.concat_arrays([bodies, plain]).take(pa.array(order))

    def one_property(self, name: str) -> pa.Array:
        """Return a property's values as a string column, null where it is not."""
        found, start, end = self.properties.find(name.encode())
        values = cut_out(self.properties.text, start, end, valid=found)
        return values.view(pa.string()) if self.properties.is_ascii else as_text(values)

    def property_maps(self) -> pa.Array:
        """Return all properties as a map column."""
        *edges, first_entry = self.properties.entries
        names, values = cut_out_pairs(self.properties.text, *edges)
        offsets = pa.array(first_entry.astype(np.int32))
        return pa.MapArray.from_arrays(offsets, as_text(names), as_text(values), _MAP)

    def message_ids(self) -> pa.Array:
        """Return what identifies messages: their producer's key, else their place in the log."""
        keys = self.one_property("UNIQ_KEY")
        if not keys.null_count:
            return keys
        missing = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
        buffer = self.records.buffer
        start = self.field("store_host_start")[missing].tolist()
        width = np.where(self.field("sys_flag")[missing] & _STORE_IPV6, 20, 8).tolist()
        offsets = self.field("physical_offset")[missing].tolist()
        ids = [
            offset_message_id(buffer[at : at + size].tobytes(), offset)
            for at, size, offset in zip(start, width, offsets, strict=True)
        ]
        return pc.replace_with_mask(keys, keys.is_null(), pa.array(ids, pa.string()))

    def born_hosts(self) -> pa.Array:
        """Return producers' addresses as ``host:port``; there are few different ones."""
        start = self.field("born_host_start")
        wide = (self.field("sys_flag") & _BORN_IPV6) != 0
        packed = cut_out(self.records.buffer, start, start + np.where(wide, 20, 8))
        encoded = packed.dictionary_encode()
        texts = [join_address(*unpack_host(host)) for host in encoded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(encoded.indices)

    def times(self, name: str) -> pa.Array:
        """Return a field of milliseconds as a column of timestamps."""
        return pa.array(self.field(name) * 1000).cast(_TIMESTAMP)


# -------------------------------------------------------------------------------- the columns


@dataclass(frozen=True, slots=True)
class Column:
    """One column the source can fill."""

    spark_type: spark.DataType
    arrow_type: pa.DataType
    fill: Callable[[Piece], pa.Array]
    may_be_null: bool = False


def _number(name: str) -> Callable[[Piece], pa.Array]:
    return lambda piece: pa.array(piece.field(name))


def _text_of(name: str) -> Column:
    return Column(
        spark.StringType(), pa.string(), lambda piece: piece.one_property(name), may_be_null=True
    )


_STRING = (spark.StringType(), pa.string())
_INT = (spark.IntegerType(), pa.int32())
_TIME = (spark.TimestampType(), _TIMESTAMP)

DEFAULT_COLUMNS: dict[str, Column] = {
    "topic": Column(*_STRING, Piece.topics),
    "brokerName": Column(*_STRING, lambda piece: piece.constant(piece.queue.broker_name)),
    # Records of a queue that collects other queues' messages hold those queues' ids.
    "queueId": Column(
        *_INT, lambda piece: pa.array(np.full(piece.count, piece.queue.queue_id, np.int32))
    ),
    "queueOffset": Column(spark.LongType(), pa.int64(), _number("queue_offset")),
    "body": Column(spark.BinaryType(), pa.binary(), Piece.bodies),
    "tags": _text_of("TAGS"),
    "keys": _text_of("KEYS"),
    "msgId": Column(*_STRING, Piece.message_ids),
    "bornTimestamp": Column(*_TIME, lambda piece: piece.times("born_timestamp")),
    "storeTimestamp": Column(*_TIME, lambda piece: piece.times("store_timestamp")),
}
COLUMNS: dict[str, Column] = DEFAULT_COLUMNS | {
    "bornHost": Column(*_STRING, Piece.born_hosts),
    "flag": Column(*_INT, _number("flag")),
    "sysFlag": Column(*_INT, _number("sys_flag")),
    "reconsumeTimes": Column(*_INT, _number("reconsume_times")),
    "properties": Column(
        spark.MapType(spark.StringType(), spark.StringType()), _MAP, Piece.property_maps
    ),
}


def default_schema(*, properties: bool) -> spark.StructType:
    """Return the schema of the source when the user gives none.

    Args:
        properties: add the map of all properties, which costs as much as the other columns.
    """
    names = [*DEFAULT_COLUMNS, *(["properties"] if properties else [])]
    return spark.StructType(
        [spark.StructField(name, COLUMNS[name].spark_type, True) for name in names]
    )


def check_schema(schema: spark.StructType, *, null_bodies: bool = False) -> None:
    """Check that the source can fill a user's schema: any of its columns, in any order.

    Args:
        schema: the user's, or the default one.
        null_bodies: bodies that cannot be decompressed are to be null.

    Raises:
        ConfigurationError: a column is unknown, doubled, or of another type.
    """
    valid = ", ".join(f"{name} {c.spark_type.simpleString()}" for name, c in COLUMNS.items())
    seen = set()
    for given in schema.fields:
        column = COLUMNS.get(given.name)
        if column is None:
            near = difflib.get_close_matches(given.name, COLUMNS, n=1)
            hint = f", did you mean {near[0]}?" if near else ""
            raise ConfigurationError(
                f"schema: there is no column {given.name!r}{hint} Columns of the pymq source "
                f"are: {valid}"
            )
        if given.name in seen:
            raise ConfigurationError(f"schema: column {given.name} is named twice")
        seen.add(given.name)
        if given.dataType.simpleString() != column.spark_type.simpleString():
            raise ConfigurationError(
                f"schema: column {given.name} is {given.dataType.simpleString()}, expected "
                f"{column.spark_type.simpleString()}; read it so, and cast afterwards. Columns "
                f"are: {valid}"
            )
        if not given.nullable and column.may_be_null:
            raise ConfigurationError(
                f"schema: column {given.name} is NOT NULL, but messages without it exist"
            )
        if not given.nullable and null_bodies and given.name == "body":
            raise ConfigurationError("schema: column body is NOT NULL, but corruptBodies is null")


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """Return the Arrow schema that Spark compares batches with: same order, same nullability."""
    fields = []
    for given in schema.fields:
        arrow_type = COLUMNS[given.name].arrow_type
        if isinstance(given.dataType, spark.MapType):
            value = pa.field("value", pa.string(), nullable=given.dataType.valueContainsNull)
            arrow_type = pa.map_(pa.string(), value)
        fields.append(pa.field(given.name, arrow_type, nullable=given.nullable))
    return pa.schema(fields)


# ------------------------------------------------------------------------------------ batches


def record_batches(
    records: RecordColumns,
    queue: MessageQueue,
    schema: pa.Schema,
    *,
    kept: npt.NDArray[np.bool_] | None = None,
    tags: Sequence[str] = (),
    null_corrupt: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield records as batches of at most ``BATCH_ROWS_MAX`` rows.

    Those of a batch take ``BATCH_BYTES_MAX`` at most as they are stored, and so do its bodies
    that were compressed, unless a single message takes more.

    Args:
        records: of one queue.
        queue: the queue.
        schema: names and types of the columns, as ``arrow_schema`` makes it.
        kept: rows to yield; all of them when None.
        tags: yield only messages that carry exactly one of these; none means all. Brokers
            compare hashes of tags, so that others come through now and then.
        null_corrupt: a body that cannot be decompressed is null; otherwise it is an error.

    Raises:
        RemoteProtocolError: a body cannot be decompressed.
    """
    wanted = None if kept is None or kept.all() else np.flatnonzero(kept)
    if tags:
        everything = Piece(records, slice(None) if wanted is None else wanted, queue)
        matching = pc.is_in(everything.one_property("TAGS"), pa.array(tags, pa.string()))
        hits = np.flatnonzero(matching.to_numpy(zero_copy_only=False))
        wanted = hits if wanted is None else wanted[hits]
    sizes = records.size if wanted is None else records.size[wanted]
    for first, end in cuts(sizes, rows_max=BATCH_ROWS_MAX, bytes_max=BATCH_BYTES_MAX):
        rows: Rows = slice(first, end) if wanted is None else wanted[first:end]
        parts: Iterable[Unpacked] = (Unpacked(rows, {}),)
        if "body" in schema.names:
            parts = unpacked(
                records, rows, queue, bytes_max=BATCH_BYTES_MAX, null_corrupt=null_corrupt
            )
        for part in parts:
            piece = Piece(records, part.rows, queue, part.plain)
            arrays = [COLUMNS[field.name].fill(piece) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def cuts(sizes: npt.NDArray[Any], *, rows_max: int, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield half-open row ranges that cover all rows; each has one row at least.

    Args:
        sizes: bytes of each row.
        rows_max: rows a range has at most.
        bytes_max: bytes a range has at most, unless a single row has more.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + bytes_max, side="right"))
        end = max(first + 1, min(fitting, first + rows_max))
        yield first, end
        first = end


# ------------------------------------------------------------------- variable fields, by Arrow


def cut_out(
    buffer: npt.NDArray[np.uint8],
    start: Longs,
    end: Longs,
    *,
    valid: npt.NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Return ``buffer[start[i]:end[i]]`` for every i, as a binary array of its own memory.

    Args:
        buffer: any bytes; less than 2 GiB between the first start and the last end.
        start: shape (n,), ascending.
        end: shape (n,), each at or after its start and not after the next one.
        valid: where False the value is null.
    """
    count = len(start)
    if not count:
        return pa.array([], pa.binary())
    base = int(start[0])
    borders = np.empty(2 * count, np.int32)
    borders[0::2] = start - base
    borders[1::2] = end - base
    laid_over = _laid_over(buffer, base, borders)
    cut = laid_over.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    if valid is None or valid.all():
        return cut
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [bits, *cut.buffers()[1:]])


def cut_out_pairs(
    buffer: npt.NDArray[np.uint8],
    first_start: Longs,
    first_end: Longs,
    second_start: Longs,
    second_end: Longs,
) -> tuple[pa.Array, pa.Array]:
    """Return two fields that take turns in the buffer, like ``cut_out`` each."""
    count = len(first_start)
    if not count:
        return pa.array([], pa.binary()), pa.array([], pa.binary())
    base = int(first_start[0])
    borders = np.empty(4 * count, np.int32)
    for place, edge in enumerate((first_start, first_end, second_start, second_end)):
        borders[place::4] = edge - base
    laid_over = _laid_over(buffer, base, borders)
    at = np.arange(0, 4 * count, 4, dtype=np.int32)
    return laid_over.take(pa.array(at)), laid_over.take(pa.array(at + 2))


def _laid_over(
    buffer: npt.NDArray[np.uint8], base: int, borders: npt.NDArray[np.int32]
) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(),
        len(borders) - 1,
        [None, pa.py_buffer(borders), pa.py_buffer(buffer[base:])],
    )


def contents(array: pa.Array) -> tuple[npt.NDArray[np.uint8], Longs]:
    """Return a binary array's values back to back, and where each starts (n + 1 positions)."""
    _, borders, values = array.buffers()
    if not len(array) or borders is None:
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    offsets = np.frombuffer(borders, np.int32)[array.offset : array.offset + len(array) + 1]
    text = np.frombuffer(values or b"", np.uint8)[offsets[0] : offsets[-1]]
    return text, offsets.astype(np.int64) - int(offsets[0])


def as_text(array: pa.Array) -> pa.Array:
    """Return binary values as strings; what is no UTF-8 gets replacement characters."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if v is None else v.decode("utf-8", "replace") for v in array.to_pylist()]
        return pa.array(texts, pa.string())
