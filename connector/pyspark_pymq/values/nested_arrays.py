"""Nested Arrow arrays: with other leaves, and as Python's values."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

#: Gets a leaf and the type it is to have.
Leaf = Callable[[pa.Array, pa.DataType], pa.Array]


def rebuilt(array: pa.Array, target: pa.DataType, leaf: Leaf) -> pa.Array:
    """Return an array of another type of the same structure.

    Args:
        array: structs, lists and maps of anything.
        target: the type wanted; where it is equal nothing is done.
        leaf: makes an array of a leaf's target type.
    """
    if array.type.equals(target):
        return array
    if array.offset and pa.types.is_nested(array.type):
        array = array.take(pa.array(range(len(array)), pa.int64()))
    if pa.types.is_struct(target):
        children = [
            rebuilt(array.field(at), target.field(at).type, leaf)
            for at in range(target.num_fields)
        ]
        return pa.Array.from_buffers(target, len(array), array.buffers()[:1], children=children)
    if pa.types.is_map(target):
        pair = [
            rebuilt(array.keys, target.key_type, leaf),
            rebuilt(array.items, target.item_type, leaf),
        ]
        entries = pa.StructArray.from_arrays(pair, fields=[target.key_field, target.item_field])
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], children=[entries])
    if pa.types.is_list(target):
        children = [rebuilt(array.values, target.value_type, leaf)]
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], children=children)
    return leaf(array, target)


def python_values(array: pa.Array) -> list[Any]:
    """Return what ``to_pylist`` does, several times as fast for structs: column by column."""
    kind = array.type
    if pa.types.is_struct(kind):
        names = [kind.field(at).name for at in range(kind.num_fields)]
        columns = [python_values(array.field(at)) for at in range(kind.num_fields)]
        rows: list[Any] = [
            dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
        if array.null_count:
            for at in array.is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist():
                rows[at] = None
        return rows
    if not array.null_count and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return array.to_numpy(zero_copy_only=False).tolist()
    return array.to_pylist()
