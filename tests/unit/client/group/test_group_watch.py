"""What is wrong with a group is said once, with cause and cure."""

import logging

import pytest

from pymq.client.group.group_watch import GroupWatch, differences
from pymq.protocol.bodies import Subscription


def table(**tags: str) -> dict[str, Subscription]:
    tables = {t: Subscription.of_tags(t, expression, 1) for t, expression in tags.items()}
    return tables | {"%RETRY%g": Subscription.of_tags("%RETRY%g", "*", 1)}


@pytest.mark.parametrize(
    ("ours", "known", "expected"),
    [
        (table(T="*"), table(T="*"), []),
        (table(T="a || b"), table(T="b||a"), []),
        (table(T="a"), table(T="b"), ["of topic 'T' this one wants 'a', another one 'b'"]),
        (table(T="a"), table(T="*"), ["of topic 'T' this one wants 'a', another one '*'"]),
        (
            table(T="*"),
            table(U="*"),
            [
                "this one reads topic 'T', another one does not",
                "another one reads topic 'U', this one does not",
            ],
        ),
        ({"T": Subscription(topic="T")}, {"T": Subscription(topic="T", expression_type="")}, []),
        (
            {"T": Subscription(topic="T")},
            {"T": Subscription(topic="T", expression="a > 5", expression_type="SQL92")},
            ["of topic 'T' this one wants '*', another one 'a > 5'"],
        ),
    ],
)
def test_differences(
    ours: dict[str, Subscription], known: dict[str, Subscription], expected: list[str]
) -> None:
    assert list(differences(ours, known)) == expected


def test_a_difference_is_said_once_while_the_members_are_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = GroupWatch("g")
    two, others = frozenset({"x", "y"}), frozenset({"x", "z"})
    for known in (table(T="b"), table(T="a"), table(T="b")):
        watch.compared(two, table(T="a"), known)
    assert caplog.text.count("the 2 members of group 'g' subscribe differently") == 1
    watch.compared(others, table(T="a"), table(T="b"))
    assert caplog.text.count("subscribe differently") == 2


def test_a_member_without_queues_says_so_once_and_when_that_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    watch = GroupWatch("g")

    def share(own_count: int, member_count: int, topic: str = "T", queue_count: int = 2) -> None:
        watch.shared(
            topic, queue_count=queue_count, member_count=member_count, own_count=own_count
        )

    share(1, 2)
    share(0, 2)  # not yet a member, or somebody is listed twice: that passes
    share(0, 3, topic="%RETRY%g", queue_count=1)
    assert not caplog.records
    share(0, 3)
    share(0, 4)
    (warned,) = caplog.records
    assert warned.levelno == logging.WARNING
    assert "the group has 3 members and the topic 2 queues" in warned.message
    assert "`pymq topic create T --queues N`" in warned.message
    share(1, 2)
    share(1, 2)
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]
    assert "this member has queues again, 1 of 2" in caplog.text


def test_a_topic_that_cannot_be_read_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = GroupWatch("g")
    for _ in range(2):
        watch.shared("T", queue_count=0, member_count=1, own_count=0)
    watch.shared("%RETRY%g", queue_count=0, member_count=1, own_count=0)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "topic 'T': this member gets no messages" in record.getMessage()
    assert "the R permission" in record.getMessage()


def test_too_few_queues_are_said_also_after_none_could_be_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = GroupWatch("g")
    for queue_count in (0, 1, 0, 1):
        watch.shared("T", queue_count=queue_count, member_count=2, own_count=0)
    unreadable, few = [record.getMessage() for record in caplog.records]
    assert "no queue of the topic can be read" in unreadable
    assert "the group has 2 members and the topic 1 queues" in few


def test_a_division_that_leaves_a_member_nothing_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = GroupWatch("g")
    for _ in range(2):
        watch.shared("T", queue_count=8, member_count=3, own_count=0, allocation="by_config")
    assert caplog.text.count("because allocation=by_config leaves it none of 8 queues") == 1
