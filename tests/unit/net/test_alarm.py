"""Alarms ring when something is due, not before, and not without need."""

import asyncio

import pytest

from pymq.clock import Clock
from pymq.net.alarm import Alarm


class Deadlines:
    """What an alarm rings for."""

    def __init__(self, *, least_s: float = 0.0) -> None:
        self.clock = Clock()
        self.pending: list[float] = []
        self.rung: list[int] = []
        self.broken = False
        self.alarm = Alarm(self.clock, self.ring, least_s=least_s)

    def add(self, in_s: float) -> None:
        at_s = self.clock.monotonic_s() + in_s
        self.pending.append(at_s)
        self.alarm.due(at_s)

    def ring(self) -> float | None:
        if self.broken:
            self.broken = False
            raise OSError("broken")
        now_s = self.clock.monotonic_s()
        left = [at_s for at_s in self.pending if at_s > now_s]
        self.rung.append(len(self.pending) - len(left))
        self.pending = left
        return min(left, default=None)

    async def wait(self, ring_count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.rung) < ring_count:
                await asyncio.sleep(0.001)


def test_each_deadline_rings_whatever_their_order() -> None:
    async def check() -> None:
        found = Deadlines()
        found.add(0.02)  # before it starts
        found.alarm.start()
        begun_s = found.clock.monotonic_s()
        found.add(0.08)
        found.add(0.05)
        async with asyncio.timeout(60):
            while found.pending:
                await asyncio.sleep(0.001)
        assert found.clock.monotonic_s() - begun_s >= 0.08 - 0.001
        assert sum(found.rung) == 3
        count = len(found.rung)
        await asyncio.sleep(0.05)
        assert len(found.rung) == count  # nothing is due any more
        found.add(0)
        await found.wait(count + 1)
        found.alarm.close()
        found.alarm.close()
        found.add(0)
        await asyncio.sleep(0.02)
        assert len(found.rung) == count + 1

    asyncio.run(check())


def test_many_deadlines_share_a_ring() -> None:
    async def check() -> None:
        found = Deadlines(least_s=0.1)
        found.alarm.start()
        begun_s = found.clock.monotonic_s()
        for number in range(100):
            found.add(number / 1000)
        async with asyncio.timeout(60):
            while found.pending:
                await asyncio.sleep(0.001)
        elapsed_s = found.clock.monotonic_s() - begun_s
        assert len(found.rung) <= 3 + elapsed_s / 0.1

    asyncio.run(check())


def test_an_error_is_said_and_it_rings_again(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        found = Deadlines(least_s=0.01)
        found.alarm.start()
        found.broken = True
        found.add(0)
        await found.wait(2)
        assert not found.pending and found.rung[-1] == 1
        found.alarm.close()

    asyncio.run(check())
    assert caplog.text.count("what was due failed") == 1
