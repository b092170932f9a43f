"""Which topics and queues the options choose."""

import pytest

from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.source.topic_choice import AssignedQueue, TopicChoice

NAMES = [
    *("orders", "orders-eu", "reorders", "%RETRY%orders", "%DLQ%orders"),
    *("TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_REVIVE_LOG_c"),
    *("broker-a", "cluster", "c_REPLY_TOPIC"),
    *("orders.bad", "o" * 200),  # no peer takes requests about these
]
OWN = {"broker-a", "cluster", "c_REPLY_TOPIC"}


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders-eu"]),
        (".*", ["orders", "orders-eu", "reorders"]),
        ("ORDERS.*", []),
        ("(?i)ORDERS", ["orders"]),
        (".*orders", ["orders", "reorders"]),
        ("%RETRY%.*", ["%RETRY%orders"]),
        (r"\%.*", ["%DLQ%orders", "%RETRY%orders"]),
        ("(%DLQ%)?orders", ["orders"]),
        ("%DLQ%orders|orders", ["%DLQ%orders", "orders"]),
        ("TBW102|rmq_sys_.*|broker-a|orders", ["orders"]),
    ],
)
def test_patterns(pattern: str, matching: list[str]) -> None:
    choice = TopicChoice(pattern=pattern)
    assert choice.matching(NAMES, OWN) == matching
    assert choice.named_topics == ()


def test_assigned_queues() -> None:
    choice = TopicChoice(
        assigned=frozenset({AssignedQueue("t", "a", 0), AssignedQueue("t", "", 1)})
    )
    takes = {
        (broker, number): choice.takes(MessageQueue("t", broker, number))
        for broker in "ab"
        for number in range(3)
    }
    assert {place for place, taken in takes.items() if taken} == {("a", 0), ("a", 1), ("b", 1)}
    assert not choice.takes(MessageQueue("u", "a", 0))
    assert choice.named_topics == ("t",) and choice.takes_topic("t") and not choice.takes_topic("u")
    assert str(choice) == "assign=queue 1 of t on any broker, queue 0 of t on a"
    there = [MessageQueue("t", "b", 1)]
    assert [one.is_among(there) for one in sorted(choice.assigned)] == [True, False]


def test_a_list_of_topics() -> None:
    choice = TopicChoice(("b", "a"))
    assert choice.named_topics == ("b", "a") and str(choice) == "subscribe=b,a"
    assert choice.takes(MessageQueue("a", "x", 7)) and not choice.takes_topic("c")
