"""Room for what is written next: the next file of the log, and pages of the current one.

A page of a file that nobody has used before costs several times what it takes to fill it: the
system has to find memory and, in a virtual machine, its host, too. While much is written, a thread
touches the pages ahead of the log's end, so that the event loop, which writes, finds them there.

Source: RocketMQ AllocateMappedFileService; pages are touched there by ``warmMapedFileEnable`` only.
"""

import asyncio
import logging
from concurrent.futures import Executor

from pymq.broker.disk_executor import DiskExecutor
from pymq.clock import Clock
from pymq.errors import StoreError
from pymq.net.tasks import Tasks
from pymq.store import MessageStore

_log = logging.getLogger(__name__)

#: How often to look how much was written, and while nothing is.
LOOK_S, LOOK_IDLE_S = 0.05, 0.25
#: A segment that could not be created ahead of need is tried again after this.
PREPARE_PAUSE_S = 1.0
#: Pages are touched when this much is written between two looks.
TOUCH_LEAST_BYTES = 256 << 10
#: They are touched for this many looks ahead, but no further than this.
TOUCH_LOOKS, TOUCH_BYTES_MAX = 4, 64 << 20
#: If touching takes this long, the file system really reads, as one in the network may; then that
#: costs more than it helps, and is tried again later.
TOUCH_SLOW_S, TOUCH_REST_S = 1.0, 60.0


class LogRoom:
    """Makes room ahead of the log's end.

    Args:
        store: owns the log.
        executor: creates files and touches pages.
        clock: says how long that takes.
    """

    def __init__(self, store: MessageStore, executor: Executor, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._work = DiskExecutor(executor)
        self._seen_end = store.log_end
        #: Physical offset up to which pages were touched.
        self._touched_end = store.log_end
        #: No page is touched before this time.
        self._rested_s = 0.0
        self._reported: str | None = None
        self._tasks = Tasks("log room")

    def start(self) -> None:
        """Begin."""
        self._tasks.start("looks", self._run())

    async def _run(self) -> None:
        seen = -1
        while True:
            end, seen = seen, self._store.log_end
            await asyncio.sleep(LOOK_IDLE_S if seen == end else LOOK_S)
            try:
                await self.prepare_segment()
                if self._clock.monotonic_s() >= self._rested_s:
                    await self.touch_pages()
            except Exception:
                _log.exception("no room was made; trying again")

    async def prepare_segment(self) -> None:
        """Create the next log segment if half of the last one is used."""
        if not self._store.ahead.segment_due:
            return
        try:
            await self._work.run(self._store.ahead.prepare_segment, lambda: None)
        except StoreError as error:
            self._report(error)
            await asyncio.sleep(PREPARE_PAUSE_S)

    async def touch_pages(self) -> bool:
        """Touch pages if much was written since the last call; return whether it was."""
        end = self._store.log_end
        written, self._seen_end = end - self._seen_end, end
        if written < TOUCH_LEAST_BYTES:
            return False
        first = max(self._touched_end, end)
        ahead = min(written * TOUCH_LOOKS, TOUCH_BYTES_MAX)
        limit = min(end + ahead, self._store.ahead.touchable_end)
        if first >= limit:
            return True
        begun_s = self._clock.monotonic_s()
        try:
            job = self._store.ahead.begin_touch(first, limit)
            await self._work.run(job.run, lambda: None)
        except StoreError as error:
            _log.debug("pages not touched: %s", error)
        now_s = self._clock.monotonic_s()
        if now_s - begun_s > TOUCH_SLOW_S:
            self._rested_s = now_s + TOUCH_REST_S
        self._touched_end = limit
        return True

    def _report(self, error: StoreError) -> None:
        """Log why there is no next segment, once for as long as it stays the same."""
        if self._reported != str(error):
            self._reported = str(error)
            _log.error("next segment failed: %s", error)

    async def close(self) -> None:
        """Stop once the disk work in progress is done; idempotent."""
        await self._tasks.close()
        await self._work.close(self._report)
