"""Held pulls: who is answered when, and what stays behind."""

import gc
from typing import Any, cast

import numpy as np
import pytest
from tests.unit.store.stores import FakeClock

from pymq.broker.long_poll import HeldPull, LongPoll
from pymq.net.server import ServerConnection

QUEUE = ("T", 0)


class Connection:
    """What held pulls ask of a connection."""

    is_open = True


class Held:
    """A ``LongPoll``, and the names of the pulls it answered."""

    def __init__(self, count_max: int = 100) -> None:
        self.clock = FakeClock()
        self.table = LongPoll(self.clock, count_max=count_max)
        self.answered: list[str] = []

    def hold(self, name: str, connection: Connection, *, offset: int = 0, **more: Any) -> bool:
        tags = more.pop("tags", None)
        return self.table.hold(
            HeldPull(
                cast(ServerConnection, connection),
                more.pop("queue", QUEUE),
                offset,
                None if tags is None else np.array(tags, np.int64),
                self.clock.monotonic_s() + more.pop("wait_s", 10),
                lambda: self.answered.append(name),
            )
        )

    def drop(self, connection: Connection) -> int:
        return self.table.drop(cast(ServerConnection, connection))


@pytest.fixture
def connection() -> Connection:
    return Connection()


def test_pulls_wake_for_what_they_want(connection: Connection) -> None:
    held = Held()
    for name, more in (
        ("all", {}),
        ("later", {"offset": 5}),
        ("tag", {"tags": [3, 7]}),
        ("elsewhere", {"queue": ("T", 1)}),
    ):
        assert held.hold(name, connection, **more)
    assert held.table.wake(QUEUE, 1, np.array([1, 2])) == 1
    assert held.table.wake(QUEUE, 2, np.array([7])) == 1
    assert held.table.wake(QUEUE, 3, None) == 0
    assert held.answered == ["all", "tag"] and len(held.table) == 2
    assert held.table.answer_all() == 2
    assert held.answered == ["all", "tag", "later", "elsewhere"] and not len(held.table)


def test_deadlines_in_their_order_and_a_limit(connection: Connection) -> None:
    held = Held(count_max=2)
    assert held.hold("late", connection, wait_s=2) and held.hold("early", connection, wait_s=1)
    assert not held.hold("too many", connection)
    held.clock.now_ms += 1000
    assert held.table.expire() == 1 and held.answered == ["early"]
    held.clock.now_ms += 1000
    assert held.table.expire() == 1 and held.answered == ["early", "late"]
    assert held.hold("again", connection)


def test_a_connection_that_ends_takes_its_pulls_along(connection: Connection) -> None:
    held, other = Held(), Connection()
    held.hold("a", connection)
    held.hold("b", other)
    held.hold("c", connection, queue=("T", 1))
    assert held.drop(connection) == 2 and held.drop(connection) == 0
    other.is_open = False  # closed, but not dropped yet: nobody is there to be answered
    assert held.table.wake(QUEUE, 1, None) == 1
    assert not held.answered and not len(held.table)
    held.clock.now_ms += 60_000
    assert held.table.expire() == 0


def test_answered_pulls_do_not_wait_for_their_deadline(connection: Connection) -> None:
    """A busy queue answers thousands a second, each long before its time is up."""
    held = Held()
    for number in range(5000):
        held.hold(str(number), connection, wait_s=3600)
        assert held.table.wake(QUEUE, 1, None) == 1
    gc.collect()
    assert sum(isinstance(one, HeldPull) for one in gc.get_objects()) < 2000
