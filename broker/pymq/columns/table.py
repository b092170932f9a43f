"""Tables of messages to send: what users give becomes the columns that ``encoding`` takes."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pymq.columns.arrow_arrays import Longs, byte_lengths, cuts, map_entries, shown
from pymq.columns.arrow_package import pa, pc
from pymq.errors import ConfigurationError, LocalProtocolError
from pymq.protocol.message import SYSTEM_PROPERTIES, TIMER_DELAY_MS

#: Column -> what ``encoding`` calls it.
_NAMES = {
    "topic": "topic",
    "body": "body",
    "tags": "tags",
    "keys": "keys",
    "sharding_key": "shardingKey",
    "properties": "properties",
    "flag": "flag",
}
_MAP = pa.map_(pa.string(), pa.string())
#: Rows, and about as many bytes, that are encoded at a time.
ROWS_MAX = 65_536
BYTES_MAX = 32 << 20


def as_table(table: Any) -> Any:  # of packages that have no types
    """Return what a user gives as an Arrow table.

    Args:
        table: an Arrow table or record batch, a pandas or Polars DataFrame, or a mapping of names
            to columns: lists, numpy arrays, Arrow arrays.

    Raises:
        ConfigurationError: it is nothing of these, or a column's values do not fit together.
    """
    return _without_dictionaries_of_views(_arrow_table(table))


def _arrow_table(table: Any) -> Any:
    try:
        if isinstance(table, pa.Table):
            return table
        if isinstance(table, pa.RecordBatch):
            return pa.Table.from_batches([table])
        if isinstance(table, Mapping):
            return pa.table({name: _as_array(name, values) for name, values in table.items()})
        if hasattr(table, "to_arrow"):  # Polars
            return table.to_arrow()
        if hasattr(table, "columns") and hasattr(table, "iloc"):
            return pa.Table.from_pandas(table, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"this is no table of messages: {error}") from error
    raise ConfigurationError(
        f"{type(table).__name__}: expected an Arrow table or record batch, a pandas or Polars "
        "DataFrame, or a dict of columns, such as {'body': [b'...'], 'tags': ['a']}"
    )


def _without_dictionaries_of_views(table: Any) -> Any:
    """Return a table in which the values of dictionaries are no views: Arrow decodes none such."""
    is_view = getattr(pa.types, "is_string_view", lambda _: False)
    for at, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) and is_view(field.type.value_type):
            column = table.column(at)
            chunks = [
                pa.DictionaryArray.from_arrays(
                    chunk.indices, chunk.dictionary.cast(pa.large_string())
                )
                for chunk in column.chunks
            ]
            kind = pa.dictionary(field.type.index_type, pa.large_string())
            table = table.set_column(at, field.name, pa.chunked_array(chunks, kind))
    return table


def _as_array(name: object, values: Any) -> Any:
    if name == "properties" and isinstance(values, list | tuple):
        for row, value in enumerate(values):
            if value is not None and not isinstance(value, Mapping):
                raise ConfigurationError(
                    f"column properties: row {row} is {value!r:.80}, expected a mapping of strings"
                )
        items = [None if value is None else list(value.items()) for value in values]
        return pa.array(items, _MAP)
    return values


def check_table(table: Any, topic: str | None) -> None:
    """Check the names and types of the columns.

    Raises:
        ConfigurationError: a column is unknown, has another type, is there twice, or is missing.
    """
    known = ", ".join(_NAMES)
    for field in table.schema:
        if field.name not in _NAMES:
            raise ConfigurationError(
                f"there is no column {field.name!r:.80} of messages to send, expected some of "
                f"{known}; select those that are to be sent"
            )
        if table.schema.names.count(field.name) > 1:
            raise ConfigurationError(f"column {field.name} is there twice; rename or drop one")
        if not _fits(field.name, field.type):
            raise ConfigurationError(
                f"column {field.name} is {field.type}, expected {_EXPECTED[field.name]}"
            )
    if "body" not in table.schema.names:
        raise ConfigurationError(f"column body is missing; columns are {known}")
    if (topic is None) is ("topic" not in table.schema.names):
        raise ConfigurationError(
            "the topic is missing: add a column topic, or the argument topic"
            if topic is None
            else "there are both a column topic and the argument topic, expected one of them"
        )


_EXPECTED = {
    **dict.fromkeys(("topic", "tags", "sharding_key"), "strings"),
    "body": "binary values or strings",
    "keys": "strings, or lists of strings",
    "properties": "a map of strings to strings",
    "flag": "whole numbers of 32 bits",
}


def _is_text(kind: Any) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    is_view = getattr(types, "is_string_view", lambda _: False)
    return types.is_string(kind) or types.is_large_string(kind) or is_view(kind)


def _fits(name: str, kind: Any) -> bool:
    types = pa.types
    if types.is_null(kind):
        return True  # What must not be null is refused row by row.
    if name == "flag":
        return types.is_integer(kind)
    if name == "properties":
        return types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)
    if _is_text(kind):
        return True
    if name == "keys":
        return (types.is_list(kind) or types.is_large_list(kind)) and _is_text(kind.value_type)
    is_view = getattr(types, "is_binary_view", lambda _: False)
    is_binary = types.is_binary(kind) or types.is_large_binary(kind) or is_view(kind)
    return name == "body" and (is_binary or types.is_fixed_size_binary(kind))


def pieces(table: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number of its first row, columns) of parts of a checked table, as ``encoding`` wants.

    Raises:
        LocalProtocolError: a row cannot be a message; the text names it.
    """
    rows = max(1, min(ROWS_MAX, BYTES_MAX * len(table) // max(table.nbytes, 1)))
    measured = _with_measured_dictionaries(table.column("body"))
    for start in range(0, len(table), rows):
        part = table.slice(start, rows)
        # Those rows may be the table's large ones: Arrow joins no more than 2 GiB.
        sizes = _body_bytes(measured.slice(start, rows))
        for low, high in cuts(sizes, rows_max=rows, bytes_max=2 * BYTES_MAX):
            piece, first = part.slice(low, high - low), start + low
            columns = {
                _NAMES[name]: _column(name, piece.column(name), first)
                for name in piece.schema.names
            }
            columns = {name: column for name, column in columns.items() if column is not None}
            _check(columns, first)
            yield first, columns


def _with_measured_dictionaries(chunked: Any) -> Any:
    """Return a column as it is, or, of one with dictionaries, the lengths in place of the values.

    Each part of it has the whole dictionary, which is to be measured once.
    """
    if not pa.types.is_dictionary(chunked.type):
        return chunked
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, _lengths(chunk.dictionary))
        for chunk in chunked.chunks
    ]
    return pa.chunked_array(chunks, pa.dictionary(chunked.type.index_type, pa.int64()))


def _lengths(values: Any) -> Any:
    return pc.binary_length(values.cast(pa.large_binary()))


def _body_bytes(measured: Any) -> Longs:
    """Return the bytes of each row's body, whatever their type; there may be any number.

    Args:
        measured: of ``_with_measured_dictionaries``.
    """
    is_dictionary = pa.types.is_dictionary(measured.type)
    found = [
        pc.fill_null(chunk.dictionary_decode() if is_dictionary else _lengths(chunk), 0)
        for chunk in measured.chunks
    ]
    return np.concatenate([one.to_numpy(zero_copy_only=False) for one in found])


def _column(name: str, chunked: Any, first: int) -> Any:
    if pa.types.is_null(chunked.type) and name not in ("body", "topic"):
        return None
    is_list = pa.types.is_list(chunked.type) or pa.types.is_large_list(chunked.type)
    kinds = {"properties": _MAP, "flag": pa.int32()}
    kind = pa.list_(pa.string()) if is_list else kinds.get(name, pa.binary())
    try:
        cast = _cast(chunked, kind).combine_chunks()
    except pa.ArrowException as error:
        raise LocalProtocolError(f"column {name}: {error}") from error
    return _joined_keys(cast, first) if is_list else cast


def _cast(chunked: Any, kind: Any) -> Any:
    try:
        return chunked.cast(kind)
    except pa.ArrowInvalid:
        # The offsets of a part count from the begin of an array that may be of any size.
        return chunked.take(pa.array(np.arange(len(chunked)))).cast(kind)


def _joined_keys(lists: Any, first: int) -> Any:
    """Return each row's keys as ``join_keys`` does, binary; nulls are left out.

    What lies beneath a null list is not looked at.
    """
    if lists.null_count:
        lists = lists.take(pa.array(np.arange(len(lists))))
    keys = lists.flatten()
    row = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    wrong = pc.or_(pc.equal(pc.binary_length(keys), 0), pc.match_substring(keys, " "))
    if pc.any(wrong).as_py():
        at = int(np.flatnonzero(pc.fill_null(wrong, False).to_numpy(zero_copy_only=False))[0])
        raise LocalProtocolError(
            f"row {first + row[at]}: key {shown(keys[at])!r:.80}, expected a string without blanks"
        )
    if keys.null_count:
        row = row[keys.is_valid().to_numpy(zero_copy_only=False)]
        ends = np.cumsum(np.bincount(row, minlength=len(lists)))
        offsets = pa.array(np.append(0, ends), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, keys.drop_null())
    return pc.binary_join(lists, " ").cast(pa.binary())


def _check(columns: dict[str, Any], first: int) -> None:
    empty = np.flatnonzero(byte_lengths(columns["body"]) == 0)
    if len(empty):
        raise LocalProtocolError(
            f"row {first + int(empty[0])}: body is null or empty, and a message needs one"
        )
    if "tags" in columns:
        several = pc.fill_null(pc.match_substring(columns["tags"], "||"), False)
        if pc.any(several).as_py():
            row = int(np.flatnonzero(several.to_numpy(zero_copy_only=False))[0])
            raise LocalProtocolError(
                f"row {first + row}: tags {shown(columns['tags'][row])!r:.80}: a message "
                "has one tag, '||' joins those that a consumer wants"
            )
    if "properties" in columns:
        _, names, _ = map_entries(columns["properties"])
        refused = sorted({*SYSTEM_PROPERTIES, TIMER_DELAY_MS})
        system = pc.is_in(names, pa.array(refused, pa.string()))
        if pc.any(system).as_py():
            name = names.filter(system)[0]
            raise LocalProtocolError(
                f"property {name.as_py()!r} belongs to the system; use the column that sets it, or "
                "another name; delayed messages are sent one by one, with send()"
            )
