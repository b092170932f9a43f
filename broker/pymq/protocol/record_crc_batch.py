"""Checksums of many records at once; ``record_crc.py`` explains them."""

import numpy as np
import numpy.typing as npt

from pymq.protocol.crc32_batch import crc32_each
from pymq.protocol.record_batch import Bytes, Longs, gather, windows
from pymq.protocol.record_crc import (
    RECORD_CRC_BYTES,
    RECORD_CRC_CLAIM_BYTES,
    RECORD_CRC_PREFIX,
    RecordCrc,
)

_DIGITS = slice(len(RECORD_CRC_PREFIX), RECORD_CRC_BYTES - 1)
_TEMPLATE = np.frombuffer(RECORD_CRC_PREFIX + bytes(10) + b"\x02", np.uint8)
_FIRST = RECORD_CRC_PREFIX[0]
_CELL = f"V{RECORD_CRC_BYTES}"


def encode_record_crcs(crcs: Longs) -> Bytes:
    """Return the properties for checksums of 31 bits, shape (n, 20)."""
    rows = np.repeat(_TEMPLATE[np.newaxis], len(crcs), 0)
    left = crcs.astype(np.uint32)
    for column in range(_DIGITS.start, _DIGITS.stop):
        rest = left // np.uint32(10)
        rows[:, column] = left - rest * np.uint32(10) + np.uint32(ord("0"))
        left = rest
    return rows


def write_record_crcs(data: Bytes, starts: Longs, ends: Longs) -> None:
    """Fill in the last 20 bytes of each record.

    Args:
        data: the records; written to.
        starts, ends: where each begins and ends, including its checksum.
    """
    ends = ends - RECORD_CRC_BYTES
    rows = encode_record_crcs(_crcs(data, starts, ends))
    windows(data, RECORD_CRC_BYTES)[ends] = rows.view(_CELL)[:, 0]


def check_record_crcs(
    data: Bytes, starts: Longs, ends: Longs, properties_starts: Longs
) -> npt.NDArray[np.int8]:
    """Return for each whole record what ``check_record_crc`` returns, shape (n,).

    Args:
        data: the records.
        starts, ends: where each begins and ends.
        properties_starts: where its properties begin; they end where it does.
    """
    states = np.full(len(starts), RecordCrc.NONE, np.int8)
    picked, found = _find_claims(data, properties_starts, ends, RECORD_CRC_CLAIM_BYTES)
    if len(picked):
        wanted = encode_record_crcs(_crcs(data, starts[picked], ends[picked] - RECORD_CRC_BYTES))
        fits = (found == wanted).all(axis=1)
        states[picked] = np.where(fits, RecordCrc.FITS, RecordCrc.WRONG)
    return states


def cut_record_crcs(data: Bytes, properties_starts: Longs, ends: Longs) -> Longs:
    """Return where encoded properties end without the checksums at their end.

    Args:
        data: contains the properties; there are at least 20 bytes before each end.
        properties_starts, ends: where each begins and ends.

    Returns:
        ``ends`` itself if, as almost always, none end with a checksum.
    """
    # Usually none do. As every batch comes through here, checking one byte has to be enough.
    while (data[ends - RECORD_CRC_BYTES] == _FIRST).any():
        picked, _ = _find_claims(data, properties_starts, ends, RECORD_CRC_BYTES)
        if not len(picked):
            break
        ends = ends.copy()
        ends[picked] -= RECORD_CRC_BYTES
    return ends


def _find_claims(
    data: Bytes, properties_starts: Longs, ends: Longs, bytes_min: int
) -> tuple[Longs, Bytes]:
    """Return which properties end with a checksum, shape (m,), and these ends, shape (m, 20).

    Args:
        data: contains the properties.
        properties_starts, ends: where each begins and ends.
        bytes_min: how many of the 20 bytes have to match; 19 or 20.
    """
    # Usually there are none. Whatever is damaged, each claim has one of these two bytes right.
    like = data[ends - RECORD_CRC_BYTES] == _FIRST
    like |= data[ends - RECORD_CRC_BYTES + _DIGITS.start - 1] == 1
    picked = np.flatnonzero(like)
    picked = picked[ends[picked] - properties_starts[picked] >= RECORD_CRC_BYTES]
    cells: Bytes = gather(data, ends[picked] - RECORD_CRC_BYTES, _CELL).view(np.uint8)
    found = cells.reshape(-1, RECORD_CRC_BYTES)
    good = found == _TEMPLATE
    good[:, _DIGITS] = found[:, _DIGITS] - np.uint8(ord("0")) < 10
    claims = good.sum(axis=1) >= bytes_min
    return picked[claims], found[claims]


def _crcs(data: Bytes, starts: Longs, ends: Longs) -> Longs:
    return crc32_each(data, starts, ends) & 0x7FFFFFFF
