"""Duties start in order and end in reverse, all of them."""

import asyncio

import pytest

from pymq.broker.duties import Duties, Periodic
from pymq.errors import StoreError


class Named:
    """A duty that tells what happens to it."""

    def __init__(self, name: str, said: list[str], error: Exception | None = None) -> None:
        self._name = name
        self._said = said
        self._error = error

    def start(self) -> None:
        self._said.append(f"+{self._name}")

    async def close(self) -> None:
        self._said.append(f"-{self._name}")
        if self._error is not None:
            raise self._error


def test_each_is_closed_though_others_fail() -> None:
    said: list[str] = []

    async def check() -> None:
        duties = Duties()
        duties.start(Named("a", said), Named("b", said, StoreError("b fails")))
        duties.on_close(Named("c", said).close)
        duties.start(Named("d", said, ValueError("d fails")))
        with pytest.raises(StoreError, match="b fails"):
            await duties.close()
        await duties.close()

    asyncio.run(check())
    assert said == ["+a", "+b", "+d", "-d", "-c", "-b", "-a"]


def test_what_fails_to_start_is_closed() -> None:
    said: list[str] = []

    class Broken(Named):
        def start(self) -> None:
            raise StoreError("no")

    async def check() -> None:
        duties = Duties()
        with pytest.raises(StoreError, match="no"):
            duties.start(Named("a", said), Broken("b", said), Named("c", said))
        await duties.close()

    asyncio.run(check())
    assert said == ["+a", "-b", "-a"]


def test_a_periodic_one_repeats_until_it_is_closed() -> None:
    async def check() -> None:
        done = asyncio.Event()
        count = 0

        def step() -> None:
            nonlocal count
            count += 1
            if count == 3:
                done.set()

        duty = Periodic("test", step, 0.001)
        duty.start()
        await asyncio.wait_for(done.wait(), 60)
        await duty.close()
        ended = count
        await asyncio.sleep(0.01)
        assert count == ended

    asyncio.run(check())


def test_duties_of_a_role_come_and_go_while_the_broker_runs() -> None:
    said: list[str] = []

    class WhileMaster:
        """What a broker's role would do: the duties of each term are new ones."""

        def __init__(self) -> None:
            self.term = Duties()
            self.steps = 0

        def start(self) -> None:
            self.term.start(
                Named("a", said), Periodic("count", self._count, 0.001), Named("b", said)
            )

        def _count(self) -> None:
            self.steps += 1

        async def close(self) -> None:
            await self.term.close()

    async def check() -> None:
        duties, role = Duties(), WhileMaster()
        duties.start(role)
        for _ in range(2):  # master again after a time as a slave
            await role.close()
            counted = role.steps
            role.start()
            async with asyncio.timeout(60):
                while role.steps == counted:
                    await asyncio.sleep(0.001)
        await duties.close()
        await duties.close()

    asyncio.run(check())
    assert said == ["+a", "+b", "-b", "-a"] * 3
