"""The division of queues among members: complete, disjoint, and Java's to the letter."""

import random

import pytest

from pymq.protocol.allocation import allocate, allocate_by_circle, allocate_shared
from pymq.protocol.bodies import MessageQueue


def queues(count: int, *, brokers: int = 1) -> list[MessageQueue]:
    return [MessageQueue("T", f"broker-{n % brokers}", n // brokers) for n in range(count)]


def java_rule(every: list[MessageQueue], members: list[str], own: str) -> list[MessageQueue]:
    """AllocateMessageQueueAveragely, transcribed from its formula (message.md section 15)."""
    n, c, i = len(every), len(members), members.index(own)
    m = n % c
    if n <= c:
        return [every[i]] if i < n else []
    size = n // c + (1 if i < m else 0)
    start = i * size if i < m else i * size + m
    return [every[start + k] for k in range(min(size, n - start))]


@pytest.mark.parametrize(
    ("count", "members", "sizes"),
    [
        pytest.param(8, 1, [8], id="one member"),
        pytest.param(8, 2, [4, 4], id="even"),
        pytest.param(8, 3, [3, 3, 2], id="rest to the first"),
        pytest.param(2, 4, [1, 1, 0, 0], id="more members than queues"),
        pytest.param(4, 4, [1, 1, 1, 1], id="as many"),
        pytest.param(0, 2, [0, 0], id="no queue"),
    ],
)
def test_sizes(count: int, members: int, sizes: list[int]) -> None:
    ids = [f"10.0.0.{n}@1" for n in range(members)]
    assert [len(allocate(queues(count), ids, own)) for own in ids] == sizes


def test_neighbours_stay_together_in_the_order_of_broker_and_queue() -> None:
    every = [MessageQueue("T", "b", 0), MessageQueue("T", "a", 10), MessageQueue("T", "a", 9)]
    assert allocate(every, ["x", "y"], "x") == [
        MessageQueue("T", "a", 9),
        MessageQueue("T", "a", 10),
    ]
    assert allocate(every, ["y", "x"], "y") == [MessageQueue("T", "b", 0)]


def test_whoever_is_not_listed_gets_nothing() -> None:
    assert allocate(queues(4), ["a", "b"], "c") == []
    assert allocate(queues(4), [], "c") == []


def test_a_client_listed_twice_counts_twice_as_it_does_in_java() -> None:
    assert len(allocate(queues(6), ["a", "a", "b"], "a")) == 2
    assert len(allocate(queues(6), ["a", "a", "b"], "b")) == 2


def test_ids_are_ordered_by_utf16_unit() -> None:
    # U+10000 is D800 DC00 in UTF-16, so Java puts it before U+FFFD; Python's own order differs.
    first, second = "\U00010000", "\ufffd"
    assert allocate(queues(1), [first, second], first) == queues(1)
    assert allocate(queues(1), [first, second], second) == []


def test_random_divisions_are_disjoint_complete_and_equal_to_javas(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        every = queues(rng.randrange(0, 40), brokers=rng.randrange(1, 5))
        ids = [
            f"10.0.{rng.randrange(9)}.{n}@{rng.randrange(9999)}"
            for n in range(rng.randrange(1, 12))
        ]
        shuffled_queues = rng.sample(every, len(every))
        parts = {own: allocate(shuffled_queues, rng.sample(ids, len(ids)), own) for own in ids}
        taken = [queue for part in parts.values() for queue in part]
        assert sorted(taken) == sorted(every)
        for own in ids:
            assert parts[own] == java_rule(sorted(every), sorted(ids), own)


def test_by_circle() -> None:
    every = queues(7)
    ids = ["c", "a", "b"]
    found = [allocate_by_circle(every, ids, own) for own in sorted(ids)]
    assert [[q.queue_id for q in one] for one in found] == [[0, 3, 6], [1, 4], [2, 5]]
    assert allocate_by_circle(every, ids, "d") == []


def shared(count: int, members: int, own: int, share_count: int) -> list[int]:
    ids = [f"c{n}" for n in range(members)]
    found = allocate_shared(
        allocate, queues(count), ids, f"c{own}", share_count=share_count
    )
    return [queue.queue_id for queue in found]


def test_queues_that_are_popped_are_shared() -> None:
    assert shared(8, 4, 0, 0) == [-1]
    assert shared(8, 4, 0, 3) == [-1]
    assert shared(8, 4, 0, 1) == [0, 1, 2, 3]
    assert shared(8, 4, 3, 1) == [0, 1, 6, 7]
    assert shared(8, 4, 3, 2) == [0, 1, 2, 3, 6, 7]
    assert [shared(3, 5, own, 1) for own in range(5)] == [[0], [1], [2], [0], [1]]
    assert shared(8, 4, 7, 1) == []
    two = allocate_shared(allocate, queues(4, brokers=2), ["a"], "a", share_count=-1)
    assert two == [MessageQueue("T", "broker-0", -1), MessageQueue("T", "broker-1", -1)]
