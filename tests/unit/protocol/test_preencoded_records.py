"""What a sender laid out, checked and filled in: the same records that a batch body becomes."""

import random
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import RemoteProtocolError
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.new_batch import NewBatch
from pymq.protocol.new_records import SharedFields
from pymq.protocol.preencoded_records import PreencodedRecords, pack_sizes, unpack_sizes
from pymq.protocol.record import decode_records, pack_host

STORE_HOST = pack_host("10.0.0.2", 10911)
BORN_HOST = pack_host("10.0.0.1", 50000)
V6 = pack_host("2001:db8::1", 50001)
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
    born_host=BORN_HOST,
    store_host=STORE_HOST,
)

entries = st.lists(
    st.tuples(
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.binary(max_size=40),
        st.sampled_from(
            [
                b"",
                b"TAGS\x01a\x02",
                b"TAGS\x01bb\x02KEYS\x01TAGS\x02",
                b"a\x01b\x02TAGS\x01c",
                b"TAGS\x01" + b"long" * 30 + b"\x02",
            ]
        ),
    ),
    min_size=1,
    max_size=30,
)


def preencoded(body: bytes | bytearray, sizes: npt.NDArray[np.int32]) -> PreencodedRecords:
    return PreencodedRecords(body, sizes, SHARED)


def sent(batch: NewBatch) -> bytearray:
    """Return a batch's records as a sender of pre-encoded ones would: without the broker's part."""
    data = bytearray(batch.encode(**PLACE))
    at = 0
    for size in batch.sizes.tolist():
        for first, end in ((8, 16), (20, 84)):  # all but size, magic, flag and body length
            data[at + first : at + end] = bytes(end - first)
        at += size
    return data


def make_sent(count: int = 5) -> tuple[bytearray, npt.NDArray[np.int32]]:
    batch = NewBatch(
        encode_batch([(n, b"body%d" % n, b"TAGS\x01a\x02") for n in range(count)]), SHARED
    )
    return sent(batch), batch.sizes


@given(entries, st.booleans())
def test_they_become_what_a_batch_becomes(
    wanted: list[tuple[int, bytes, bytes]], writable: bool
) -> None:
    batch = NewBatch(encode_batch(wanted), SHARED)
    body: bytes | bytearray = sent(batch)
    if not writable:
        body = bytes(body)
    records = preencoded(body, batch.sizes)
    assert (records.count, records.record_bytes) == (batch.count, batch.record_bytes)
    assert records.tag_codes.tolist() == batch.tag_codes.tolist()
    data = bytes(records.encode(**PLACE))
    assert data == bytes(batch.encode(**PLACE))
    assert len(list(decode_records(data, verify=True))) == len(wanted)
    # Encoded again, for another place, nothing of the first remains.
    elsewhere = {**PLACE, "physical_offset": 1 << 40, "queue_offset": 0}
    assert bytes(records.encode(**elsewhere)) == bytes(batch.encode(**elsewhere))


def test_whatever_the_sender_leaves_in_the_brokers_part_is_overwritten(seed: int) -> None:
    body, sizes = make_sent()
    expected = bytes(preencoded(bytes(body), sizes).encode(**PLACE))
    rng = random.Random(seed)
    at = 0
    for size in sizes.tolist():
        for first, end in ((8, 16), (20, 84)):
            body[at + first : at + end] = rng.randbytes(end - first)
        at += size
    assert bytes(preencoded(body, sizes).encode(**PLACE)) == expected


def test_what_does_not_fit_together_is_refused(seed: int) -> None:
    body, sizes = make_sent()
    for wrong in (sizes[:-1], sizes + 1, np.zeros(0, np.int32), sizes - 200, -sizes):
        with pytest.raises(RemoteProtocolError, match="the sum of"):
            preencoded(body, wrong.astype(np.int32))
    rng = random.Random(seed)
    for _ in range(2000):
        damaged = bytearray(body)
        damaged[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        try:
            records = preencoded(damaged, sizes)
        except RemoteProtocolError:
            continue
        stored = list(decode_records(bytes(records.encode(**PLACE)), verify=True))
        assert [record.size for record in stored] == sizes.tolist()
        assert {(record.topic, record.queue_id) for record in stored} == {("orders", 3)}


@given(st.binary(max_size=400), st.lists(st.integers(-5, 400), max_size=4))
def test_random_bodies_raise_only_our_error(body: bytes, sizes: list[int]) -> None:
    try:
        preencoded(body, np.array(sizes, np.int32))
    except RemoteProtocolError:
        pass


def test_hosts_must_be_ipv4() -> None:
    body, sizes = make_sent()
    with pytest.raises(RemoteProtocolError, match="IPv4"):
        PreencodedRecords(body, sizes, replace(SHARED, born_host=V6))


def test_another_topic_is_refused() -> None:
    body, sizes = make_sent()
    with pytest.raises(RemoteProtocolError, match="topic is not order2"):
        PreencodedRecords(body, sizes, replace(SHARED, topic="order2"))


@given(st.lists(st.integers(0, (1 << 31) - 1), min_size=1), st.sampled_from([1, 1 << 8, 1 << 16]))
def test_sizes_travel(sizes: list[int], most: int) -> None:
    wanted = np.array(sizes) if most == 1 else np.array(sizes) % most + 91
    assert unpack_sizes(pack_sizes(wanted)).tolist() == wanted.tolist()


def test_sizes_of_one_kind_take_a_byte_each() -> None:
    assert pack_sizes(np.array([300, 301, 555])) == bytes.fromhex("01 0000012c 00 01 ff")
    assert pack_sizes(np.array([300, 556])) == bytes.fromhex("02 0000012c 0000 0100")


@given(st.binary(max_size=20))
def test_damaged_sizes_raise_only_our_error(data: bytes) -> None:
    try:
        sizes = unpack_sizes(data)
    except RemoteProtocolError:
        return
    assert len(sizes) and (sizes >= 0).all()
