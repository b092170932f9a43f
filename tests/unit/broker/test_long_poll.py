"""Held requests: who is answered when, and what stays behind."""

import asyncio
import functools
import gc
from typing import Any

import numpy as np
import pytest
from tests.unit.net.connections import FakeConnection
from tests.unit.store.stores import FakeClock

from pymq.broker.long_poll import HeldPull, LongPoll
from pymq.errors import SystemBusy
from pymq.net.dispatcher import Dispatcher, Request
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.store import Arrival
from pymq.store.queues.consume_queue import ENTRY

QUEUE = ("T", 0)


def arrival(queue_id: int, end_offset: int, *tag_codes: int) -> Arrival:
    entries = np.zeros(max(len(tag_codes), 1), ENTRY)
    entries["tag_code"] = tag_codes or 0
    return Arrival("T", queue_id, end_offset - len(entries), end_offset, entries.tobytes())


def is_wanted(offset: int, tags: list[int] | None, one: Arrival) -> bool:
    return one.queue_end > offset and (tags is None or bool(set(tags) & {*one.tag_codes.tolist()}))


class Held:
    """A ``LongPoll``, and the names of the requests it answered."""

    def __init__(self, count_max: int = 100) -> None:
        self.clock = FakeClock()
        self.table = LongPoll(self.clock, count_max=count_max)
        self.answered: list[str] = []
        self.abandoned = 0

    def finished(self, code: int, response_code: int | None, elapsed_s: float) -> None:
        self.abandoned += response_code is None

    def hold(self, name: str, connection: FakeConnection, *, offset: int = 0, **more: Any) -> None:
        self.table.hold(
            HeldPull(
                Request(
                    Dispatcher("test", observer=self),
                    connection.as_connection(),
                    Command(RequestCode.PULL_MESSAGE),
                    0.0,
                ),
                self.clock.monotonic_s() + more.pop("wait_s", 10),
                lambda: self.answered.append(name),
                more.pop("queues", [QUEUE]),
                functools.partial(is_wanted, offset, more.pop("tags", None)),
            )
        )

    def drop(self, connection: FakeConnection) -> int:
        return self.table.drop(connection.as_connection())

    def take(self, *arrivals: Arrival) -> int:
        """Return how many are not held any more."""
        before = len(self.table)
        self.table.take(list(arrivals))
        return before - len(self.table)


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


def test_pulls_wake_for_what_they_want(connection: FakeConnection) -> None:
    held = Held()
    for name, more in (
        ("all", {}),
        ("later", {"offset": 5}),
        ("tag", {"tags": [3, 7]}),
        ("elsewhere", {"queues": [("T", 1)]}),
    ):
        held.hold(name, connection, **more)
    assert held.take(arrival(0, 2, 1, 2)) == 1
    assert held.take(arrival(0, 3, 8, 7)) == 1
    assert held.take(arrival(0, 4, 7), arrival(2, 1)) == 0
    assert held.answered == ["all", "tag"] and len(held.table) == 2
    asyncio.run(held.table.close())
    assert held.answered == ["all", "tag", "later", "elsewhere"] and not len(held.table)


def test_a_request_can_wait_for_several_queues(connection: FakeConnection) -> None:
    """As a POP does, which takes messages of any queue of its topic."""
    held = Held()
    queues = [("T", number) for number in range(3)]
    held.hold("any", connection, queues=queues)
    held.hold("gone", connection, queues=queues)
    held.hold("last", connection, queues=queues[2:])
    assert held.take(arrival(1, 1)) == 2 and held.answered == ["any", "gone"]
    assert held.take(arrival(0, 1), arrival(1, 2), arrival(2, 1)) == 1
    held.hold("dropped", connection, queues=queues)
    assert held.drop(connection) == 1 and held.take(arrival(2, 2)) == 0
    held.hold("late", connection, queues=queues)
    held.clock.now_ms += 10_000
    assert held.table.expire() == 1 and held.take(arrival(0, 3)) == 0
    held.hold("closed", connection, queues=queues)
    asyncio.run(held.table.close())
    assert held.answered == ["any", "gone", "last", "late", "closed"]


def test_deadlines_in_their_order_and_a_limit(
    connection: FakeConnection, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held(count_max=2)
    held.hold("late", connection, wait_s=2)
    held.hold("early", connection, wait_s=1)
    for _ in range(3):
        with pytest.raises(SystemBusy, match="OVERLOAD"):
            held.hold("too many", connection)
    assert caplog.text.count("pymqHeldPullCountMax") == 1
    held.clock.now_ms += 1000
    assert held.table.expire() == 1 and held.answered == ["early"]
    held.clock.now_ms += 1000
    assert held.table.expire() == 1 and held.answered == ["early", "late"]
    held.hold("again", connection)


def test_a_connection_that_ends_takes_its_pulls_along(connection: FakeConnection) -> None:
    held, other = Held(), FakeConnection()
    held.hold("a", connection)
    held.hold("b", other)
    held.hold("c", connection, queues=[("T", 1)])
    assert held.drop(connection) == 2 and held.drop(connection) == 0
    other.is_open = False  # closed, but not dropped yet: nobody is there to be answered
    assert held.take(arrival(0, 1)) == 1
    assert not held.answered and not len(held.table)
    assert held.abandoned == 3
    held.clock.now_ms += 60_000
    assert held.table.expire() == 0


def test_answered_pulls_do_not_wait_for_their_deadline(connection: FakeConnection) -> None:
    """A busy queue answers thousands a second, each long before its time is up."""
    held = Held()
    for number in range(5000):
        held.hold(str(number), connection, wait_s=3600)
        assert held.take(arrival(0, 1)) == 1
    gc.collect()
    assert sum(isinstance(one, HeldPull) for one in gc.get_objects()) < 2000


def test_one_timer_waits_for_the_first_deadline(connection: FakeConnection) -> None:
    """Nothing runs while nothing is held, and an earlier deadline is not missed for a later one."""

    async def run() -> None:
        held = Held()
        held.clock.monotonic_s = asyncio.get_running_loop().time  # type: ignore[method-assign]
        held.table.start()
        assert held.table._timer is None
        held.hold("late", connection, wait_s=600)
        held.hold("early", connection, wait_s=0.03)
        held.hold("woken", connection, wait_s=0.01, queues=[("T", 1)])
        assert held.take(arrival(1, 1)) == 1
        begun = asyncio.get_running_loop().time()
        while len(held.answered) < 2:
            assert asyncio.get_running_loop().time() < begun + 60
            await asyncio.sleep(0.005)
        assert held.answered == ["woken", "early"]
        timer = held.table._timer
        assert timer is not None and timer.when() > begun + 500
        await held.table.close()
        assert held.answered[2:] == ["late"] and timer.cancelled()

    asyncio.run(run())
