"""Waiting for an event, for a while."""

import asyncio


async def happens(event: asyncio.Event, timeout_s: float) -> bool:
    """Return whether an event is set, once it is, or the time is up.

    (``asyncio.wait_for`` of Python 3.11 forgets a cancellation that comes at the same moment as the
    event: a loop around it would never end.)
    """
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
