"""Work that several callers wait for is done once, whoever of them gives up."""

import asyncio

import pytest

from pymq.client.cluster.shared_work import SharedWork
from pymq.errors import ClientClosed
from pymq.net.tasks import Tasks


class Reads:
    """Work that ends when it is allowed to, and knows for which keys it was begun."""

    def __init__(self) -> None:
        self.tasks = Tasks("test")
        self.begun: list[str] = []
        self.may_end = asyncio.Event()
        self.shared: SharedWork[str] = SharedWork(self.tasks, "read", self._work)

    async def _work(self, key: str) -> str:
        self.begun.append(key)
        await self.may_end.wait()
        return f"value of {key}"

    async def waiting(self, *keys: str) -> list[asyncio.Future[str]]:
        """Return callers that wait for these keys."""
        callers = [asyncio.ensure_future(self.shared.wait_result(key)) for key in keys]
        while len(self.begun) < len(set(keys)):
            await asyncio.sleep(0)
        return callers


def test_callers_at_the_same_time_share_the_work() -> None:
    async def test() -> None:
        reads = Reads()
        callers = await reads.waiting("a", "b", "a")
        reads.may_end.set()
        assert await asyncio.gather(*callers) == ["value of a", "value of b", "value of a"]
        assert sorted(reads.begun) == ["a", "b"]
        assert await reads.shared.wait_result("a") == "value of a"
        assert len(reads.begun) == 3  # later callers want it done again

    asyncio.run(test())


def test_the_work_survives_a_caller() -> None:
    async def test() -> None:
        reads = Reads()
        impatient, other = await reads.waiting("a", "a")
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        reads.may_end.set()
        assert await other == "value of a"
        assert reads.begun == ["a"]

    asyncio.run(test())


def test_the_end_of_the_tasks_is_no_cancellation_of_the_caller() -> None:
    async def test() -> None:
        reads = Reads()
        (caller,) = await reads.waiting("a")
        await reads.tasks.close()
        with pytest.raises(ClientClosed, match="closed meanwhile"):
            await caller

    asyncio.run(test())
