"""Compressed bodies -> plain ones, a bounded amount at a time.

What a body takes shows only when it is decompressed, and may be a hundred times what is stored:
8 MiB of records would become one batch of 800 MiB. So rows are cut where it becomes too much.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pymq.errors import RemoteProtocolError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import MessageFlag
from pymq.protocol.compression import decompress
from pymq.protocol.record_batch import RecordColumns
from pyspark_pymq.binary_arrays import Longs
from pyspark_pymq.offsets import named

LOG = logging.getLogger(__name__)

Rows = slice | Longs

_COMPRESSED = int(MessageFlag.COMPRESSED)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Some rows, and the bodies of those that are compressed.

    Attributes:
        rows: of the records, ascending.
        plain: place among ``rows`` -> body; None: it cannot be decompressed.
    """

    rows: Rows
    plain: dict[int, bytes | None]


def unpacked(
    records: RecordColumns,
    rows: Rows,
    queue: MessageQueue,
    *,
    bytes_max: int,
    null_corrupt: bool,
) -> Iterator[Unpacked]:
    """Yield all rows, cut so that the plain bodies of each part take about ``bytes_max``.

    Args:
        records: of one queue.
        rows: of the records, ascending; a slice has both ends.
        queue: whose they are, for error messages.
        bytes_max: of a part's plain bodies, unless one alone has more.
        null_corrupt: go on behind a body that cannot be decompressed. Otherwise it is an error.

    Raises:
        RemoteProtocolError: a body cannot be decompressed; the text names its message.
        ConfigurationError: the package that its format needs is not installed.
    """
    packed = np.flatnonzero(records.sys_flag[rows] & _COMPRESSED).tolist()
    if not packed:
        yield Unpacked(rows, {})
        return
    start, end = records.body_start[rows], records.body_end[rows]
    first, held_bytes = 0, 0
    plain: dict[int, bytes | None] = {}
    corrupt: list[str] = []
    for row in packed:
        body = None
        try:
            stored = records.buffer[int(start[row]) : int(end[row])].data
            body = decompress(stored, int(records.sys_flag[rows][row]))
        except RemoteProtocolError as error:
            offset = int(records.queue_offset[rows][row])
            place = f"the message at offset {offset} of {named(queue)}"
            if not null_corrupt:
                raise RemoteProtocolError(
                    f"body of {place}: {error}. To read it as null, and go on behind it, set the "
                    f"option corruptBodies to null"
                ) from error
            corrupt.append(f"{place} ({error})")
        size = len(body or b"")
        if plain and held_bytes + size > bytes_max:
            yield Unpacked(_part(rows, first, row), plain)
            first, held_bytes, plain = row, 0, {}
        plain[row - first] = body
        held_bytes += size
    yield Unpacked(_part(rows, first, len(start)), plain)
    if corrupt:
        LOG.warning(
            "%d bodies cannot be decompressed and are null (corruptBodies=null), first %s",
            len(corrupt),
            corrupt[0],
        )


def _part(rows: Rows, first: int, end: int) -> Rows:
    """Return the rows from the ``first``-th to before the ``end``-th."""
    if isinstance(rows, slice):
        return slice(rows.start + first, rows.start + end)
    return rows[first:end]
