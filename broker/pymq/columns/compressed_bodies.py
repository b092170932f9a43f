"""Compressed bodies -> plain ones, a bounded amount at a time.

What a body takes shows only when it is decompressed, and may be a hundred times what is stored:
8 MiB of records would become one batch of 800 MiB. So rows are cut where it becomes too much.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pymq.errors import RemoteProtocolError
from pymq.protocol.codes import MessageFlag
from pymq.protocol.compression import decompress
from pymq.protocol.record_batch import Longs, RecordColumns

Rows = slice | Longs

_COMPRESSED = int(MessageFlag.COMPRESSED)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Some rows, and the bodies of those that are compressed.

    Attributes:
        rows: of the records, ascending.
        plain: place among ``rows`` -> body; None: it cannot be decompressed.
        corrupt: place of such a body -> why.
    """

    rows: Rows
    plain: dict[int, bytes | None]
    corrupt: dict[int, str] = field(default_factory=dict)


def unpacked(
    records: RecordColumns,
    rows: Rows,
    *,
    bytes_max: int,
) -> Iterator[Unpacked]:
    """Yield all rows, cut so that the plain bodies of each part take about ``bytes_max``.

    Args:
        records: of one queue.
        rows: of the records, ascending; a slice has both ends.
        bytes_max: of a part's plain bodies, unless one alone has more.

    Raises:
        ConfigurationError: the package that a body's format needs is not installed.
    """
    flags = records.sys_flag[rows]
    packed = np.flatnonzero(flags & _COMPRESSED).tolist()
    if not packed:
        yield Unpacked(rows, {})
        return
    start, end = records.body_start[rows], records.body_end[rows]
    first, held_bytes = 0, 0
    plain: dict[int, bytes | None] = {}
    corrupt: dict[int, str] = {}
    for row in packed:
        body = why = None
        try:
            stored = records.buffer[int(start[row]) : int(end[row])].data
            body = decompress(stored, int(flags[row]))
        except RemoteProtocolError as error:
            why = str(error)
        size = len(body or b"")
        if plain and held_bytes + size > bytes_max:
            yield Unpacked(_part(rows, first, row), plain, corrupt)
            first, held_bytes, plain, corrupt = row, 0, {}, {}
        plain[row - first] = body
        if why is not None:
            corrupt[row - first] = why
        held_bytes += size
    yield Unpacked(_part(rows, first, len(start)), plain, corrupt)


def _part(rows: Rows, first: int, end: int) -> Rows:
    """Return the rows from the ``first``-th to before the ``end``-th."""
    if isinstance(rows, slice):
        return slice(rows.start + first, rows.start + end)
    return rows[first:end]
