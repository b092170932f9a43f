"""Properties in the same columns: what is found there is what a reader of each message finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.protocol.alike_properties import property_rows, value_columns

COUNT = 6


def rows_of(texts: list[bytes]) -> np.ndarray:
    data = np.frombuffer(b"".join(texts), np.uint8)
    starts = np.cumsum([0, *map(len, texts)])
    rows = property_rows(data, starts[:-1], starts[1:])
    assert rows is not None
    return rows


def entries(text: bytes) -> dict[bytes, bytes]:
    """Return the properties of a message, read as ``parse_properties`` does."""
    pieces = (piece.partition(b"\x01") for piece in text.split(b"\x02"))
    return {name: value for name, _, value in pieces if name and value}


def check(texts: list[bytes]) -> bool:
    """Check what is found; return whether anything is."""
    rows = rows_of(texts)
    found = value_columns(rows)
    if found is None:
        return False
    for row, text in zip(rows, texts, strict=True):
        read = {name: row[start:end].tobytes() for name, (start, end) in found.items()}
        assert read == entries(text)
    return True


@pytest.mark.parametrize(
    "text",
    [
        b"KEYS\x01%d\x02TAGS\x01a\x02",
        b"KEYS\x01%d",  # as 4.x clients end
        b"TAGS\x01a\x02TAGS\x01%d\x02",
        b"TAGS\x01%d\x02TAGS\x01\x02",
        b"TAGS\x01%d\x02nothing\x02\x02\x01x\x02",
        "TAGS\x01é%d\x02".encode(),
    ],
)
def test_values_that_differ_are_in_the_same_columns(text: bytes) -> None:
    assert check([text % number for number in range(COUNT)])


@pytest.mark.parametrize(
    "other",
    [
        b"TAGS\x01abc\x02",  # a name that differs
        b"KEYS\x01a\x02c\x02",  # a separator in a value
        b"KEYS\x01a\x01c\x02",
        b"KEYS\x02abc\x02",
        b"KEYS\x01abc\x01",
        b"KEYSaabc\x02",
    ],
)
def test_one_message_that_is_not_alike_is_noticed(other: bytes) -> None:
    for at in range(COUNT):
        texts = [b"KEYS\x01abc\x02"] * COUNT
        texts[at] = other
        assert not check(texts)


def test_separators_that_make_up_for_each_other_are_noticed() -> None:
    assert not check([b"A\x01b\x01c\x02", b"A\x01b\x02c\x02", b"A\x01bxc\x02"] * 2)


def test_other_lengths_and_few_messages_are_no_rows() -> None:
    data = np.zeros(20, np.uint8)
    assert property_rows(data, np.arange(4), np.arange(4)) is None  # without properties
    assert property_rows(data, np.arange(4), np.array([1, 2, 3, 5])) is None
    assert property_rows(data, np.arange(2), np.arange(2) + 3) is None
    assert property_rows(data, np.array([], np.int64), np.array([], np.int64)) is None


PIECES = st.sampled_from([b"\x01", b"\x02", b"a", b"b", b"TAGS\x01", b"KEYS\x01k\x02"])


@given(st.lists(PIECES, min_size=1, max_size=6), st.data())
def test_random_texts_of_one_length(pieces: list[bytes], data: st.DataObject) -> None:
    text = b"".join(pieces)
    texts = [text] * COUNT
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        row = data.draw(st.integers(0, COUNT - 1))
        byte = data.draw(st.sampled_from([b"\x01", b"\x02", b"x"]))
        texts[row] = texts[row][:at] + byte + texts[row][at + 1 :]
    check(texts)
