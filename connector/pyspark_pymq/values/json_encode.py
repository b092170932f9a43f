"""Structs -> JSON documents, a whole batch at once, without a Python statement per row.

Each column becomes one of JSON text, and Arrow joins them row by row. As Spark's ``to_json`` does,
fields that are null are left out, and in arrays ``null`` stands for them. The text of each field of
a struct begins with a comma, and the first comma of all becomes the opening brace. ``json_rows``
says how each type is written, and reads all of it back.
"""

import base64

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pymq.errors import LocalProtocolError
from pyspark_pymq.values.decoded import Place
from pyspark_pymq.values.json_rows import TIME_MAX_US, TIME_MIN_US

_NAMED_ESCAPES = {8: r"\b", 9: r"\t", 10: r"\n", 12: r"\f", 13: r"\r"}


def encode_json(values: pa.Array, place: Place) -> pa.Array:
    """Return the documents of structs, a binary array; null for null.

    Args:
        values: structs of what ``check_json_type`` has accepted.
        place: names a row of them, for errors.

    Raises:
        LocalProtocolError: a row has something that JSON has no form for; the text names it.
    """
    return _texts(values, "value", place).cast(pa.binary())


def _texts(values: pa.Array, path: str, place: Place) -> pa.Array:
    """Return each value as JSON text; null for null."""
    values = _small(values)
    kind = values.type
    if pa.types.is_struct(kind):
        return _objects(values, path, place)
    if pa.types.is_map(kind):
        return _maps(values, path, place)
    if pa.types.is_list(kind):
        values = _from_the_start(values)
        items = _texts(values.values, f"{path}.element", _row_of(values, place))
        return _bracketed("[", _or_null(items), values, "]")
    if pa.types.is_string(kind):
        return _quoted(values)
    if pa.types.is_floating(kind):
        wrong = pc.invert(pc.is_finite(values))
        _refuse(wrong, values, path, place, "JSON has no such number: nullif() it")
        return values.cast(pa.string())
    if pa.types.is_binary(kind):
        coded = [None if v is None else base64.b64encode(v).decode() for v in values.to_pylist()]
        return _between('"', pa.array(coded, pa.string()), '"')
    if pa.types.is_date32(kind):
        days = values.cast(pa.int32()).cast(pa.int64())
        _refuse_years(pc.multiply(days, 86_400_000_000), days, path, place, "days")
        return _between('"', values.cast(pa.string()), '"')
    if pa.types.is_timestamp(kind):
        time_us = values.cast(pa.int64())
        _refuse_years(time_us, time_us, path, place, "microseconds")
        text = time_us.cast(pa.timestamp("us")).cast(pa.string())
        text = pc.replace_substring(text, " ", "T")
        return _between('"', text, '"' if kind.tz is None else 'Z"')
    assert pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind), kind
    return values.cast(pa.string())


def _objects(values: pa.Array, path: str, place: Place) -> pa.Array:
    values = _from_the_start(values)
    present = values.is_valid()
    pieces: list[pa.Array | pa.Scalar] = []
    for at in range(values.type.num_fields):
        name = values.type.field(at).name
        before = f",{_quoted(pa.array([name], pa.string()))[0].as_py()}:"
        # Children of a null have values nobody has written, which may be refused.
        child = values.field(at)
        if values.null_count:
            child = pc.if_else(present, child, pa.scalar(None, child.type))
        text = _texts(child, f"{path}.{name}", place)
        if text.null_count:
            pieces.append(_between(before, text, ""))
        else:
            pieces += [_constant(before), text]
    joined = pc.binary_join_element_wise(
        *pieces, _constant("}"), _constant(""), null_handling="replace", null_replacement=""
    )
    # The first comma goes; "{" takes its place.
    found = _between("{", pc.replace_substring(joined, ",", "", max_replacements=1), "")
    return pc.if_else(present, found, _NULL) if values.null_count else found


def _maps(values: pa.Array, path: str, place: Place) -> pa.Array:
    values = _from_the_start(values)
    row_of = _row_of(values, place)
    names = _quoted(_small(values.keys))
    items = _or_null(_texts(values.items, f"{path}.value", row_of))
    return _bracketed("{", _between("", names, "", ":", items), values, "}")


def _bracketed(opening: str, items: pa.Array, lists: pa.Array, closing: str) -> pa.Array:
    """Return the items of each list or map, with commas between them, in brackets."""
    joined = pc.binary_join(
        pa.ListArray.from_arrays(pa.array(_offsets(lists), pa.int32()), items), ","
    )
    found = _between(opening, joined, closing)
    return pc.if_else(lists.is_valid(), found, _NULL) if lists.null_count else found


def _quoted(strings: pa.Array) -> pa.Array:
    """Return strings in quotes, with what JSON does not take escaped."""
    _, _, data = strings.buffers()
    used = np.zeros(256, np.bool_)
    used[np.frombuffer(data or b"", np.uint8)] = True
    if used[ord("\\")]:
        strings = pc.replace_substring(strings, "\\", "\\\\")
    if used[ord('"')]:
        strings = pc.replace_substring(strings, '"', '\\"')
    for code in np.flatnonzero(used[: ord(" ")]).tolist():
        escape = _NAMED_ESCAPES.get(code, f"\\u{code:04x}")
        strings = pc.replace_substring(strings, chr(code), escape)
    return _between('"', strings, '"')


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.fill_null(texts, "null") if texts.null_count else texts


def _between(before: str, texts: pa.Array, after: str, *more: "str | pa.Array") -> pa.Array:
    """Join pieces row by row; null where one of them is."""
    pieces = [piece if not isinstance(piece, str) else _constant(piece) for piece in more]
    return pc.binary_join_element_wise(
        _constant(before), texts, _constant(after), *pieces, _constant("")
    )


def _constant(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.string())


_NULL = pa.scalar(None, pa.string())


def _small(values: pa.Array) -> pa.Array:
    """Return strings or binary values with offsets of 32 bits; anything else as it is.

    Spark's are larger with ``spark.sql.execution.arrow.useLargeVarTypes``.
    """
    if pa.types.is_large_string(values.type):
        return values.cast(pa.string())
    if pa.types.is_large_binary(values.type):
        return values.cast(pa.binary())
    return values


def _from_the_start(values: pa.Array) -> pa.Array:
    """Return an array whose children begin with its first row, and have none for null lists."""
    if not values.offset and (pa.types.is_struct(values.type) or not values.null_count):
        return values
    return values.take(pa.array(np.arange(len(values))))


def _offsets(lists: pa.Array) -> npt.NDArray[np.int32]:
    offsets: npt.NDArray[np.int32] = lists.offsets.to_numpy()
    return offsets


def _row_of(lists: pa.Array, place: Place) -> Place:
    """Return what names the row of an item."""
    return lambda item: place(int(np.searchsorted(_offsets(lists), item, side="right")) - 1)


def _refuse_years(
    time_us: pa.Array, shown: pa.Array, path: str, place: Place, unit: str
) -> None:
    wrong = pc.or_(pc.less(time_us, TIME_MIN_US), pc.greater(time_us, TIME_MAX_US))
    _refuse(wrong, shown, path, place, f"{unit} since 1970, which is not in the years 1 to 9999")


def _refuse(wrong: pa.Array, values: pa.Array, path: str, place: Place, why: str) -> None:
    if pc.any(wrong).as_py():
        found = np.flatnonzero(pc.fill_null(wrong, False).to_numpy(zero_copy_only=False))
        row = int(found[0])
        raise LocalProtocolError(f"{place(row)}: {path} is {values[row].as_py()}; {why}")
