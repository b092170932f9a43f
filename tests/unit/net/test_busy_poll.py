"""When an event loop stays awake: only as long as it helps."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from pymq.net import busy_poll
from pymq.net.busy_poll import GAIN, REST_MAX, SCORE_MAX, BusyPoll


class Clock:
    """Time that passes with the turns of the loop, for the thread that makes it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self._thread = threading.get_ident()
        monkeypatch.setattr(busy_poll, "perf_counter", self)

    def __call__(self) -> float:
        if threading.get_ident() != self._thread:  # a broker that other tests have left running
            return time.perf_counter()
        self.now_s += 10e-6
        return self.now_s


async def request(poll: BusyPoll, count: int = 1) -> bool:
    """Have requests arrive and be answered; return whether the loop stays awake for more."""
    poll.heard(count)
    await asyncio.sleep(0)
    poll.answered()
    await asyncio.sleep(0)
    return poll.is_waiting


async def turns(poll: BusyPoll) -> int:
    """Have nothing arrive until the loop would sleep; return after how many turns."""
    count = 0
    while poll.is_waiting:
        await asyncio.sleep(0)
        count += 1
        assert count < 1000
    return count


def test_it_waits_as_long_as_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        Clock(monkeypatch)
        poll = BusyPoll(100e-6)
        assert await request(poll)
        assert 8 <= await turns(poll) <= 12

    asyncio.run(test())


def test_requests_one_after_another_keep_it_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        Clock(monkeypatch)
        poll = BusyPoll(100e-6)
        for _ in range(100):
            assert await request(poll)
            for _ in range(5):
                await asyncio.sleep(0)
        # A few that come late change nothing.
        for _ in range(SCORE_MAX - 1):
            assert await request(poll)
            await turns(poll)

    asyncio.run(test())


def test_it_sleeps_while_many_requests_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        Clock(monkeypatch)
        poll = BusyPoll(100e-6)
        assert not await request(poll, 3)
        assert await request(poll, 2)
        poll.heard(64)
        await asyncio.sleep(0)
        assert not poll.is_waiting

    asyncio.run(test())


def test_it_gives_up_what_does_not_help_and_tries_again_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        Clock(monkeypatch)
        poll = BusyPoll(100e-6)
        waits = []
        for turn in range(1000):
            if await request(poll):
                waits.append(turn)
                await turns(poll)
        assert waits[:SCORE_MAX] == list(range(SCORE_MAX))
        rests = [after - before - 1 for before, after in zip(waits, waits[1:], strict=False)]
        assert rests[SCORE_MAX - 1 :][:7] == [1, 3, 7, 15, 31, REST_MAX, REST_MAX]
        # Clients that are quick again are noticed.
        while not await request(poll):
            pass
        await asyncio.sleep(0)
        for _ in range(GAIN):
            assert await request(poll)
            await asyncio.sleep(0)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("quota", "count"), [("max 100000", 8), ("150000 100000", 1), ("1600000 100000", 8), ("", 8)]
)
def test_the_processors_of_a_container_are_those_of_its_quota(
    quota: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy_poll.os, "sched_getaffinity", lambda pid: range(8), raising=False)
    monkeypatch.setattr(busy_poll, "_QUOTA", tmp_path / "cpu.max")
    assert busy_poll.processor_count() == 8
    (tmp_path / "cpu.max").write_text(quota)
    assert busy_poll.processor_count() == count


def test_behind_a_large_answer_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        Clock(monkeypatch)
        poll = BusyPoll(100e-6)
        poll.answered_much()
        assert not await request(poll)
        poll.answered_much()  # one that was held, without a request in this turn
        poll.answered()
        await asyncio.sleep(0)
        assert not poll.is_waiting
        assert await request(poll)
        poll.answered_much()
        poll.answered()
        await asyncio.sleep(0)
        assert not poll.is_waiting, "nor does it go on waiting"

    asyncio.run(test())


def test_clients_that_ask_in_one_turn_do_not_keep_it_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        Clock(monkeypatch)
        poll = BusyPoll(100e-6)
        waits = 0
        for _ in range(200):
            poll.heard(1)
            poll.answered()  # of one connection, before the other one has been read
            poll.heard(1)
            poll.answered()
            await asyncio.sleep(0)
            waits += poll.is_waiting
            await turns(poll)
        assert waits < 40

    asyncio.run(test())
