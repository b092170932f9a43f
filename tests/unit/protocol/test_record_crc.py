"""Checksums of whole records: the rules of RocketMQ 5.2, and what a forged one cannot do."""

import random
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import CorruptRecord, RemoteProtocolError
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.message import decode_properties
from pymq.protocol.new_batch import NewBatch
from pymq.protocol.new_records import NewRecords, SharedFields
from pymq.protocol.preencoded_records import PreencodedRecords
from pymq.protocol.record import (
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    decode_record,
    decode_records,
    host_flags,
    pack_host,
)
from pymq.protocol.record_batch import read_columns
from pymq.protocol.record_crc import (
    RecordCrc,
    check_record_crc,
    cut_record_crc,
    encode_record_crc,
    ends_with_record_crc,
    with_record_crc_room,
)
from pymq.protocol.record_crc_batch import check_record_crcs, cut_record_crcs, encode_record_crcs

V4 = pack_host("10.1.2.3", 5555)
V6 = pack_host("2001:db8::1", 50001)
STORE_HOST = pack_host("127.0.0.1", 31911)
PLACE = {
    "physical_offset": 4096,
    "queue_offset": 7,
    "store_timestamp": 1700000000009,
    "store_host": STORE_HOST,
}
SHARED = SharedFields(
    topic="orders",
    queue_id=3,
    born_timestamp=1700000000000,
    born_host=V4,
    store_host=STORE_HOST,
)
SHARED_WITH_CRC = replace(SHARED, record_crc=True)
#: One that no record here has.
FOREIGN = b"__CRC32#\x011234567890\x02"

crcs = st.integers(0, (1 << 31) - 1)
texts = st.sampled_from(
    [
        b"",
        b"a\x01b",
        b"TAGS\x01t\x02",
        b"TAGS\x01t\x02KEYS\x01k",
        b"n\x01__CRC32#\x02",
        b"__CRC32#\x01short\x02",
        FOREIGN,
        b"a\x01b\x02" + FOREIGN,
        FOREIGN + b"a\x01b",
        b"a\x01b\x02" + FOREIGN * 3,
        b"x\x01" + b"long" * 100,
    ]
)
entries = st.lists(
    st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=40), texts),
    min_size=1,
    max_size=30,
)


def sealed(
    body: bytes = b"Hello 0",
    text: bytes = b"KEYS\x01k0\x02TAGS\x01TagA\x02",
    *,
    magic: int = MAGIC_V1,
    topic: bytes = b"TopicTest",
    born: bytes = V4,
    store: bytes = STORE_HOST,
    flag: int = 7,
    queue_offset: int = 10,
    physical_offset: int = 4096,
) -> bytes:
    """Return a record with its checksum, written down field by field after the specification."""
    if text and text[-1:] != b"\x02":
        text += b"\x02"
    length = struct.pack(">B" if magic == MAGIC_V1 else ">H", len(topic))
    rest = struct.pack(">IiiqqI", zlib.crc32(body) & 0x7FFFFFFF, 3, flag, queue_offset,
                       physical_offset, host_flags(born, store))  # fmt: skip
    rest += struct.pack(">q", 1700000000000) + born
    rest += struct.pack(">q", 1700000000009) + store
    rest += struct.pack(">iqI", 0, 0, len(body)) + body + length + topic
    rest += struct.pack(">H", len(text) + 20) + text
    record = struct.pack(">II", 8 + len(rest) + 20, magic) + rest
    crc = zlib.crc32(record) & 0x7FFFFFFF
    digits = []
    for _ in range(10):
        digits.append(str(crc % 10))
        crc //= 10
    return record + b"__CRC32#\x01" + "".join(digits).encode() + b"\x02"


RECORDS = [
    sealed(),
    sealed(b"", b"", topic=b"t"),
    sealed(born=V6),
    sealed(born=V6, store=V6, text=b"a\x01b"),
    sealed(magic=MAGIC_V2, topic=b"%RETRY%" + b"g" * 140),
    sealed(magic=MAGIC_V2, topic=b"%RETRY%" + b"g" * 249, born=V6),
    sealed(b"b" * 2000, b"k\x01" + b"v" * 900),
]

# Written by RocketMQ 5.3.3 with enabledAppendPropCRC=true: a message of its Java client with one
# property, and the first one of a batch. Store host 127.0.0.1.
OFFICIAL = [
    bytes.fromhex(
        "0000010adaa320a75202ef8d00000000000000000000000000000000000000000000000000000000000001a1"
        "ff3fea5d7f0000010000c718000001a1ff3febb07f0000010000514000000000000000000000000000000001"
        "00"
    )
    + b"\x0ccrc-35fecc6e\x00\xa2MSG_REGION\x01DefaultRegion\x02UNIQ_KEY\x01FD000000000"
    + b"00000000000000000000213F84E0E2F2A6AD8025C0000\x02CLUSTER\x01Defaul"
    + b"tCluster\x02WAIT\x01true\x02TRACE_ON\x01true\x02n\x010\x02__CRC32#\x018678773760\x02",
    bytes.fromhex(
        "0000015adaa320a730cb2b760000000000000000000000000000003c00000000000156ec00000000000001a1"
        "ff3ff5ed7f0000010000c718000001a1ff3ff5f17f0000010000514000000000000000000000000000000002"
        "6230"
    )
    + b"\x0ccrc-35fecc6e\x00\xf1UNIQ_KEY\x01FD00000000000000000000000000000213F8"
    + b"4E0E2F2A6AD80DEC003C\x02WAIT\x01true\x02TAGS\x01c\x02MSG_REGION\x01DefaultRegi"
    + b"on\x02UNIQ_KEY\x01FD00000000000000000000000000000213F84E0E2F2A6AD8"
    + b"0DEC0046\x02CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TRACE_ON\x01true\x02__CR"
    + b"C32#\x016580793781\x02",
]


# ------------------------------------------------------------------------------- the property


@pytest.mark.parametrize(
    ("crc", "raw"),
    [
        (1867854957, "5f5f435243333223 01 37353934353837363831 02"),  # the specification's
        (1234, "5f5f435243333223 01 34333231303030303030 02"),
        (0, "5f5f435243333223 01 30303030303030303030 02"),
        ((1 << 31) - 1, "5f5f435243333223 01 37343633383437343132 02"),
    ],
)
def test_the_property(crc: int, raw: str) -> None:
    assert encode_record_crc(crc) == bytes.fromhex(raw)
    assert encode_record_crcs(np.array([5, crc, crc]))[1].tobytes() == bytes.fromhex(raw)


@given(st.lists(crcs))
def test_many_properties_are_as_one(values: list[int]) -> None:
    rows = encode_record_crcs(np.array(values, np.int64))
    assert list(map(bytes, rows)) == list(map(encode_record_crc, values))


@pytest.mark.parametrize(
    ("text", "room"),
    [
        (b"", b""),
        (b"a\x01b", b"a\x01b\x02"),
        (b"a\x01b\x02", b"a\x01b\x02"),
        (FOREIGN, b""),
        (b"a\x01b\x02" + FOREIGN[:-1], b"a\x01b\x02"),
        (FOREIGN + FOREIGN + b"a\x01b", b"a\x01b\x02"),
        (b"a\x01b\x02__CRC32#\x01x\x02c\x01d", b"a\x01b\x02c\x01d\x02"),
        (b"x__CRC32#\x01y\x02n\x01__CRC32#\x02", b"x__CRC32#\x01y\x02n\x01__CRC32#\x02"),
    ],
)
def test_room_for_one_takes_the_place_of_others(text: bytes, room: bytes) -> None:
    assert with_record_crc_room(text) == room + bytes(20)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b"a\x01b\x02" + FOREIGN * 2, b"a\x01b\x02"),
        (FOREIGN, b""),
        (b"__CRC32#\x01123\x02k\x01vvvvv\x02", b"__CRC32#\x01123\x02k\x01vvvvv\x02"),  # 20 B, too
        (FOREIGN[:-1], FOREIGN[:-1]),
        (FOREIGN + b"a\x01b", FOREIGN + b"a\x01b"),
        (b"__CRC32#\x0112345678\x02", b"__CRC32#\x0112345678\x02"),
        (b"", b""),
    ],
)
def test_only_what_ends_a_text_like_a_checksum_is_cut(text: bytes, kept: bytes) -> None:
    assert cut_record_crc(text) == kept
    assert ends_with_record_crc(text) == (text != kept)
    data = np.frombuffer(bytes(20) + text + b"..", np.uint8)
    ends = np.array([20 + len(text)])
    cut = cut_record_crcs(data, np.array([20]), ends)
    assert cut.tolist() == [20 + len(kept)]
    assert (cut is ends) == (text == kept)


# ------------------------------------------------------------------------------- verification


@pytest.mark.parametrize("raw", [*RECORDS, *OFFICIAL])
def test_a_right_one_is_verified(raw: bytes) -> None:
    record = decode_record(raw, verify=True)
    assert record.size == len(raw)
    assert check_record_crc(raw, len(record.properties)) is RecordCrc.FITS


@pytest.mark.parametrize("raw", [*RECORDS, *OFFICIAL])
def test_every_flipped_bit_is_detected(raw: bytes) -> None:
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            decode_record(bytes(damaged), verify=True)


def test_the_error_says_which_checksum_failed() -> None:
    raw = bytearray(RECORDS[0])
    raw[19] ^= 1  # the flag
    found, wanted = RECORDS[0][-20:], encode_record_crc(zlib.crc32(raw[:-20]) & 0x7FFFFFFF)
    with pytest.raises(CorruptRecord) as raised:
        decode_record(b"xx" + bytes(raw), 2, verify=True)
    assert "record at 2" in str(raised.value)
    assert repr(found) in str(raised.value) and repr(wanted) in str(raised.value)
    assert decode_record(bytes(raw)).flag == 6  # Nobody asked.
    raw[19] ^= 1
    raw[88] ^= 1  # the body
    with pytest.raises(CorruptRecord, match="body CRC"):
        decode_record(bytes(raw), verify=True)


@pytest.mark.parametrize("cut", [False, True])
def test_records_without_one_are_taken_as_they_are(cut: bool) -> None:
    """Shorter properties, and 20 bytes of another kind."""
    text = b"" if cut else b"__CRC32#\x01123\x02k\x01vvvvv\x02"
    batch = NewBatch(encode_batch([(0, b"x", text)]), SHARED)
    raw = bytes(batch.encode(**PLACE))
    assert decode_record(raw, verify=True).properties == text
    assert check_record_crc(raw, len(text)) is RecordCrc.NONE


def test_many_are_checked_as_one(seed: int) -> None:
    chance = random.Random(seed)
    plain = NewBatch(encode_batch([(0, b"x", b""), (0, b"y", b"TAGS\x01t" * 5)]), SHARED)
    data = bytes(plain.encode(**PLACE))
    short, long = data[: plain.sizes[0]], data[plain.sizes[0] :]
    for _ in range(100):
        records = []
        for _ in range(chance.randrange(1, 20)):
            raw = bytearray(chance.choice([*RECORDS, short, long]))
            if raw != short and chance.random() < 0.5:  # where it stays well-formed
                raw[chance.choice([9, 13, 18, 21, 30, 44, -1, -5, -15, -20])] ^= 1
            records.append(bytes(raw))
        columns = read_columns(b"".join(records))
        states = check_record_crcs(
            columns.buffer, columns.starts, columns.ends, columns.properties_start
        )
        lengths = (columns.ends - columns.properties_start).tolist()
        assert states.tolist() == list(map(check_record_crc, records, lengths))
    none = np.empty(0, np.int64)
    assert not len(check_record_crcs(columns.buffer, none, none, none))


# ------------------------------------------------------------------------- batches, pre-encoded


def expected_text(text: bytes, *, record_crc: bool) -> bytes:
    text = cut_record_crc(text)
    return text + b"\x02" if record_crc and text and text[-1] != 2 else text


def assert_laid_out(
    made: NewRecords, wanted: list[tuple[int, bytes, bytes]], *, record_crc: bool
) -> bytes:
    data = bytes(made.encode(**PLACE))
    records = list(decode_records(data, verify=True))
    assert [record.size for record in records] == made.sizes.tolist()
    assert len(data) == made.record_bytes
    position = PLACE["physical_offset"]
    for record, start, (flag, body, text) in zip(records, made.starts, wanted, strict=True):
        assert (record.flag, record.body) == (flag, body)
        assert record.physical_offset == position == PLACE["physical_offset"] + start
        kept = expected_text(text, record_crc=record_crc)
        if record_crc:
            assert record.properties[:-20] == kept
            raw = data[start : start + record.size]
            assert check_record_crc(raw, len(record.properties)) is RecordCrc.FITS
            found = decode_properties(record.properties)
            assert found.pop("__CRC32#") == record.properties[-11:-1].decode()
            users = decode_properties(kept)
            users.pop("__CRC32#", None)
            assert found == users
        else:
            assert record.properties == kept
        position += record.size
    return data


@given(entries, st.booleans(), st.booleans())
def test_batches(wanted: list[tuple[int, bytes, bytes]], record_crc: bool, ipv6: bool) -> None:
    body = encode_batch(wanted)
    shared = replace(SHARED, born_host=V6 if ipv6 else V4)
    batch = NewBatch(body, replace(shared, record_crc=record_crc))
    assert_laid_out(batch, wanted, record_crc=record_crc)
    plain = encode_batch([(flag, text, cut_record_crc(more)) for flag, text, more in wanted])
    without = NewBatch(plain, shared)
    assert batch.tag_codes.tolist() == without.tag_codes.tolist()


def preencoded_body(wanted: list[tuple[int, bytes, bytes]]) -> tuple[bytes, list[int]]:
    """Return records as their sender lays them out, checksums of other records included."""
    topic = SHARED.topic.encode()
    found = []
    for flag, body, text in wanted:
        tail = bytes((len(topic),)) + topic + struct.pack(">H", len(text)) + text
        size = 88 + len(body) + len(tail)
        head = struct.pack(">IIIii", size, MAGIC_V1, 0, 0, flag) + bytes(64)
        found.append(head + struct.pack(">I", len(body)) + body + tail)
    return b"".join(found), list(map(len, found))


@given(entries, st.booleans(), st.booleans())
def test_preencoded_records(
    wanted: list[tuple[int, bytes, bytes]], record_crc: bool, writable: bool
) -> None:
    body, sizes = preencoded_body(wanted)
    records = PreencodedRecords(
        bytearray(body) if writable else body,
        np.array(sizes, np.int32),
        replace(SHARED, record_crc=record_crc),
    )
    data = assert_laid_out(records, wanted, record_crc=record_crc)
    batch = NewBatch(encode_batch(wanted), replace(SHARED, record_crc=record_crc))
    assert data == bytes(batch.encode(**PLACE))
    assert records.tag_codes.tolist() == batch.tag_codes.tolist()
    elsewhere = {**PLACE, "physical_offset": 1 << 40, "queue_offset": 0}
    assert bytes(records.encode(**elsewhere)) == bytes(batch.encode(**elsewhere))


def test_the_reference_agrees() -> None:
    """One record of a batch, byte by byte as ``sealed`` writes it down."""
    text = b"KEYS\x01k0\x02TAGS\x01TagA"
    batch = NewBatch(
        encode_batch([(7, b"Hello 0", text)]), replace(SHARED_WITH_CRC, topic="TopicTest")
    )
    place = {**PLACE, "queue_offset": 10}
    assert bytes(batch.encode(**place)) == sealed(text=text)


@pytest.mark.parametrize("kind", ["batch", "preencoded"])
@pytest.mark.parametrize("bare", [False, True])
def test_the_limit_of_properties_counts_it(kind: str, bare: bool) -> None:
    room = PROPERTIES_BYTES_MAX - 20 - bare
    end = b"" if bare else b"\x02"

    def make(length: int) -> NewRecords:
        entry = (0, b"b", b"n\x01" + b"v" * (length - 2 - len(end)) + end)
        if kind == "batch":
            return NewBatch(encode_batch([entry]), SHARED_WITH_CRC)
        body, sizes = preencoded_body([entry])
        return PreencodedRecords(body, np.array(sizes, np.int32), SHARED_WITH_CRC)

    raw = bytes(make(room).encode(**PLACE))
    assert len(decode_record(raw, verify=True).properties) == PROPERTIES_BYTES_MAX
    with pytest.raises(RemoteProtocolError, match="32768 B.*32767"):
        make(room + 1)
