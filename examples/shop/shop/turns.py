"""So many at a time, and no more: what keeps a service alive when more is wanted than it can do.

Without a limit each order waits for all others; then callers give up and call again, and the
service is busy with work that nobody waits for any more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shop.errors import Unavailable


class Turns:
    """Lets a few in at a time.

    Args:
        count: how many.
        wait_s: how long others wait for their turn.
    """

    def __init__(self, count: int, wait_s: float) -> None:
        self._free = asyncio.Semaphore(count)
        self._wait_s = wait_s

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it inside the block.

        Raises:
            Unavailable: there was none in time; nothing has been done.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise Unavailable(f"too many at once: no turn within {self._wait_s:g} s") from None
        try:
            yield
        finally:
            self._free.release()
