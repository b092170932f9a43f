"""Consumers that handle messages until the test has what it waits for, however slow the machine."""

import time
from collections.abc import Callable
from typing import Any

from pymq import Consumer, blocking

#: A consumer for which nothing comes for so long looks whether it is done.
IDLE_S = 0.5
MOST_S = 120.0


def handle_until(
    consumer: blocking.Consumer, handler: Any, is_done: Callable[[], object], **settings: Any
) -> None:
    """Run a consumer until a condition holds and no more comes."""
    deadline = time.monotonic() + MOST_S
    while True:
        consumer.run(handler, timeout_s=IDLE_S, **settings)
        if is_done():
            return
        assert time.monotonic() < deadline, f"not done after {MOST_S:g} s"


async def handle_until_async(
    consumer: Consumer, handler: Any, is_done: Callable[[], object]
) -> None:
    """Do the same with an asyncio consumer."""
    deadline = time.monotonic() + MOST_S
    while True:
        await consumer.run(handler, timeout_s=IDLE_S)
        if is_done():
            return
        assert time.monotonic() < deadline, f"not done after {MOST_S:g} s"
