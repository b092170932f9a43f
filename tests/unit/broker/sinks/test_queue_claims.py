"""Who has which queues, and who waits for them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pymq.broker.sinks.queue_claims import QueueClaims
from pymq.errors import StoreError

A, B, C, D = (("T", queue_id) for queue_id in range(4))


class Claimants:
    """Those who want queues, and in which order they got them."""

    def __init__(self) -> None:
        self.claims = QueueClaims()
        self.got: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def want(self, name: str, *queues: tuple[str, int]) -> None:
        async def take() -> None:
            await self.claims.take(set(queues))
            self.got.append(name)

        self.tasks[name] = asyncio.create_task(take())
        await self.settle()

    async def give_back(self, *queues: tuple[str, int]) -> None:
        self.claims.give_back(set(queues))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def run(check: Callable[[Claimants], Awaitable[None]]) -> None:
    async def main() -> None:
        await check(Claimants())

    asyncio.run(main())


def test_one_has_all_of_its_queues_or_none() -> None:
    async def check(some: Claimants) -> None:
        await some.want("first", A, B)
        await some.want("second", B, C)
        await some.want("third", D)
        assert some.got == ["first", "third"]
        await some.give_back(A, B)
        assert some.got == ["first", "third", "second"]
        await some.want("nothing")
        assert some.got[-1] == "nothing"

    run(check)


def test_nobody_overtakes_who_wants_the_same() -> None:
    async def check(some: Claimants) -> None:
        await some.want("one", A)
        await some.want("many", A, B, C)
        await some.want("after many", C)
        await some.want("elsewhere", D)
        assert some.got == ["one", "elsewhere"]
        await some.give_back(A)
        assert some.got == ["one", "elsewhere", "many"]
        await some.give_back(A, B, C)
        assert some.got[-1] == "after many"

    run(check)


def test_who_is_cancelled_holds_nobody_up() -> None:
    async def check(some: Claimants) -> None:
        await some.want("first", A)
        await some.want("waits", A, B)
        await some.want("last", B)
        some.tasks["waits"].cancel()
        await some.settle()
        assert some.got == ["first", "last"]
        await some.want("again", A)
        # Cancelled in the turn in which it gets the queue.
        some.claims.give_back({A})
        some.tasks["again"].cancel()
        await some.settle()
        await some.want("next", A)
        assert some.got == ["first", "last", "next"]

    run(check)


def test_at_a_start() -> None:
    claims = QueueClaims()
    assert claims.take_nowait({A, B})
    assert not claims.take_nowait({B, C})
    assert claims.take_nowait({C})
    claims.give_back({A, B})
    assert claims.take_nowait({B})


def test_queues_that_are_never_given_back() -> None:
    async def check(some: Claimants) -> None:
        await some.want("first", A, B)
        await some.want("waits", B, C)
        await some.want("behind it", C)
        some.claims.keep({A, B}, "first is stuck")
        await some.settle()
        assert some.got == ["first", "behind it"]
        await some.want("later", A)
        for name in ("waits", "later"):
            with pytest.raises(StoreError, match="first is stuck"):
                await some.tasks[name]

    run(check)
