"""Compressed registrations: what real brokers send, both ways, and what is refused."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import RemoteProtocolError
from pymq.protocol import registration_body
from pymq.protocol.bodies import DataVersion, TopicConfig, TopicTable
from pymq.protocol.registration_body import RegisterBrokerBody, topic_line, topic_of_line

TOPIC = TopicConfig(topic="TopicA", read_queue_count=4, write_queue_count=4)
VERSION = DataVersion(counter=3, timestamp_ms=1795187246576)


def compressed(*parts: bytes) -> bytes:
    return zlib.compress(b"".join(parts), 9)


def sized(part: bytes) -> bytes:
    return struct.pack(">i", len(part)) + part


REGISTRATION = RegisterBrokerBody(
    topics=TopicTable(
        version=VERSION,
        topics={
            "TopicA": TOPIC,
            "B": TopicConfig(topic="B", perm=7, attributes={"message.type": "FIFO", "x": "a b"}),
        },
    ),
    filter_servers=["10.0.0.1:1"],
)
COUNT_1, COUNT_0 = struct.pack(">i", 1), struct.pack(">i", 0)
TOPIC_4_9 = b"TopicA 4 4 6 SINGLE_TAG"


@pytest.mark.parametrize("version", [409, 412, 413, 479])
def test_compressed_registration(version: int) -> None:
    data = REGISTRATION.encode_compressed(version)
    assert RegisterBrokerBody.decode_compressed(data, version) == REGISTRATION
    assert RegisterBrokerBody.decode_compressed(memoryview(data), version) == REGISTRATION
    plain = zlib.decompress(data)
    assert plain.endswith(b'["10.0.0.1:1"]' + (COUNT_0 if version >= 413 else b""))


def test_compressed_registration_of_real_brokers() -> None:
    head = sized(b'{"counter":3,"timestamp":1795187246576}') + COUNT_1 + sized(TOPIC_4_9)
    expected = RegisterBrokerBody(
        topics=TopicTable(version=VERSION, topics={"TopicA": TOPIC})
    )
    for version, tail in ((409, b""), (479, COUNT_1 + sized(b'{"bname":"x"}')), (479, b"")):
        data = compressed(head, sized(b"[]"), tail)
        assert RegisterBrokerBody.decode_compressed(data, version) == expected


VERSION_PART = sized(VERSION.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zlib",
        REGISTRATION.encode_compressed(479)[:-8],
        compressed(),
        compressed(b"\0\0"),
        compressed(b"\xff\xff\xff\xff", VERSION_PART),  # negative length
        compressed(b"\x7f\xff\xff\xff", VERSION_PART),
        compressed(VERSION_PART),
        compressed(VERSION_PART, b"\x7f\xff\xff\xff"),  # a count nothing follows
        compressed(VERSION_PART, COUNT_1),
        compressed(VERSION_PART, b"\xff\xff\xff\xff", sized(b"[]")),  # a negative count
        compressed(VERSION_PART, COUNT_1, sized(b"TopicA 4 4 6")),
        compressed(VERSION_PART, COUNT_1, sized(b"TopicA four 4 6 SINGLE_TAG"), sized(b"[]")),
        compressed(VERSION_PART, COUNT_1, sized(b"TopicA 4 4 6 X {"), sized(b"[]")),
        compressed(VERSION_PART, COUNT_1, sized(b"\xff 4 4 6 X"), sized(b"[]")),
        compressed(VERSION_PART, COUNT_0, sized(b"{}")),
        compressed(VERSION_PART, COUNT_0, sized(b"[]"), COUNT_1),
        compressed(sized(b"[]"), COUNT_0, sized(b"[]")),
    ],
)
def test_malformed_registrations_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        RegisterBrokerBody.decode_compressed(data, 479)


def test_a_registration_cannot_explode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_body, "REGISTRATION_BYTES_MAX", 10_000)
    with pytest.raises(RemoteProtocolError, match="more than 10000 B"):
        RegisterBrokerBody.decode_compressed(compressed(bytes(1_000_000)), 479)


def test_lines_of_topics() -> None:
    assert topic_line(TOPIC) == "TopicA 4 4 6 SINGLE_TAG {}"
    assert topic_of_line(topic_line(TOPIC)) == TOPIC
    assert topic_of_line(TOPIC_4_9.decode()) == TOPIC


@given(st.binary(max_size=60))
def test_random_registrations_raise_only_our_error(raw: bytes) -> None:
    for data in (raw, zlib.compress(raw), compressed(VERSION_PART, COUNT_1, raw)):
        try:
            RegisterBrokerBody.decode_compressed(data, 479)
        except RemoteProtocolError:
            pass
