"""Locks on queues: one client of a group at a time, for as long as it refreshes them."""

import pytest

from pymq.broker.state.queue_locks import LOCK_S, QueueLocks
from pymq.clock import Clock
from pymq.protocol.bodies import MessageQueue

A, B = (MessageQueue("T", "broker-a", number) for number in range(2))


class Time(Clock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def locks(time: Time) -> QueueLocks:
    return QueueLocks(time)


def test_a_queue_belongs_to_one_client_of_a_group(locks: QueueLocks) -> None:
    assert locks.lock("g", "one", [A]) == [A]
    assert locks.lock("g", "two", [A, B]) == [B]
    assert locks.lock("g", "one", [A, B]) == [A]
    assert locks.lock("other", "two", [A]) == [A], "groups have nothing to do with each other"
    assert locks.lock("g", "two", [MessageQueue("T", "broker-b", 0)])


def test_only_its_holder_unlocks_a_queue(locks: QueueLocks) -> None:
    locks.lock("g", "one", [A])
    locks.unlock("g", "two", [A])
    locks.unlock("unknown", "one", [A])
    assert locks.lock("g", "two", [A]) == []
    locks.unlock("g", "one", [A, B])
    assert locks.lock("g", "two", [A]) == [A]


def test_a_lock_that_is_not_refreshed_may_be_taken(locks: QueueLocks, time: Time) -> None:
    locks.lock("g", "one", [A, B])
    time.now_s += LOCK_S
    assert locks.lock("g", "one", [A]) == [A]
    time.now_s += 0.001
    assert locks.lock("g", "two", [A, B]) == [B]
    assert locks.lock("g", "one", [A, B]) == [A], "it was refreshed"
    time.now_s += LOCK_S + 0.001
    assert locks.lock("g", "one", [A]) == [A], "its holder may still be the first to come"


def test_a_group_consumes_in_order_while_a_lock_of_it_lasts(locks: QueueLocks, time: Time) -> None:
    assert not locks.is_held("g")
    locks.lock("g", "one", [A])
    assert locks.is_held("g") and not locks.is_held("other")
    time.now_s += LOCK_S
    assert (locks.expire(), locks.is_held("g")) == (0, True)
    time.now_s += 0.001
    assert not locks.is_held("g")
    assert (locks.expire(), locks.expire()) == (1, 0)
