"""The body of SEND_BATCH_MESSAGE."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol.batch_body import decode_batch, encode_batch

BATCH = bytes.fromhex(
    "00000034 00000000 00000000 00000000 00000002 6230 001c"
    "4b455953016b3102 57414954017472756502 54414753017461674102"
)
ONE = (0, b"b0", b"KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01tagA\x02")


def test_batch_vector() -> None:
    assert encode_batch([ONE]) == BATCH
    assert decode_batch(BATCH) == [ONE]
    assert decode_batch(memoryview(BATCH * 3)) == [ONE] * 3
    assert decode_batch(b"") == []


MESSAGES = st.tuples(
    st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=50), st.binary(max_size=50)
)


@given(st.lists(MESSAGES, max_size=5))
def test_batch_round_trip(batch: list[tuple[int, bytes, bytes]]) -> None:
    assert decode_batch(encode_batch(batch)) == batch


def test_every_truncation_of_a_batch_is_refused() -> None:
    for size in range(1, 2 * len(BATCH)):
        if size != len(BATCH):
            with pytest.raises(RemoteProtocolError):
                decode_batch((BATCH * 2)[:size])


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, "00000000"),
        (0, "ffffffff"),
        (0, "80000000"),
        (0, "00000033"),
        (0, "00000035"),
        (16, "ffffffff"),
        (16, "80000000"),
        (16, "00000003"),
        (16, "00000001"),
        (16, "0000001e"),
        (22, "ffff"),
        (22, "001b"),
        (22, "001d"),
    ],
)
def test_batch_sizes_that_do_not_fit(at: int, value: str) -> None:
    raw = bytes.fromhex(value)
    with pytest.raises(RemoteProtocolError, match="message of a batch at 0"):
        decode_batch(BATCH[:at] + raw + BATCH[at + len(raw) :])


def test_batch_properties_have_the_limit_of_records() -> None:
    longest = (0, b"", b"x" * 32767)
    assert decode_batch(encode_batch([longest])) == [longest]
    with pytest.raises(LocalProtocolError):
        encode_batch([(0, b"", b"x" * 32768)])
    with pytest.raises(LocalProtocolError):
        encode_batch([(1 << 31, b"", b"")])
    size = 22 + 40_000
    raw = size.to_bytes(4, "big") + bytes(16) + (40_000).to_bytes(2, "big") + b"x" * 40_000
    with pytest.raises(RemoteProtocolError):
        decode_batch(raw)


@given(st.binary(max_size=100))
def test_random_batches_raise_only_our_error(raw: bytes) -> None:
    try:
        decode_batch(raw)
    except RemoteProtocolError:
        pass


def test_damaged_batches_raise_only_our_error(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5_000):
        damaged = bytearray(BATCH * 2)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            decode_batch(bytes(damaged))
        except RemoteProtocolError:
            pass
