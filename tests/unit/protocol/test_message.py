"""Properties, messages, message ids and batches."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol.compression import Compression, compress, compression_flags
from pymq.protocol.message import (
    SYSTEM_PROPERTIES,
    Message,
    ReceivedMessage,
    decode_properties,
    encode_properties,
    find_property,
)
from pymq.protocol.record import Record, pack_host

PROPERTIES: list[tuple[dict[str, str], bytes]] = [
    ({}, b""),
    ({"a": "1"}, b"a\x011\x02"),
    ({"a": "1", "TAGS": "TagA"}, b"a\x011\x02TAGS\x01TagA\x02"),
    ({"k": "标签"}, "k\x01标签\x02".encode()),
    ({"a b": " "}, b"a b\x01 \x02"),
]


@pytest.mark.parametrize(("properties", "raw"), PROPERTIES)
def test_properties_both_ways(properties: dict[str, str], raw: bytes) -> None:
    assert encode_properties(properties) == raw
    assert decode_properties(raw) == properties
    assert decode_properties(raw[:-1]) == properties  # as 4.9 writes it
    assert decode_properties(raw + b"\x02\x02") == properties
    assert decode_properties(memoryview(raw)) == properties
    for name, value in properties.items():
        assert find_property(raw, name.encode()) == value.encode()
        assert find_property(raw[:-1], name.encode()) == value.encode()


READ_ONLY: list[tuple[bytes, dict[str, str]]] = [
    (b"a\x01\x02b\x01x", {"b": "x"}),  # an empty value disappears
    (b"\x01x\x02b\x01y", {"b": "y"}),
    (b"ab\x02b\x01y", {"b": "y"}),
    (b"a\x01x\x01y\x02", {"a": "x\x01y"}),
    (b"a\x01x\x02a\x01y\x02", {"a": "y"}),  # the later one counts
    (b"a\x01x\x02a\x01\x02", {"a": "x"}),
    (b"a\x01x\x02a\x01y\x02a\x01\x02a\x01", {"a": "y"}),
    (b"\x02\x02a\x01x", {"a": "x"}),
    (b"\x01", {}),
    (b"xa\x01y\x02", {"xa": "y"}),
]


@pytest.mark.parametrize(("raw", "properties"), READ_ONLY)
def test_reader_rule(raw: bytes, properties: dict[str, str]) -> None:
    assert decode_properties(raw) == properties
    for name in ("a", "b", "x", "xa", ""):
        value = properties.get(name)
        assert find_property(raw, name.encode()) == (value and value.encode()), name


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert decode_properties(b"a\x01\xff\x02b\x01x") == {"a": "\ufffd", "b": "x"}
    assert find_property(b"a\x01\xff\x02b\x01x", b"a") == b"\xff"


names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=9
)


@given(st.dictionaries(names, names, max_size=6))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    for name, value in properties.items():
        assert find_property(raw, name.encode()) == value.encode()


pieces = st.lists(st.sampled_from([b"a", b"b", b"\x01", b"\x02", b"TAGS"]), max_size=14)


@given(pieces.map(b"".join))
def test_find_agrees_with_decode(raw: bytes) -> None:
    found = decode_properties(raw)
    for name in ("a", "b", "ab", "TAGS", "aTAGS"):
        value = found.get(name)
        assert find_property(raw, name.encode()) == (value and value.encode())


@given(st.binary(max_size=80))
def test_random_properties_never_fail(raw: bytes) -> None:
    decode_properties(raw)
    find_property(raw, b"TAGS")


@pytest.mark.parametrize(
    "properties",
    [
        {"a\x01": "x"},
        {"a": "x\x02"},
        {"a": "\x01"},
        {"": "x"},
        {"a": ""},
        {"": ""},
        {"ok": "x", "a\x02b": "y"},
        {"a": "\ud800"},
        {"a": "x" * 32768},
        {str(i): "x" * 100 for i in range(330)},
    ],
)
def test_properties_that_cannot_be_sent(properties: dict[str, str]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_properties(properties)


def test_properties_limit_counts_bytes() -> None:
    assert len(encode_properties({"a": "x" * 32764})) == 32767
    with pytest.raises(LocalProtocolError, match="32768 B, expected at most 32767"):
        encode_properties({"a": "x" * 32765})
    with pytest.raises(LocalProtocolError):
        encode_properties({"a": "é" * 16383})


# ----------------------------------------------------------------------------------- message


def test_message_properties() -> None:
    message = Message("T", b"x", tags="A", keys=["k1", "k2"], properties={"p": "v"}, delay_level=3)
    raw = message.encode_properties("ID", {"TRAN_MSG": "true"})
    assert decode_properties(raw) == {
        "p": "v",
        "TAGS": "A",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "UNIQ_KEY": "ID",
        "TRAN_MSG": "true",
    }
    assert decode_properties(Message("T", b"", keys="a b").encode_properties()) == {"KEYS": "a b"}
    assert Message("T", b"").encode_properties() == b""


@pytest.mark.parametrize("name", sorted(SYSTEM_PROPERTIES))
def test_system_properties_are_not_the_users(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="belongs to the system"):
        Message("T", b"", properties={name: "x"}).encode_properties()


@pytest.mark.parametrize(
    "name", ["CHECK_IMMUNITY_TIME_IN_SECONDS", "__SHARDINGKEY", "TIMER_DELAY_MS", "tags"]
)
def test_names_that_are_the_users(name: str) -> None:
    raw = Message("T", b"", properties={name: "x"}).encode_properties()
    assert decode_properties(raw) == {name: "x"}


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"", properties={"a": " "}),
        Message("T", b"", properties={" ": "a"}),
        Message("T", b"", properties={"a": ""}),
        Message("T", b"", keys=["a b"]),
        Message("T", b"", keys=["a", ""]),
        Message("T", b"", tags="a\x02"),
    ],
)
def test_messages_that_cannot_be_sent(message: Message) -> None:
    with pytest.raises(LocalProtocolError):
        message.encode_properties()


def record(**changes: object) -> Record:
    values: dict[str, object] = {
        "topic": "%RETRY%CG",
        "queue_id": 3,
        "queue_offset": 10,
        "physical_offset": 4096,
        "body": b"hello",
        "properties": b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02",
        "flag": 7,
        "sys_flag": 0,
        "born_timestamp": 1700000000000,
        "born_host": pack_host("10.0.0.1", 50000),
        "store_timestamp": 1700000000005,
        "store_host": pack_host("10.0.0.2", 10911),
        "reconsume_times": 2,
        "prepared_transaction_offset": 5,
        "body_crc": 0,
        "size": 0,
        **changes,
    }
    return Record(**values)  # type: ignore[arg-type]


def test_received_message() -> None:
    message = ReceivedMessage.from_record(record(), "broker-a", topic="TopicA")
    assert message.topic == "TopicA"
    assert ReceivedMessage.from_record(record(), "broker-a").topic == "%RETRY%CG"
    assert message.body == b"hello"
    assert message.tags == "TagA"
    assert message.keys == ["k1", "k2"]
    assert message.offset_message_id == "0A00000200002A9F0000000000001000"
    assert message.message_id == message.offset_message_id
    assert message.born_host == "10.0.0.1:50000"
    assert message.store_host == "10.0.0.2:10911"
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (
        1700000000000,
        1700000000005,
    )
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (3, 10, 4096)
    assert (message.flag, message.reconsume_times, message.broker_name) == (7, 2, "broker-a")
    assert message.prepared_transaction_offset == 5
    assert message.transaction_id is None


def test_received_message_without_anything() -> None:
    message = ReceivedMessage.from_record(record(properties=b""), "b")
    assert message.tags is None
    assert message.keys == []


def test_the_producers_id_comes_first() -> None:
    properties = b"UNIQ_KEY\x01ID\x02TRAN_MSG\x01true"
    message = ReceivedMessage.from_record(record(properties=properties), "b")
    assert message.message_id == "ID"
    assert message.transaction_id == "ID"
    assert message.offset_message_id != "ID"


def test_ipv6_hosts() -> None:
    message = ReceivedMessage.from_record(record(born_host=pack_host("::1", 5)), "b")
    assert message.born_host == "[::1]:5"


@pytest.mark.parametrize("kind", Compression)
def test_compressed_bodies_are_unpacked(kind: Compression) -> None:
    body = compress(b"hello" * 100, kind)
    flags = compression_flags(kind) | 0x8
    message = ReceivedMessage.from_record(record(body=body, sys_flag=flags), "b")
    assert message.body == b"hello" * 100
    assert message.sys_flag == 0x8
    with pytest.raises(RemoteProtocolError):
        ReceivedMessage.from_record(record(body=body, sys_flag=flags), "b", body_bytes_max=499)
    with pytest.raises(RemoteProtocolError):
        ReceivedMessage.from_record(record(body=b"hello", sys_flag=flags), "b")


@pytest.mark.parametrize("keys", ["a b", ["a", "b"], ("a", "b"), iter(["a", "b"])])
def test_keys_are_a_string_or_several(keys: Sequence[str]) -> None:
    raw = Message("T", b"x", keys=keys).encode_properties()
    assert decode_properties(raw) == {"KEYS": "a b"}
