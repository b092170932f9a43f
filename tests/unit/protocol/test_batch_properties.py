"""Properties of a batch as a whole, against what a reader of each message finds."""

import random

import numpy as np
import pytest

from pymq.protocol.batch_properties import BatchProperties
from pymq.protocol.message import decode_properties

NAMES = frozenset({b"DELAY", b"TRAN_MSG", b"TIMER_DELAY_SEC"})
PIECES = [
    *(b"DELAY\x01", b"DELAY", b"TRAN_MSG\x01true", b"TIMER_DELAY_SEC\x01", b"TIMER\x01x"),
    *(b"\x01", b"\x02", b"a", b"Dx\x01y\x02", b"TAGS\x01t\x02", b"KEYS\x01k\x02", b"\xc3\xa9"),
]
#: Between the properties of two messages: these are put together before they are searched.
FAR = b"-\x02DELAY\x013\x02TAGS\x01t" * 20


def texts_of(texts: list[bytes], between: bytes) -> BatchProperties:
    data = between + b"".join(text + between for text in texts)
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = np.cumsum(lengths + len(between)) - lengths
    return BatchProperties(np.frombuffer(data, np.uint8), starts, starts + lengths)


def check(texts: list[bytes], between: bytes) -> None:
    found = texts_of(texts, between).rows_with(NAMES)
    wanted = {name.decode() for name in NAMES}
    for name in (b"KEYS", b"TAGS"):
        there = any(part.startswith(name + b"\x01") for one in texts for part in one.split(b"\x02"))
        assert texts_of(texts, between).has(name) == there
    expected = [
        (row, properties)
        for row, properties in enumerate(map(decode_properties, texts))
        if wanted & properties.keys()
    ]
    assert found == expected


@pytest.mark.parametrize(
    "texts",
    [
        [b""],
        [b"DELAY\x013"],
        [b"TAGS\x01a\x02"] * 4,
        [b"TAGS\x01a\x02DELAY\x013\x02", b"KEYS\x01k"],
        [b"K\x01v\x02", b"DELAY\x013\x02"],
        [b"D", b"T\x01", b"TI", b"\x02"],
        [b"", b"", b"TRAN_MSG\x01true\x02"],
    ],
)
@pytest.mark.parametrize("between", [b"", b"\x02", b"\x02DELAY\x013\x02", b"\x01" * 91, FAR])
def test_special_properties_are_found_where_they_are(texts: list[bytes], between: bytes) -> None:
    check(texts, between)


def test_random_texts(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1000):
        count = rng.randrange(1, 9)
        texts = [b"".join(rng.choices(PIECES, k=rng.randrange(5))) for _ in range(count)]
        check(texts, FAR * rng.randrange(2) + b"".join(rng.choices(PIECES, k=rng.randrange(3))))
