"""Vectorised properties against the parser of one text."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.protocol.message import decode_properties, find_property
from pymq.protocol.property_index import PropertyIndex
from pymq.protocol.record_batch import equal_at

NAMES = (b"TAGS", b"KEYS", b"UNIQ_KEY", b"a", b"abc")


def index_of(texts: list[bytes]) -> PropertyIndex:
    starts = np.cumsum([0, *map(len, texts)])
    return PropertyIndex(np.frombuffer(b"".join(texts), np.uint8), starts)


def maps_of(index: PropertyIndex) -> list[dict[str, str]]:
    text = index.text.tobytes()
    entries = [
        (text[a:b].decode("utf-8", "replace"), text[c:d].decode("utf-8", "replace"))
        for a, b, c, d in zip(
            *index.entries[:4], strict=True
        )
    ]
    borders = index.entries.first_entry.tolist()
    return [dict(entries[a:b]) for a, b in zip(borders[:-1], borders[1:], strict=True)]


def check(texts: list[bytes]) -> None:
    index = index_of(texts)
    assert maps_of(index) == [decode_properties(text) for text in texts]
    for name in NAMES:
        found, start, end = index.find(name)
        values = [
            index.text[a:b].tobytes() if there else None
            for there, a, b in zip(found, start, end, strict=True)
        ]
        assert values == [find_property(text, name) for text in texts]
        # As cut_out demands: ascending, and no value before the end of the one before.
        borders = np.stack([start, end], axis=1).reshape(-1)
        assert (np.diff(borders) >= 0).all()


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [b""],
        [b"", b"", b""],
        [b"TAGS\x01A\x02"],
        [b"TAGS\x01A"],
        [b"TAGS\x01A", b"TAGS\x01B", b"", b"KEYS\x01k\x02TAGS\x01C"],
        [b"TAGS\x01A\x02", b"KEYS\x01k", b"", b"TAGS\x01B\x02UNIQ_KEY\x01u\x02", b""],
        [b"TAGS\x01A\x02TAGS\x01B\x02"],  # the later one counts
        [b"TAGS\x01\x02KEYS\x01k\x02", b"\x01v\x02a\x01b\x02"],  # no value, no name
        [b"TAGS\x01A\x01B\x02", b"KEYS\x01k\x02"],  # the first mark separates
        [b"TAGS\x01A\x02junk", b"junk\x02KEYS\x01k", b"\x02\x02a\x01b\x02", b"\x01", b"\x02"],
        [b"TAGS\x01A\x00B\x02", b"KEYS\x01k\x02"],
        [b"\x01", b"\x01\x01\x01", b"TAGS\x01A"],
        [b"abc\x01\xff\xfe\x02", "a\x01标签\x02".encode()],
    ],
)
def test_texts(texts: list[bytes]) -> None:
    check(texts)


@pytest.mark.parametrize("last_mark", [b"\x02", b""])
def test_texts_of_the_same_names(seed: int, last_mark: bytes) -> None:
    source = random.Random(seed)
    rows = [b"TAGS\x01%d\x02KEYS\x01%d\x02abc\x01x" % (i, 9**i) for i in range(9)]
    texts = [row + last_mark for row in rows]
    assert index_of(texts)._table is not None  # otherwise this tests something else
    check(texts)
    for old, new in (
        (b"KEYS", b"TAGS"),  # one name more than once
        (b"TAGS", b"KEYS"),
        (b"KEYS", b"keys"),
        (b"KEYS", b"UNIQ_KEY"),
        (b"abc", b"TAGS"),
        (b"abc", b""),
        (b"\x01x", b"\x01"),
        (b"\x02abc\x01x", b""),
        (b"TAGS", b"a"),
    ):
        check([text.replace(old, new) for text in texts])
        one = source.randrange(len(texts))
        check([text.replace(old, new) if i == one else text for i, text in enumerate(texts)])


pieces = st.sampled_from([*NAMES, b"", b"x", b"value", b"\x00", b"\x01", b"\x02", "é".encode()])
any_text = st.lists(pieces, max_size=12).map(b"".join)


@given(st.lists(any_text, max_size=8))
def test_any_texts(texts: list[bytes]) -> None:
    check(texts)


def test_many_regular_texts(seed: int) -> None:
    source = random.Random(seed)
    texts = []
    for _ in range(500):
        chosen = source.sample(NAMES, source.randrange(len(NAMES) + 1))
        text = b"".join(b"%b\x01%d\x02" % (name, source.randrange(10**6)) for name in chosen)
        texts.append(text[: len(text) - source.randrange(2)] if text else text)
    check(texts)


@given(st.binary(min_size=1, max_size=20), st.data())
def test_equal_at(text: bytes, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, len(text)))
    at = data.draw(st.integers(0, len(text) - length))
    wanted = data.draw(st.sampled_from([text[at : at + length], bytes(length)]))
    positions = np.arange(len(text) - length + 1)
    result = equal_at(np.frombuffer(text, np.uint8), positions, wanted)
    assert result.tolist() == [text[p : p + length] == wanted for p in positions]


def test_equal_at_no_position_of_data_that_is_too_short() -> None:
    """No row has a tag of that length, and all properties together are shorter."""
    for size in (0, 2):
        nowhere = np.empty(0, np.int64)
        assert equal_at(np.zeros(size, np.uint8), nowhere, b"longer than that").tolist() == []
