import hashlib
import random
import struct

import pytest

from pymq.errors import RemoteProtocolError
from pymq.protocol.replication import (
    PUSH_BYTES_MAX,
    LogTail,
    PushReader,
    ReportReader,
    encode_push_header,
    encode_report,
    encode_tail,
    tail_of,
)


def pieces(data: bytes, dice: random.Random, most: int) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        count = dice.randint(1, most)
        found.append(data[at : at + count])
        at += count
    return found


def read(reader: PushReader, data: bytes) -> list[tuple[int, bytes]]:
    """Receive bytes as a connection does: never more than there is room for."""
    found = []
    rest = memoryview(data)
    while rest:
        room = reader.room()
        count = min(len(room), len(rest))
        assert count
        room[:count] = rest[:count]
        rest = rest[count:]
        pushes = list(reader.received(count))  # all are valid until there is room for more
        found += [(push.physical_offset, bytes(push.body)) for push in pushes]
    return found


def test_frames_are_as_in_rocketmq() -> None:
    assert encode_report(1 << 33) == bytes.fromhex("0000000200000000")
    assert encode_push_header(1 << 33, 32_768) == bytes.fromhex("000000020000000000008000")


@pytest.mark.parametrize("largest", [40, 3_000, 700_000, PUSH_BYTES_MAX])
def test_pushes_come_out_as_they_were_sent(largest: int, seed: int) -> None:
    dice = random.Random(seed)
    sent, at = [], 0
    while at < 3 * largest and len(sent) < 300:
        body = dice.randbytes(dice.choice((0, 1, dice.randint(0, largest), largest)))
        sent.append((at, body))
        at += len(body)
    stream = b"".join(encode_push_header(at, len(body)) + body for at, body in sent)
    reader = PushReader()
    found = []
    for piece in pieces(stream, dice, max(70, largest // dice.choice((3, 100)))):
        found += read(reader, piece)
    assert found == sent


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 10), (0, -1), (0, PUSH_BYTES_MAX + 1), (1 << 62, 1 << 30)]
)
def test_what_no_master_sends_is_refused_before_memory_is_taken(offset: int, size: int) -> None:
    reader = PushReader()
    with pytest.raises(RemoteProtocolError, match="not the HA port"):
        read(reader, struct.pack(">qi", offset, size))


def test_reports_in_pieces(seed: int) -> None:
    dice = random.Random(seed)
    values = [dice.randrange(-1, 1 << 62) for _ in range(500)]
    reader = ReportReader()
    found = [
        report
        for piece in pieces(b"".join(map(encode_report, values)), dice, 30)
        for report in reader.feed(piece)
    ]
    assert found == values


def test_the_end_of_a_log_is_told_before_the_first_report() -> None:
    tail = tail_of(0x123456789ABC, b"the end")
    assert tail == LogTail(0x123456789ABC, hashlib.sha256(b"the end").digest()[:21])
    told = encode_tail(tail) + encode_report(5) + encode_report(7)
    # To RocketMQ's masters none of it is an offset, and the last number is what counts.
    words = [word for (word,) in struct.iter_unpack(">q", encode_tail(tail))]
    assert all(-(1 << 57) <= word < -1 for word in words)
    for size in (1, 7, 8, len(told)):
        reader = ReportReader()
        parts = [told[at : at + size] for at in range(0, len(told), size)]
        assert [one for part in parts for one in reader.feed(part)] == [tail, 5, 7]
    assert tail_of(1, b"the end") != tail != tail_of(0x123456789ABC, b"the End")
