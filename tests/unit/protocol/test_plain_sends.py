"""Runs of plain sends: what is recognized, and that it says the same as the headers do."""

import json
import random
import struct
from typing import Any

import pytest

from pymq.protocol.command import Command
from pymq.protocol.framing import FRAME_BYTES_MAX, FrameDecoder, commands_of, encode_frame
from pymq.protocol.headers.send import SendRequest, encode_success, encode_successes
from pymq.protocol.message import encode_properties
from pymq.protocol.plain_runs import RUN_COUNT_MIN, PlainRunReader
from pymq.protocol.plain_sends import PlainSends

FIELDS = {
    "a": "group", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
    "h": "0", "i": "UNIQ_KEY\x01X\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "false",
    "n": "broker-a",
}  # fmt: skip


def fastjson_frame(
    code: int, flag: int, opaque: int, fields: dict[str, str | None], body: bytes
) -> bytes:
    """Return a request as fastjson writes it, without the fields that are None."""
    given = {name: value for name, value in fields.items() if value is not None}
    header = json.dumps(
        {
            "code": code, "extFields": given, "flag": flag, "language": "JAVA", "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON", "version": 479,
        },
        separators=(",", ":"), ensure_ascii=False,
    ).encode("utf-8", "surrogatepass")  # fmt: skip
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def frame(
    opaque: int, body: bytes = b"x", *, flag: int = 0, code: int = 310, **fields: str | None
) -> bytes:
    """Return a send."""
    return fastjson_frame(code, flag, opaque, dict(sorted({**FIELDS, **fields}.items())), body)


def taught() -> FrameDecoder:
    """Return a decoder that has seen the usual header often enough."""
    decoder = FrameDecoder(plain_runs=PlainRunReader())
    decoder.feed(b"".join(map(frame, range(8))))
    return decoder


def run_of(data: bytes) -> PlainSends:
    (run,) = taught().feed(data)
    assert isinstance(run, PlainSends)
    return run


def test_a_run_has_the_values_of_its_headers() -> None:
    data = b"".join(
        (
            frame(7, b"one", e="3", g="1700000000001", h="5", i="A\x011\x02TAGS\x01t"),
            frame(8, b"", e="0", i=""),
            frame(2147483647, b"three" * 100, e="12", i="K\x01\u4e2d\x02"),
        )
    )
    run = run_of(data)
    assert (run.header.topic, run.header.producer_group, run.header.sys_flag) == ("T", "group", 0)
    assert (run.queue_ids, run.flags) == ([3, 0, 12], [5, 0, 0])
    assert run.born_timestamps == [1700000000001, 1700000000000, 1700000000000]
    assert run.bodies == [b"one", b"", b"three" * 100]
    assert run.opaques == (b"7", b"8", b"2147483647")
    assert run.properties == (
        b"\x02A\x011\x02TAGS\x01t\x03\x02\x03\x02K\x01" + "\u4e2d".encode() + b"\x02"
    )
    assert commands_of(run) == FrameDecoder().feed(data)


@pytest.mark.parametrize(
    "text", ['a\x01"quoted"\x02', "a\x01\\\x02", "a\x01\x03\x02", "a\x01\n\x02"]
)
def test_properties_with_other_escapes_are_left_to_a_parser(text: str) -> None:
    commands = taught().feed(b"".join(frame(n, i=text) for n in range(4)))
    for command in commands:
        if isinstance(command, PlainSends):
            assert command.properties is None
    whole = [
        one for c in commands for one in (commands_of(c) if isinstance(c, PlainSends) else [c])
    ]
    assert [command.fields["i"] for command in whole if command.fields] == [text] * 4


def test_properties_that_are_not_utf8_are_left_to_a_parser() -> None:
    good = b"".join(frame(n, i="a\x01ZZ\x02") for n in range(4))
    assert run_of(good.replace(b"ZZ", b"\xff\xfe")).properties is None


@pytest.mark.parametrize(
    "changes",
    [
        {"flag": 2},  # one-way
        {"code": 320},
        {"code": 10},
        {"m": "true"},
        {"j": "1"},
        {"j": None},
        {"e": "-1"},
        {"h": "-1"},
        {"g": "1" * 19},
        {"opaque": -1},
        {"z": "more"},
        {"a": 'with "quotes"'},
    ],
)
def test_what_is_not_plain_is_no_run(changes: dict[str, Any]) -> None:
    opaque = changes.pop("opaque", 5)
    data = frame(opaque, **changes) * 8
    commands = taught().feed(data)
    assert commands == FrameDecoder().feed(data)
    assert not any(isinstance(command, PlainSends) for command in commands)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"j":"0"', b'"e":"9","j":"0"'),  # of two fields of a name the last one counts
        (b'"opaque":5', b'"opaque":05'),
        (b'"opaque":5', b'"opaque":5.0'),
        (b'"version":479', b'"version":479,"opaque":6'),
        (b'{"code"', b'{ "code"'),
    ],
)
def test_headers_that_say_something_twice_or_otherwise_are_left_to_the_decoder(
    old: bytes, new: bytes
) -> None:
    one = frame(5)
    header = one[8 : 8 + int.from_bytes(one[4:8], "big")].replace(old, new)
    data = (struct.pack(">II", 4 + len(header) + 1, len(header)) + header + b"x") * 6
    try:
        expected = FrameDecoder().feed(data)
    except Exception as error:
        with pytest.raises(type(error)):
            taught().feed(data)
    else:
        assert taught().feed(data) == expected


def test_other_templates_are_learned_when_they_come_again() -> None:
    decoder = taught()
    for name in ("U", "V", "T"):
        commands = decoder.feed(frame(1, b=name) * 200)
        assert sum(isinstance(command, PlainSends) for command in commands) == 1
        assert len(commands) < 70


def test_runs_end_where_something_else_comes_and_order_is_kept() -> None:
    rng = random.Random(7)
    frames = []
    for opaque in range(3000):
        kind = rng.random()
        if kind < 0.97:
            frames.append(frame(opaque, rng.randbytes(rng.randrange(300)), e=str(opaque % 4)))
        elif kind < 0.985:
            frames.append(encode_frame(Command(34, {"x": "y"}, b"beat", opaque=opaque)))
        else:
            frames.append(frame(opaque, b"other", b="Other"))
    data = b"".join(frames)
    decoder = FrameDecoder(plain_runs=PlainRunReader())
    found, runs, position = [], 0, 0
    while position < len(data):
        size = rng.randrange(1, 20_000)
        for command in decoder.feed(data[position : position + size]):
            if isinstance(command, PlainSends):
                runs += 1
                assert len(command) >= RUN_COUNT_MIN
                found += commands_of(command)
            else:
                found.append(command)
        position += size
    assert found == FrameDecoder().feed(data)
    assert runs > 20


def test_frames_beyond_the_limit_are_refused_as_ever() -> None:
    large = frame(1, b"x" * 5000)
    decoder = FrameDecoder(frame_bytes_max=len(large) - 1, plain_runs=PlainRunReader())
    decoder.feed(frame(0) * 8)
    with pytest.raises(Exception, match="frame of"):
        decoder.feed(large * 4)
    assert len(large) < FRAME_BYTES_MAX


def test_responses_of_a_run_are_those_of_its_sends() -> None:
    one_by_one = [
        encode_success(opaque, f"7F000001{position:016X}", queue_id, offset)
        for opaque, position, queue_id, offset in ((5, 0, 0, 0), (77, 1 << 40, 3, 123456))
    ]
    together = encode_successes(b"7F000001", [0, 1 << 40], [0, 3], [0, 123456], [b"5", b"77"])
    assert together == b"".join(one_by_one)


def test_our_own_clients_send_runs_too() -> None:
    from pymq.client.sending.send_template import SendTemplate
    from pymq.protocol.bodies import MessageQueue

    template = SendTemplate(
        MessageQueue("T", "broker-a", 2), "127.0.0.1:1", group="g", default_topic_queue_count=4
    )
    properties = json.dumps(encode_properties({"a": "b"}).decode())
    data = b"".join(
        template.head(n, 1, properties, sys_flag=0, born_ms=1700000000000, flag=0) + b"x"
        for n in range(20)
    )
    decoder = FrameDecoder(plain_runs=PlainRunReader())
    commands = decoder.feed(data)
    run = commands[-1]
    assert isinstance(run, PlainSends) and len(run) > 10
    (first, *_) = commands_of(run)
    assert first.fields is not None
    assert SendRequest.from_v2(first.fields).queue_id == run.queue_ids[0] == 2
