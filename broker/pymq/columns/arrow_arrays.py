"""Binary values that Arrow and numpy share: cut out of a buffer, made of a matrix, measured.

No Python statement runs once per value here. To cut fields out of a buffer, a binary array is laid
over it whose offsets delimit ``gap, field, gap, field ...``, and ``take`` copies every second
element. Fields of one size numpy copies in a third of that time.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pymq.columns.arrow_package import pa, pc
from pymq.protocol.record_batch import windows

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


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
    width = int(end[0] - start[0])
    if width and (end - start == width).all():
        cut = fixed_width(windows(buffer, width)[start].view(np.uint8).reshape(count, width))
    else:
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
    """Return a binary array's values back to back, and where each starts (n + 1 positions).

    A null is empty, whatever lies beneath it.
    """
    if array.null_count:
        array = array.take(pa.array(np.arange(len(array))))
    _, borders, values = array.buffers()
    if not len(array) or borders is None:
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    offsets = np.frombuffer(borders, np.int32)[array.offset : array.offset + len(array) + 1]
    text = np.frombuffer(values or b"", np.uint8)[offsets[0] : offsets[-1]]
    return text, offsets.astype(np.int64) - int(offsets[0])


def map_entries(maps: pa.Array) -> tuple[Longs, pa.Array, pa.Array]:
    """Return where each map's entries start (n + 1 positions), and the keys and items of all.

    What lies beneath a null is not among them, nor what a slice leaves out.
    """
    if maps.null_count:
        maps = maps.take(pa.array(np.arange(len(maps))))
    offsets: Longs = maps.offsets.to_numpy().astype(np.int64)
    first, end = int(offsets[0]), int(offsets[-1])
    return offsets - first, maps.keys[first:end], maps.items[first:end]


def as_text(array: pa.Array) -> pa.Array:
    """Return binary values as strings; what is not UTF-8 gets replacement characters."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if v is None else v.decode("utf-8", "replace") for v in array.to_pylist()]
        return pa.array(texts, pa.string())


def shown(value: pa.Scalar) -> str:
    """Return a string or binary value for an error message; it need not be UTF-8."""
    text: bytes = value.cast(pa.binary()).as_py()
    return text.decode("utf-8", "replace")


def byte_lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bytes of each value, 0 for null."""
    found = pc.binary_length(column)
    if column.null_count:
        found = pc.fill_null(found, 0)
    lengths: Longs = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def repeated(row: bytes, count: int) -> Bytes:
    """Return a matrix whose rows are all the same."""
    items = np.repeat(np.frombuffer(row, f"V{len(row)}"), count)
    return items.view(np.uint8).reshape(count, len(row))


def fixed_width(table: npt.NDArray[Any]) -> pa.Array:
    """Return the rows of a matrix as binary values, without copying them."""
    width = table.shape[1] * table.itemsize
    offsets = np.arange(0, (len(table) + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(table), [None, pa.py_buffer(offsets), pa.py_buffer(table)]
    )


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
