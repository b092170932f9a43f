"""What a blocking connection receives: frames of all sizes, however the stream is cut."""

import random

import pytest

from pymq.errors import RemoteProtocolError
from pymq.net.frame_input import INBOX_BYTES, VIEW_BYTES_MIN, FrameInput
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame

BODY_SIZES = (0, 1, 900, VIEW_BYTES_MIN - 1, VIEW_BYTES_MIN, INBOX_BYTES, 300_000)


def answer(number: int, body_bytes: int, remark: str | None = None) -> Command:
    body = bytes((number % 251,)) * body_bytes
    return Command(0, {"n": str(number)}, body, opaque=number, flag=1, remark=remark)


def received(stream: FrameInput, data: bytes, count_max: int) -> list[Command]:
    """Put bytes where there is room for them, at most ``count_max`` at a time."""
    found: list[Command] = []
    position = 0
    while position < len(data):
        part = data[position : position + min(count_max, len(stream.room))]
        stream.room[: len(part)] = part
        found += stream.received(len(part))
        position += len(part)
    return found


@pytest.mark.parametrize("count_max", [1_021, 70_001, 1 << 30])
def test_frames_come_whole_and_in_order(count_max: int, seed: int) -> None:
    sizes = random.Random(seed).choices(BODY_SIZES, k=30)
    sent = [answer(number, size) for number, size in enumerate(sizes)]
    sent.insert(7, answer(99, 5, remark="r" * (2 * INBOX_BYTES)))
    stream = FrameInput()
    # All bodies are held: none may be written over by a later one.
    found = received(stream, b"".join(map(encode_frame, sent)), count_max)
    assert [(one.opaque, bytes(one.body), one.remark) for one in found] == [
        (one.opaque, bytes(one.body), one.remark) for one in sent
    ]
    for one in found:
        assert isinstance(one.body, memoryview) == (len(one.body) >= VIEW_BYTES_MIN)
    assert stream.large is None and len(stream.room) >= INBOX_BYTES


def test_what_came_before_an_invalid_frame_is_there() -> None:
    stream = FrameInput()
    data = encode_frame(answer(1, 10)) + b"GET / HTTP/1.1\r\n"
    stream.room[: len(data)] = data
    commands = stream.received(len(data))
    assert next(commands).opaque == 1
    with pytest.raises(RemoteProtocolError, match="HTTP"):
        next(commands)


def test_a_large_body_can_be_given_up() -> None:
    stream = FrameInput()
    data = encode_frame(answer(1, 300_000))[:200]
    assert received(stream, data, 1 << 30) == []
    assert stream.large is not None and stream.large.received_bytes < 200
    stream.give_up()
    assert stream.large is None and len(stream.room) == INBOX_BYTES
