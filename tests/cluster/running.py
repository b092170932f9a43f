"""Runs what a test waits for, for a limited time, and asks a broker one thing."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from pymq.client import operations
from pymq.net.channel import AsyncChannel

DEADLINE_S = 300.0
TIMEOUT_S = 30.0
#: Of a producer, for what succeeds, however busy the machine: an attempt that is given up is made
#: once more.
LIMITS: dict[str, Any] = {"timeout_s": 60.0, "deadline_s": 60.0}
#: Too late for what is told at once.
SLOW_MS = 20_000
#: Of a group: a slave that is slow, as the machine may be, stays in sync.
PATIENT: dict[str, Any] = {
    "metadata_interval_ms": SLOW_MS,
    "slave_timeout_ms": 30_000,
    "sync_state_lag_ms": 30_000,
}


def run(work: Awaitable[None]) -> None:
    """Run a test on an event loop of its own."""

    async def limited() -> None:
        await asyncio.wait_for(work, DEADLINE_S)

    asyncio.run(limited())


async def ask(address: str, operation: operations.Operation[Any]) -> Any:
    channel = await AsyncChannel.connect(address, TIMEOUT_S)
    try:
        answer = await channel.request(operation.request, TIMEOUT_S)
        return operation.result(answer, peer=address)
    finally:
        channel.close()
