"""What names of a namespace look like, as RocketMQ's NamespaceUtil makes them."""

import pytest

from pymq.protocol.namespaces import unwrap, wrap, wrap_values

NAMES = [
    ("orders", "shop%orders"),
    ("%RETRY%billing", "%RETRY%shop%billing"),
    ("%DLQ%billing", "%DLQ%shop%billing"),
    ("other%orders", "shop%other%orders"),
    ("shopping", "shop%shopping"),
]
SAME = [
    *("TBW102", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"),
    *("CID_RMQ_SYS_TRANS", "TOOLS_CONSUMER", "DefaultCluster_REPLY_TOPIC", ""),
]


@pytest.mark.parametrize(("own", "whole"), NAMES)
def test_a_name_is_wrapped_once_and_unwrapped(own: str, whole: str) -> None:
    assert wrap("shop", own) == whole
    assert wrap("shop", whole) == whole
    assert unwrap("shop", whole) == own
    assert unwrap("sho", whole) == whole
    assert unwrap(None, whole) == whole
    assert wrap(None, own) == own


@pytest.mark.parametrize("name", SAME)
def test_names_of_the_system_are_the_same_in_all(name: str) -> None:
    assert wrap("shop", name) == name
    assert unwrap("shop", name) == name


def test_names_in_a_body_are_wrapped() -> None:
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subs": [{"topic": "t"}]}]}
    assert wrap_values("n", body, frozenset({"groupName", "topic"})) == {
        "clientID": "c",
        "consumerDataSet": [{"groupName": "n%g", "subs": [{"topic": "n%t"}]}],
    }
