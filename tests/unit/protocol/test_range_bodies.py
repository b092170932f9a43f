"""Bodies about ranges of queues, an extension of pymq."""

import base64
import random

import pytest

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol.range_bodies import (
    RANGES_MAX,
    Fitting,
    FittingRanges,
    QueueRange,
    QueueRanges,
)

RANGE = QueueRange("T", 3, 5, 1 << 40, 7)
TEXT = b'{"packed":"AAAAAAADAAAAAAAAAAUAAAEAAAAAAAAAAAAAAAAH","topics":["T"]}'
FITTING = Fitting(9, 1 << 33)
FITTING_TEXT = b'{"packed":"AAAAAAAAAAkAAAACAAAAAA=="}'
INT64_MAX = (1 << 63) - 1


def packed(data: bytes, topics: str = '["T"]') -> str:
    return f'{{"packed":"{base64.b64encode(data).decode()}","topics":{topics}}}'


def test_bodies_are_bytes() -> None:
    assert QueueRanges.of([RANGE]).encode() == TEXT
    assert QueueRanges.decode(TEXT).ranges() == [RANGE]
    assert FittingRanges.of([FITTING]).encode() == FITTING_TEXT
    assert FittingRanges.decode(FITTING_TEXT).ranges() == [FITTING]


def test_ranges_of_many_queues(seed: int) -> None:
    source = random.Random(seed)
    for count in (0, 1, 2, 3, 1000, RANGES_MAX):
        ranges = [
            QueueRange(
                source.choice("TUV"),
                source.randrange(1 << 31),
                first := source.randrange(INT64_MAX),
                source.randrange(first, INT64_MAX),
                source.randrange(INT64_MAX),
            )
            for _ in range(count)
        ]
        assert QueueRanges.decode(QueueRanges.of(ranges).encode()).ranges() == ranges
        found = [Fitting(one.end, one.bytes_max) for one in ranges]
        assert FittingRanges.decode(FittingRanges.of(found).encode()).ranges() == found


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"topics":["T"]}',
        '{"packed":"","topics":[{}]}',
        '{"packed":"","topics":"T"}',
        '{"packed":1,"topics":["T"]}',
        '{"packed":"AA","topics":["T"]}',
        '{"packed":"\\u00e9","topics":["T"]}',
        packed(bytes(29)),
        packed(bytes(30), "[]"),
        packed(b"\x00\x01" + bytes(28)),
        packed(b"\x00\x00\xff" + bytes(27)),
        packed(bytes(6) + b"\xff" + bytes(23)),
        packed(bytes(13) + b"\x01" + bytes(16)),  # it ends before it begins
        packed(bytes(22) + b"\xff" + bytes(7)),
        packed(bytes(30 * RANGES_MAX + 30)),
    ],
)
def test_what_is_no_request(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        QueueRanges.decode(text).ranges()


@pytest.mark.parametrize("data", [bytes(15), b"\xff" + bytes(15), bytes(16 * RANGES_MAX + 16)])
def test_what_is_no_response(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FittingRanges.decode(packed(data)).ranges()


def test_what_cannot_be_asked() -> None:
    with pytest.raises(LocalProtocolError, match="RANGES_MAX"):
        QueueRanges.of([RANGE] * (RANGES_MAX + 1)).encode()
    with pytest.raises(LocalProtocolError, match="too large"):
        QueueRanges.of([RANGE._replace(bytes_max=1 << 63)]).encode()
