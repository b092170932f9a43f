"""Bloom filters, against what RocketMQ 5.3.3 computes.

The vectors were made by its ``BloomFilter`` in a JVM; ``tests/interop/test_queue_extensions.py``
compares many more, with 4.9.7, too.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import LocalProtocolError
from pymq.filter.bloom import BloomFilter

DEFAULT = BloomFilter()
LARGE = BloomFilter(error_percent=1, name_count=1000)
NAMES = ("CG#TopicTest", "other#TopicTest")


@pytest.mark.parametrize(
    ("error_percent", "name_count", "hash_count", "bit_count"),
    [(20, 32, 3, 112), (10, 128, 4, 616), (1, 1000, 7, 9592), (99, 1, 1, 8), (60, 3, 1, 8)],
)
def test_sizes(error_percent: int, name_count: int, hash_count: int, bit_count: int) -> None:
    made = BloomFilter(error_percent=error_percent, name_count=name_count)
    assert (made.hash_count, made.bit_count) == (hash_count, bit_count)


@pytest.mark.parametrize(
    ("name", "positions", "positions_of_large"),
    [
        ("", (0, 0, 0), (0, 0, 0, 0, 0, 0, 0)),
        ("a", (94, 99, 7), (6598, 3419, 9351, 2477, 701, 1535, 1643)),
        ("CG#TopicTest", (109, 15, 3), (5149, 4231, 1395, 7985, 7774, 7444, 1936)),
        ("0123456789abcde", (87, 93, 12), (6543, 2565, 1412, 25, 3952, 7930, 3099)),
        ("0123456789abcdef", (11, 47, 60), (7227, 4263, 4116, 7080, 9139, 8832, 2204)),
        ("0123456789abcdef0", (60, 67, 74), (5116, 3715, 2314, 913, 9104, 7703, 3289)),
        ("0123456789abcdef" * 2, (63, 52, 102), (5415, 5076, 678, 8574, 8235, 7111, 2141)),
        ("%RETRY%group#%RETRY%group", (93, 83, 38), (8957, 3523, 1910, 7663, 7362, 3204, 6369)),
        ("Größe#世界 😀", (34, 42, 93), (3050, 9330, 8989, 2709, 6021, 9333, 3053)),
    ],
)
def test_positions(
    name: str, positions: tuple[int, ...], positions_of_large: tuple[int, ...]
) -> None:
    assert DEFAULT.positions(name) == positions
    assert LARGE.positions(name) == positions_of_large


def test_half_a_surrogate_pair_is_hashed_as_java_encodes_it() -> None:
    assert DEFAULT.positions("a\ud800b") == DEFAULT.positions("a?b")


def test_bit_map_vector() -> None:
    bits = DEFAULT.bit_map(map(DEFAULT.positions, NAMES))
    assert bits == bytes.fromhex("0880000440000000000000800020")
    assert all(DEFAULT.is_hit(bits, DEFAULT.positions(name)) for name in NAMES)
    assert not DEFAULT.is_hit(bits, DEFAULT.positions("third#TopicTest"))
    assert DEFAULT.bit_map([]) == bytes(14)


@given(st.sets(st.text(max_size=40), max_size=32), st.text(max_size=40))
def test_who_was_added_is_hit_and_most_others_are_not(names: set[str], other: str) -> None:
    bits = LARGE.bit_map(map(LARGE.positions, names))
    assert all(LARGE.is_hit(bits, LARGE.positions(name)) for name in names)
    union = {position for name in names for position in LARGE.positions(name)}
    assert LARGE.is_hit(bits, LARGE.positions(other)) == union.issuperset(LARGE.positions(other))
    assert sum(byte.bit_count() for byte in bits) == len(union)


@pytest.mark.parametrize(("error_percent", "name_count"), [(0, 32), (100, 32), (20, 0)])
def test_sizes_out_of_range(error_percent: int, name_count: int) -> None:
    with pytest.raises(LocalProtocolError, match="expected"):
        BloomFilter(error_percent=error_percent, name_count=name_count)


def test_a_bit_map_of_another_filter() -> None:
    with pytest.raises(LocalProtocolError, match="bit map of 14 B, expected 1199 B"):
        LARGE.is_hit(DEFAULT.bit_map([]), LARGE.positions("a"))
