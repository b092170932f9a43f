"""Runs the store's jobs in an executor; a job outlives the task that started it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from pymq.errors import StoreError

_T = TypeVar("_T")


class DiskExecutor:
    """Runs disk work in threads and records its completion on the event loop.

    A thread cannot be cancelled: when its task is cancelled the work goes on, and ``close`` waits
    for it and records its completion. Until then the work is kept with all it has read: only tasks
    that are cancelled when their owner closes may run any. A task with a time-out waits for one of
    those.

    Args:
        executor: None: the event loop's own.
    """

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor
        #: The work in progress, or whose task was cancelled, and what records its completion.
        self._jobs: dict[asyncio.Future[None], Callable[[], object]] = {}

    async def run(self, work: Callable[[], None], done: Callable[[], _T]) -> _T:
        """Run ``work`` in a thread, then ``done`` here, and return the result of ``done``.

        Raises:
            StoreError: raised by one of them.
        """
        job = asyncio.get_running_loop().run_in_executor(self._executor, work)
        self._jobs[job] = done
        await asyncio.wait([job])
        del self._jobs[job]
        job.result()
        return done()

    async def close(self, failed: Callable[[StoreError], None]) -> None:
        """Wait for work whose task was cancelled; ``failed`` gets the errors."""
        for job, done in list(self._jobs.items()):
            await asyncio.wait([job])
            del self._jobs[job]
            try:
                job.result()
                done()
            except StoreError as error:
                failed(error)
