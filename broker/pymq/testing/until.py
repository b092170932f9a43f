"""Waiting for a condition in a test, instead of sleeping for long enough."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")

#: By then it has happened, or something is wrong.
TIMEOUT_S = 10.0
_POLL_S = 0.02


def wait_until(condition: Callable[[], _T], *, timeout_s: float = TIMEOUT_S) -> _T:
    """Call a function until what it returns is true, and return that.

    Args:
        condition: for example ``lambda: cluster.lag("billing") == 0``.
        timeout_s: how long at most.

    Raises:
        AssertionError: it was not true in time; the text has what it returned last.
    """
    deadline_s, pause = time.monotonic() + timeout_s, threading.Event()
    while not (value := condition()):
        _check_time(deadline_s, timeout_s, value)
        pause.wait(_POLL_S)
    return value


async def wait_until_async(
    condition: Callable[[], _T | Awaitable[_T]], *, timeout_s: float = TIMEOUT_S
) -> _T:
    """Do the same in a coroutine, while the event loop goes on.

    Args:
        condition: a plain function, which has to be quick, or one that returns something to await.
        timeout_s: how long at most.

    Raises:
        AssertionError: it was not true in time; the text has what it returned last.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = condition()
        value = await answer if isinstance(answer, Awaitable) else answer
        if value:
            return value
        _check_time(deadline_s, timeout_s, value)
        await asyncio.sleep(_POLL_S)


def _check_time(deadline_s: float, timeout_s: float, value: object) -> None:
    if time.monotonic() > deadline_s:
        raise AssertionError(f"not so after {timeout_s:g} s: the condition last returned {value!r}")
