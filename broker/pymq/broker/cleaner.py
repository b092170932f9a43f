"""Keeps the disks from filling up: repeats the store's cleaning and monitors disk usage.

Source: RocketMQ DefaultMessageStore.addScheduleTask.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from pymq.broker.disk_executor import DiskExecutor
from pymq.errors import StoreError
from pymq.net.tasks import Tasks
from pymq.store import QueueRemoval, Retention

_log = logging.getLogger(__name__)

#: Delay from the start to the first pass, as in RocketMQ: whoever opens an old store just to look
#: at it still finds everything.
FIRST_PASS_S = 60.0
#: How often disk usage is checked; so writing resumes this soon after there is space again.
WATCH_INTERVAL_S = 1.0

_Answer = TypeVar("_Answer")


class Cleaner:
    """Deletes old files pass by pass, in small steps.

    Args:
        retention: of the store.
        executor: runs the deletions.
        interval_s: from one pass to the next.
        pause_s: from one deletion to the next.
        first_s: from the start to the first pass.
    """

    def __init__(
        self,
        retention: Retention,
        executor: Executor,
        *,
        interval_s: float,
        pause_s: float,
        first_s: float = FIRST_PASS_S,
    ) -> None:
        self._retention = retention
        self._work = DiskExecutor(executor)
        self._interval_s = interval_s
        self._pause_s = pause_s
        self._first_s = first_s
        self._one_pass = asyncio.Lock()
        self._one_removal = asyncio.Lock()  # other work on the disk needs threads, too
        #: Is there a requested pass that has not begun?
        self._is_requested = False
        self._tasks = Tasks("cleaner")

    def start(self) -> None:
        """Begin."""
        self._tasks.repeat("disk level", self._watch, WATCH_INTERVAL_S)
        self._tasks.start("old files", self._run())

    async def _run(self) -> None:
        await asyncio.sleep(max(0.0, self._first_s - self._interval_s))
        self._tasks.repeat("old files", self.run_pass, self._interval_s)

    async def _watch(self) -> None:
        job = self._retention.begin_watch()
        await self._work.run(job.run, functools.partial(self._retention.finish_watch, job))

    async def look_again(self) -> None:
        """Look at the disks, and run a pass."""
        await self._watch()
        await self.run_pass()

    def run_soon(self) -> None:
        """Run a pass now, in addition to the regular ones, unless one is about to begin."""
        if not self._is_requested:
            self._is_requested = True
            self._tasks.start("old files, requested", self.run_pass())

    async def run_pass(self) -> None:
        """Run one pass, after the one in progress."""
        async with self._one_pass:
            self._is_requested = False
            while await self.step():
                await asyncio.sleep(self._pause_s)

    async def step(self) -> int:
        """Do one step of a pass; return how much was done, 0 at its end."""
        job = self._retention.begin_clean()
        return await self._work.run(
            job.run, functools.partial(self._retention.finish_clean, job)
        )

    def remove(self, removal: QueueRemoval) -> asyncio.Task[None]:
        """Remove the files of deleted queues; they are in nobody's way.

        Returns:
            A task that ends once they are gone. Whoever waits for it may be cancelled: ``shield``.
            It raises FlushFailed if some are left, which is final.
        """
        return self._tasks.start("files of deleted queues", self._remove(removal))

    async def _remove(self, removal: QueueRemoval) -> None:
        async with self._one_removal:
            finish = functools.partial(self._retention.finish_delete, removal)
            await self._work.run(removal.run, finish)

    async def close(self) -> None:
        """Stop once the disk work in progress is done; idempotent."""
        await self._tasks.close()
        await self._work.close(_report)


async def with_removals(
    saving: Awaitable[_Answer], removals: Sequence[asyncio.Task[None]]
) -> _Answer:
    """Wait until tables are saved and files are gone, both at the same time.

    The files of many queues take long: what the tables say of a deleted topic must not stay on the
    disk until then. Whoever waits here may be cancelled: the removals go on.

    Args:
        saving: saves the tables.
        removals: see ``Cleaner.remove``.

    Returns:
        What ``saving`` returns.

    Raises:
        StoreError: some of it failed; the rest is done.
    """
    waiting: list[Awaitable[Any]] = [asyncio.shield(one) for one in removals]
    *removed, answer = await asyncio.gather(*waiting, saving, return_exceptions=True)
    for failure in removed:
        if isinstance(failure, BaseException):
            raise failure
    if isinstance(answer, BaseException):
        raise answer
    saved: _Answer = answer
    return saved


def _report(error: StoreError) -> None:
    _log.error("the last cleaning failed: %s", error)
