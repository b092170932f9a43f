"""Keys of many messages against a plain reading of one after the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.protocol.hashes import java_hash
from pymq.protocol.index_keys import index_keys, key_hash
from pymq.protocol.java_hashes import java_hashes, powers_of_31, unit_counts
from pymq.protocol.message import find_property
from pymq.protocol.record import FIXED_BYTES, NewRecord, encode_record, topic_field
from pymq.protocol.record_batch import RecordColumns, read_columns

HOST = bytes(8)


def columns(messages: list[tuple[str, bytes]], sys_flag: int = 0) -> RecordColumns:
    """Return records of (topic, properties)."""
    data = b""
    for topic, properties in messages:
        new = NewRecord(topic, 0, b"UNIQ_KEY\x01in a body", properties, HOST, 0, sys_flag=sys_flag)
        field = topic_field(topic.encode())
        data += b"".join(
            encode_record(
                new,
                field,
                size=FIXED_BYTES + len(new.body) + len(field) + len(properties),
                queue_offset=0,
                physical_offset=len(data),
                store_timestamp=0,
                store_host=HOST,
            )
        )
    return read_columns(data)


def plain(messages: list[tuple[str, bytes]]) -> list[tuple[int, int]]:
    """Return (row, hash) as RocketMQ's loop makes them."""
    found = []
    for row, (topic, properties) in enumerate(messages):
        unique = find_property(properties, b"UNIQ_KEY")
        keys = [] if unique is None else [unique]
        keys += (find_property(properties, b"KEYS") or b"").split(b" ")
        texts = [key.decode("utf-8", "replace") for key in keys if key]
        found += [(row, key_hash(topic, text)) for text in texts]
    return found


def pairs(messages: list[tuple[str, bytes]]) -> list[tuple[int, int]]:
    found = index_keys(columns(messages))
    assert found.key_hash.dtype == np.int32
    return list(zip(found.row.tolist(), found.key_hash.tolist(), strict=True))


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [
        ("TopicTest", "k0", 2746023),
        ("TopicTest", "dup", 85122237),
        ("TopicTest", "UNIQ0000000000000000000000000010", 0x7AABEBDE),  # hash is negative
    ],
)
def test_known_hashes(topic: str, key: str, expected: int) -> None:
    assert key_hash(topic, key) == expected
    assert pairs([(topic, b"KEYS\x01" + key.encode())]) == [(0, expected)]


def test_the_smallest_hash_counts_as_zero() -> None:
    part = _key_with_hash("T#", -(1 << 31))
    assert java_hash("T#" + part) == -(1 << 31)
    assert key_hash("T", part) == 0
    assert pairs([("T", b"KEYS\x01" + part.encode())]) == [(0, 0)]


def _key_with_hash(prefix: str, wanted: int) -> str:
    """Return a text of seven characters that brings a prefix to a hash."""
    # Seven digits to the base 31 reach every number of 32 bits.
    rest = wanted - java_hash(prefix) * 31**7 - sum(ord("!") * 31**place for place in range(7))
    digits = [rest % (1 << 32) // 31**place % 31 for place in range(6, -1, -1)]
    return "".join(chr(ord("!") + digit) for digit in digits)


TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02\x00"), min_size=1, max_size=12
)
KEY_TEXTS = st.lists(TEXTS | st.just(""), max_size=4).map(" ".join)
PROPERTIES = st.lists(
    st.tuples(st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "K", "XKEYS"]), TEXTS | KEY_TEXTS),
    max_size=5,
).flatmap(
    lambda entries: st.sampled_from(["", "\x02"]).map(
        lambda end: "\x02".join(f"{name}\x01{value}" for name, value in entries) + end
    )
)
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["T", "TopicTest", "%RETRY%g", "Grüße", "x" * 127]),
        PROPERTIES.map(str.encode),
    ),
    min_size=1,
    max_size=20,
)


@given(MESSAGES)
def test_any_messages(messages: list[tuple[str, bytes]]) -> None:
    assert pairs(messages) == plain(messages)


@given(st.lists(PROPERTIES.map(str.encode), min_size=1, max_size=20))
def test_messages_of_one_topic(texts: list[bytes]) -> None:
    messages = [("TopicTest", text) for text in texts]
    assert pairs(messages) == plain(messages)


def test_bytes_that_are_no_text() -> None:
    messages = [("T", b"KEYS\x01\xff\xfe a\xc3"), ("T", b"UNIQ_KEY\x01\xf0\x9f\x98\x80")]
    assert pairs(messages) == plain(messages)


@pytest.mark.parametrize(("sys_flag", "count"), [(0, 1), (0x4, 1), (0x8, 1), (0xC, 0)])
def test_rolled_back_messages_have_no_keys(sys_flag: int, count: int) -> None:
    found = index_keys(columns([("T", b"KEYS\x01k")], sys_flag))
    assert len(found.row) == len(found.key_hash) == count


@given(st.lists(st.text(max_size=300), min_size=1, max_size=20))
def test_hashes_of_any_texts(texts: list[str]) -> None:
    encoded = [text.encode("utf-8", "replace") for text in texts]
    texts = [text.decode() for text in encoded]
    data = np.frombuffer(b"".join(encoded), np.uint8)
    lengths = np.array(list(map(len, encoded)))
    starts = np.cumsum(lengths) - lengths
    assert java_hashes(data, starts, lengths).view(np.int32).tolist() == list(map(java_hash, texts))
    units = [len(text.encode("utf-16-be")) // 2 for text in texts]
    assert unit_counts(data, starts, lengths).tolist() == units
    powers = powers_of_31(np.array(units)).tolist()
    assert powers == [pow(31, count, 1 << 32) for count in units]
