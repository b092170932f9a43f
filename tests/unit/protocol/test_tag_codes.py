"""Tag codes of many messages, against the hash of one tag."""

import random

import numpy as np
import pytest

from pymq.protocol.batch_properties import BatchProperties
from pymq.protocol.hashes import java_hash
from pymq.protocol.message import find_property
from pymq.protocol.tag_codes import tag_codes


def check(texts: list[bytes], between: bytes = b"") -> None:
    """Compare with what a reader of single messages finds."""
    data = b"".join(between + text for text in texts) + between
    lengths = np.array([len(text) for text in texts])
    starts = np.cumsum(lengths + len(between)) - lengths
    expected = []
    for text in texts:
        tag = find_property(text, b"TAGS")
        expected.append(java_hash(tag.decode("utf-8", "replace")) if tag else 0)
    found = tag_codes(BatchProperties(np.frombuffer(data, np.uint8), starts, starts + lengths))
    assert found.tolist() == expected


@pytest.mark.parametrize(
    "texts",
    [
        [b"TAGS\x01a\x02KEYS\x01k\x02"] * 3,  # all first and short: the fast way
        [b"TAGS\x01a\x02", b"TAGS\x01bb\x02", b"TAGS\x01\x02"],
        [b"TAGS\x01a", b"TAGS\x01bb"],
        [b"TAGS\x01first\x02TAGS\x01last\x02", b""],  # as many as texts, in one of them
        [b"TAGS\x01" + b"x" * 19 + b"\x02", b"TAGS\x01" + b"y" * 20 + b"\x02"],
        [b"TAGS\x01\xc3\xa9\x02", b"TAGS\x01e\x02"],
        [b"TAGS\x01a\x02", b"KEYS\x01TAGS\x02"],
        [b"", b""],
        [b"TAGS", b"TAGS\x01"],
    ],
)
@pytest.mark.parametrize("between", [b"", b"-" * 91, b"TAGS\x01body\x02", b"TAGS\x01body\x02" * 99])
def test_tags_are_found(texts: list[bytes], between: bytes) -> None:
    check(texts, between)


def test_random_texts(seed: int) -> None:
    rng = random.Random(seed)
    pieces = [b"TAGS\x01", b"TAGS", b"\x01", b"\x02", b"a", b"xyz", b"\xc3\xa9", b"KEYS\x01k\x02"]
    for _ in range(500):
        texts = [
            rng.choice([b"", b"TAGS\x01t%d\x02" % rng.randrange(9)])
            + b"".join(rng.choices(pieces, k=rng.randrange(4)))
            for _ in range(rng.randrange(1, 9))
        ]
        check(texts, bytes(rng.choice([rng.randrange(40), 500])))
