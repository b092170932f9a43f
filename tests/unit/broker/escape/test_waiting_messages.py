"""Timers that a slave delivers while it acts: how they end when the disk does not follow."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.store.stores import FakeClock

from pymq.broker.escape import waiting_messages
from pymq.broker.escape.escaping import Escaping
from pymq.broker.escape.waiting_messages import TimerMessages
from pymq.errors import StoreClosed, StoreError


class Parts:
    """The files of timers, what delivers them, and what writes elsewhere: what was done with it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.is_opened = asyncio.Event()

    def begin_open(
        self, clock: object, is_cancelled: Callable[[], bool] = lambda: False
    ) -> "Parts":
        return self

    def run(self) -> None:
        pass

    def result(self) -> "Parts":
        return self

    def start(self) -> None:
        self.is_opened.set()

    def flush(self) -> None:
        self.done.append("flush")

    async def close_async(self) -> None:
        self.done.append("writer closed")

    def close(self) -> None:
        self.done.append("files closed")


async def fail() -> None:
    raise StoreError("the log is not on the disk: the disk failed")


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("flushed", [fail, never])
def test_a_disk_that_does_not_follow_leaves_nothing_open(
    flushed: Callable[[], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor does a master wait for it that asks how far timers are, to be online again."""
    monkeypatch.setattr(waiting_messages, "FLUSH_S", 0.05)

    async def test() -> None:
        parts = Parts()

        async def stop() -> None:
            parts.done.append("delivery ended")

        store: Any = SimpleNamespace(
            queue_bounds=lambda topic, queue_id: (0, 1),
            replication=SimpleNamespace(timers=SimpleNamespace(begin_open=parts.begin_open)),
        )
        flusher: Any = SimpleNamespace(wait_all_flushed=flushed)
        delivery: Any = SimpleNamespace(start=parts.start, close=stop)
        slave: Any = SimpleNamespace(is_acting=True, hands_over=False)
        writer: Any = SimpleNamespace(sent_count=0, close=parts.close_async)
        with ThreadPoolExecutor(1) as executor:
            timers = TimerMessages(store, FakeClock(), lambda opened: delivery, flusher, executor)
            escaping = Escaping(slave, [timers], writer)
            escaping.start()
            await asyncio.wait_for(parts.is_opened.wait(), 60)
            await asyncio.wait_for(escaping.close(), 60)
        assert parts.done == ["delivery ended", "files closed", "writer closed"]
        assert "how far timers are is not saved (the log " in caplog.text

    asyncio.run(test())


class LongOpening:
    """An opening that takes as long as nobody cancels it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.is_cancelled: Callable[[], bool] = lambda: False

    def begin_open(
        self, clock: object, is_cancelled: Callable[[], bool] = lambda: False
    ) -> "LongOpening":
        self.is_cancelled = is_cancelled
        return self

    def run(self) -> None:
        self.begun.set()
        for _ in range(3000):
            if self.is_cancelled():
                raise StoreClosed("interrupted; nothing is lost")
            threading.Event().wait(0.01)


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_opening_that_takes_long_keeps_nobody_waiting(
    is_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a master that is about to be online, nor who stops this broker."""

    async def test() -> None:
        opening = LongOpening()
        store: Any = SimpleNamespace(
            queue_bounds=lambda topic, queue_id: (0, 1),
            replication=SimpleNamespace(timers=SimpleNamespace(begin_open=opening.begin_open)),
        )
        slave: Any = SimpleNamespace(is_acting=True, hands_over=False)
        parts: Any = Parts()
        writer: Any = SimpleNamespace(sent_count=0, close=parts.close_async)
        with ThreadPoolExecutor(1) as executor:
            timers = TimerMessages(store, FakeClock(), lambda opened: parts, parts, executor)
            escaping = Escaping(slave, [timers], writer)
            escaping.start()
            assert await asyncio.to_thread(opening.begun.wait, 60)
            await (escaping.close() if is_closed else escaping.pause())
            assert opening.is_cancelled()
            await escaping.close()
        assert "not sent to other groups" not in caplog.text

    asyncio.run(test())
