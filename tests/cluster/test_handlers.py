"""Handlers that are not what a consumer expects: nothing is finished that was not handled."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.administration import admin_of
from tests.cluster.scenarios import send_numbers, wait_until

from pymq import blocking
from pymq.client.consuming.consumer import Consumer
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ConfigurationError
from pymq.protocol.message import ReceivedMessage
from pymq.testing.cluster import Cluster

COUNT = 3
DEADLINE_S = 180.0


class NotAnException(BaseException):
    """What ``pytest.fail`` raises is of this kind, too."""


async def async_generator(_: ReceivedMessage) -> AsyncIterator[int]:
    yield 1


def generator(_: ReceivedMessage) -> Iterator[int]:
    yield 1


def unlucky(_: ReceivedMessage) -> None:
    raise NotAnException("outcome")


async def unlucky_later(_: ReceivedMessage) -> None:
    raise NotAnException("outcome")


@pytest.fixture
def filled(pymq_cluster: Cluster) -> str:
    """A name server's address; topic T has messages."""
    asyncio.run(send_numbers(pymq_cluster.name_server, "T", range(COUNT)))
    return pymq_cluster.name_server


def committed(name_server: str) -> int:
    """Return how many messages the group has finished, as its broker knows."""
    with BlockingClient(name_server, timeout_s=DEADLINE_S) as client:
        lags = admin_of(client).offsets.lag("g", "T")
        return sum(max(lag.consumer_offset, 0) for lag in lags)  # -1: nothing was committed there


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work(), DEADLINE_S)

    asyncio.run(limited())


WRONG = [
    (async_generator, ConfigurationError, "contains `yield`"),
    (generator, ConfigurationError, "contains `yield`"),
    (unlucky, NotAnException, "outcome"),
]


@pytest.mark.parametrize(
    ("handler", "error", "text"), [*WRONG, (unlucky_later, NotAnException, "outcome")]
)
def test_run_ends_with_what_is_wrong_and_finishes_nothing(
    filled: str, handler: Any, error: type[BaseException], text: str
) -> None:
    async def work() -> None:
        async with Consumer(filled, "g", from_where="earliest").subscribe("T") as consumer:
            with pytest.raises(error, match=text):
                await consumer.run(handler)
            handled: list[int] = []  # by another run of the same consumer

            def record(message: ReceivedMessage) -> None:
                handled.append(int(message.body))

            again = asyncio.ensure_future(consumer.run(record))
            await wait_until(lambda: len(handled) == COUNT, "every message comes again")
            assert sorted(handled) == list(range(COUNT))
            await wait_until(lambda: not consumer.backlog_count, "all are finished")
            again.cancel()

    run(work)
    assert committed(filled) == COUNT


@pytest.mark.parametrize(("handler", "error", "text"), WRONG)
def test_blocking_run_ends_with_what_is_wrong_and_finishes_nothing(
    filled: str, handler: Any, error: type[BaseException], text: str
) -> None:
    with blocking.Consumer(filled, "g", from_where="earliest").subscribe("T") as consumer:
        with pytest.raises(error, match=text):
            consumer.run(handler, timeout_s=DEADLINE_S)
        messages = consumer.messages(timeout_s=DEADLINE_S)
        assert sorted(int(next(messages).body) for _ in range(COUNT)) == list(range(COUNT))


@pytest.mark.parametrize("way", ["run", "loop"])
def test_handlers_that_never_wait_leave_the_loop_its_turns(
    filled: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("pymq.client.group.inbox.TURN_S", -1.0)  # every message is a long one
    events: list[str] = []

    async def work() -> None:
        consumer = Consumer(filled, "g", from_where="earliest").subscribe("T")
        async with consumer:
            await wait_until(lambda: consumer.backlog_count == COUNT, "all messages are there")

            async def tick() -> None:
                while True:
                    events.append("other")
                    await asyncio.sleep(0)

            async def loop() -> None:
                async for _ in consumer:
                    events.append("message")

            async def handler(_: ReceivedMessage) -> None:
                events.append("message")

            reading = consumer.run(handler) if way == "run" else loop()
            tasks = [asyncio.ensure_future(reading), asyncio.ensure_future(tick())]
            await wait_until(lambda: events.count("message") == COUNT, "all were handled")
            for task in tasks:
                task.cancel()

    run(work)
    assert "message message" not in " ".join(events)


def test_the_loop_is_watched(
    filled: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pymq.client.cluster.loop_watch.STANDSTILL_S", -1.0)

    async def work() -> None:
        async with Consumer(filled, "g").subscribe("T"):
            await wait_until(lambda: "the event loop stood still" in caplog.text, "it says so")

    run(work)


def test_a_handler_that_returns_false_is_told_that_this_is_no_failure(
    filled: str, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[int] = []

    async def refuse(message: ReceivedMessage) -> bool:
        handled.append(int(message.body))
        return False

    async def work() -> None:
        async with Consumer(filled, "g", from_where="earliest").subscribe("T") as consumer:
            running = asyncio.ensure_future(consumer.run(refuse))
            await wait_until(lambda: len(handled) == COUNT, "all were handled")
            await wait_until(lambda: not consumer.backlog_count, "all are finished")
            running.cancel()

    with caplog.at_level(logging.WARNING, "pymq.client"):
        run(work)
    (said,) = [record.getMessage() for record in caplog.records if "False" in record.getMessage()]
    assert "counts as success" in said and "raise an exception" in said
    assert committed(filled) == COUNT
