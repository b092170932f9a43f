"""One start or end of a server at a time, whichever threads of a test ask for them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """The starts and ends of one server that are under way; for one event loop at a time.

    Two starts at once would open the store twice, or take the port from each other; and a start
    beside an end finds both taken still.
    """

    def __init__(self) -> None:
        self._under_way: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def wait_any(self) -> bool:
        """Wait until something has ended that is under way; False: nothing is."""
        if not self._under_way:
            return False
        await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        return True

    @contextmanager
    def working(self) -> Iterator[None]:
        """Have others wait while the block runs."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(done)
        try:
            yield
        finally:
            self._under_way.discard(done)
            done.set_result(None)


def serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, and cancel then what threads still wait for.

    A start that has waited for its turn would come after the end of all, and never be done.
    """
    loop.run_forever()
    loop.run_until_complete(asyncio.sleep(0))  # What was handed over last is a task now.
    while left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left))
