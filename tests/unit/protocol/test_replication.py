import random
import struct

import pytest

from pymq.errors import RemoteProtocolError
from pymq.protocol.replication import (
    PUSH_BYTES_MAX,
    PushReader,
    ReportReader,
    encode_push_header,
    encode_report,
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
