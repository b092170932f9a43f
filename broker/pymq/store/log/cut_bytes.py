"""What whoever cuts a log needs: what a segment holds behind a position, and how it is zeroed.

``torn_tail`` cuts off what an unclean stop left, ``log_cut`` what a master does not have.
"""

from typing import NamedTuple

from pymq.store.files import Files
from pymq.store.log.segment import Segment

#: Not ``segment.PIECE_BYTES``, but so small that the next piece reuses the memory of the last one,
#: which is in cache.
_LOOK_BYTES = 1 << 16
_ZEROS = bytes(_LOOK_BYTES)


class Rest(NamedTuple):
    """What a segment holds after a position.

    Attributes:
        used: bytes up to the last one that is not zero.
        pieces: (position, size) of everything that is not a hole.
        nonzero: those of them that are not only zeros.
    """

    used: int
    pieces: list[tuple[int, int]]
    nonzero: list[tuple[int, int]]


def rest_of(files: Files, segment: Segment, position: int) -> Rest:
    """Return what a segment holds after a position."""
    rest = Rest(0, [], [])
    fd = segment.fd
    for start, stop in files.data_ranges(fd, position, segment.size_bytes):
        while start < stop:
            piece = files.pread(fd, min(_LOOK_BYTES, stop - start), start)
            rest.pieces.append((start, len(piece)))
            if piece != _ZEROS[: len(piece)]:
                rest.nonzero.append((start, len(piece)))
                rest = rest._replace(used=start + len(piece.rstrip(b"\0")) - position)
            start += len(piece)
    return rest


def zero(segment: Segment, pieces: list[tuple[int, int]]) -> None:
    """Write zeros over pieces of a segment, durably.

    Raises:
        DiskFull, FlushFailed, StoreError: the disk refused; call again.
    """
    if pieces:
        for start, size in pieces:
            segment.write(_ZEROS[:size], start)
        segment.flush()


def number_of(name: str) -> int:
    """Return the number with which a name in ``recovered`` begins; 0: with none."""
    head = name.partition("-")[0]
    return int(head) if head.isascii() and head.isdigit() else 0
