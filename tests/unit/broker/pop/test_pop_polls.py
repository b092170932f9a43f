"""Held pops: who is woken when, and what stays behind."""

import asyncio
from typing import Any

import numpy as np
from tests.unit.net.connections import FakeConnection
from tests.unit.store.stores import FakeClock

from pymq.broker.pop.pop_polls import HeldPop, Holding, PopPolls
from pymq.net.dispatcher import Dispatcher, Request
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.store import Arrival
from pymq.store.queues.consume_queue import ENTRY


def arrival(topic: str, queue_id: int = 0) -> Arrival:
    return Arrival(topic, queue_id, 0, 1, np.zeros(1, ENTRY).tobytes())


class Held:
    """A ``PopPolls``, and the names of the requests it answered."""

    def __init__(self, **limits: int) -> None:
        self.clock = FakeClock()
        given = {"count_max": 100, "room_count_max": 10} | limits
        self.polls = PopPolls(self.clock, **given)
        self.answered: list[str] = []
        self.connection = FakeConnection()

    def hold(self, name: str, queue_id: int = -1, **more: Any) -> Holding:
        wanted = more.pop("wants", True)
        connection = more.pop("connection", self.connection)
        return self.polls.hold(
            HeldPop(
                Request(
                    Dispatcher("test"),
                    connection.as_connection(),
                    Command(RequestCode.POP_MESSAGE),
                    0.0,
                ),
                self.clock.monotonic_s() + more.pop("wait_s", 10),
                more.pop("work", lambda: self.answered.append(name)),
                ("T", more.pop("group", "g"), queue_id),
                ["R"],
                lambda _: wanted,
            )
        )

    def take(self, *arrivals: Arrival) -> list[str]:
        self.answered.clear()
        self.polls.take(list(arrivals))
        return list(self.answered)


def test_an_arrival_wakes_one_request_of_each_room() -> None:
    held = Held()
    for name, queue_id, group in [
        ("a", -1, "g"), ("b", -1, "g"), ("c", 0, "g"), ("d", 1, "g"), ("e", -1, "h"),
    ]:  # fmt: skip
        assert held.hold(name, queue_id, group=group) is Holding.HELD
    assert held.polls.count_in(("T", "g", -1)) == 2
    assert held.take(arrival("other")) == []
    assert held.take(arrival("T")) == ["a", "c", "e"]
    assert held.take(arrival("T", 1)) == ["b", "d"]
    assert held.take(arrival("T", 1)) == []
    assert len(held.polls) == 0
    assert not held.polls._rooms
    assert not held.polls._by_topic
    assert not held.polls._by_connection


def test_retry_topics_wake_every_room_of_their_topic() -> None:
    held = Held()
    held.hold("a")
    held.hold("b", 7)
    assert held.take(arrival("R")) == ["a", "b"]


def test_requests_that_want_other_messages_are_passed() -> None:
    held = Held()
    held.hold("a", wants=False)
    held.hold("b")
    assert held.take(arrival("T"), arrival("T", 1)) == ["b"]
    assert held.polls.wake(("T", "g", -1))
    assert held.answered == ["b", "a"]
    assert not held.polls.wake(("T", "g", -1))


def test_senders_that_have_gone_get_no_messages() -> None:
    held = Held()
    gone = FakeConnection()
    held.hold("a", connection=gone)
    held.hold("b")
    gone.is_open = False
    assert held.take(arrival("T")) == ["b"]
    held.hold("c", connection=gone)
    assert held.polls.drop(gone.as_connection()) == 1
    assert len(held.polls) == 0


def test_deadlines_and_limits() -> None:
    held = Held(count_max=3, room_count_max=1)
    assert held.hold("late", wait_s=0) is Holding.LATE
    assert held.hold("a", wait_s=5) is Holding.HELD
    assert held.hold("b", wait_s=2) is Holding.HELD
    assert held.hold("c") is Holding.FULL
    assert held.hold("d", group="h") is Holding.HELD
    assert held.hold("e", group="i") is Holding.FULL
    held.clock.now_ms += 1940
    assert held.polls.expire() == 0
    held.clock.now_ms += 20
    assert held.polls.expire() == 1
    assert held.answered == ["b"]


def test_when_it_closes_nobody_is_held_again() -> None:
    """A pop that finds nothing when it is answered asks to be held until its deadline."""
    held = Held()
    again: list[Holding] = []
    held.hold("a", work=lambda: again.append(held.hold("a")))
    asyncio.run(held.polls.close())
    assert again == [Holding.LATE]
    assert len(held.polls) == 0
