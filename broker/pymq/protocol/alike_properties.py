"""The properties of many messages that differ in nothing but their values.

Most producers give every message the same properties in the same order, with values of the same
length: a unique key of 32 letters, ``WAIT`` true. Then all of them, one row each, are a matrix, and
name and value of a property take the same columns in each row: what has to be searched in one row
is known of all.

Worked example: ``KEYS 1 k1 2`` and ``KEYS 1 k2 2`` are two rows of 8 columns; in both the value of
KEYS takes columns 5 and 6.

Source: RocketMQ MessageDecoder.string2messageProperties.
"""

from collections.abc import Mapping

import numpy as np

from pymq.protocol.record_batch import Bytes, Longs, windows

_BETWEEN, _BEHIND = 1, 2
#: Fewer rows are not worth it.
_ROWS_MIN = 4


def property_rows(data: Bytes, starts: Longs, ends: Longs) -> Bytes | None:
    """Return properties as a matrix, one row each; None if their lengths differ, or they are few.

    Args:
        data: a buffer that contains encoded properties.
        starts, ends: int64, shape (n,): where those of message i begin and end in it.
    """
    count = len(starts)
    if count < _ROWS_MIN:
        return None
    width = int(ends[0] - starts[0])
    if width <= 0 or not (ends - starts == width).all():
        return None
    rows: Bytes = windows(data, width)[starts].view(np.uint8).reshape(count, width)
    return rows


def value_columns(rows: Bytes) -> Mapping[bytes, tuple[int, int]] | None:
    """Return in which columns (first, behind the last) the value of each property is.

    Args:
        rows: encoded properties, shape (n, bytes of one).

    Returns:
        Of several properties of one name the last one; those without a value are left out, like
        everywhere. None: rows do not have their names and separators in the same columns.
    """
    first = rows[0].tobytes()
    found: dict[bytes, tuple[int, int]] = {}
    is_fixed = bytearray(len(first))  # by column: 1 where a name or a separator is
    separator_count = at = 0
    for piece in first.split(b"\x02"):
        end = at + len(piece)
        between = piece.find(b"\x01")
        if between >= 0:
            if piece.find(b"\x01", between + 1) >= 0:
                return None  # a value with a separator in it
            separator_count += 1
            name_end = at + between
            is_fixed[at : name_end + 1] = b"\1" * (between + 1)
            if between and name_end + 1 < end:
                found[piece[:between]] = name_end + 1, end
        else:
            is_fixed[at:end] = b"\1" * len(piece)
        if end < len(first):
            is_fixed[end] = 1
            separator_count += 1
        at = end + 1
    fixed = np.flatnonzero(np.frombuffer(is_fixed, np.uint8))
    if np.count_nonzero((rows == _BETWEEN) | (rows == _BEHIND)) != separator_count * len(rows):
        return None
    if not (rows.take(fixed, 1) == rows[0, fixed]).all():
        return None
    return found
