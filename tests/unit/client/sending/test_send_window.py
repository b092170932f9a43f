"""Room for sends: first come, first served, and none of it is lost with those who leave."""

import asyncio
import random
from collections.abc import Callable

import pytest

from pymq.client.sending.send_window import SendWindow
from pymq.errors import ClientClosed, TooManyPending

COUNT_MAX, BYTES_MAX = 3, 100


def is_open() -> None:
    """Accept all."""


async def settle() -> None:
    """Let everybody run who can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Schedule:
    """Sends at random, and what has to become of them.

    Attributes:
        line: who waits, in the order in which they came.
        begun: sizes of what is in flight.
        wrong: what went against the rules.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.window = SendWindow(COUNT_MAX, BYTES_MAX)
        self.line: list[int] = []
        self.begun: list[int] = []
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.wrong: list[str] = []

    async def send(self, number: int, until_s: float | None, begins: bool) -> None:
        window = self.window
        has_room = len(self.begun) < COUNT_MAX and sum(self.begun) < BYTES_MAX
        alive = [one for one in self.line if self.counts(one)]
        if (window.is_full and has_room and not self.line) or (not window.is_full and alive):
            self.wrong.append(f"{number} came: full {window.is_full}, line {self.line}")
        self.line.append(number)
        try:
            await window.wait_room(is_open, until_s)
            # Whoever was cancelled, or is too late, counts no more, though it may not know yet.
            before = [one for one in self.line[: self.line.index(number)] if self.counts(one)]
            if before:
                self.wrong.append(f"{number} went before {before}")
            if len(self.begun) >= COUNT_MAX or sum(self.begun) >= BYTES_MAX or window.is_full:
                self.wrong.append(f"{number} went without room: {self.begun}, {window.is_full}")
            if begins:
                size = self.rng.choice([1, 30, 60, 500])
                self.begun.append(size)
                window.begin(size)
        except TooManyPending:
            assert until_s is not None
        finally:
            self.line.remove(number)

    def counts(self, number: int) -> bool:
        task = self.tasks[number]
        return not (task.done() or task.cancelling())

    def end(self) -> None:
        if self.begun:
            size = self.begun.pop(self.rng.randrange(len(self.begun)))
            self.window.end(size)

    def act(self, number: int) -> None:
        rng = self.rng
        kind = rng.randrange(10)
        if kind < 5:
            late_s = rng.choice([None, None, 0.0, 0.001])
            until_s = None if late_s is None else asyncio.get_running_loop().time() + late_s
            work = self.send(number, until_s, begins=rng.random() < 0.8)
            self.tasks[number] = asyncio.ensure_future(work)
        elif kind < 8:
            self.end()
        elif self.line:
            self.tasks[rng.choice(self.line)].cancel()

    def check_settled(self) -> None:
        window = self.window
        assert (window.count, window.size_bytes) == (len(self.begun), sum(self.begun))
        has_room = window.count < COUNT_MAX and window.size_bytes < BYTES_MAX
        assert not (has_room and self.line), f"room, and {self.line} wait"
        assert window.is_full == (not has_room)


def test_a_random_schedule_keeps_the_order_and_loses_no_room(seed: int) -> None:
    async def test() -> None:
        rng = random.Random(seed)
        for _ in range(15):
            one = Schedule(rng)
            for number in range(150):
                one.act(number)
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
                if rng.random() < 0.1:
                    await settle()
                    one.check_settled()
            await settle()
            while one.begun:
                one.end()
                await settle()
                one.check_settled()
            await asyncio.wait_for(asyncio.gather(*one.tasks.values(), return_exceptions=True), 10)
            assert not one.wrong
            assert not one.line and not one.window.count and not one.window.is_full

    asyncio.run(test())


def waiters(
    window: SendWindow, count: int, told: Callable[[int], None]
) -> list[asyncio.Task[None]]:
    """Return tasks that wait for room, tell their number and begin."""

    async def one(number: int) -> None:
        await window.wait_room(is_open)
        told(number)
        window.begin(1)

    return [asyncio.ensure_future(one(number)) for number in range(count)]


def test_those_who_wait_begin_in_the_turn_in_which_room_was_made() -> None:
    async def test() -> None:
        window, order = SendWindow(8, BYTES_MAX), list[int]()
        for _ in range(8):
            window.begin(1)
        tasks = waiters(window, 20, order.append)
        await settle()
        for _ in range(3):
            window.end(1)
        window.end(5, count=5)
        await asyncio.sleep(0)
        assert order == list(range(8))  # not one in each turn
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(test())


def test_a_newcomer_does_not_take_the_room_of_who_waits() -> None:
    async def test() -> None:
        window, order = SendWindow(1, BYTES_MAX), list[int]()
        window.begin(1)
        (task,) = waiters(window, 1, order.append)
        await settle()
        window.end(1)
        assert window.is_full
        assert "nobody who waits for room already" in str(window.refusal())
        await task
        window.end(1)
        assert not window.is_full

    asyncio.run(test())


def test_who_waited_may_begin_though_others_wait_and_the_next_one_goes_if_he_does_not() -> None:
    async def test() -> None:
        window, order = SendWindow(1, BYTES_MAX), list[int]()
        window.begin(1)

        async def ask_only() -> None:
            await window.wait_room(is_open)
            order.append(-1 if not window.is_full else -2)

        asking = asyncio.ensure_future(ask_only())
        await settle()
        (task,) = waiters(window, 1, order.append)
        await settle()
        window.end(1)
        await asyncio.wait_for(asyncio.gather(asking, task), 60)
        assert order == [-1, 0]

    asyncio.run(test())


def test_a_line_of_those_who_left_is_not_kept() -> None:
    async def test() -> None:
        window = SendWindow(1, BYTES_MAX)
        window.begin(1)
        (first,) = waiters(window, 1, lambda number: None)
        await settle()
        for _ in range(50):
            with pytest.raises(TooManyPending):
                await window.wait_room(is_open, asyncio.get_running_loop().time())
        assert len(window._waiting) <= 2
        window.end(1)
        await asyncio.wait_for(first, 60)

    asyncio.run(test())


def test_a_close_is_told_to_all_who_wait() -> None:
    def closed() -> None:
        raise ClientClosed("closed")

    async def test() -> None:
        window = SendWindow(1, BYTES_MAX)
        window.begin(1)
        tasks = [asyncio.ensure_future(window.wait_room(closed)) for _ in range(3)]
        await settle()
        window.wake_all()
        for task in tasks:
            with pytest.raises(ClientClosed):
                await task
        assert not window._waiting
        window.end(1)
        assert not window.is_full

    asyncio.run(test())


def test_a_line_may_outlive_its_loop() -> None:
    window = SendWindow(1, BYTES_MAX)
    window.begin(1)
    loop = asyncio.new_event_loop()
    work = window.wait_room(is_open)

    async def wait() -> None:
        await work

    task = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    work.close()  # as the garbage collector would: raises nothing
    assert window.count == 1
