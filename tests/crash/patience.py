"""What may fail for a moment when brokers have started, or changed their roles, is tried again.

A broker that is ready is registered at its name server, but on a slow machine a moment later; and
one whose process stood still for two seconds may have lost its mastership to another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pymq.errors import PymqError

T = TypeVar("T")

PATIENCE_S: Final = 90.0
_POLL_S: Final = 0.05


def patiently(action: Callable[[], T]) -> T:
    """Return what an action returns, as soon as it does not fail any more; it is idempotent.

    Raises:
        PymqError: it still fails after a long time.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return action()
        except PymqError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


async def patiently_async(action: Callable[[], Awaitable[T]]) -> T:
    """Do the same with a coroutine."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await action()
        except PymqError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_POLL_S)
