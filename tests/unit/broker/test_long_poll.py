"""Held pulls: who is answered when, and what stays behind."""

import asyncio
import gc
from typing import Any

import numpy as np
import pytest
from tests.unit.net.connections import FakeConnection
from tests.unit.store.stores import FakeClock

from pymq.broker.long_poll import HeldPull, LongPoll
from pymq.net.dispatcher import Dispatcher, Request
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.store import Arrival
from pymq.store.queues.consume_queue import ENTRY

QUEUE = ("T", 0)


class Held:
    """A ``LongPoll``, and the names of the pulls it answered."""

    def __init__(self, count_max: int = 100) -> None:
        self.clock = FakeClock()
        self.table = LongPoll(self.clock, count_max=count_max)
        self.answered: list[str] = []
        self.abandoned = 0

    def finished(self, code: int, response_code: int | None, elapsed_s: float) -> None:
        self.abandoned += response_code is None

    def hold(self, name: str, connection: FakeConnection, *, offset: int = 0, **more: Any) -> bool:
        tags = more.pop("tags", None)
        return self.table.hold(
            HeldPull(
                Request(
                    Dispatcher("test", observer=self),
                    connection.as_connection(),
                    Command(RequestCode.PULL_MESSAGE),
                    0.0,
                ),
                more.pop("queue", QUEUE),
                offset,
                None if tags is None else np.array(tags, np.int64),
                self.clock.monotonic_s() + more.pop("wait_s", 10),
                lambda: self.answered.append(name),
            )
        )

    def drop(self, connection: FakeConnection) -> int:
        return self.table.drop(connection.as_connection())


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


def test_pulls_wake_for_what_they_want(connection: FakeConnection) -> None:
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
    asyncio.run(held.table.close())
    assert held.answered == ["all", "tag", "later", "elsewhere"] and not len(held.table)


def test_arrivals_wake_the_pulls_of_their_queues(connection: FakeConnection) -> None:
    held = Held()
    held.hold("here", connection)
    held.hold("elsewhere", connection, queue=("T", 1))
    entries = np.zeros(1, ENTRY).tobytes()
    held.table.take([Arrival("T", 2, 0, 1, entries), Arrival("T", 0, 0, 1, entries)])
    assert held.answered == ["here"]


def test_deadlines_in_their_order_and_a_limit(connection: FakeConnection) -> None:
    held = Held(count_max=2)
    assert held.hold("late", connection, wait_s=2) and held.hold("early", connection, wait_s=1)
    assert not held.hold("too many", connection)
    held.clock.now_ms += 1000
    assert held.table.expire() == 1 and held.answered == ["early"]
    held.clock.now_ms += 1000
    assert held.table.expire() == 1 and held.answered == ["early", "late"]
    assert held.hold("again", connection)


def test_a_connection_that_ends_takes_its_pulls_along(connection: FakeConnection) -> None:
    held, other = Held(), FakeConnection()
    held.hold("a", connection)
    held.hold("b", other)
    held.hold("c", connection, queue=("T", 1))
    assert held.drop(connection) == 2 and held.drop(connection) == 0
    other.is_open = False  # closed, but not dropped yet: nobody is there to be answered
    assert held.table.wake(QUEUE, 1, None) == 1
    assert not held.answered and not len(held.table)
    assert held.abandoned == 3
    held.clock.now_ms += 60_000
    assert held.table.expire() == 0


def test_answered_pulls_do_not_wait_for_their_deadline(connection: FakeConnection) -> None:
    """A busy queue answers thousands a second, each long before its time is up."""
    held = Held()
    for number in range(5000):
        held.hold(str(number), connection, wait_s=3600)
        assert held.table.wake(QUEUE, 1, None) == 1
    gc.collect()
    assert sum(isinstance(one, HeldPull) for one in gc.get_objects()) < 2000
