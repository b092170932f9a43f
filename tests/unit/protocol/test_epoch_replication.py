"""What master and slave say in a group with a controller, byte by byte."""

import random
from collections.abc import Iterable

import pytest

from pymq.errors import RemoteProtocolError
from pymq.protocol.epoch_replication import (
    EPOCH_COUNT_MAX,
    NO_EPOCH,
    PUSH_BYTES_MAX,
    EpochPush,
    Handshake,
    MasterEpochs,
    MasterMessageReader,
    SlaveMessageReader,
    encode_epoch_push_header,
    encode_epoch_report,
    encode_handshake,
    encode_master_epochs,
)
from pymq.protocol.epochs import Epoch, Epochs

SLAVE = [
    (Handshake(2), "00000001 0000 0000 0000000000000002"),
    (Handshake(7, from_last_file=True), "00000001 0001 0000 0000000000000007"),
    (Handshake(1 << 40, is_learner=True), "00000001 0000 0001 0000010000000000"),
    (0, "00000002 0000000000000000"),
    (4096, "00000002 0000000000001000"),
]
TWO = Epochs((Epoch(1, 0), Epoch(3, 4096)))
MASTER = [
    (MasterEpochs(Epochs(), 0), "00000001 00000000 0000000000000000 ffffffff"),
    (
        MasterEpochs(TWO, 5000),
        "00000001 00000018 0000000000001388 00000003"
        "00000001 0000000000000000 00000003 0000000000001000",
    ),
    (
        (4096, Epoch(3, 4096), 4000, b"abc"),
        "00000002 00000003 0000000000001000 00000003 0000000000001000 0000000000000fa0 616263",
    ),
    (
        (0, NO_EPOCH, 0, b""),
        "00000002 00000000 0000000000000000 ffffffff 0000000000000000 0000000000000000",
    ),
]


def encode(message: object) -> bytes:
    if isinstance(message, Handshake):
        return encode_handshake(message)
    if isinstance(message, MasterEpochs):
        return encode_master_epochs(*message)
    if isinstance(message, int):
        return encode_epoch_report(message)
    assert isinstance(message, tuple)
    at, epoch, confirmed, body = message
    return encode_epoch_push_header(at, len(body), epoch, confirmed) + body


def read(pieces: Iterable[bytes]) -> list[object]:
    reader, found = MasterMessageReader(), []
    for piece in pieces:
        while piece:
            room = reader.room()
            count = min(len(room), len(piece))
            room[:count] = piece[:count]
            piece = piece[count:]
            # All of them are valid until there is room for more.
            for message in list(reader.received(count)):
                if isinstance(message, EpochPush):
                    found.append((*message[:3], bytes(message.body)))
                else:
                    found.append(message)
    return found


def pieces_of(data: bytes, dice: random.Random) -> list[bytes]:
    found = []
    while data:
        size = dice.randint(1, 30)
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.parametrize(("message", "text"), [*SLAVE, *MASTER])
def test_every_byte(message: object, text: str) -> None:
    assert encode(message) == bytes.fromhex(text)


def test_a_slave_is_understood_however_its_bytes_are_cut(seed: int) -> None:
    dice = random.Random(seed)
    messages = [message for message, _ in SLAVE]
    data = b"".join(bytes.fromhex(text) for _, text in SLAVE)
    for pieces in ([data], [bytes([byte]) for byte in data], pieces_of(data, dice)):
        reader = SlaveMessageReader()
        assert [one for piece in pieces for one in reader.feed(piece)] == messages
    assert list(SlaveMessageReader().feed(data[:-1])) == messages[:-1]


def test_a_master_is_understood_however_its_bytes_are_cut(seed: int) -> None:
    dice = random.Random(seed)
    messages = [message for message, _ in MASTER]
    data = b"".join(bytes.fromhex(text) for _, text in MASTER)
    for pieces in ([data], [bytes([byte]) for byte in data], pieces_of(data, dice)):
        assert read(pieces) == messages
    assert read([data[:-1]]) == messages[:-1]


def test_a_push_as_large_as_may_be() -> None:
    body = bytes(range(256)) * (PUSH_BYTES_MAX // 256)
    message = (8, Epoch(1, 0), 4, body)
    assert read([encode(message) + encode(message)]) == [message, message]


def test_of_many_epochs_the_latest_are_told() -> None:
    many = Epochs(tuple(Epoch(n, n * 10) for n in range(1, EPOCH_COUNT_MAX + 5)))
    assert read([encode_master_epochs(many, 1 << 40)]) == [
        MasterEpochs(Epochs(many.entries[4:]), 1 << 40)
    ]


@pytest.mark.parametrize("text", ["00000000", "00000003", "ffffffff", "00001000" * 4])
def test_slaves_that_speak_otherwise_are_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="enableControllerMode"):
        list(SlaveMessageReader().feed(bytes.fromhex(text) + bytes(20)))


@pytest.mark.parametrize(
    "text",
    [
        "00000003 00000000",  # no state
        "00000002 ffffffff",  # sizes that cannot be
        "00000002 00400000",
        "00000001 0000000b",  # no whole number of epochs
        "00000001 00002eec",  # one more than may be
        "0000000000001000 00000010",  # a push without epochs
    ],
)
def test_masters_that_speak_otherwise_are_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="enableControllerMode"):
        read([bytes.fromhex(text) + bytes(40)])


def test_epochs_that_do_not_ascend_are_refused() -> None:
    data = encode_master_epochs(Epochs((Epoch(3, 0), Epoch(2, 9))), 10)
    with pytest.raises(RemoteProtocolError, match="ascending"):
        read([data])


def test_anything_is_understood_or_refused(seed: int) -> None:
    dice = random.Random(seed)
    whole = b"".join(bytes.fromhex(text) for _, text in MASTER)
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        for reads in (read, lambda pieces: list(SlaveMessageReader().feed(b"".join(pieces)))):
            try:
                reads([bytes(data)])
            except RemoteProtocolError:
                pass
