"""Java's string hash and the 31-bit CRC, against values computed by Java."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.protocol.hashes import crc31, java_hash


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("d", 100),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("标签", 857175),
        ("polygenelubricants", -2147483648),
        ("TopicTest#k0", 2746023),  # index keys of a store that 4.9.8 wrote
        ("TopicTest#dup", 85122237),
        ("TopicTest#UNIQ0000000000000000000000000010", -2058087390),
        ("😀", 31 * 0xD83D + 0xDE00),  # two UTF-16 units
    ],
)
def test_java_hash(text: str, value: int) -> None:
    assert java_hash(text) == value


@given(st.text(max_size=50))
def test_java_hash_is_the_definition(text: str) -> None:
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]
    expected = sum(unit * 31**power for power, unit in enumerate(reversed(units)))
    assert (java_hash(text) - expected) % (1 << 32) == 0
    assert -(1 << 31) <= java_hash(text) < 1 << 31


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"", 0), (b"hello", 0x3610A686), (b"Hello 0", 0x6F55306D)],
)
def test_crc31(data: bytes, value: int) -> None:
    assert crc31(data) == value
    assert crc31(memoryview(data)) == value


@given(st.binary(max_size=300))
def test_crc31_is_the_crc_of_zlib(data: bytes) -> None:
    assert crc31(data) == zlib.crc32(data) & 0x7FFFFFFF
