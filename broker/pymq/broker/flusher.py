"""Group commit: one flush of the log answers everybody who waits for it.

The disk work runs in the executor, everything else on the event loop. While one flush is in
progress, more appends gather; the next flush covers all of them.

Source: RocketMQ GroupCommitService, FlushRealTimeService, FlushConsumeQueueService.
"""

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from pymq.broker.disk_executor import DiskExecutor
from pymq.clock import Clock
from pymq.errors import FlushFailed, StoreError
from pymq.net.alarm import Alarm
from pymq.net.tasks import Tasks
from pymq.store import MessageStore

_log = logging.getLogger(__name__)

_PAGE_BYTES = 4096
#: How often pooled records are checked, and how long to wait after a failed commit.
COMMIT_PAUSE_S, COMMIT_RETRY_S = 0.01, 1.0
#: How often deadlines of waiters are checked at most.
EXPIRE_INTERVAL_S = 0.2
#: How long tables that say something of the log wait for a slow disk.
WAIT_ALL_S = 60.0
#: How often to check whether consume queues or the key index are due for a flush.
QUEUE_PAUSE_S = 0.5


@dataclass(slots=True)
class _Waiter:
    physical_end: int
    deadline_s: float
    done: Callable[[str | None], None]


class Flusher:
    """Flushes the log: at once when somebody waits, by interval otherwise.

    Args:
        store: owns the log.
        executor: runs the flushes.
        clock: for the deadlines of waiters.
        commit_interval_s: how often records of the transient pool are written to the log's
            files; None: there is no pool.
        commit_pages_least: this many full pages of 4 KiB are written without waiting for that.
        interval_s: how often unflushed bytes are flushed without a waiter.
        pages_least: such a flush takes place after this many new pages of 4 KiB ...
        thorough_interval_s: ... or this long after the last one.
        queue_interval_s: how often consume queues are flushed and the checkpoint is written.
        timeout_s: how long a waiter waits (RocketMQ syncFlushTimeout).
    """

    def __init__(
        self,
        store: MessageStore,
        executor: Executor,
        clock: Clock,
        *,
        commit_interval_s: float | None = None,
        commit_pages_least: int = 0,
        interval_s: float,
        pages_least: int = 0,
        thorough_interval_s: float = 10.0,
        queue_interval_s: float,
        timeout_s: float,
    ) -> None:
        self._store = store
        self._work = DiskExecutor(executor)
        self._clock = clock
        self._interval_s = interval_s
        self._pages_least = pages_least
        self._thorough_interval_s = thorough_interval_s
        self._commit_interval_s = commit_interval_s
        self._commit_pages_least = commit_pages_least
        self._committed_at_s = 0.0
        self._committing = asyncio.Lock()
        self._flushed_at_s = clock.monotonic_s()
        self._queue_interval_s = queue_interval_s
        self._queues_due_s = clock.monotonic_s() + queue_interval_s
        self._timeout_s = timeout_s
        self._waiters: deque[_Waiter] = deque()
        self._wanted = asyncio.Event()
        self._reported: dict[str, str] = {}
        self._is_closed = self._has_failed = False
        #: When the flush in progress began; None: there is none.
        self.begun_s: float | None = None
        self._alarm = Alarm(clock, self._ring, least_s=EXPIRE_INTERVAL_S)
        self._flushing_queues = asyncio.Lock()
        self._tasks = Tasks("flusher")

    def start(self) -> None:
        """Begin."""
        self._tasks.start("log flush", self._run())
        self._alarm.start()
        pause_s = min(QUEUE_PAUSE_S, self._queue_interval_s)
        self._tasks.repeat("queue flush", self.flush_due_queues, pause_s)
        if self._commit_interval_s is not None:
            pause_s = min(COMMIT_PAUSE_S, self._commit_interval_s)
            self._tasks.repeat("commit", self.commit_due, pause_s)

    def wait_flushed(self, physical_end: int, done: Callable[[str | None], None]) -> None:
        """Call ``done(None)`` once the log is flushed up to ``physical_end``.

        ``done`` gets a reason instead when that cannot be promised: the flush took too long or
        failed. It is called exactly once, on the event loop, perhaps before this returns.
        """
        if physical_end <= self._store.durability.flushed_end:
            done(None)
            return
        deadline = self._clock.monotonic_s() + self._timeout_s
        self._waiters.append(_Waiter(physical_end, deadline, done))
        self._wanted.set()
        self._alarm.due(deadline)

    async def wait_all_flushed(self) -> None:
        """Return once all that is in the log now is flushed, although its disk may be slow.

        Raises:
            StoreError: that cannot be promised.
        """
        end, until_s = self._store.log_end, self._clock.monotonic_s() + WAIT_ALL_S
        while (reason := await self._flushed_to(end)) is not None:
            if self._is_closed or self._has_failed or self._clock.monotonic_s() >= until_s:
                raise StoreError(f"the log is not on the disk: {reason}")

    async def _flushed_to(self, end: int) -> str | None:
        """Wait until the log is flushed up to a physical offset; return why it is not."""
        if self._is_closed:
            return "the broker is shutting down"
        told: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def done(reason: str | None) -> None:
            if not told.done():  # it is when the waiting task was cancelled
                told.set_result(reason)

        self.wait_flushed(end, done)
        return await told

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._waiters:
                timer = loop.call_later(self._interval_s, self._wanted.set)
                await self._wanted.wait()
                timer.cancel()
            self._wanted.clear()
            try:
                if self._waiters or self.is_due():
                    await self.flush()
                else:
                    self._store.dispatch.advance()  # what a full disk held up
            except Exception:
                _log.exception("log flush failed; trying again in %g s", self._interval_s)
                await asyncio.sleep(self._interval_s)

    def is_due(self) -> bool:
        """Has enough been written, or enough time passed, for a flush without a waiter?"""
        store = self._store
        if not store.durability.unflushed_bytes:
            return False
        pages = store.log_end // _PAGE_BYTES - store.durability.flushed_end // _PAGE_BYTES
        return pages >= self._pages_least or (
            self._clock.monotonic_s() - self._flushed_at_s >= self._thorough_interval_s
        )

    async def flush(self) -> None:
        """Flush what was appended so far and answer those who waited for it."""
        reason = None
        end = 0
        self.begun_s = self._clock.monotonic_s()
        try:
            await self.commit()
            durability = self._store.durability
            job = durability.begin_flush()
            end = job.physical_end
            await self._work.run(job.run, functools.partial(durability.finish_flush, job))
            self._reported.pop("log flush", None)
        except FlushFailed as error:
            reason, self._has_failed = f"the disk failed: {error}", True
            self._report("log flush", error)
        except StoreError as error:
            self._report("log flush", error)
            await asyncio.sleep(self._interval_s)
            return  # Waiters keep waiting, up to their deadline.
        finally:
            self.begun_s = None
        self._flushed_at_s = self._clock.monotonic_s()
        waiters = self._waiters
        while waiters and (reason or waiters[0].physical_end <= end):
            waiters.popleft().done(reason)
        if reason:
            await asyncio.sleep(self._interval_s)  # a broken disk must not spin the loop

    async def commit_due(self) -> None:
        """Write pooled records to the log's files, if there are enough or it is time."""
        assert self._commit_interval_s is not None
        waited_s = self._clock.monotonic_s() - self._committed_at_s
        pages = self._store.durability.uncommitted_bytes // _PAGE_BYTES
        if waited_s < self._commit_interval_s and pages < self._commit_pages_least:
            return
        try:
            await self.commit()
        except StoreError as error:
            self._report("commit", error)
            await asyncio.sleep(COMMIT_RETRY_S)

    async def commit(self) -> None:
        """Write all pooled records to the log's files.

        Raises:
            StoreError: as ``Durability.finish_commit``.
        """
        if self._commit_interval_s is None:
            return
        async with self._committing:
            self._committed_at_s = self._clock.monotonic_s()
            durability = self._store.durability
            job = durability.begin_commit()
            if job is not None:
                await self._work.run(job.run, functools.partial(durability.finish_commit, job))
                self._reported.pop("commit", None)

    async def flush_due_queues(self) -> None:
        """Flush consume queues and key index when it is time, or when an index file is full."""
        now = self._clock.monotonic_s()
        if now >= self._queues_due_s or self._store.durability.queue_flush_due:
            self._queues_due_s = now + self._queue_interval_s
            await self.flush_queues()

    async def flush_queues(self) -> None:
        """Flush consume queues and write the checkpoint, after the flush in progress."""
        durability = self._store.durability
        async with self._flushing_queues:
            try:
                job = durability.begin_queue_flush()
                await self._work.run(job.run, functools.partial(durability.finish_queue_flush, job))
                self._reported.pop("queue flush", None)
            except StoreError as error:
                self._report("queue flush", error)

    async def look_again(self) -> None:
        """Flush everything: nothing is deleted for its age before."""
        await self._flushed_to(self._store.log_end)
        await self.flush_queues()

    def _report(self, what: str, error: StoreError) -> None:
        """Log a failure, once for as long as it stays the same and nothing succeeds."""
        if self._reported.get(what) != str(error):
            self._reported[what] = str(error)
            _log.error("%s failed: %s", what, error)

    def expire(self) -> int:
        """Answer waiters whose deadline has passed; return how many."""
        now = self._clock.monotonic_s()
        count = 0
        while self._waiters and self._waiters[0].deadline_s <= now:
            self._waiters.popleft().done(
                f"not flushed within {self._timeout_s:g} s (syncFlushTimeout)"
            )
            count += 1
        return count

    def _ring(self) -> float | None:
        self.expire()
        return self._waiters[0].deadline_s if self._waiters else None

    async def close(self) -> None:
        """Stop once the disk work in progress is done; answer whoever still waits. Idempotent."""
        self._is_closed = True
        self._alarm.close()
        await self._tasks.close()
        await self._work.close(functools.partial(self._report, "last flush"))
        while self._waiters:
            self._waiters.popleft().done("the broker is shutting down")
