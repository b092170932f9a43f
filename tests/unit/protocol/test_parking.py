"""What a message keeps while it waits in a system topic, and when it leaves it."""

import dataclasses
import random

import pytest

from pymq.protocol.message import decode_properties
from pymq.protocol.parking import copy_of, park, real_place, with_properties
from pymq.protocol.record import (
    NewRecord,
    decode_record,
    encode_record,
    pack_host,
    record_size,
    topic_field,
)
from pymq.protocol.tag_codes import tag_code

V4 = pack_host("10.0.0.1", 5000)
V6 = pack_host("2001:db8::1", 5000)


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        (b"", {}, b""),
        (b"", {"A": "1"}, b"A\x011\x02"),
        (b"A\x011\x02B\x012\x02", {"A": "3"}, b"B\x012\x02A\x013\x02"),
        (b"A\x011\x02B\x012", {"B": None}, b"A\x011\x02"),
        (b"A\x011\x02A\x012\x02", {"A": None}, b""),
        (b"A\x01x\x01y\x02", {"x": None}, b"A\x01x\x01y\x02"),  # a value with a mark in it
        (b"AB\x011\x02", {"A": None, "B": None}, b"AB\x011\x02"),
        (b"A\x01\xff\x02", {"B": "2"}, b"A\x01\xff\x02B\x012\x02"),  # not UTF-8
        (b"A\x011\x02__CRC32#\x010123456789\x02", {"B": "2"}, b"A\x011\x02B\x012\x02"),
        (b"A\x01\x02", {"A": "1"}, b"A\x011\x02"),
    ],
)
def test_changed_properties(
    before: bytes, changes: dict[str, str | None], after: bytes
) -> None:
    assert with_properties(before, changes) == after


def test_changes_mean_what_a_dictionary_means(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        names = [rng.choice("ABCD") for _ in range(rng.randrange(6))]
        text = "".join(f"{name}\x01{rng.choice(['', '1', 'zwei'])}\x02" for name in names)
        changes = {rng.choice("ABCD"): rng.choice([None, "neu"]) for _ in range(rng.randrange(4))}
        expected = decode_properties(text.encode())
        for name, value in changes.items():
            expected.pop(name, None)
            if value is not None:
                expected[name] = value
        assert decode_properties(with_properties(text.encode(), changes)) == expected


def test_a_parked_message_knows_its_place() -> None:
    sent = NewRecord("Orders", 3, b"body", b"TAGS\x01a\x02REAL_TOPIC\x01Other\x02", V4, 17, flag=5)
    parked = park(sent, "WAITING", 7, {"DELAY": "18"})
    assert (parked.topic, parked.queue_id) == ("WAITING", 7)
    assert decode_properties(parked.properties) == {
        "TAGS": "a",
        "REAL_TOPIC": "Orders",
        "REAL_QID": "3",
        "DELAY": "18",
    }
    assert real_place(parked.properties) == ("Orders", 3)
    same = dataclasses.replace(
        parked, topic=sent.topic, queue_id=sent.queue_id, properties=sent.properties
    )
    assert same == sent


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"REAL_TOPIC\x01T\x02",
        b"REAL_QID\x010\x02",
        b"REAL_TOPIC\x01T\x02REAL_QID\x01-1\x02",
        b"REAL_TOPIC\x01T\x02REAL_QID\x01x\x02",
        b"REAL_TOPIC\x01T\x02REAL_QID\x01" + b"1" * 5000 + b"\x02",
        b"REAL_TOPIC\x01\x02REAL_QID\x010\x02",
    ],
)
def test_a_message_that_was_not_parked_has_no_other_place(properties: bytes) -> None:
    assert real_place(properties) is None


@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("store", [V4, V6])
def test_a_copy_is_the_same_message_elsewhere(born: bytes, store: bytes) -> None:
    sent = NewRecord("A", 1, b"\0\1body", b"TAGS\x01t\x02", born, 17, 5, 0x9, 4, 99, tag_code("t"))
    size = record_size(len(sent.body), 2, len(sent.properties), len(born) + len(store))
    stored = decode_record(
        b"".join(
            encode_record(
                sent,
                topic_field(b"A"),
                size=size,
                queue_offset=1,
                physical_offset=2,
                store_timestamp=3,
                store_host=store,
            )
        )
    )
    copy = copy_of(stored, "B", 2)
    assert copy == dataclasses.replace(
        sent, topic="B", queue_id=2, prepared_transaction_offset=0
    )
