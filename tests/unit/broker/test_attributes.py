"""Attributes of topics: RocketMQ's rules, and its words where it refuses."""

from collections.abc import Mapping

import pytest

from pymq.broker.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    Attribute,
    changed,
    parse_changes,
)
from pymq.errors import BrokerError
from pymq.protocol.codes import ResponseCode


def test_changes_are_read() -> None:
    assert parse_changes(None) == parse_changes("") == {}
    assert parse_changes("+message.type=FIFO,-reserve.time") == {
        "+message.type": "FIFO",
        "-reserve.time": "",
    }


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("nonsense", "delete attribute format is wrong: nonsense"),
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("+message.type=", "add/alter attribute format is wrong: +message.type"),
        ("+message.type=FIFO,+message.type=NORMAL", "key duplication: +message.type"),
        (",", "delete attribute format is wrong: "),
    ],
)
def test_changes_that_cannot_be_read(text: str, remark: str) -> None:
    with pytest.raises(BrokerError) as refused:
        parse_changes(text)
    assert (refused.value.code, refused.value.remark) == (ResponseCode.SYSTEM_ERROR, remark)


def test_a_new_topic_and_later_changes() -> None:
    made = changed(None, {"+queue.type": "SimpleCQ", "+message.type": "FIFO"}, TOPIC_ATTRIBUTES)
    assert made == {"queue.type": "SimpleCQ", "message.type": "FIFO"}
    later = changed(made, {"+message.type": "DELAY", "+reserve.time": "-1"}, TOPIC_ATTRIBUTES)
    assert later == {"queue.type": "SimpleCQ", "message.type": "DELAY", "reserve.time": "-1"}
    assert changed(later, {"-message.type": ""}, TOPIC_ATTRIBUTES) == {
        "queue.type": "SimpleCQ",
        "reserve.time": "-1",
    }
    assert changed(later, {}, TOPIC_ATTRIBUTES) == later


@pytest.mark.parametrize(
    ("known", "changes", "remark"),
    [
        (None, {"-message.type": ""}, "only add attribute is supported while creating topic. "),
        (None, {"+no.such": "1"}, "unsupported key: no.such"),
        (None, {"+queue.type": "Nonsense"}, "value is not in set: [SimpleCQ, BatchCQ]"),
        (None, {"+": "1"}, "kv string format wrong."),
        (None, {"++queue.type": "SimpleCQ"}, "kv string format wrong."),
        (None, {"+reserve.time": "-2"}, "value is not in range(-1, 9223372036854775807)"),
        (None, {"+reserve.time": "soon"}, 'For input string: "soon"'),
        ({}, {"message.type": "FIFO"}, "wrong format key: essage.type"),
        ({}, {"-message.type": ""}, "attempt to delete a nonexistent key: message.type"),
        ({}, {"+queue.type": "SimpleCQ"}, "attempt to update an unchangeable attribute. key: qu"),
        ({"reserve.time": "1"}, {"+reserve.time": "2", "-reserve.time": ""}, "alter duplication"),
    ],
)
def test_what_rocketmq_refuses(
    known: dict[str, str] | None, changes: dict[str, str], remark: str
) -> None:
    with pytest.raises(BrokerError) as refused:
        changed(known, changes, TOPIC_ATTRIBUTES)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert str(refused.value.remark).startswith(remark)


def test_what_only_we_refuse() -> None:
    for key, value, served in (
        ("+queue.type", "BatchCQ", "SimpleCQ"),
        ("+cleanup.policy", "COMPACTION", "DELETE"),
        ("+message.type", "PRIORITY", "UNSPECIFIED, TRANSACTION, FIFO, DELAY, NORMAL"),
        ("+message.type", "LITE", "UNSPECIFIED, TRANSACTION, FIFO, DELAY, NORMAL"),
    ):
        with pytest.raises(BrokerError) as refused:
            changed(None, {key: value}, TOPIC_ATTRIBUTES)
        remark = f"{value} is not supported by this broker, only {served}"
        assert (refused.value.code, refused.value.remark) == (ResponseCode.SYSTEM_ERROR, remark)


@pytest.mark.parametrize("known", [None, {}])
@pytest.mark.parametrize(
    ("attributes", "key", "value", "what"),
    [
        (TOPIC_ATTRIBUTES, "lite.topic.expiration", "30", "lite topics"),
        (GROUP_ATTRIBUTES, "priority.factor", "100", "priorities"),
        (GROUP_ATTRIBUTES, "lite.bind.topic", "T", "lite topics"),
        (GROUP_ATTRIBUTES, "lite.sub.model", "Exclusive", "lite topics"),
    ],
)
def test_attributes_of_what_is_not_there(
    attributes: Mapping[str, Attribute],
    key: str,
    value: str,
    what: str,
    known: dict[str, str] | None,
) -> None:
    with pytest.raises(BrokerError) as refused:
        changed(known, {"+" + key: value}, attributes)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert refused.value.remark == f"{key} is not supported by this broker: it has no {what}"


def test_mixed_messages_and_groups() -> None:
    with pytest.raises(BrokerError) as refused:
        changed(None, {"+message.type": "MIXED"}, TOPIC_ATTRIBUTES)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER
    with pytest.raises(BrokerError, match=r"unsupported key: no\.such"):
        changed(None, {"+no.such": "1"}, GROUP_ATTRIBUTES)
