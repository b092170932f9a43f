"""Runs of ends of transactions, alone and between sends: they say the same as the headers do."""

import random
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.protocol.test_plain_sends import fastjson_frame, frame

from pymq.protocol.command import Command
from pymq.protocol.framing import FrameDecoder, Incoming, commands_of, encode_frame
from pymq.protocol.plain_ends import PlainEnds
from pymq.protocol.plain_runs import RUN_COUNT_MIN, PlainRunReader
from pymq.protocol.plain_sends import PlainSends

#: In the order of a Java hash table.
FIELDS = {
    "commitLogOffset": "1234", "topic": "T", "msgId": "7F0000010A", "bname": "broker-a",
    "fromTransactionCheck": "false", "producerGroup": "group", "tranStateTableOffset": "7",
    "commitOrRollback": "8", "transactionId": "7F0000010A",
}  # fmt: skip


def end_frame(
    opaque: int, body: bytes = b"", *, flag: int = 2, code: int = 37, **fields: str | None
) -> bytes:
    """Return an end of a transaction."""
    return fastjson_frame(code, flag, opaque, {**FIELDS, **fields}, body)


def taught() -> FrameDecoder:
    """Return a decoder that has seen the usual headers of sends and ends often enough."""
    decoder = FrameDecoder(plain_runs=PlainRunReader())
    for opaque in range(0, 512, 8):
        decoder.feed(b"".join(map(frame, range(opaque, opaque + 8))))
        decoder.feed(b"".join(map(end_frame, range(opaque, opaque + 8))))
    return decoder


def all_of(incoming: Sequence[Incoming]) -> list[Command]:
    """Return commands one by one."""
    return [
        one
        for some in incoming
        for one in ([some] if isinstance(some, Command) else commands_of(some))
    ]


def test_a_run_has_the_values_of_its_headers() -> None:
    data = b"".join(
        (
            end_frame(1),
            end_frame(2, commitLogOffset="9" * 18, tranStateTableOffset="0", commitOrRollback="12"),
            end_frame(3, msgId="other", transactionId="", commitOrRollback="0"),
        )
    )
    (run,) = taught().feed(data)
    assert isinstance(run, PlainEnds)
    assert (run.header.producer_group, run.header.is_checked, run.header.topic) == (
        "group", False, "T",
    )  # fmt: skip
    assert run.physical_offsets == [1234, int("9" * 18), 1234]
    assert (run.queue_offsets, run.decisions) == ([7, 0, 7], [8, 12, 0])
    assert commands_of(run) == FrameDecoder().feed(data)


def test_the_order_of_the_fields_is_learned(seed: int) -> None:
    rng = random.Random(seed)
    names = list(FIELDS)
    for _ in range(5):
        rng.shuffle(names)
        text = {name: FIELDS[name] for name in names}
        data = b"".join(end_frame(n, **text | {"tranStateTableOffset": str(n)}) for n in range(200))
        decoder = FrameDecoder(plain_runs=PlainRunReader())
        commands = decoder.feed(data)
        assert all_of(commands) == FrameDecoder().feed(data)
        run = commands[-1]
        assert isinstance(run, PlainEnds) and len(run) > 100
        assert run.queue_offsets[-1] == 199 and set(run.physical_offsets) == {1234}


def test_sends_and_ends_of_one_client_are_two_runs() -> None:
    frames = [frame(n, b"%d" % n) if n % 3 else end_frame(n) for n in range(30)]
    commands = taught().feed(b"".join(frames))
    sends, ends = commands
    assert isinstance(sends, PlainSends) and isinstance(ends, PlainEnds)
    assert (len(sends), len(ends)) == (20, 10)
    assert commands_of(sends) == FrameDecoder().feed(
        b"".join(f for n, f in enumerate(frames) if n % 3)
    )
    assert commands_of(ends) == FrameDecoder().feed(b"".join(frames[::3]))
    assert sends.bodies == [b"%d" % n for n in range(30) if n % 3]


@pytest.mark.parametrize(
    "changes",
    [
        {"flag": 0},  # somebody waits for the answer
        {"code": 38},
        {"body": b"x"},
        {"commitLogOffset": "-1"},
        {"tranStateTableOffset": "1" * 19},
        {"commitOrRollback": None},
        {"commitOrRollback": "eight"},
        {"producerGroup": 'with "quotes"'},
        {"msgId": "\u0001"},
        {"fromTransactionCheck": "yes"},
    ],
)
def test_what_is_not_plain_is_no_run(changes: dict[str, Any]) -> None:
    data = end_frame(5, **changes) * 8
    commands = taught().feed(data)
    assert all_of(commands) == FrameDecoder().feed(data)
    if changes != {"fromTransactionCheck": "yes"}:  # which is false, as in Java
        assert not any(isinstance(command, PlainEnds) for command in commands)


def test_of_two_fields_of_a_name_the_last_one_counts() -> None:
    one = end_frame(5)
    header = one[8:].replace(b'"topic":"T"', b'"commitLogOffset":"9","topic":"T"')
    data = (struct.pack(">II", 4 + len(header), len(header)) + header) * 8
    commands = taught().feed(data)
    assert commands == FrameDecoder().feed(data)


def test_runs_of_both_kinds_between_anything_else_lose_nothing(seed: int) -> None:
    rng = random.Random(seed)
    frames = []
    for opaque in range(4000):
        kind = rng.random()
        if kind < 0.5:
            frames.append(frame(opaque, rng.randbytes(rng.randrange(300)), e=str(opaque % 4)))
        elif kind < 0.97:
            frames.append(end_frame(opaque, tranStateTableOffset=str(opaque)))
        elif kind < 0.98:
            frames.append(end_frame(opaque, producerGroup="other"))
        else:
            frames.append(encode_frame(Command(34, {"x": "y"}, b"beat", opaque=opaque)))
    data = b"".join(frames)
    decoder = FrameDecoder(plain_runs=PlainRunReader())
    found: list[Command] = []
    sizes, position = [], 0
    while position < len(data):
        size = rng.randrange(1, 20_000)
        for command in decoder.feed(data[position : position + size]):
            if not isinstance(command, Command):
                sizes.append(len(command))
            found += all_of([command])
        position += size
    expected = FrameDecoder().feed(data)
    assert sorted(found, key=lambda one: one.opaque) == expected
    for code in (310, 37, 34):  # among those of a kind the order stays
        assert [one.opaque for one in found if one.code == code] == [
            one.opaque for one in expected if isinstance(one, Command) and one.code == code
        ]
    assert len(sizes) > 50 and max(sizes) > RUN_COUNT_MIN
