"""Java's ``String.hashCode`` of many strings at once.

Strings of one length are the rows of a matrix, and their hashes its product with the powers of 31
modulo 2**32. Strings that are not ASCII are hashed one by one: Java counts in UTF-16 units.

Source: java.lang.String.hashCode; ``hashes.java_hash`` is the same for one string.
"""

import functools

import numpy as np
import numpy.typing as npt

from pymq.protocol.hashes import decode_as_java, java_hash
from pymq.protocol.record_batch import Bytes, Longs, gather, spans

Words = npt.NDArray[np.uint32]
#: Powers are cached for lengths up to this; for longer strings they are computed when needed.
_KEPT_MAX = 256


def java_hashes(data: Bytes, starts: Longs, lengths: Longs) -> Words:
    """Return the hash of the UTF-8 string ``data[starts[i]:starts[i] + lengths[i]]`` for every i.

    Returns:
        uint32, shape (n,); ``.view(np.int32)`` is Java's value. Malformed bytes count as
        replacement characters, as when Java decodes them.
    """
    hashes = np.zeros(len(starts), np.uint32)
    for length in np.unique(lengths).tolist():
        if not length:
            continue
        rows = np.flatnonzero(lengths == length)
        matrix = gather(data, starts[rows], f"V{length}").view(np.uint8).reshape(-1, length)
        hashes[rows] = np.einsum("ij,j->i", matrix, _powers(length), dtype=np.uint32)
        odd = rows[matrix.max(1) >= 0x80] if matrix.max() >= 0x80 else rows[:0]
        if len(odd):
            ends = starts[odd] + length
            strings = [data[span].tobytes() for span in spans(starts[odd], ends)]
            known = {text: _hash(text) for text in set(strings)}  # tags repeat
            hashes[odd] = [known[text] for text in strings]
    return hashes


def powers_of_31(exponents: Longs) -> Words:
    """Return 31 to these powers, modulo 2**32: the factor of a hash in front of this many units."""
    most = int(exponents.max(initial=0))
    found: Words = _powers(most + 1)[most - exponents]
    return found


def unit_counts(data: Bytes, starts: Longs, lengths: Longs) -> Longs:
    """Return how many UTF-16 units each string has; arguments as ``java_hashes``."""
    if not len(data) or data.max() < 0x80:
        return lengths
    counts = lengths.copy()
    beyond = np.zeros(len(data) + 1, np.int64)
    np.cumsum(data >= 0x80, out=beyond[1:])
    for row in np.flatnonzero(beyond[starts + lengths] > beyond[starts]).tolist():
        text = data[starts[row] : starts[row] + lengths[row]].tobytes()
        counts[row] = len(decode_as_java(text).encode("utf-16-be")) // 2
    return counts


def _powers(length: int) -> Words:
    """Return 31**(length - 1), ..., 31, 1."""
    return _kept_powers(length) if length <= _KEPT_MAX else _computed_powers(length)


@functools.lru_cache(_KEPT_MAX)
def _kept_powers(length: int) -> Words:
    return _computed_powers(length)


def _computed_powers(length: int) -> Words:
    powers = np.full(length, 31, np.uint32)
    powers[:1] = 1
    np.cumprod(powers, out=powers, dtype=np.uint32)
    return powers[::-1]


def _hash(text: bytes) -> int:
    return java_hash(decode_as_java(text)) & 0xFFFFFFFF
