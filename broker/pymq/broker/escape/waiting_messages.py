"""Messages that wait for a time: they are delivered as at a master, and stored elsewhere."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from pymq.broker.delays.schedule import Schedule
from pymq.broker.escape.writer import RemoteWriter
from pymq.broker.flusher import Flusher
from pymq.broker.state.delay_offsets import DelayOffsets
from pymq.broker.timers.timers import Timers
from pymq.clock import Clock
from pymq.errors import StoreError
from pymq.protocol.names import TIMER_TOPIC
from pymq.store import MessageStore, TimerStore

_log = logging.getLogger(__name__)

#: How long the end of timers waits until the log is on the disk: less than a master that is about
#: to be online waits for an answer (``asking.REQUEST_TIMEOUT_S``). The flush of their own files
#: behind it takes what it takes, as they cannot be closed meanwhile; that master asks again.
FLUSH_S = 3.0


class DelayedMessages:
    """Those of delay levels.

    Args:
        make: makes what delivers them.
        writer: stores them.
        offsets: how far each level is.
    """

    def __init__(
        self, make: Callable[[], Schedule], writer: RemoteWriter, offsets: DelayOffsets
    ) -> None:
        self._make = make
        self._writer = writer
        self._offsets = offsets
        self._schedule: Schedule | None = None

    async def begin(self, is_cancelled: Callable[[], bool]) -> None:
        """Begin where the master was, as far as this slave was told."""
        self._schedule = self._make()
        self._schedule.start()

    async def end(self) -> None:
        """Stop, and record how far each level is."""
        schedule, self._schedule = self._schedule, None
        if schedule is None:
            return
        await schedule.close()
        await self._writer.wait_idle()
        await schedule.save()
        self._offsets.acted()


class TimerMessages:
    """Those with a time of their own.

    Args:
        store: where they wait.
        make: makes what delivers them, from files of timers that are open.
        flusher: of the log.
        executor: for work on the disk.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        make: Callable[[TimerStore], Timers],
        flusher: Flusher,
        executor: Executor,
    ) -> None:
        self._store = store
        self._clock = clock
        self._make = make
        self._flusher = flusher
        self._executor = executor
        self._files: TimerStore | None = None
        self._timers: Timers | None = None

    async def begin(self, is_cancelled: Callable[[], bool]) -> None:
        """Begin where the master was, as far as this slave was told.

        Raises:
            StoreError: the files of timers cannot be made.
            StoreClosed: it was cancelled: of many messages, that takes minutes.
        """
        if not self._store.queue_bounds(TIMER_TOPIC, 0)[1]:
            return  # there never was one
        opening = self._store.replication.timers.begin_open(self._clock, is_cancelled)
        await asyncio.get_running_loop().run_in_executor(self._executor, opening.run)
        self._files = opening.result()
        self._timers = self._make(self._files)
        self._timers.start()

    async def end(self) -> None:
        """Stop, and have the files say how far it is."""
        timers, self._timers = self._timers, None
        if timers is not None:
            await timers.close()
        files, self._files = self._files, None
        if files is not None:
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(FLUSH_S):
                    await self._flusher.wait_all_flushed()
                await loop.run_in_executor(self._executor, files.flush)
            except (StoreError, TimeoutError) as error:
                _log.error(
                    "how far timers are is not saved (%s): what was delivered since the last time "
                    "is delivered again",
                    str(error) or f"the log was not on the disk within {FLUSH_S:g} s",
                )
            finally:
                files.close()
