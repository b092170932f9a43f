"""What becomes of messages that ask for more than to be stored."""

import dataclasses
from collections.abc import Mapping

import pytest

from pymq.broker.message_hooks import MessageHooks
from pymq.errors import MessageIllegal, RequestNotSupported
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.message import parse_properties
from pymq.protocol.new_batch import NewBatch
from pymq.protocol.new_records import SharedFields
from pymq.protocol.record import NewRecord, pack_host

HOST = pack_host("10.0.0.1", 5000)


def record(sys_flag: int = 0) -> NewRecord:
    return NewRecord("T", 0, b"body", b"", HOST, 0, 0, sys_flag)


def batch(*properties: bytes, sys_flag: int = 0) -> NewBatch:
    return NewBatch(
        encode_batch((0, b"\x02DELAY\x01body", text) for text in properties),
        SharedFields(
            topic="T",
            queue_id=0,
            sys_flag=sys_flag,
            born_timestamp=0,
            born_host=HOST,
            store_host=HOST,
        ),
    )


SPECIAL = [
    "DELAY\x013",
    "a\x01b\x02DELAY\x011\x02",
    "DELAY\x01soon",  # RocketMQ fails to read it; a guess might deliver it too early
    "TIMER_DELAY_SEC\x0110",
    "TIMER_DELAY_MS\x0110",
    "TIMER_DELIVER_MS\x011700000000000",
    "TRAN_MSG\x01true",
    "TRAN_MSG\x01TRUE\x02",
    "DELAY\x010\x02DELAY\x012",  # the later one counts
]
ORDINARY = [
    "",
    "DELAY\x010\x02",
    "DELAY\x01-1",
    "DELAY\x01",
    "x\x01DELAY",
    "DELAY",
    "MYDELAY\x013",
    "x\x01DELAY\x013",
    "\x01DELAY\x013",
    "TRAN_MSG\x01false",
    "TRAN_MSG\x01yes",
    "DELAY\x013\x02DELAY\x010",
    "TAGS\x01DELAY\x02T\x01DELAY\x02",
]


@pytest.mark.parametrize("text", SPECIAL)
def test_a_message_whose_feature_nobody_offers_is_refused(text: str) -> None:
    with pytest.raises(RequestNotSupported, match="are not supported by this broker"):
        MessageHooks().apply(record(), parse_properties(text))


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_message_stays_as_it_is(text: str) -> None:
    ordinary = record()
    assert MessageHooks().apply(ordinary, parse_properties(text)) is ordinary


@pytest.mark.parametrize("text", SPECIAL)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_batch_with_a_special_message_is_refused(text: str, place: int) -> None:
    texts = [b"TAGS\x01a\x02", b"TAGS\x01b\x02"]
    texts.insert(place, text.encode())
    with pytest.raises(MessageIllegal, match=f"of message {place}, counted from 0"):
        MessageHooks().check_batch(batch(*texts), {})


@pytest.mark.parametrize("text", ORDINARY)
def test_a_batch_of_ordinary_messages_is_stored(text: str) -> None:
    MessageHooks().check_batch(batch(text.encode()), {})
    MessageHooks().check_batch(batch(b"TAGS\x01a\x02", text.encode(), b""), {})


@pytest.mark.parametrize("text", SPECIAL)
def test_a_batch_that_is_special_as_a_whole_is_refused(text: str) -> None:
    with pytest.raises(MessageIllegal, match="of the batch"):
        MessageHooks().check_batch(batch(b""), parse_properties(text))


@pytest.mark.parametrize("sys_flag", [0x4, 0x8, 0xC, 0x80])
def test_a_flag_that_would_hide_the_message_is_refused(sys_flag: int) -> None:
    with pytest.raises(MessageIllegal, match="system flag"):
        MessageHooks().apply(record(sys_flag), {})
    with pytest.raises(MessageIllegal, match="system flag"):
        MessageHooks().check_batch(batch(b"", sys_flag=sys_flag), {})


def test_a_hook_decides_what_is_stored() -> None:
    def postpone(one: NewRecord, properties: Mapping[str, str]) -> NewRecord:
        return dataclasses.replace(one, topic="LATER", queue_id=int(properties["DELAY"]) - 1)

    hooks = MessageHooks()
    hooks.add("DELAY", postpone)
    stored = hooks.apply(record(), {"DELAY": "3"})
    assert (stored.topic, stored.queue_id) == ("LATER", 2)
    with pytest.raises(MessageIllegal, match="system flag"):
        hooks.apply(record(0x4), {"DELAY": "3"})
    with pytest.raises(RequestNotSupported, match="TRAN_MSG"):
        hooks.apply(record(), {"DELAY": "3", "TRAN_MSG": "true"})
    with pytest.raises(MessageIllegal):  # RocketMQ's rule, whatever is offered
        hooks.check_batch(batch(b"DELAY\x013"), {})


def test_one_hook_counts_that_of_the_transaction_before_that_of_the_delay() -> None:
    def postpone(one: NewRecord, properties: Mapping[str, str]) -> NewRecord:
        return dataclasses.replace(one, topic="LATER")

    def prepare(one: NewRecord, properties: Mapping[str, str]) -> NewRecord:
        return dataclasses.replace(one, topic="HALF", sys_flag=0)

    hooks = MessageHooks()
    hooks.add("DELAY", postpone)
    hooks.add("TRAN_MSG", prepare)
    both = {"DELAY": "3", "TRAN_MSG": "true"}
    assert hooks.apply(record(0x4), both).topic == "HALF"
    assert hooks.apply(record(), {**both, "TRAN_MSG": "false"}).topic == "LATER"
