"""Work of the store's jobs, in an executor, that outlives the task which asked for it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from pymq.errors import StoreError

_T = TypeVar("_T")


class DiskExecutor:
    """Runs disk work in threads and takes note of its end on the event loop.

    A thread cannot be cancelled: what a task is cancelled in the middle of goes on, and
    ``close`` waits for it and takes note.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        #: What is under way, and what takes note of its end.
        self._jobs: dict[asyncio.Future[None], Callable[[], object]] = {}

    async def run(self, work: Callable[[], None], done: Callable[[], _T]) -> _T:
        """Run ``work`` in a thread, then ``done`` here, and return what that returns.

        Raises:
            StoreError: what one of them raised.
        """
        job = asyncio.get_running_loop().run_in_executor(self._executor, work)
        self._jobs[job] = done
        await asyncio.wait([job])
        del self._jobs[job]
        job.result()
        return done()

    async def close(self, failed: Callable[[StoreError], None]) -> None:
        """Wait for what nobody waits for any more; ``failed`` gets what it raises."""
        for job, done in list(self._jobs.items()):
            await asyncio.wait([job])
            del self._jobs[job]
            try:
                job.result()
                done()
            except StoreError as error:
                failed(error)
