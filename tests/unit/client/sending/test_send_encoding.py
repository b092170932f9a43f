"""Prepared frames say the same as the general codec."""

import itertools
import random
import string
from typing import Any

import pytest

from pymq.client.cluster.config import ClientConfig
from pymq.client.operations import SendResult, SendStatus, read_send
from pymq.client.sending import send_encoding
from pymq.client.sending.send_template import SendTemplate
from pymq.errors import BrokerError, LocalProtocolError, RemoteProtocolError, TopicNotExist
from pymq.protocol.batch_body import BATCH_OVERHEAD_BYTES, decode_batch
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.command import Command
from pymq.protocol.compression import decompress
from pymq.protocol.framing import FrameDecoder
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.message import Message, decode_properties

QUEUE = MessageQueue("a%dT|", 'broker"ä%s', 3)
TEMPLATE = SendTemplate(QUEUE, "10.0.0.1:10911", group="G%", default_topic_queue_count=4)
CONFIG = ClientConfig(name_servers=("127.0.0.1:9876",))


def sent(message: Message, *, batch: bool = False, **options: object) -> Command:
    properties = send_encoding.properties_json(
        message,
        "KEY",
        **options,  # type: ignore[arg-type]
    )
    head = TEMPLATE.head(
        -5,
        len(message.body),
        properties,
        sys_flag=8,
        born_ms=123,
        flag=-7,
        command_flag=2,
        code=320 if batch else 310,
    )
    (command,) = FrameDecoder().feed(head + message.body)
    return command


@pytest.mark.parametrize("batch", [False, True])
def test_a_frame_has_all_fields(batch: bool) -> None:
    command = sent(Message("T", b"body", tags="t"), batch=batch)
    assert (command.code, command.opaque, command.flag) == (320 if batch else 310, -5, 2)
    assert command.body == b"body"
    assert SendRequest.from_v2(command.fields or {}) == SendRequest(
        "G%", "a%dT|", "TBW102", 4, 3, 8, 123, -7,
        "UNIQ_KEY\x01KEY\x02TAGS\x01t\x02", 0, False, None, batch, 'broker"ä%s',
    )  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Message("T", b"b"), id="nothing"),
        pytest.param(Message("T", b"b", tags="a"), id="tag"),
        pytest.param(Message("T", b"b", keys="k1 k2"), id="keys"),
        pytest.param(Message("T", b"b", tags='"\\/', keys="ü 😀\n\t"), id="awkward"),
        pytest.param(Message("T", b"b", keys=["k1", "k2"]), id="several keys"),
        pytest.param(Message("T", b"b", tags="a", properties={"p": "v"}), id="properties"),
        pytest.param(Message("T", b"b", delay_level=3), id="delay"),
        pytest.param(Message("T", b"b", keys="k" * 20_000), id="long"),
    ],
)
def test_the_short_way_to_properties_agrees_with_the_long_one(message: Message) -> None:
    text = (sent(message).fields or {})["i"]
    assert decode_properties(text.encode()) == decode_properties(message.encode_properties("KEY"))


def test_system_properties_are_among_the_others() -> None:
    text = send_encoding.properties_json(
        Message("T", b"b", tags="a"), "KEY", system={"__SHARDINGKEY": "s", "WAIT": "false"}
    )
    assert "__SHARDINGKEY\\u0001s" in text and "WAIT\\u0001false" in text


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("T", b"b", tags="a\x01"), r"U\+0001"),
        (Message("T", b"b", keys="a\x02"), r"U\+0001"),
        (Message("T", b"b", tags="t" * 40_000), "expected at most"),
        (Message("T", b"b", keys="t" * 40_000), "at most 32767"),
        (Message("T", b"b", tags=["a"]), "tags to be a str"),  # type: ignore[arg-type]
        (Message("T", b"b", tags=7), "expected one tag"),  # type: ignore[arg-type]
        (Message("T", b"b", keys=7), "keys is 7, expected a str or several"),  # type: ignore[arg-type]
        (Message("T", b"b", properties={"a": 7}), "two strings"),  # type: ignore[dict-item]
        (Message("T", b"b", properties={"TAGS": "x"}), "belongs to the system"),
        (Message("T", b"b", tags="\ud800"), "not Unicode"),
        (Message("T", b"b", tags="a||b"), "a message has one tag"),
        (Message("T", b"b", tags="a || b", keys="k", properties={"p": "v"}), "one tag"),
        (Message("T", b"b", delay_level=-3), r"delay_level=-3, expected 0 for no delay, or"),
        (Message("T", b"b", delay_level="3"), "delay_level='3', expected"),  # type: ignore[arg-type]
    ],
)
def test_properties_that_cannot_be_sent_are_refused(message: Message, reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=reason):
        sent(message)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("text", "body is a str, expected bytes; encode it"),
        (None, "body is a NoneType"),
        (b"", r"0 B, expected 1\.\.4194304 \(body_bytes_max"),
        (b"x" * ((4 << 20) + 1), "4194305 B, expected"),
    ],
)
def test_bodies_that_cannot_be_sent_are_refused(body: object, reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=reason):
        send_encoding.prepare_body(body, "T", CONFIG)


def test_large_bodies_are_compressed_if_that_helps() -> None:
    body, flags = send_encoding.prepare_body(b"x" * 4096, "T", CONFIG)
    assert len(body) < 100
    assert decompress(body, flags) == b"x" * 4096
    assert send_encoding.prepare_body(b"x" * 4095, "T", CONFIG) == (b"x" * 4095, 0)
    noise = random.Random(1).randbytes(5000)
    assert send_encoding.prepare_body(noise, "T", CONFIG) == (noise, 0)


def test_a_body_that_could_change_is_copied() -> None:
    changeable = bytearray(b"abc")
    body, _ = send_encoding.prepare_body(changeable, "T", CONFIG)
    changeable[0] = 0
    assert body == b"abc"


@pytest.mark.parametrize("flag", [1 << 31, -(1 << 31) - 1, "1", 1.5])
def test_flags_are_32_bits(flag: int) -> None:
    with pytest.raises(LocalProtocolError, match="32-bit"):
        send_encoding.check_flag(flag)


# ------------------------------------------------------------------------------------- batches


def test_batches_decode_to_their_messages_and_keep_the_limit(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        messages = [
            Message(
                "T",
                rng.randbytes(rng.randrange(1, 200)),
                tags=rng.choice([None, "a", "ü"]),
                keys=rng.choice([None, "k", ["a", "b"]]),
                properties=rng.choice([{}, {"p": rng.choice(string.ascii_letters)}]),
                flag=rng.choice([0, 0, 5, -1]),
            )
            for _ in range(rng.randrange(1, 30))
        ]
        ids = [f"ID{n}" for n in range(len(messages))]
        limit = rng.choice([500, 2000, 4 << 20])
        kept = rng.choice([0, 300, 1 << 20])
        batches = list(send_encoding.iter_batches(messages, ids, limit, kept_bytes_max=kept))
        for some, other in itertools.pairwise(batches):
            first = decode_batch(other.body)[0]
            assert len(some.body) + BATCH_OVERHEAD_BYTES + len(first[1]) + len(first[2]) > limit
        assert all(0 < len(batch.body) <= limit for batch in batches)
        assert [key for batch in batches for key in batch.unique_keys] == ids
        entries = [entry for batch in batches for entry in decode_batch(batch.body)]
        assert [(flag, body) for flag, body, _ in entries] == [(m.flag, m.body) for m in messages]
        for (_, _, properties), message, key in zip(entries, messages, ids, strict=True):
            expected = decode_properties(message.encode_properties(key))
            assert decode_properties(properties) == expected


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("T", b"x" * 2000), "expected at most 1000"),
        (Message("T", b"x", delay_level=1), "send it alone"),
        (Message("T", b"x", flag=1 << 40), "32-bit"),
        (Message("T", "x"), "expected bytes"),  # type: ignore[arg-type]
        (Message("T", b"x", tags="\x02"), r"U\+0002"),
        (Message("T", b"x", tags="\ud800"), "not Unicode"),
        (Message("T", b"x", tags=["a"]), "tags to be a str"),  # type: ignore[arg-type]
        (Message("T", b"x", keys=7), "keys is 7, expected a str or several"),  # type: ignore[arg-type]
    ],
)
def test_messages_that_cannot_be_in_a_batch_are_refused(message: Message, reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=reason):
        send_encoding.encode_batch([Message("T", b"good"), message], ["1", "2"], 1000)
    some = [Message("T", b"x" * 600), Message("T", b"x" * 600), message]
    with pytest.raises(LocalProtocolError, match=reason):
        next(send_encoding.iter_batches(some, ["1", "2", "3"], 1000, kept_bytes_max=0))


@pytest.mark.parametrize(("kept_bytes_max", "expected"), [(1 << 20, 9), (2500, 9 + 6)])
def test_messages_are_encoded_once_as_far_as_they_may_be_kept(
    kept_bytes_max: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, count = send_encoding.encode_in_batch, 0

    def counted(*args: Any) -> bytes:
        nonlocal count
        count += 1
        return encode(*args)

    monkeypatch.setattr(send_encoding, "encode_in_batch", counted)
    messages = [Message("T", bytes(1000)) for _ in range(9)]
    ids = [str(number) for number in range(9)]
    batches = list(send_encoding.iter_batches(messages, ids, 2500, kept_bytes_max=kept_bytes_max))
    assert [len(batch.unique_keys) for batch in batches] == [2, 2, 2, 2, 1]
    assert count == expected


# ------------------------------------------------------------------------------------- answers

FIELDS = {"msgId": "OFFSETID", "queueId": "3", "queueOffset": "17", "transactionId": "KEY"}


def read(answer: Command, template: SendTemplate, message_id: str) -> SendResult:
    return read_send(answer, template, message_id, peer=template.address)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_a_result_tells_where_and_how(code: int, status: SendStatus) -> None:
    result = read(Command(code, FIELDS), TEMPLATE, "KEY")
    assert (result.status, result.message_id, result.queue) == (status, "KEY", QUEUE)
    assert (result.queue_offset, result.offset_ids_text) == (17, "OFFSETID")


def test_the_broker_may_choose_the_queue() -> None:
    result = read(Command(0, {**FIELDS, "queueId": "1"}), TEMPLATE, "KEY")
    assert result.queue == MessageQueue("a%dT|", 'broker"ä%s', 1)


def test_refusals_and_garbled_answers() -> None:
    with pytest.raises(TopicNotExist, match="10.0.0.1:10911 refused a message to topic 'a%dT|'"):
        read(Command(17, None, remark="no"), TEMPLATE, "KEY")
    with pytest.raises(BrokerError) as caught:
        read(Command(4711), TEMPLATE, "KEY")
    assert caught.value.code == 4711
    for fields in (None, {}, {**FIELDS, "queueOffset": "x"}):
        with pytest.raises(RemoteProtocolError, match="msgId, queueId"):
            read(Command(0, fields), TEMPLATE, "KEY")
