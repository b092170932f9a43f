"""Bodies that are Avro datums <-> structs.

A body is one datum without a schema: bare, or with the head of Avro's single-object encoding, which
has the schema's fingerprint. fastavro reads and writes one after the other; what is said about the
types of a schema stands in ``avro_types``.
"""

import io
import json
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from pymq.columns.arrow_arrays import contents
from pymq.errors import ConfigurationError, LocalProtocolError
from pyspark_pymq.values.avro_types import Plan, plan_of
from pyspark_pymq.values.decoded import Decoded, Place
from pyspark_pymq.values.nested_arrays import python_values, rebuilt

#: Begins a datum in single-object encoding; the fingerprint follows, 8 B.
_MARK = b"\xc3\x01"
_MARKED_BYTES = 10
#: What fastavro raises for bytes that are not of the schema.
_DECODE_ERRORS = (
    *(EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError),
    *(struct.error, AssertionError, RecursionError, ZeroDivisionError),
)
_ENCODE_ERRORS = (ValueError, TypeError, KeyError, OverflowError, struct.error)
#: What Arrow raises for values that are too large for their type.
_ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeDecodeError)


def check_avro(text: str) -> Plan:
    """Return the plan of a schema.

    Raises:
        ConfigurationError: fastavro is not installed.
        ValueError: the schema is not one, or not for Spark.
    """
    fastavro = _fastavro()
    plan = plan_of(text)
    try:
        fastavro.parse_schema(plan.rewritten)
        _fingerprint(text)
    except Exception as error:  # of many kinds, all about the schema
        raise ValueError(f"fastavro refuses it: {error}") from error
    return plan


def _fastavro() -> Any:
    try:
        import fastavro
        import fastavro.schema
    except ImportError as error:
        raise ConfigurationError(
            "valueFormat=avro needs the package fastavro, which is not installed here: run "
            "pip install 'pymq-rocketmq[spark]', or pip install fastavro, here and on every "
            "executor"
        ) from error
    return fastavro


def _fingerprint(text: str) -> bytes:
    """Return what single-object encoding has of a schema: CRC-64-AVRO, low bytes first."""
    from fastavro import schema

    canonical = schema.to_parsing_canonical_form(json.loads(text))
    return bytes.fromhex(schema.fingerprint(canonical, "CRC-64-AVRO"))


class AvroDecoder:
    """Decodes bodies to the struct that a schema describes.

    Args:
        text: the schema.
        target: the Arrow type of the column; nullability may differ from the schema's.
    """

    def __init__(self, text: str, target: pa.DataType) -> None:
        fastavro = _fastavro()
        plan = plan_of(text)
        self._read = fastavro.schemaless_reader
        self._schema = _checked(fastavro.parse_schema(plan.rewritten))
        self._from_avro = plan.from_avro
        self._head = _MARK + _fingerprint(text)
        self._target = target
        self._stored = _plain(target)

    def decode(self, bodies: pa.Array) -> Decoded:
        """Return the values of bodies, a binary array of any length."""
        found, bad = self._read_all(bodies)
        try:
            values = pa.array(found, self._stored)
            return Decoded(rebuilt(values, self._target, _cast), bad)
        except _ARROW_ERRORS:
            pass  # one of them is too large for its type
        parts = []
        for place, value in enumerate(found):
            try:
                one = pa.array([value], self._stored)
                parts.append(rebuilt(one, self._target, _cast))
            except _ARROW_ERRORS as error:
                bad[place] = str(error)
                parts.append(pa.array([None], self._target))
        return Decoded(pa.concat_arrays(parts), dict(sorted(bad.items())))

    def _read_all(self, bodies: pa.Array) -> tuple[list[Any], dict[int, str]]:
        """Return Python's values, and what is wrong with bodies that have none."""
        text, start = contents(bodies)
        whole = text.tobytes()
        stream = io.BytesIO(whole)
        read, schema, convert, head = self._read, self._schema, self._from_avro, self._head
        found: list[Any] = []
        bad: dict[int, str] = {}
        has_null = bodies.null_count > 0
        starts = start.tolist()
        for place, (first, end) in enumerate(zip(starts, starts[1:], strict=False)):
            value = None
            if not has_null or bodies[place].is_valid:
                at = first
                if whole.startswith(head, first):
                    at = first + _MARKED_BYTES
                stream.seek(at)
                try:
                    value = read(stream, schema)
                    if stream.tell() != end:
                        raise EOFError
                    if convert is not None:
                        value = convert(value)
                except _DECODE_ERRORS:
                    value = None
                    bad[place] = self._reason(whole[first:end])
            found.append(value)
        return found, bad

    def _reason(self, body: bytes) -> str:
        """Return what is wrong with a body."""
        other = ""
        if body.startswith(_MARK) and len(body) >= _MARKED_BYTES:
            if body.startswith(self._head):
                body = body[_MARKED_BYTES:]
            else:
                other = (
                    f"; if it is in single-object encoding, its schema has the fingerprint "
                    f"{body[2:_MARKED_BYTES].hex()}, expected {self._head[2:].hex()}"
                )
        stream = io.BytesIO(body)
        try:
            self._read(stream, self._schema)
        except _DECODE_ERRORS as error:
            why = "it ends too soon" if isinstance(error, EOFError) else f"{error!r:.200}"
            return f"not a datum of the schema: {why}{other}"
        at = f"it goes on after {stream.tell()} of {len(body)} B"
        return f"not a datum of the schema: {at}{other}"


class _Choices(list[Any]):
    """The branches of a union or the symbols of an enum; a negative index is an error.

    fastavro's compiled code adds the length to such an index before it asks for the item, so that
    there seems to be none.
    """

    __slots__ = ()

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: Any) -> Any:
        if index < 0:
            raise IndexError(f"index {index}")
        return super().__getitem__(index)


def _checked(schema: Any) -> Any:
    """Return a parsed schema, as a plan rewrites it, that refuses negative indices in data."""
    match schema:
        case list():
            return _Choices(map(_checked, schema))
        case {"symbols": symbols}:
            return schema | {"symbols": _Choices(symbols)}
        case {"fields": fields}:
            checked = [field | {"type": _checked(field["type"])} for field in fields]
            return schema | {"fields": checked}
        case {"items": items}:
            return schema | {"items": _checked(items)}
    return schema


class AvroEncoder:
    """Encodes structs as bare datums of a schema.

    Args:
        text: the schema.
    """

    def __init__(self, text: str) -> None:
        fastavro = _fastavro()
        plan = plan_of(text)
        self._write = fastavro.schemaless_writer
        self._schema = fastavro.parse_schema(plan.rewritten)
        self._to_avro = plan.to_avro
        self._kind = plan.spark_type

    def encode(self, values: pa.Array, place: Place) -> pa.Array:
        """Return the datums of structs, a binary array; null for null.

        Raises:
            LocalProtocolError: a row does not fit the schema; the text names it.
        """
        stream = io.BytesIO()
        write, schema, convert = self._write, self._schema, self._to_avro
        ends = [0]
        lost = _lost(values, np.arange(len(values)), self._kind, "value", nullable=True)
        if lost is not None:
            row, path = lost
            raise LocalProtocolError(
                f"{place(row)}: value does not fit the schema: {path} is null"
            )
        for row, value in enumerate(python_values(rebuilt(values, _plain(values.type), _cast))):
            if value is not None:
                try:
                    write(stream, schema, value if convert is None else convert(value))
                except _ENCODE_ERRORS as error:
                    raise LocalProtocolError(
                        f"{place(row)}: value does not fit the schema: {error} ({value!r:.200})"
                    ) from error
            ends.append(stream.tell())
        offsets = pa.array(ends, pa.int32()).buffers()[1]
        bits = None
        if values.null_count:
            bits = pc.fill_null(values.is_valid(), False).buffers()[1]
        return pa.Array.from_buffers(
            pa.binary(), len(values), [bits, offsets, pa.py_buffer(stream.getvalue())]
        )


def _lost(
    values: pa.Array,
    rows: npt.NDArray[np.int64],
    kind: spark.DataType,
    path: str,
    *,
    nullable: bool,
) -> tuple[int, str] | None:
    """Return a row and its part that is null and must not be; fastavro would write nulls as false.

    Args:
        values: parts of rows.
        rows: the row of each, shape (n,).
        kind: what they are in the schema.
        path: of the parts.
        nullable: they may be null themselves.
    """
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        if not nullable:
            return int(rows[~valid][0]), path
        values, rows = values.filter(pa.array(valid)), rows[valid]
    match kind:
        case spark.StructType():
            for part in kind.fields:
                found = _lost(
                    values.field(part.name),
                    rows,
                    part.dataType,
                    f"{path}.{part.name}",
                    nullable=part.nullable,
                )
                if found is not None:
                    return found
        case spark.ArrayType():
            offsets = values.offsets.to_numpy()
            rows, items = rows.repeat(np.diff(offsets)), values.values[offsets[0] : offsets[-1]]
            where = f"{path}.element"
            return _lost(items, rows, kind.elementType, where, nullable=kind.containsNull)
        case spark.MapType():
            offsets = values.offsets.to_numpy()
            rows, items = rows.repeat(np.diff(offsets)), values.items[offsets[0] : offsets[-1]]
            where = f"{path}.value"
            return _lost(items, rows, kind.valueType, where, nullable=kind.valueContainsNull)
    return None


def _plain(given: pa.DataType) -> pa.DataType:
    """Return the type as which fastavro has it: dates and times are numbers."""
    if pa.types.is_date32(given):
        return pa.int32()
    if pa.types.is_timestamp(given):
        return pa.int64()
    if pa.types.is_struct(given):
        fields = [given.field(at) for at in range(given.num_fields)]
        return pa.struct([field.with_type(_plain(field.type)) for field in fields])
    if pa.types.is_map(given):
        return pa.map_(given.key_field, given.item_field.with_type(_plain(given.item_type)))
    if pa.types.is_list(given):
        return pa.list_(given.value_field.with_type(_plain(given.value_type)))
    return given


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array.cast(target)
