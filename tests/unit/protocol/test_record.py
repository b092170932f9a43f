"""Stored records: bytes of real brokers both ways, round trips, and bytes that are none."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import CorruptRecord, LocalProtocolError
from pymq.protocol.hashes import crc31
from pymq.protocol.record import (
    MAGIC_V1,
    MAGIC_V2,
    OVERHEAD_BYTES,
    NewRecord,
    Record,
    decode_record,
    decode_records,
    encode_blank,
    encode_record,
    host_flags,
    offset_message_id,
    pack_host,
    parse_offset_message_id,
    record_place,
    record_properties,
    record_size,
    topic_field,
    unpack_host,
)

# The message specification's vector.
HELLO = bytes.fromhex(
    "00000074 daa320a7 3610a686 00000003 00000000 000000000000000a 0000000000001000 00000000"
    "0000018bcfe56800 0a0000010000c350 0000018bcfe56805 0a00000200002a9f 00000000"
    "0000000000000000 00000005 68656c6c6f 06 546f70696341 000e 6101310254414753015461674102"
)
# Written by RocketMQ 4.9.8 (the store specification's vector): no U+0002 at the end.
STORED = bytes.fromhex(
    "000000aa daa320a7 6f55306d 00000000 00000007 0000000000000000 0000000000000000 00000000"
    "0000018bcfe56800 0a010203 000015b3 000001a1f982784d 7f000001 00007ca7 00000000"
    "0000000000000000 00000007 48656c6c6f2030 09 546f70696354657374 003f"
) + (b"KEYS\x01k0 dup\x02UNIQ_KEY\x01UNIQ0000000000000000000000000010\x02TAGS\x01TagA")

VECTORS = [
    (
        NewRecord(
            "TopicA",
            3,
            b"hello",
            b"a\x011\x02TAGS\x01TagA\x02",
            pack_host("10.0.0.1", 50000),
            1700000000000,
        ),
        {
            "queue_offset": 10,
            "physical_offset": 4096,
            "store_timestamp": 1700000000005,
            "store_host": pack_host("10.0.0.2", 10911),
        },
        HELLO,
        "0A00000200002A9F0000000000001000",
    ),
    (
        NewRecord(
            "TopicTest",
            0,
            b"Hello 0",
            b"KEYS\x01k0 dup\x02UNIQ_KEY\x01UNIQ0000000000000000000000000010\x02TAGS\x01TagA",
            pack_host("10.1.2.3", 5555),
            1700000000000,
            flag=7,
        ),
        {
            "queue_offset": 0,
            "physical_offset": 0,
            "store_timestamp": 0x1A1F982784D,
            "store_host": pack_host("127.0.0.1", 31911),
        },
        STORED,
        "7F00000100007CA70000000000000000",
    ),
]


def encoded(new: NewRecord, **place: object) -> bytes:
    field = topic_field(new.topic.encode())
    hosts = len(new.born_host) + len(place["store_host"])  # type: ignore[arg-type]
    size = record_size(len(new.body), len(field), len(new.properties), hosts)
    parts = encode_record(new, field, size=size, **place)  # type: ignore[arg-type]
    assert sum(map(len, parts)) == size
    return b"".join(parts)


@pytest.mark.parametrize(("new", "place", "raw", "message_id"), VECTORS)
class TestVectors:
    def test_encode(self, new: NewRecord, place: dict, raw: bytes, message_id: str) -> None:
        assert encoded(new, **place) == raw
        assert len(raw) == OVERHEAD_BYTES + len(new.body) + len(new.topic) + len(new.properties)

    def test_decode(self, new: NewRecord, place: dict, raw: bytes, message_id: str) -> None:
        for buffer, position in ((raw, 0), (memoryview(b"xx" + raw + b"yy"), 2)):
            record = decode_record(buffer, position, verify=True)
            for name in ("topic", "queue_id", "body", "properties", "flag", "sys_flag"):
                assert getattr(record, name) == getattr(new, name), name
            for name, value in place.items():
                assert getattr(record, name) == value, name
            assert record.born_host == new.born_host
            assert record.born_timestamp == new.born_timestamp
            assert record.body_crc == crc31(new.body)
            assert record.size == len(raw)
            assert offset_message_id(record.store_host, record.physical_offset) == message_id

    def test_every_truncation(
        self, new: NewRecord, place: dict, raw: bytes, message_id: str
    ) -> None:
        for size in range(len(raw)):
            with pytest.raises(CorruptRecord):
                decode_record(raw[:size])

    def test_verify(self, new: NewRecord, place: dict, raw: bytes, message_id: str) -> None:
        body_at = raw.index(bytes(new.body))
        damaged = raw[:body_at] + b"?" + raw[body_at + 1 :]
        assert decode_record(damaged).size == len(raw)
        with pytest.raises(CorruptRecord, match="CRC"):
            decode_record(damaged, verify=True)


def test_run_of_records() -> None:
    assert [r.topic for r in decode_records(HELLO + STORED + HELLO)] == [
        "TopicA",
        "TopicTest",
        "TopicA",
    ]
    assert list(decode_records(b"")) == []
    with pytest.raises(CorruptRecord):
        list(decode_records(HELLO + STORED[:-1]))
    with pytest.raises(CorruptRecord):
        list(decode_records(HELLO + b"\0" * 8))


@pytest.mark.parametrize("more", [None, "::1"])
@pytest.mark.parametrize("topic_bytes", [126, 127, 128, 255])
def test_topics_above_127_bytes_have_two_bytes_of_length(
    topic_bytes: int, more: str | None
) -> None:
    topic = b"%RETRY%" + b"g" * (topic_bytes - 7)
    new, place = VECTORS[0][:2]
    born_host = new.born_host if more is None else pack_host(more, 9)
    short = encoded(replace(new, born_host=born_host), **place)
    at = short.index(b"\x06TopicA")
    length = topic_bytes.to_bytes(2 if topic_bytes > 127 else 1, "big")
    raw = short[:at] + length + topic + short[at + 7 :]
    magic = MAGIC_V2 if topic_bytes > 127 else MAGIC_V1
    raw = len(raw).to_bytes(4, "big") + magic.to_bytes(4, "big") + raw[8:]
    assert encoded(replace(new, topic=topic.decode(), born_host=born_host), **place) == raw
    record = decode_record(raw, verify=True)
    assert record.topic == topic.decode()
    assert record.properties == new.properties == record_properties(raw, 0, len(raw))[2]


addresses = st.ip_addresses().map(str)
hosts = st.builds(pack_host, addresses, st.integers(0, 65535))
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
topics = st.text("abcXYZ019%|_-", min_size=1, max_size=255)
FREE_FLAGS = ~0x30  # the address bits follow from the hosts


@given(
    new=st.builds(
        NewRecord,
        topic=topics,
        queue_id=int32,
        body=st.binary(max_size=60),
        properties=st.binary(max_size=60),
        born_host=hosts,
        born_timestamp=int64,
        flag=int32,
        sys_flag=int32.map(lambda flags: flags & FREE_FLAGS),
        reconsume_times=int32,
        prepared_transaction_offset=int64,
    ),
    queue_offset=int64,
    physical_offset=int64,
    store_timestamp=int64,
    store_host=hosts,
)
def test_round_trip(new: NewRecord, store_host: bytes, **place: int) -> None:
    raw = encoded(new, store_host=store_host, **place)
    assert decode_record(raw, verify=True) == Record(
        new.topic,
        new.queue_id,
        place["queue_offset"],
        place["physical_offset"],
        bytes(new.body),
        new.properties,
        new.flag,
        new.sys_flag | host_flags(new.born_host, store_host),
        new.born_timestamp,
        new.born_host,
        place["store_timestamp"],
        store_host,
        new.reconsume_times,
        new.prepared_transaction_offset,
        crc31(new.body),
        len(raw),
    )
    found = record_properties(raw, 0, len(raw))
    assert found == (new.queue_id, place["queue_offset"], new.properties)


@given(st.binary(max_size=250), st.integers(0, 20))
def test_random_bytes_raise_only_our_error(raw: bytes, position: int) -> None:
    for buffer in (raw, raw[:4] + HELLO[4:8] + raw[8:]):  # the second passes the magic
        for read in (decode_record, record_place):
            try:
                read(buffer, position)
            except CorruptRecord:
                pass
        try:
            record_properties(buffer, position, len(buffer))
        except CorruptRecord:
            pass


def test_properties_are_found_without_the_rest() -> None:
    for raw in (HELLO, STORED):
        record = decode_record(raw)
        found = record.queue_id, record.queue_offset, record.properties
        assert record_properties(raw, 0, len(raw)) == found
        assert record_properties(b"before" + raw + b"after", 6, 6 + len(raw)) == found
        for end in (0, 40, 90, len(raw) - 1, len(raw) + 1):
            with pytest.raises(CorruptRecord):
                record_properties(raw + b"\0", 0, end)


def test_the_place_of_a_record() -> None:
    assert record_place(b"..." + HELLO + b"...", 3) == (len(HELLO), 0x1000)
    for damaged in (HELLO[:-1], HELLO[:40], encode_blank(116) + bytes(108), bytes(200)):
        with pytest.raises(CorruptRecord):
            record_place(damaged, 0)


def test_damaged_records_raise_only_our_error(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5_000):
        damaged = bytearray(chance.choice((HELLO, STORED)))
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            decode_record(bytes(damaged), verify=True)
        except CorruptRecord:
            pass


@pytest.mark.parametrize(
    ("at", "value", "match"),
    [
        (0, "00000075", "expected 91..116"),  # one byte more than there is
        (0, "00000073", "fields end at 116"),
        (0, "ffffffff", "expected 91..116"),
        (0, "00000000", "expected 91"),
        (4, "cbd43194", "magic"),  # padding is no record
        (4, "00000000", "magic"),
        (84, "ffffffff", "body of"),
        (84, "00000006", "."),
        (93, "ff", "."),
        (100, "ffff", "."),
    ],
)
def test_sizes_that_do_not_fit(at: int, value: str, match: str) -> None:
    raw = bytes.fromhex(value)
    with pytest.raises(CorruptRecord, match=match):
        decode_record(HELLO[:at] + raw + HELLO[at + len(raw) :])


def test_topic_must_be_utf8() -> None:
    with pytest.raises(CorruptRecord):
        decode_record(HELLO.replace(b"TopicA", b"Topic\xff"))


def test_blank() -> None:
    assert encode_blank(0x7B) == bytes.fromhex("0000007b cbd43194")


@pytest.mark.parametrize(
    ("address", "port", "packed", "back"),
    [
        ("10.0.0.1", 50000, "0a000001 0000c350", "10.0.0.1"),
        ("::1", 1, "00000000000000000000000000000001 00000001", "::1"),
        ("::ffff:10.0.0.1", 1, "0a000001 00000001", "10.0.0.1"),
        ("fe80::1%eth0", 9, "fe800000000000000000000000000001 00000009", "fe80::1"),
    ],
)
def test_hosts(address: str, port: int, packed: str, back: str) -> None:
    raw = pack_host(address, port)
    assert raw == bytes.fromhex(packed)
    assert unpack_host(raw) == (back, port)


@given(hosts, st.integers(0, (1 << 63) - 1))
def test_offset_message_ids(host: bytes, physical_offset: int) -> None:
    text = offset_message_id(host, physical_offset)
    assert text == text.upper()
    assert len(text) in (32, 56)
    assert parse_offset_message_id(text) == (host, physical_offset)


@pytest.mark.parametrize("text", ["", "0A", "x" * 32, "0A00000200002A9F00000000000010", "é" * 32])
def test_texts_that_are_no_offset_message_id(text: str) -> None:
    with pytest.raises(LocalProtocolError, match="message id"):
        parse_offset_message_id(text)


def test_bodies_may_be_views() -> None:
    new, place, raw, _ = VECTORS[0]
    assert encoded(replace(new, body=memoryview(b"hello")), **place) == raw
