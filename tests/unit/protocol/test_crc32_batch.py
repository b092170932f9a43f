"""Checksums of many pieces are those of each piece."""

import random
from zlib import crc32

import numpy as np
import pytest

from pymq.protocol.crc32_batch import crc32_each


@pytest.mark.parametrize("size", [0, 1, 7, 100, 600, 1_535, 1_536, 5_000, 200_000])
@pytest.mark.parametrize("count", [0, 1, 2, 3_000])
@pytest.mark.parametrize("is_alike", [True, False])
def test_it_is_that_of_each(size: int, count: int, is_alike: bool, seed: int) -> None:
    dice = random.Random(f"{seed} {size} {count}")
    count = min(count, 4_000_000 // (size + 1))
    lengths = [size if is_alike else dice.randint(size // 2, size) for _ in range(count)]
    gaps = [dice.randrange(30) for _ in range(count)]
    starts = np.cumsum([0, *map(sum, zip(gaps, lengths, strict=True))])[:-1] + gaps
    ends = starts + lengths
    text = dice.randbytes(int(ends[-1]) + 5 if count else 0)
    found = crc32_each(np.frombuffer(text, np.uint8), starts, ends)
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    assert found.tolist() == [crc32(text[start:end]) for start, end in pairs]
