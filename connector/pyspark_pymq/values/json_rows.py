"""JSON values one by one: what each Spark type takes, and why a document is refused.

This is what counts. ``json_decode`` reads whole batches with Arrow and must give the same.

==================  ===============================================================================
Spark type          what it takes, besides null; a field that is not there is null
==================  ===============================================================================
boolean             ``true``, ``false``
whole numbers       a number without fraction and exponent, in the range of the type
float, double       any number in the range of the type
decimal             a number, or one in a string, with no more digits than the type has
string              a string; a number as it is written; ``true``, ``false``
date                ``"2024-02-29"``
timestamp           ``"2024-02-29T12:30:00.123456Z"``: ``T`` or a blank, an offset such as
                    ``+02:00`` in place of ``Z``, UTC without one; seconds and time may be left
                    out, of nine digits of a second the last three are dropped
timestamp_ntz       the same without offset
binary              a string in base64
array, map, struct  an array, an object, an object; further fields are ignored
==================  ===============================================================================

Of a name that occurs twice in one object the last one counts. ``NaN`` is not JSON.
"""

import base64
import binascii
import datetime
import json
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NoReturn

from pyspark.sql import types as spark

#: Gets what Python made of JSON; returns what Arrow takes for the type.
Convert = Callable[[Any], Any]

#: Python reads no documents that are nested as deeply as its stack; far fewer are refused.
DEPTH_MAX = 400
#: The years 1 to 9999, in microseconds since 1970.
TIME_MIN_US, TIME_MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999
#: Not of the year 0, in which a time with an offset from UTC may still be one of the year 1.
DATE_PATTERN = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-[0-9]{2}-[0-9]{2}"
CLOCK_PATTERN = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?"
ZONE_PATTERN = r"(?:Z|[+-](?:0[0-9]|1[0-8])(?::?[0-5][0-9])?)"

_DATE = re.compile(DATE_PATTERN)
_LOCAL_TIME = re.compile(f"({DATE_PATTERN})({CLOCK_PATTERN})?")
_TIME = re.compile(f"({DATE_PATTERN})(?:({CLOCK_PATTERN})({ZONE_PATTERN})?)?")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
#: In a byte order of its own: in the machine's, what is too large would become infinite.
_FLOAT = struct.Struct("<f")
_BITS: dict[type[spark.DataType], int] = {
    spark.ByteType: 7,
    spark.ShortType: 15,
    spark.IntegerType: 31,
    spark.LongType: 63,
}


class Misfit(ValueError):
    """A document is not JSON, or not of the type it should have; the text says where."""


class _Whole(str):
    """A number without fraction and exponent, as it is written."""

    __slots__ = ()


class _Real(str):
    """Any other number, as it is written."""

    __slots__ = ()


def check_json_type(given: spark.DataType, path: str) -> None:
    """Check that JSON can be read as, and written from, a type.

    Raises:
        ValueError: it cannot; the text names the field.
    """
    match given:
        case spark.StructType():
            names = given.fieldNames()
            if not names:
                raise ValueError(f"{path} is a struct without fields")
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{path} has two fields {name}")
                check_json_type(given[name].dataType, f"{path}.{name}")
        case spark.ArrayType():
            check_json_type(given.elementType, f"{path}.element")
        case spark.MapType():
            if type(given.keyType) is not spark.StringType:
                raise ValueError(
                    f"{path} is {given.simpleString()}, but keys of JSON objects are strings"
                )
            check_json_type(given.valueType, f"{path}.value")
        case spark.DecimalType():
            pass
        case _ if type(given) not in _SCALARS and type(given) not in _BITS:
            raise ValueError(f"{path} is {given.simpleString()}, which JSON has no form for here")


def read_document(text: bytes, convert: Convert) -> Any:
    """Return one document as Arrow takes it.

    Raises:
        Misfit: it is not JSON, or not of the type it should have.
    """
    if text.count(b"[") + text.count(b"{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise Misfit(f"nested more than {DEPTH_MAX} deep")
    try:
        value = json.loads(
            text.decode(), parse_int=_Whole, parse_float=_Real, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise Misfit(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except Misfit:
        raise
    except ValueError as error:
        raise Misfit(f"not JSON: {error}") from error
    if value is None:
        raise Misfit("null, expected an object")
    return convert(value)


def converter(given: spark.DataType, path: str) -> Convert:
    """Return what makes values of a type that ``check_json_type`` has accepted.

    Args:
        given: the type.
        path: of the field, for errors.
    """
    convert: Convert
    match given:
        case spark.StructType():
            fields = [(f.name, converter(f.dataType, f"{path}.{f.name}")) for f in given.fields]
            convert = _struct_converter(fields, path)
        case spark.ArrayType():
            convert = _array_converter(converter(given.elementType, f"{path}.element"), path)
        case spark.MapType():
            convert = _map_converter(converter(given.valueType, f"{path}.value"), path)
        case spark.DecimalType():
            convert = _decimal_converter(given.precision, given.scale, path)
        case _ if type(given) in _BITS:
            convert = _whole_converter(_BITS[type(given)], path)
        case _:
            scalar = _SCALARS[type(given)]

            def convert(value: Any) -> Any:
                return None if value is None else scalar(value, path)

    return convert


def _refuse_constant(name: str) -> NoReturn:
    raise Misfit(f"{name} is not JSON")


def _depth(text: bytes) -> int:
    """Return how deeply a document is nested; brackets in strings count, too."""
    depth = deepest = 0
    for byte in re.findall(rb"[][{}]", text):
        depth += 1 if byte in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case _Whole() | _Real():
            return f"the number {value[:40]}"
        case str():
            return f"the string {value[:40]!r}"
        case list():
            return "an array"
    return "an object"


def _wrong(path: str, value: Any, expected: str) -> Misfit:
    return Misfit(f"{path} is {_kind(value)}, expected {expected}")


# ------------------------------------------------------------------------------- by type


def _struct_converter(fields: list[tuple[str, Convert]], path: str) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _wrong(path, value, "an object")
        return {name: field(value.get(name)) for name, field in fields}

    return convert


def _array_converter(element: Convert, path: str) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            raise _wrong(path, value, "an array")
        return [element(item) for item in value]

    return convert


def _map_converter(item: Convert, path: str) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _wrong(path, value, "an object")
        return [(_text(key, f"{path}.key"), item(found)) for key, found in value.items()]

    return convert


def _whole_converter(bits: int, path: str) -> Convert:
    end = 1 << bits

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, _Whole):
            raise _wrong(path, value, "a whole number")
        number = int(value) if len(value) <= 20 else end
        if not -end <= number < end:
            raise _wrong(path, value, f"one of {bits + 1} bits")
        return number

    return convert


def _decimal_converter(precision: int, scale: int, path: str) -> Convert:
    expected = f"at most {precision - scale} digits before and {scale} after the point"

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
            raise _wrong(path, value, "a number")
        sign, digits, exponent = Decimal(value).as_tuple()
        assert isinstance(exponent, int)  # neither infinite nor NaN
        text = "".join(map(str, digits)).lstrip("0")
        bare = text.rstrip("0")
        exponent += len(text) - len(bare)
        if bare and (exponent < -scale or len(bare) + exponent > precision - scale):
            raise _wrong(path, value, expected)
        if not bare:
            return Decimal((0, (0,), -scale))
        return Decimal((sign, tuple(map(int, bare)), exponent))

    return convert


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(path, value, "true or false")
    return value


def _double(value: Any, path: str) -> float:
    if not isinstance(value, (_Whole, _Real)):
        raise _wrong(path, value, "a number")
    number = float(value)
    if math.isinf(number):
        raise _wrong(path, value, "one in the range of double")
    return number


def _float(value: Any, path: str) -> float:
    try:
        (number,) = _FLOAT.unpack(_FLOAT.pack(_double(value, path)))
    except OverflowError as error:
        raise _wrong(path, value, "one in the range of float") from error
    return float(number)


def _text(value: Any, path: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        raise _wrong(path, value, "a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Misfit(f"{path} has half of a surrogate pair") from error
    return str(value)


def _string(value: Any, path: str, expected: str) -> str:
    if not isinstance(value, str) or isinstance(value, (_Whole, _Real)):
        raise _wrong(path, value, expected)
    return value


def _date(value: Any, path: str) -> datetime.date:
    text = _string(value, path, "a date such as 2024-02-29")
    try:
        if _DATE.fullmatch(text):
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass
    raise _wrong(path, value, "a date such as 2024-02-29")


def _timestamp(value: Any, path: str) -> int:
    expected = "a time such as 2024-02-29T12:30:00Z"
    found = _TIME.fullmatch(_string(value, path, expected))
    if found is None:
        raise _wrong(path, value, expected)
    offset_s = 0
    if found[3] not in (None, "Z"):
        sign, digits = found[3][0], found[3][1:].replace(":", "").ljust(4, "0")
        offset_s = int(digits[:2]) * 3600 + int(digits[2:]) * 60
        offset_s = -offset_s if sign == "-" else offset_s
    time_us = _microseconds(found[1], found[2])
    if time_us is not None:
        time_us -= offset_s * 1_000_000
    if time_us is None or not TIME_MIN_US <= time_us <= TIME_MAX_US:
        raise _wrong(path, value, expected)
    return time_us


def _local_timestamp(value: Any, path: str) -> int:
    expected = "a time such as 2024-02-29T12:30:00"
    found = _LOCAL_TIME.fullmatch(_string(value, path, expected))
    time_us = _microseconds(found[1], found[2]) if found is not None else None
    if time_us is None:
        raise _wrong(path, value, expected)
    return time_us


def _microseconds(day: str, clock: str | None) -> int | None:
    """Return the microseconds since 1970 of what looks like a time; None: there is no such time."""
    try:
        time = datetime.datetime.fromisoformat(day + (clock or "")[:16])
    except ValueError:
        return None
    return (time - _EPOCH) // _MICROSECOND


def _base64(value: Any, path: str) -> bytes:
    text = _string(value, path, "a string in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _wrong(path, value, "a string in base64") from error


_SCALARS: dict[type[spark.DataType], Callable[[Any, str], Any]] = {
    spark.BooleanType: _boolean,
    spark.FloatType: _float,
    spark.DoubleType: _double,
    spark.StringType: _text,
    spark.BinaryType: _base64,
    spark.DateType: _date,
    spark.TimestampType: _timestamp,
    spark.TimestampNTZType: _local_timestamp,
}
