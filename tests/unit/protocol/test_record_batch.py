"""Columns and batches against the one-by-one codecs of ``record`` and ``message``."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import CorruptRecord, PymqError, RemoteProtocolError
from pymq.protocol.batch_body import (
    BATCH_HEAD,
    BATCH_OVERHEAD_BYTES,
    decode_batch,
    encode_batch,
)
from pymq.protocol.hashes import java_hash
from pymq.protocol.message import find_property
from pymq.protocol.new_batch import NewBatch
from pymq.protocol.new_records import SharedFields
from pymq.protocol.record import (
    MAGIC_V2,
    NewRecord,
    Record,
    decode_records,
    encode_record,
    pack_host,
    record_size,
    topic_field,
)
from pymq.protocol.record_batch import (
    RecordColumns,
    _walk,
    _walk_in_lanes,
    read_columns,
)

STORE_HOST = pack_host("10.0.0.2", 10911)
V4 = pack_host("10.0.0.1", 50000)
V6 = pack_host("2001:db8::1", 50001)

entries = st.lists(
    st.tuples(
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.one_of(st.binary(max_size=40), st.just(b"TAGS\x01in the body\x02")),
        st.sampled_from(
            [
                b"",
                b"TAGS\x01a",
                b"TAGS\x01bb\x02",
                b"a\x01b\x02TAGS\x01\xe6\xa0\x87\x02",
                b"TAGS\x01first\x02x\x01y\x02TAGS\x01last\x02",
                b"TAGS\x01kept\x02TAGS\x01\x02",
                b"MYTAGS\x01no\x02",
                b"TAGS\x01" + b"long" * 30,
                b"KEYS\x01TAGS\x02",
                b"\x02",
            ]
        ),
    ),
    min_size=1,
    max_size=30,
)


def encode(new: NewRecord, queue_offset: int, physical_offset: int) -> bytes:
    field = topic_field(new.topic.encode())
    size = record_size(
        len(new.body), len(field), len(new.properties), len(new.born_host) + len(STORE_HOST)
    )
    return b"".join(
        encode_record(
            new,
            field,
            size=size,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            store_timestamp=1700000000005 + queue_offset,
            store_host=STORE_HOST,
        )
    )


def as_v2(record: bytes, topic: bytes, body_bytes: int) -> bytes:
    """Return a V1 record with IPv4 hosts in the V2 layout."""
    at = 88 + body_bytes
    size = (len(record) + 1).to_bytes(4, "big")
    magic = MAGIC_V2.to_bytes(4, "big")
    return size + magic + record[8:at] + b"\x00" + record[at:]


def random_records(seed: int, count: int, *, mixed: bool) -> bytes:
    rng = random.Random(seed)
    out = []
    for n in range(count):
        topic = rng.choice(["T", "TopicWithALongerName", "%RETRY%g"])
        new = NewRecord(
            topic,
            rng.randrange(8),
            rng.randbytes(rng.randrange(60)),
            rng.choice([b"", b"TAGS\x01a\x02", b"x\x01y"]),
            rng.choice([V4, V6]) if mixed else V4,
            1700000000000 + n,
            flag=rng.randrange(100),
            reconsume_times=n,
            prepared_transaction_offset=n * 3,
        )
        record = encode(new, n, n * 1000)
        if mixed and new.born_host == V4 and rng.random() < 0.3:
            record = as_v2(record, topic.encode(), len(new.body))
        out.append(record)
    return b"".join(out)


def assert_same(columns: RecordColumns, records: list[Record]) -> None:
    assert len(columns) == len(records)
    for name in (
        "size",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "flag",
        "sys_flag",
        "born_timestamp",
        "store_timestamp",
        "reconsume_times",
        "prepared_transaction_offset",
        "body_crc",
    ):
        assert getattr(columns, name).tolist() == [getattr(r, name) for r in records], name
    for start, end, expected in (
        (columns.body_start, columns.body_end, [r.body for r in records]),
        (columns.topic_start, columns.topic_end, [r.topic.encode() for r in records]),
        (columns.properties_start, columns.ends, [r.properties for r in records]),
        (columns.store_host_start, columns.store_host_start + 8, [r.store_host for r in records]),
    ):
        assert [bytes(view) for view in columns.slices(start, end)] == expected


@pytest.mark.parametrize("mixed", [False, True])
def test_columns_say_what_the_records_say(seed: int, mixed: bool) -> None:
    for count in (0, 1, 2, 50):
        data = random_records(seed + count, count, mixed=mixed)
        records = list(decode_records(data))
        assert_same(read_columns(data), records)
        assert_same(read_columns(memoryview(data), np.array([r.size for r in records])), records)


def test_records_of_one_size_are_found_without_walking() -> None:
    data = b"".join(encode(NewRecord("T", 0, b"x" * 10, b"", V4, 5), n, n) for n in range(9))
    assert read_columns(data).queue_offset.tolist() == list(range(9))


def test_damage_anywhere_is_reported_and_never_an_index_error(seed: int) -> None:
    data = random_records(seed, 6, mixed=True)
    rng = random.Random(seed)
    whole = read_columns(data)
    for cut in range(len(data)):
        if cut not in whole.starts:
            with pytest.raises(CorruptRecord):
                read_columns(data[:cut])
    for _ in range(500):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            read_columns(bytes(damaged))
        except CorruptRecord:
            pass


@given(st.binary(max_size=300))
def test_random_bytes_raise_only_our_error(data: bytes) -> None:
    try:
        read_columns(data)
    except CorruptRecord:
        pass


def test_wrong_sizes_are_refused() -> None:
    data = encode(NewRecord("T", 0, b"x", b"", V4, 5), 0, 0)
    with pytest.raises(CorruptRecord, match="from its sizes"):
        read_columns(data, np.array([len(data) - 1]))


def make_batch(body: bytes, born_host: bytes = V4) -> NewBatch:
    return NewBatch(
        body,
        SharedFields(
            topic="T",
            queue_id=3,
            born_timestamp=1700000000000,
            born_host=born_host,
            store_host=STORE_HOST,
            reconsume_times=2,
        ),
    )


@given(entries, st.booleans())
def test_a_batch_becomes_the_records_its_entries_describe(
    wanted: list[tuple[int, bytes, bytes]], ipv6: bool
) -> None:
    born_host = V6 if ipv6 else V4
    batch = make_batch(encode_batch(wanted), born_host)
    data = batch.encode(
        physical_offset=4096, queue_offset=7, store_timestamp=1700000000009, store_host=STORE_HOST
    )
    records = list(decode_records(data, verify=True))
    assert batch.count == len(wanted) == len(records)
    assert batch.record_bytes == len(data)
    assert batch.sizes.tolist() == [record.size for record in records]
    position = 4096
    for n, ((flag, body, properties), record) in enumerate(zip(wanted, records, strict=True)):
        assert (record.flag, record.body) == (flag, body)
        assert (record.queue_id, record.queue_offset, record.topic) == (3, 7 + n, "T")
        assert record.physical_offset == position
        position += record.size
        assert (record.born_host, record.store_host) == (born_host, STORE_HOST)
        assert (record.born_timestamp, record.store_timestamp) == (1700000000000, 1700000000009)
        assert record.reconsume_times == 2
        assert record.properties == properties
        tag = find_property(properties, b"TAGS")
        assert batch.tag_codes[n] == (java_hash(tag.decode()) if tag else 0)


def test_the_vector_of_the_batch_body() -> None:
    text = (
        "00000034 00000000 00000000 00000000 00000002 6230 001c 4b455953016b3102"
        " 57414954017472756502 54414753017461674102"
    )
    body = bytes.fromhex(text)
    assert decode_batch(body) == [(0, b"b0", b"KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01tagA\x02")]
    batch = make_batch(body * 3)
    assert batch.count == 3
    assert batch.tag_codes.tolist() == [java_hash("tagA")] * 3


def test_damaged_batches_raise_only_our_error(seed: int) -> None:
    body = encode_batch([(n, b"body%d" % n, b"TAGS\x01a") for n in range(4)])
    for cut in range(len(body)):
        if cut % (len(body) // 4):
            with pytest.raises(RemoteProtocolError):
                make_batch(body[:cut])
    rng = random.Random(seed)
    for _ in range(500):
        damaged = bytearray(body)
        damaged[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        try:
            batch = make_batch(bytes(damaged))
        except PymqError:
            continue
        data = batch.encode(
            physical_offset=0, queue_offset=0, store_timestamp=1, store_host=STORE_HOST
        )
        assert len(list(decode_records(data))) == batch.count


@given(st.binary(max_size=200))
def test_random_batch_bodies_raise_only_our_error(body: bytes) -> None:
    try:
        make_batch(body)
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize("length", [32_767, 32_768])
def test_too_long_properties_are_refused_with_the_limit(length: int) -> None:
    size = BATCH_OVERHEAD_BYTES + length
    body = BATCH_HEAD.pack(size, 0, 0, 0, 0) + length.to_bytes(2, "big") + b"a\x01"
    body = body.ljust(size, b"x")
    if length == 32_767:
        assert make_batch(body).count == 1
    else:
        with pytest.raises(RemoteProtocolError, match="32767"):
            make_batch(body)


@pytest.mark.parametrize("alphabet", [b"\x00", b"\xda\xa3\x20\xa7\x00", b"abc"])
def test_long_buffers_are_walked_in_lanes(seed: int, alphabet: bytes) -> None:
    rng = random.Random(seed)
    wanted = [
        (0, bytes(rng.choices(alphabet, k=rng.randrange(1, 300))), b"TAGS\x01t%d" % (n % 3))
        for n in range(12_000)
    ]
    body = encode_batch(wanted)
    batch = make_batch(body)
    data = batch.encode(
        physical_offset=0, queue_offset=0, store_timestamp=1, store_host=STORE_HOST
    )
    columns = read_columns(data)
    assert columns.queue_offset.tolist() == list(range(12_000))
    bodies = columns.slices(columns.body_start, columns.body_end)
    assert [bytes(view) for view in bodies] == [text for _, text, _ in wanted]
    for _ in range(50):
        damaged = bytearray(data)
        at = rng.randrange(len(data))
        damaged[at : at + 4] = rng.randbytes(4)
        try:
            read_columns(bytes(damaged))
        except CorruptRecord:
            pass
    with pytest.raises(CorruptRecord):
        read_columns(data[:-1])
    with pytest.raises(RemoteProtocolError):
        make_batch(body[:-1])


def test_lanes_find_what_a_plain_walk_finds(seed: int) -> None:
    rng = random.Random(seed)
    body = encode_batch([(0, b"x" * rng.randrange(200), b"") for _ in range(12_000)])
    data = np.frombuffer(body, np.uint8)
    lanes = _walk_in_lanes(data, 22 + 100, bytes(8))
    walked = _walk(data, len(body))
    assert walked is not None
    assert lanes is None or lanes.tolist() == walked.tolist()
    printable = encode_batch([(7, b"x" * rng.randrange(1, 200), b"a\x01b") for _ in range(12_000)])
    data = np.frombuffer(printable, np.uint8)
    lanes = _walk_in_lanes(data, 22 + 100, bytes(8))
    assert lanes is not None, "the common case takes the fast way"
