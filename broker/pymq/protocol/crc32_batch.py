"""CRC-32 of many pieces of one buffer, a piece of the processor's cache at a time."""

from collections.abc import Iterable

import numpy as np

from pymq.protocol.hashes import crc32
from pymq.protocol.record_batch import Bytes, Longs, spans, windows

#: Pieces are copied before they are summed, so many bytes at a time: what was copied is still in
#: the cache then, and a copy that is small costs less than a view, which the garbage collector
#: tracks.
_COPIED_BYTES = 128 << 10
#: From this size on a view costs less: of pieces of one size, of others.
_VIEW_BYTES_MIN = 1_536, 512


def crc32_each(data: Bytes, starts: Longs, ends: Longs) -> Longs:
    """Return the CRC-32 of ``data[starts[i]:ends[i]]`` for every i, int64, all 32 bits of it.

    Args:
        data: the buffer.
        starts, ends: shape (n,), ascending; pieces do not overlap.
    """
    count = len(starts)
    found = np.empty(count, np.int64)
    if not count:
        return found
    lengths = ends - starts
    width = int(lengths[0])
    is_alike = width > 0 and bool((lengths == width).all())
    if int(lengths.sum()) >= _VIEW_BYTES_MIN[not is_alike] * count:
        return _crcs(map(data.data.__getitem__, spans(starts, ends)), count)
    # Between pieces there may be much that is copied with them, unless they are alike.
    apart = width if is_alike else max(int(ends[-1] - starts[0]) // count, 1)
    rows = max(_COPIED_BYTES // apart, 1)
    for first in range(0, count, rows):
        low, high = starts[first : first + rows], ends[first : first + rows]
        pieces: Iterable[bytes]
        if is_alike:
            pieces = windows(data, width)[low].tolist()
        else:
            text = data[low[0] : high[-1]].tobytes()
            pieces = map(text.__getitem__, spans(low - low[0], high - low[0]))
        found[first : first + rows] = _crcs(pieces, len(low))
    return found


def _crcs(pieces: Iterable[bytes | memoryview], count: int) -> Longs:
    return np.fromiter(map(crc32, pieces), np.int64, count)
