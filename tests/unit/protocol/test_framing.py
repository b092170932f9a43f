"""Frames: fixed bytes both ways, every way to cut the stream, and streams that are none."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol.codes import LanguageCode, RequestCode
from pymq.protocol.command import Command, HeaderForm
from pymq.protocol.framing import FrameDecoder, encode_frame, encode_parts, frame_prefix

# Captured from RocketMQ (the remoting specification's test vectors).
ROUTE_JSON = bytes.fromhex(
    "00000084 00000080"
    "7b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f70696341227d2c"
    "22666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a372c2273657269"
    "616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d"
)
ROUTE_BINARY = bytes.fromhex(
    "0000002a 01000026 0069 00 01df 00000007 00000000 00000000 00000011"
    "0005 746f706963 00000006 546f70696341"
)
NO_TOPIC_BINARY = bytes.fromhex(
    "00000021 0100001d 0011 00 01df 00000007 00000001 00000008 4e6f20746f706963 00000000"
)
OFFSET_BINARY = bytes.fromhex(
    "00000028 01000022 0000 00 01df 00000008 00000001 00000000 0000000d"
    "0006 6f6666736574 00000001 35 7b7d"
)
JAVA = LanguageCode.JAVA
BINARY = HeaderForm.BINARY

VECTORS = [
    (Command(105, {"topic": "TopicA"}, opaque=7, language=JAVA), ROUTE_JSON),
    (Command(105, {"topic": "TopicA"}, opaque=7, language=JAVA, form=BINARY), ROUTE_BINARY),
    (
        Command(17, remark="No topic", opaque=7, flag=1, language=JAVA, form=BINARY),
        NO_TOPIC_BINARY,
    ),
    (Command(0, {"offset": "5"}, b"{}", opaque=8, flag=1, language=0, form=BINARY), OFFSET_BINARY),
]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
commands = st.builds(
    Command,
    code=st.integers(0, 32767),
    fields=st.none() | st.dictionaries(texts, texts, min_size=1, max_size=5),
    body=st.binary(max_size=200),
    remark=st.none() | texts.filter(bool),
    opaque=int32,
    flag=st.integers(0, 3),
    language=st.sampled_from(LanguageCode).map(int),
    version=st.integers(0, 32767),
    form=st.sampled_from(HeaderForm),
)


@pytest.mark.parametrize(("command", "frame"), VECTORS)
class TestVectors:
    def test_encode(self, command: Command, frame: bytes) -> None:
        assert encode_frame(command) == frame

    def test_whole(self, command: Command, frame: bytes) -> None:
        assert FrameDecoder().feed(frame) == [command]

    def test_byte_by_byte(self, command: Command, frame: bytes) -> None:
        decoder = FrameDecoder()
        found = [decoder.feed(frame[i : i + 1]) for i in range(len(frame))]
        assert found == [[]] * (len(frame) - 1) + [[command]]
        assert decoder.pending_bytes == 0

    @pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 20])
    def test_trailing_bytes(self, command: Command, frame: bytes, size: int) -> None:
        decoder = FrameDecoder()
        assert decoder.feed(frame + frame[:size]) == [command]
        assert decoder.pending_bytes == size
        assert decoder.feed(frame[size:]) == [command]
        assert decoder.pending_bytes == 0


def test_many_in_one_piece() -> None:
    stream = b"".join(frame for _, frame in VECTORS)
    assert FrameDecoder().feed(stream * 3) == [command for command, _ in VECTORS] * 3


@given(st.lists(commands, max_size=6), st.randoms(use_true_random=False))
def test_round_trip_however_cut(sent: list[Command], chance: random.Random) -> None:
    stream = b"".join(encode_frame(command) for command in sent)
    decoder = FrameDecoder()
    received: list[Command] = []
    while stream:
        size = chance.randint(1, len(stream))
        received += decoder.feed(stream[:size])
        stream = stream[size:]
    assert received == sent
    assert decoder.pending_bytes == 0


def test_large_frames_fed_and_received_in_place(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [0, 10, 64 << 10, 70_000, 300_000, 1 << 20, 5, 200_000]
    sent = [Command(10, opaque=i, body=chance.randbytes(n)) for i, n in enumerate(sizes)]
    taken: list[int] = []

    def memory(size: int) -> memoryview:
        taken.append(size)
        return memoryview(bytearray(size))

    for _ in range(30):
        stream = memoryview(b"".join(encode_frame(command) for command in sent))
        taken.clear()
        decoder = FrameDecoder(memory=memory)
        received: list[Command] = []
        while stream:
            room = decoder.room
            size = min(len(stream), int(600_000 ** chance.random()))
            if room is not None and chance.random() < 0.8:
                size = min(size, len(room))
                room[:size] = stream[:size]
                received += decoder.filled(size)
            else:
                received += decoder.feed(bytes(stream[:size]))
            stream = stream[size:]
        assert received == sent
        assert decoder.pending_bytes == decoder.missing_bytes == 0 and decoder.room is None
        assert all(size > 64 << 10 for size in taken)


def test_a_length_alone_claims_no_memory() -> None:
    taken: list[int] = []

    def memory(size: int) -> memoryview:
        taken.append(size)
        return memoryview(bytearray(size))

    decoder = FrameDecoder(memory=memory)
    decoder.feed(b"\x00\xf0\x00\x00" + b"\x00\x00\x00\x02" + bytes(899_996))
    assert taken == [] and decoder.room is None
    decoder.feed(bytes(100_000))
    assert taken == [0xF00004]
    assert decoder.room is not None
    assert len(decoder.room) == decoder.missing_bytes == 0xF00004 - 1_000_004


def test_parts_share_the_body() -> None:
    body = memoryview(b"x" * 1000)
    prefix, same = encode_parts(Command(0, body=body))
    assert same is body
    assert prefix + bytes(same) == encode_frame(Command(0, body=body))


def test_an_answer_repeats_number_and_form() -> None:
    for form in HeaderForm:
        request = Command(RequestCode.PULL_MESSAGE, opaque=-5, form=form)
        (answer,) = FrameDecoder().feed(encode_frame(request.reply(19, "none")))
        assert (answer.opaque, answer.form, answer.code) == (-5, form, 19)
        assert answer.is_response and not answer.is_one_way
        assert answer.remark == "none"


def test_largest_frame_is_taken_and_one_more_is_not() -> None:
    frame = encode_frame(Command(0, body=b"x" * 100))
    assert len(FrameDecoder(frame_bytes_max=len(frame)).feed(frame)) == 1
    with pytest.raises(RemoteProtocolError, match=r"frame_bytes_max"):
        FrameDecoder(frame_bytes_max=len(frame) - 1).feed(frame)


def test_the_limit_applies_to_the_first_four_bytes() -> None:
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError, match="frame of 16777217 B"):
        decoder.feed(bytes.fromhex("00fffffd"))
    assert len(FrameDecoder().feed(bytes.fromhex("00fffffc"))) == 0  # exactly 16 MiB may follow


@pytest.mark.parametrize(
    ("stream", "match"),
    [
        (bytes(8), "frame of 4 B"),  # no room for a header
        (bytes.fromhex("00000003 00000000"), "frame of 7 B"),
        (bytes.fromhex("ffffffff 00000000"), "frame of 4294967299 B"),  # -1
        (bytes.fromhex("80000000"), "frame of 2147483652 B"),
        (bytes.fromhex("00000004 00000001"), "header of 1 B in a frame with room for 0"),
        (bytes.fromhex("00000008 00000005 7b7d2020"), "header of 5 B"),
        (bytes.fromhex("00000006 02000002 7b7d"), "serialization 2"),
        (bytes.fromhex("00000006 00000002 7b7d"), "JSON header"),
        (bytes.fromhex("00000004 00000000"), "JSON header of 0 B"),
        (bytes.fromhex("00000004 01000000"), "binary header of 0 B"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "TLS"),
        (bytes.fromhex("15030100020246"), "TLS alert.*tls.server.mode=permissive"),
        # SETTINGS with three of them, and GOAWAY: what gRPC servers begin with.
        (bytes.fromhex("000012040000000000 000300000064"), "HTTP/2, which gRPC.*9876 of a name"),
        (bytes.fromhex("00002e070000000000 7fffffff"), "HTTP/2, which gRPC"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST / HTTP/1.1\r\n", "HTTP"),
        (b"PROXY TCP4 ", "frame of"),
        (b"SSH-2.0-OpenSSH", "frame of"),
    ],
)
def test_streams_of_something_else(stream: bytes, match: str) -> None:
    with pytest.raises(RemoteProtocolError, match=match):
        FrameDecoder().feed(stream)
    with pytest.raises(RemoteProtocolError):
        decoder = FrameDecoder()
        for i in range(len(stream)):
            decoder.feed(stream[i : i + 1])


def test_too_large_to_send() -> None:
    with pytest.raises(LocalProtocolError, match="send less"):
        encode_frame(Command(0, body=b"x" * 100), frame_bytes_max=100)
    with pytest.raises(LocalProtocolError):
        frame_prefix(1 << 24, 0, form=0, frame_bytes_max=1 << 30)


@given(st.binary(max_size=300))
def test_random_streams_raise_only_our_error(stream: bytes) -> None:
    try:
        FrameDecoder(frame_bytes_max=1 << 16).feed(stream)
    except RemoteProtocolError:
        pass


def test_damaged_frames_raise_only_our_error(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5_000):
        _, frame = chance.choice(VECTORS)
        damaged = bytearray(frame)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(4, len(damaged))] = chance.randrange(256)
        try:
            FrameDecoder().feed(bytes(damaged))
        except RemoteProtocolError:
            pass
