"""Heartbeats of a client: what is said of those that are not answered, and what answers tell."""

import asyncio
import logging
import math
from typing import Any

import pytest

from pymq.client.cluster.heartbeats import Heartbeats
from pymq.client.cluster.pool import ClientPool
from pymq.errors import ClientClosed, PymqError, RequestTimeout, TooManyPending

ADDRESS = "127.0.0.1:10911"
DEADLINE_S = 60.0


class Channel:
    """Plays a connection over which something has just come."""

    address = peer = ADDRESS
    read_at = math.inf

    def __init__(self) -> None:
        self.is_given_up = False
        self.farewells: list[object] = []

    def is_taking(self, within_s: float) -> bool:
        return False

    def abort(self) -> None:
        self.is_given_up = True

    def request_nowait(self, request: object, timeout_s: float) -> asyncio.Future[None]:
        self.farewells.append(request)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer


class BusyChannel(Channel):
    """Plays one over which too much is unanswered."""

    def request_nowait(self, request: object, timeout_s: float) -> asyncio.Future[None]:
        raise TooManyPending("100 requests are unanswered")


class Connections:
    """Plays the connections of a client, and the broker behind them, of version 400."""

    def __init__(self) -> None:
        self.current = Channel()
        self.asked = 0
        self.failure: PymqError | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def channel(self, address: str) -> Channel:
        return self.current

    def open_channel(self, address: str | None) -> Channel:
        return self.current

    async def ask(self, channel: Channel, operation: Any) -> int:
        self.asked += 1
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return 400


class Routes:
    """Plays the routes in use."""

    def addresses(self) -> dict[str, dict[int, str]]:
        return {"broker-a": {0: ADDRESS}}


def heartbeats_of(connections: Any) -> Heartbeats:
    routes: Any = Routes()
    return Heartbeats(
        connections, routes, client_id=lambda: "me", producer_group="g", consumers=None
    )


def late() -> RequestTimeout:
    return RequestTimeout(f"{ADDRESS} did not answer a heartbeat of me within 3 s")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_broker_that_answers_all_but_heartbeats_is_named_at_the_second_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It forgets us after two minutes, and its connection is of use meanwhile."""
    caplog.set_level(logging.INFO, logger="pymq")

    async def test() -> None:
        connections = Connections()
        heartbeats = heartbeats_of(connections)
        connections.failure = late()
        assert not await heartbeats.send(ADDRESS)
        assert not warnings(caplog)
        for _ in range(2):
            assert not await heartbeats.send(ADDRESS)
            (text,) = warnings(caplog)
            assert text.startswith(f"{late()}; nor was the one before answered")
        assert not connections.current.is_given_up
        connections.failure = None
        assert await heartbeats.send(ADDRESS)
        assert caplog.records[-1].getMessage() == f"{ADDRESS} answers heartbeats again"
        connections.failure = late()
        await heartbeats.send(ADDRESS)
        assert len(warnings(caplog)) == 1
        await heartbeats.send(ADDRESS)
        assert len(warnings(caplog)) == 2

    asyncio.run(test())


def test_two_heartbeats_at_a_time_are_one_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        connections = Connections()
        heartbeats = heartbeats_of(connections)
        connections.failure = late()
        connections.may_answer.clear()
        both = [asyncio.ensure_future(heartbeats.send(ADDRESS)) for _ in range(2)]
        while connections.asked < 2:
            await asyncio.sleep(0)
        connections.may_answer.set()
        assert await asyncio.gather(*both) == [False, False]
        assert not warnings(caplog)

    asyncio.run(test())


def test_a_broker_that_says_nothing_at_all_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        connections = Connections()
        connections.current.read_at = -math.inf
        connections.failure = late()
        assert not await heartbeats_of(connections).send(ADDRESS)
        assert connections.current.is_given_up
        assert "the connection is given up" in warnings(caplog)[0]

    asyncio.run(test())


def test_a_version_is_asked_for_once_per_connection() -> None:
    """Another broker may run at the address later."""

    async def test() -> None:
        connections = Connections()
        heartbeats = heartbeats_of(connections)
        for asked in (1, 2):
            channel: Any = connections.current
            for _ in range(3):
                assert await heartbeats.ask_version(channel) == 400
            assert connections.asked == asked
            connections.current = Channel()

    asyncio.run(test())


def test_heartbeats_tell_the_version() -> None:
    async def test() -> None:
        connections = Connections()
        heartbeats = heartbeats_of(connections)
        await heartbeats.send_all()
        channel: Any = connections.current
        assert await heartbeats.ask_version(channel) == 400
        assert connections.asked == 1

    asyncio.run(test())


def test_a_farewell_waits_for_whoever_asks_for_the_version() -> None:
    """That is a heartbeat, too: coming last it would leave a member that is not there."""

    async def test() -> None:
        connections = Connections()
        heartbeats = heartbeats_of(connections)
        channel: Any = connections.current
        connections.may_answer.clear()
        asking = asyncio.ensure_future(heartbeats.ask_version(channel))
        while not connections.asked:
            await asyncio.sleep(0)
        leaving = asyncio.ensure_future(heartbeats.unregister(DEADLINE_S))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not connections.current.farewells
        connections.may_answer.set()
        async with asyncio.timeout(DEADLINE_S):
            assert await asking == 400
            await leaving
        assert len(connections.current.farewells) == 1
        other: Any = Channel()
        with pytest.raises(ClientClosed):
            await heartbeats.ask_version(other)
        assert connections.asked == 1

    asyncio.run(test())


def test_who_has_become_a_master_gets_one_over_the_connection_that_there_is() -> None:
    """It has forgotten who is behind it, and would hear it in half a minute otherwise."""

    async def test() -> None:
        connections = Connections()
        heartbeats = heartbeats_of(connections)
        heartbeats.greet(ADDRESS, DEADLINE_S)
        assert len(connections.current.farewells) == 1
        await heartbeats.unregister(0.1)
        count = len(connections.current.farewells)
        heartbeats.greet(ADDRESS, DEADLINE_S)
        assert len(connections.current.farewells) == count, "we go"
        connections.current = None  # type: ignore[assignment]
        heartbeats_of(connections).greet(ADDRESS, DEADLINE_S)
        connections.current = BusyChannel()
        heartbeats_of(connections).greet(ADDRESS, DEADLINE_S)  # The next one does it.
        pool, greeted = ClientPool([ADDRESS], timeout_s=1.0), list[tuple[str, float]]()
        pool.heartbeats.greet = lambda *given: greeted.append(given)  # type: ignore[method-assign]
        pool.routes.on_new_master(ADDRESS)
        assert greeted == [(ADDRESS, 1.0)]

    asyncio.run(test())
