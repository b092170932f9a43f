"""Digests of batches: equal for the same bodies in any order and division, else not."""

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_pymq.sink.digest import Digest


def of(*bodies: bytes) -> Digest:
    return Digest.of(pa.array(bodies, pa.binary()))


@given(st.lists(st.binary(max_size=40), max_size=20), st.randoms(use_true_random=False))
def test_order_and_division_do_not_matter(bodies: list[bytes], chance: random.Random) -> None:
    shuffled = pa.array(chance.sample(bodies, len(bodies)), pa.binary())
    cut = chance.randint(0, len(bodies))
    assert Digest.of(shuffled[:cut]) + Digest.of(shuffled[cut:]) == of(*bodies)


@pytest.mark.parametrize(
    ("these", "those"),
    [
        ([b"12"], [b"21"]),
        ([b"1", b"4"], [b"2", b"3"]),
        ([b"a", b"b"], [b"ab", b""]),
        ([b"\0", b""], [b"\0\0"]),
        # Two rows have exchanged their halves.
        ([b"a1", b"b2"], [b"a2", b"b1"]),
    ],
)
def test_other_rows(these: list[bytes], those: list[bytes]) -> None:
    assert of(*these) != of(*those)
    assert of(*these).checksum != of(*those).checksum


def test_as_text() -> None:
    assert str(of(b"one", b"two") + of(b"three")).startswith("3:11:")
    assert str(Digest()) == "0:0:0"
