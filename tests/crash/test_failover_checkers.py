"""The checkers of failover bite."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.crash.failover_checkers import (
    AllDied,
    CommitBegun,
    CommitEvent,
    Committed,
    Epoch,
    Queried,
    QueryBegun,
    check_commits,
    check_failover,
    name_of,
)
from tests.crash.ledger import Acknowledged, Attempted, Event, Failed

EPOCHS = (Epoch(1, 0), Epoch(2, 1_000), Epoch(5, 2_000))
ONE, OTHER = "7F00000100002A9F", "7F00000100002AA9"


def sent(request: str, physical_offset: int, broker: str) -> list[Event]:
    return [
        Attempted(request, (f"0-{request}-1",)),
        Acknowledged(request, 0, 0, (physical_offset,), broker),
    ]


def test_each_epoch_has_its_writer() -> None:
    events = sent("1", 0, ONE) + sent("2", 999, ONE) + sent("3", 1_000, OTHER)
    assert not check_failover([*events, *sent("4", 2_500, ONE), Failed("5", False, "?")], EPOCHS)


def test_two_writers_of_an_epoch() -> None:
    (found,) = check_failover(sent("1", 1_000, ONE) + sent("2", 1_500, OTHER), EPOCHS)
    assert found == (
        "TWO WRITERS of epoch 2: 127.0.0.1:10911 acknowledged 1, 127.0.0.1:10921 2 at 1500"
    )


def test_each_message_of_a_batch_counts() -> None:
    batch: list[Event] = [
        Attempted("2", ("0-2-1", "0-3-1")),
        Acknowledged("2", 0, 0, (900, 1_000), ONE),
    ]
    assert check_failover([*sent("1", 1_500, OTHER), *batch], EPOCHS)


def test_an_offset_of_no_epoch() -> None:
    assert check_failover(sent("1", 5, ONE), [Epoch(3, 10)]) == [
        "1: no epoch has physical offset 5"
    ]


def test_a_master_that_acknowledges_when_there_is_a_later_one() -> None:
    late: list[Event] = [*sent("1", 2_000, OTHER), *sent("2", 1_500, ONE)]
    assert "in epoch 2 by" in check_failover(late, EPOCHS)[0]
    before, after = late[2:]
    assert not check_failover([before, *late[:2], after], EPOCHS)  # only its answer came late


def test_brokers_are_named() -> None:
    assert [name_of(one) for one in (ONE, "", "b")] == ["127.0.0.1:10911", "?", "b"]


Q = "a/0"
QUESTION: list[CommitEvent] = [QueryBegun(Q)]
COMMITTED: list[CommitEvent] = [CommitBegun(Q, 5), Committed(Q, 5)]


@pytest.mark.parametrize(
    "events",
    [
        [*QUESTION, Queried(Q, None)],
        [*COMMITTED, *QUESTION, Queried(Q, 5)],
        [*QUESTION, *COMMITTED, Queried(Q, None)],  # it was asked before
        [*COMMITTED, CommitBegun(Q, 9), *QUESTION, Queried(Q, 9)],  # not acknowledged, but there
        [*COMMITTED, CommitBegun(Q, 9), *QUESTION, Queried(Q, 5)],
        [*COMMITTED, QueryBegun("a/1"), Queried("a/1", None)],
        [*COMMITTED, *QUESTION, AllDied(), Queried(Q, None)],
        [CommitBegun(Q, 5), AllDied(), Committed(Q, 5), *QUESTION, Queried(Q, None)],
    ],
)
def test_commits_that_stay(events: Sequence[CommitEvent]) -> None:
    assert not check_commits(events)


@pytest.mark.parametrize(
    ("events", "what"),
    [
        ([*COMMITTED, *QUESTION, Queried(Q, None)], "BACKWARDS: a/0 is at None, 5 had been"),
        (
            [*COMMITTED, CommitBegun(Q, 9), Committed(Q, 9), *QUESTION, Queried(Q, 5)],
            "BACKWARDS: a/0 is at 5, 9 had been",
        ),
        ([*COMMITTED, *QUESTION, Queried(Q, 7)], "a/0 is at 7, which nobody committed"),
        ([AllDied(), *COMMITTED, *QUESTION, Queried(Q, None)], "BACKWARDS"),
    ],
)
def test_commits_that_are_taken_back(events: Sequence[CommitEvent], what: str) -> None:
    (found,) = check_commits(events)
    assert what in found
