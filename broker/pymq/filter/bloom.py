"""Bloom filters: which of the consumers with a filter of their own may want a message.

Each consumer owns a few positions in a row of bits, found by hashing its name ("group#topic").
When a message is stored, the bits of all consumers whose filter it passes are set: that is its
bit map, kept with its entry in the consume queue. A consumer with one of its bits unset surely
does not want the message; with all set it probably does.

For an error rate p (``error_percent`` / 100) and n consumers there are k = ceil(log(p) / log(1/2))
positions for each and m = n log2(1/p) log2(e) bits, rounded up to whole bytes. With h1 and h2 the
low and the high 32 bits of the hash's first 64, position i of 1..k is c mod m, where c is
h1 + i h2 in wrapping signed 32-bit arithmetic, with all bits flipped when negative. Bit b is
bit b mod 8 of byte b // 8, counted from the lowest. With RocketMQ's defaults, 20 % and 32
consumers, k = 3 and m = 112; "CG#TopicTest" has the positions 109, 15 and 3.

Source: RocketMQ BloomFilter, BitsArray; the hash is MurmurHash3 x64 128 with seed 0.
"""

import math
import struct
from collections.abc import Iterable, Sequence

from pymq.errors import LocalProtocolError

_BLOCK = struct.Struct("<QQ")
_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


class BloomFilter:
    """The positions of all names, and the bit maps made of them."""

    __slots__ = ("bit_count", "hash_count")

    def __init__(self, *, error_percent: int = 20, name_count: int = 32) -> None:
        """Choose the sizes.

        Args:
            error_percent: RocketMQ maxErrorRateOfBloomFilter, 1..99.
            name_count: names expected to share the bits, RocketMQ expectConsumerNumUseFilter.

        Raises:
            LocalProtocolError: a number is out of its range.
        """
        if not 1 <= error_percent <= 99:
            raise LocalProtocolError(f"error_percent={error_percent}, expected 1..99")
        if name_count < 1:
            raise LocalProtocolError(f"name_count={name_count}, expected at least 1")
        rate = error_percent / 100
        # Term by term as in Java: one rounding another way would move every position.
        bits = math.ceil(name_count * (math.log(1 / rate) / math.log(2)) * (1 / math.log(2)))
        self.hash_count = math.ceil(math.log(rate) / math.log(0.5))
        self.bit_count = -(-bits // 8) * 8

    def positions(self, name: str) -> tuple[int, ...]:
        """Return the ``hash_count`` positions of a name, each below ``bit_count``."""
        hashed = murmur3_64(name.encode("utf-8", "replace"))
        low, high = hashed & 0xFFFFFFFF, hashed >> 32
        sums = [(low + turn * high) & 0xFFFFFFFF for turn in range(1, self.hash_count + 1)]
        return tuple((~one & 0xFFFFFFFF if one >> 31 else one) % self.bit_count for one in sums)

    def bit_map(self, hits: Iterable[Sequence[int]]) -> bytes:
        """Return a bit map with the positions of all ``hits`` set, ``bit_count`` / 8 bytes."""
        bits = bytearray(self.bit_count // 8)
        for positions in hits:
            for position in positions:
                bits[position >> 3] |= 1 << (position & 7)
        return bytes(bits)

    def is_hit(self, bit_map: bytes, positions: Sequence[int]) -> bool:
        """Tell whether all positions are set.

        Raises:
            LocalProtocolError: the bit map is not one of this filter.
        """
        if len(bit_map) * 8 != self.bit_count:
            raise LocalProtocolError(
                f"bit map of {len(bit_map)} B, expected {self.bit_count // 8} B"
            )
        return all(bit_map[position >> 3] >> (position & 7) & 1 for position in positions)


def murmur3_64(data: bytes) -> int:
    """Return the first half of MurmurHash3 x64 128, seed 0, as an unsigned number."""
    low = high = 0
    whole = len(data) & ~15
    for first, second in _BLOCK.iter_unpack(data[:whole]):
        low ^= _mixed_low(first)
        low = (_rotated(low, 27) + high) * 5 + 0x52DCE729 & _MASK
        high ^= _mixed_high(second)
        high = (_rotated(high, 31) + low) * 5 + 0x38495AB5 & _MASK
    first, second = _BLOCK.unpack(data[whole:].ljust(16, b"\0"))
    low ^= _mixed_low(first) ^ len(data)
    high ^= _mixed_high(second) ^ len(data)
    low = low + high & _MASK
    high = high + low & _MASK
    return _final(low) + _final(high) & _MASK


def _mixed_low(block: int) -> int:
    return _rotated(block * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_high(block: int) -> int:
    return _rotated(block * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(value: int, count: int) -> int:
    return (value << count | value >> 64 - count) & _MASK


def _final(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
