"""Indexes messages by their keys in the time that sending and reading leave over.

Only a query by key waits for it: until everything that was visible when the query came is indexed.

Source: RocketMQ IndexService, ReputMessageService.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from pymq.broker.disk_executor import DiskExecutor
from pymq.errors import StoreError
from pymq.net.tasks import Tasks
from pymq.store import IndexPrefetchJob, Keys

_log = logging.getLogger(__name__)

#: A step costs about the same for one message as for a thousand, so they are gathered.
#: While there is nothing new, it is looked for less often.
GATHER_S, IDLE_S = 0.2, 0.5
GATHER_BYTES = 1 << 19
#: Pause after the index could not be written.
RETRY_S = 1.0
#: Of the time that the event loop has left over indexing takes this share, of all its time at least
#: the second one, and the third one if it is so far behind that a query by key would wait for long.
IDLE_SHARE, BUSY_SHARE, FAR_BEHIND_SHARE = 0.3, 0.03, 0.5
FAR_BEHIND_BYTES = 4 << 30


class KeyIndexing:
    """Brings the store's key index up to date with what is visible, a few milliseconds at a time.

    Args:
        keys: of the store.
        wait_writable: returns when the disk takes writes.
        executor: reads what is not in memory; None: the event loop's own.
    """

    def __init__(
        self,
        keys: Keys,
        wait_writable: Callable[[], Awaitable[None]] | None = None,
        *,
        executor: Executor | None = None,
    ) -> None:
        self._keys = keys
        self._reading = DiskExecutor(executor)
        self._wait_writable = wait_writable
        self._failure: str | None = None
        #: The one in progress: whoever needs it waits for it, and may give up waiting.
        self._prefetching: asyncio.Task[None] | None = None
        self._tasks = Tasks("key index")

    def start(self) -> None:
        """Begin."""
        self._tasks.start("steps", self._run())

    async def _run(self) -> None:
        idle = 1.0
        while True:
            if self._wait_writable is not None:
                await self._wait_writable()
            await self._prefetch()
            begun = time.perf_counter()
            self.step()
            behind = self._keys.behind_bytes
            share = max(IDLE_SHARE * idle, BUSY_SHARE)
            if behind > FAR_BEHIND_BYTES:
                share = FAR_BEHIND_SHARE
            pause_s = (time.perf_counter() - begun) * (1 / share - 1)
            if self._failure is not None:
                pause_s = RETRY_S
            elif behind < GATHER_BYTES:
                pause_s = max(pause_s, GATHER_S if behind else IDLE_S)
            idle = await _pause(pause_s)

    async def _prefetch(self) -> None:
        """Have what the next step needs in memory, if that is possible."""
        if self._prefetching is None:
            try:
                job = self._keys.begin_prefetch()
            except StoreError as error:
                _log.debug("not prefetched: %s", error)  # The step meets it again, and reports it.
                return
            if job is None:
                return
            self._prefetching = self._tasks.start("prefetch", self._read(job))
        await asyncio.wait([self._prefetching])

    async def _read(self, job: IndexPrefetchJob) -> None:
        try:
            await self._reading.run(job.run, functools.partial(self._keys.finish_prefetch, job))
        except StoreError as error:
            _log.debug("not prefetched: %s", error)
        finally:
            self._prefetching = None

    def step(self) -> int:
        """Do one step; return how many bytes of the log it covered."""
        try:
            done = self._keys.index_step()
        except StoreError as error:
            if self._failure is None:
                _log.error("messages are not indexed by their keys until this succeeds: %s", error)
            self._failure = str(error)
            return 0
        self._failure = None
        return done

    async def wait_indexed(self) -> None:
        """Return when everything that is visible now is indexed.

        Raises:
            StoreError: the index cannot be written.
        """
        left = self._keys.behind_bytes
        while left > 0:
            if self._wait_writable is not None:
                await self._wait_writable()
            await self._prefetch()
            done = self.step()
            if not done:
                if self._failure is not None:
                    raise StoreError(f"messages cannot be indexed by their keys: {self._failure}")
                return
            left -= done
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()
        await self._reading.close(lambda error: None)


async def _pause(pause_s: float) -> float:
    """Sleep; return for which share of that time this thread, that is the loop, did not work."""
    begun, worked = time.perf_counter(), time.thread_time()
    await asyncio.sleep(pause_s)
    passed_s = time.perf_counter() - begun
    return 1 - min((time.thread_time() - worked) / passed_s, 1.0) if passed_s else 0.0
