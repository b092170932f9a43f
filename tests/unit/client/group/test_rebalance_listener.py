"""Calls of listeners: a cancellation that is theirs is a failure, one of their caller is not."""

import asyncio

import pytest

from pymq.client.group.rebalance_listener import InThreads, ListenerCalls, RebalanceListener
from pymq.protocol.bodies import MessageQueue

QUEUES = [MessageQueue("T", "b", 0)]
DEADLINE_S = 60.0


class Cancelled(RebalanceListener):
    """Raises what a task raises that was cancelled."""

    async def assigned(self, queues: list[MessageQueue]) -> None:
        raise asyncio.CancelledError

    def revoked(self, queues: list[MessageQueue]) -> None:
        raise asyncio.CancelledError


@pytest.mark.parametrize("in_threads", [False, True])
@pytest.mark.parametrize("method", ["assigned", "revoked"])
def test_its_own_is_logged(
    caplog: pytest.LogCaptureFixture, unawaited: list[str], method: str, in_threads: bool
) -> None:
    listener = InThreads(Cancelled()) if in_threads else Cancelled()

    async def test() -> None:
        await asyncio.wait_for(getattr(ListenerCalls("g", listener), method)(QUEUES), DEADLINE_S)

    asyncio.run(test())
    assert f".{method} failed for 1 queues" in caplog.text
    unawaited.clear()


def test_that_of_its_caller_is_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    class Waiting(RebalanceListener):
        async def assigned(self, queues: list[MessageQueue]) -> None:
            begun.set()
            await asyncio.Event().wait()

    begun = asyncio.Event()

    async def test() -> None:
        calling = asyncio.ensure_future(ListenerCalls("g", Waiting()).assigned(QUEUES))
        async with asyncio.timeout(DEADLINE_S):
            await begun.wait()
            calling.cancel()
            await asyncio.wait([calling])
        assert calling.cancelled()

    asyncio.run(test())
    assert "failed" not in caplog.text
