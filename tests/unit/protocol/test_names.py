"""Legal names, derived names, names of the system."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import LocalProtocolError
from pymq.protocol import names


@pytest.mark.parametrize(
    "name",
    ["a", "TopicA", "%RETRY%CG", "a|b", "_-", "9", "t" * 127, "%RETRY%" + "g" * 248, "%DLQ%a"],
)
def test_legal_topics(name: str) -> None:
    names.check_topic(name)
    assert names.is_legal(name)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("", "empty"),
        (" ", "' ' at 0"),
        ("a b", "' ' at 1"),
        ("a/b", "'/' at 1"),
        ("..", "'.' at 0"),
        ("a.b", r"'\.' at 1"),
        ("a\x00", "at 1"),
        ("a\n", "at 1"),
        ("标签", "at 0"),
        ("é", "at 0"),
        ("٣", "at 0"),  # a digit, but not one of ours
        ("a\\b", "at 1"),
        ("t" * 128, r"128 characters, expected 1\.\.127"),
        ("%RETRY%" + "g" * 249, r"256 characters, expected 1\.\.255"),
        ("x%RETRY%" + "g" * 200, r"expected 1\.\.127"),
    ],
)
def test_illegal_topics(name: str, match: str) -> None:
    with pytest.raises(LocalProtocolError, match=match):
        names.check_topic(name)


def test_groups() -> None:
    names.check_group("g" * 120)
    for name in ("", "g" * 121, "a b", "a@b"):
        with pytest.raises(LocalProtocolError, match="group"):
            names.check_group(name)


@given(st.text(max_size=12))
def test_no_legal_name_leaves_its_directory(name: str) -> None:
    try:
        names.check_topic(name)
    except LocalProtocolError:
        return
    assert name.isascii() and name
    assert not set(name) & set("/\\.\0: ")


def test_derived_names() -> None:
    assert names.retry_topic("CG") == "%RETRY%CG"
    assert names.dead_letter_topic("CG") == "%DLQ%CG"
    assert names.reply_topic("C") == "C_REPLY_TOPIC"
    assert names.is_retry_topic("%RETRY%CG")
    assert not names.is_retry_topic("%DLQ%CG")


def test_system_topics() -> None:
    for name in ("TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "BenchmarkTest"):
        assert names.is_system_topic(name)
    for name in ("DefaultCluster", "DefaultCluster_REPLY_TOPIC", "broker-a", "TopicA", "%RETRY%x"):
        assert not names.is_system_topic(name)
    for name in ("DefaultCluster", "DefaultCluster_REPLY_TOPIC", "broker-a"):
        assert names.is_system_topic(name, cluster="DefaultCluster", broker="broker-a")
    assert all(names.is_system_topic(name) for name in names.NO_SEND_TOPICS)
    assert names.DEFAULT_TOPIC not in names.NO_SEND_TOPICS
    for name in ("SCHEDULE_TOPIC_XXXX", names.revive_topic("DefaultCluster")):
        assert names.takes_no_sends(name)
    for name in ("TBW102", "rmq_sys_REVIVE", "%RETRY%rmq_sys_REVIVE_LOG_c"):
        assert not names.takes_no_sends(name)


def test_everything_built_in_is_legal() -> None:
    for name in names.SYSTEM_TOPICS:
        names.check_topic(name)
    for name in names.BUILT_IN_GROUPS:
        names.check_group(name)
