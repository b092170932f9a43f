"""Bodies that are JSON documents -> structs, with Arrow's reader of newline-delimited JSON.

Arrow's reader knows nothing of bodies: it takes one document after the other out of a text. So the
bodies are joined with newlines, and those left out that could upset the count. Each of the others
begins with ``{`` and ends with ``}``: as a newline ends no string, and as no document goes on with
``} {``, no document has parts of two bodies, and n documents in n bodies are one in each.

What Arrow cannot read, or would read in another way than ``json_rows`` says, is read one by one:
single bodies that look unusual, and otherwise the smallest part of a batch that it fails for.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json
from pyspark.sql import types as spark

from pymq.columns.arrow_arrays import contents
from pyspark_pymq.values import json_rows
from pyspark_pymq.values.decoded import Decoded
from pyspark_pymq.values.json_rows import (
    CLOCK_PATTERN,
    DATE_PATTERN,
    TIME_MAX_US,
    TIME_MIN_US,
    ZONE_PATTERN,
    Misfit,
)
from pyspark_pymq.values.nested_arrays import rebuilt
from pyspark_pymq.values.spark_types import arrow_type

#: Where Arrow fails for this many documents, or fewer, they are read one by one.
ROWS_MIN = 64
#: What Arrow takes for numbers, and JSON does not.
_NOT_NUMBERS = (b"NaN", b"Inf")
_BLANKS = " \t\r\n"
_DAY = f"^{DATE_PATTERN}$"
_LOCAL = f"^{DATE_PATTERN}(?:{CLOCK_PATTERN})?$"
_ZONED = f"^{DATE_PATTERN}{CLOCK_PATTERN}{ZONE_PATTERN}$"
#: The digits of a decimal of 256 bits.
_DIGITS_MAX = 76
_FIRST_DAY, _LAST_DAY = TIME_MIN_US // 86_400_000_000, TIME_MAX_US // 86_400_000_000


class JsonDecoder:
    """Decodes bodies to one type.

    Args:
        value_type: a struct that ``check_json_type`` has accepted.
    """

    def __init__(self, value_type: spark.StructType) -> None:
        self._type = arrow_type(value_type)
        self._convert = json_rows.converter(value_type, "value")
        self._schema: pa.Schema | None = None
        if _is_for_arrow(value_type):
            fields = [pa.field(f.name, _read_as(f.dataType)) for f in value_type.fields]
            self._schema = pa.schema(fields)

    def decode(self, bodies: pa.Array) -> Decoded:
        """Return the values of bodies, a binary array of any length."""
        if self._schema is None:
            return self._one_by_one(bodies)
        plain, trimmed = _plain(bodies)
        if plain.all():
            return _joined(list(self._parts(trimmed, bodies)))
        usual, unusual = np.flatnonzero(plain), np.flatnonzero(~plain)
        some = pa.array(usual)
        parts = list(self._parts(trimmed.take(some), bodies.take(some)))
        found = _joined([*parts, self._one_by_one(bodies.take(pa.array(unusual)))])
        order = np.concatenate([usual, unusual])
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        bad = {int(order[place]): reason for place, reason in found.bad.items()}
        return Decoded(found.values.take(pa.array(places)), dict(sorted(bad.items())))

    def _parts(self, trimmed: pa.Array, bodies: pa.Array) -> Iterator[Decoded]:
        """Yield the values of usual bodies, as many at once as Arrow can read.

        Those that are read one by one are taken as they came, with the blanks around them: the
        reasons why one cannot be read name places in it.
        """
        values = self._all(trimmed)
        if values is not None:
            yield Decoded(values)
        elif len(bodies) <= ROWS_MIN:
            yield self._one_by_one(bodies)
        else:
            half = len(bodies) // 2
            yield from self._parts(trimmed.slice(0, half), bodies.slice(0, half))
            yield from self._parts(trimmed.slice(half), bodies.slice(half))

    def _all(self, bodies: pa.Array) -> pa.Array | None:
        """Return the values of usual bodies; None: Arrow cannot read one of them."""
        if not len(bodies):
            return pa.array([], self._type)
        text = pc.binary_join(
            pa.ListArray.from_arrays(pa.array([0, len(bodies)], pa.int32()), bodies), b"\n"
        )[0].as_buffer()
        try:
            table = arrow_json.read_json(
                pa.BufferReader(text),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=self._schema, unexpected_field_behavior="ignore"
                ),
            )
            if len(table) != len(bodies):
                return None
            columns = [column.combine_chunks() for column in table.columns]
            read = pa.StructArray.from_arrays(columns, fields=list(table.schema))
            _check_numbers(read)
            return rebuilt(read, self._type, _leaf)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
            return None  # older versions of Arrow read no decimals

    def _one_by_one(self, bodies: pa.Array) -> Decoded:
        found, bad = [], {}
        for place, body in enumerate(bodies):
            text = body.as_py()
            value = None
            if text is not None:
                try:
                    value = json_rows.read_document(text, self._convert)
                except Misfit as error:
                    bad[place] = str(error)
            found.append(value)
        return Decoded(pa.array(found, self._type), bad)


def _joined(parts: list[Decoded]) -> Decoded:
    """Return the values of some bodies after those of others."""
    bad: dict[int, str] = {}
    first = 0
    for part in parts:
        bad |= {first + place: reason for place, reason in part.bad.items()}
        first += len(part.values)
    return Decoded(pa.concat_arrays([part.values for part in parts]), bad)


def _plain(bodies: pa.Array) -> tuple[npt.NDArray[np.bool_], pa.Array]:
    """Return which bodies Arrow may read together, and all without blanks around them."""
    plain, bodies = _are_objects(bodies)
    text, start = contents(bodies)
    whole = text.tobytes()
    if 0 in whole:
        plain &= ~_holds(bodies, b"\0")
    for word in _NOT_NUMBERS:
        if word in whole:
            plain &= ~_holds(bodies, word)
    try:
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        for row in np.flatnonzero(plain).tolist():
            try:
                bodies[row].as_py().decode()
            except UnicodeDecodeError:
                plain[row] = False
    # So deep as to upset Python, which read_document refuses.
    for row in np.flatnonzero(np.diff(start) > 2 * json_rows.DEPTH_MAX).tolist():
        body = bodies[row].as_py()
        if body is not None and body.count(b"[") + body.count(b"{") > json_rows.DEPTH_MAX:
            plain[row] = False
    return plain, bodies


def _are_objects(bodies: pa.Array) -> tuple[npt.NDArray[np.bool_], pa.Array]:
    """Return which bodies begin and end as objects do, after blanks around them are cut off."""
    found = _begin_and_end(bodies)
    if not found.all():
        try:
            text = bodies.cast(pa.string())
        except pa.ArrowInvalid:
            return found, bodies
        bodies = pc.utf8_trim(text, _BLANKS).cast(pa.binary())
        found = _begin_and_end(bodies)
    return found, bodies


def _begin_and_end(bodies: pa.Array) -> npt.NDArray[np.bool_]:
    text, start = contents(bodies)
    found = np.zeros(len(bodies), np.bool_)
    some = np.flatnonzero(np.diff(start) > 1)
    found[some] = (text[start[some]] == ord("{")) & (text[start[some + 1] - 1] == ord("}"))
    if bodies.null_count:
        found &= bodies.is_valid().to_numpy(zero_copy_only=False)
    return found


def _holds(bodies: pa.Array, word: bytes) -> npt.NDArray[np.bool_]:
    found = pc.fill_null(pc.match_substring(bodies, word), False)
    holds: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return holds


# ------------------------------------------------------------------------------- by type


def _is_for_arrow(given: spark.DataType) -> bool:
    """Say whether Arrow reads values of a type."""
    match given:
        case spark.StructType():
            return all(_is_for_arrow(field.dataType) for field in given.fields)
        case spark.ArrayType():
            return _is_for_arrow(given.elementType)
    return not isinstance(given, (spark.MapType, spark.BinaryType))


def _read_as(given: spark.DataType) -> pa.DataType:
    """Return the type that Arrow is to read, of which ``_leaf`` makes the one wanted."""
    match given:
        case spark.StructType():
            return pa.struct([pa.field(f.name, _read_as(f.dataType)) for f in given.fields])
        case spark.ArrayType():
            return pa.list_(pa.field("element", _read_as(given.elementType)))
        case spark.FloatType():
            return pa.float64()
        case spark.DecimalType():
            # Arrow takes a number of so many digits, and multiplies it by the scale unchecked:
            # what is too large has to be too large still, not what is left of it in 128 bits.
            return pa.decimal256(_DIGITS_MAX - given.scale, given.scale)
        case spark.DateType() | spark.TimestampType() | spark.TimestampNTZType():
            return pa.string()
    return arrow_type(given)


def _check_numbers(array: pa.Array) -> None:
    """Check the numbers that Arrow's reader takes although their type cannot hold them.

    Raises:
        pa.ArrowInvalid: a double is infinite.
    """
    if pa.types.is_struct(array.type):
        for at in range(array.type.num_fields):
            _check_numbers(array.field(at))
    elif pa.types.is_list(array.type):
        _check_numbers(array.values)
    elif pa.types.is_float64(array.type):
        _require(pc.all(pc.is_finite(array)))


def _leaf(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return floats of doubles, decimals of longer ones, dates and times of strings.

    Raises:
        pa.ArrowInvalid: one is unusual or wrong.
    """
    if pa.types.is_decimal(target):
        return array.cast(target)
    if pa.types.is_float32(target):
        found = array.cast(target, safe=False)
        _require(pc.all(pc.is_finite(found)))
        return found
    if pa.types.is_date32(target):
        _require(pc.all(pc.match_substring_regex(array, _DAY)))
        found = array.cast(target)
        return _in_range(found, found.cast(pa.int32()), int(_FIRST_DAY), int(_LAST_DAY))
    assert pa.types.is_timestamp(target)
    if target.tz is not None and pc.all(pc.match_substring_regex(array, _ZONED)).as_py():
        found = array.cast(target)
    else:
        _require(pc.all(pc.match_substring_regex(array, _LOCAL)))
        found = array.cast(pa.timestamp("us")).cast(pa.int64()).cast(target)
    return _in_range(found, found.cast(pa.int64()), TIME_MIN_US, TIME_MAX_US)


def _in_range(found: pa.Array, numbers: pa.Array, least: int, most: int) -> pa.Array:
    edges = pc.min_max(numbers)
    _require(pc.fill_null(pc.greater_equal(edges["min"], least), True))
    _require(pc.fill_null(pc.less_equal(edges["max"], most), True))
    return found


def _require(condition: pa.Scalar) -> None:
    if condition.as_py() is False:
        raise pa.ArrowInvalid("unusual")
