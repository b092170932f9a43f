"""Responses whose bodies are records of the log, without copying them.

What is no longer in memory is first read in a thread: a page of the map that has to come from the
disk would block the event loop, and with it everybody else.

Source: RocketMQ ManyMessageTransfer, OneMessageTransfer, QueryMessageTransfer.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from typing import Any

from pymq.errors import StoreError
from pymq.net.dispatcher import PartedResponse
from pymq.protocol.command import Command
from pymq.store import SCAN_MAX, EntryPrefetchJob, MessageStore

_log = logging.getLogger(__name__)

#: The system is not asked whether a wider part of the log is in memory: it looks at each page.
_LOOKED_AT_BYTES = 16 << 20
#: Share of the machine's memory that the end of the log is assumed to occupy (RocketMQ
#: accessMessageInMemoryMaxRatio).
_MEMORY_RATIO = 0.4


class RecordResponses:
    """Makes responses whose bodies are records.

    Args:
        executor: reads records that may no longer be in memory.
        memory_bytes: how much of the end of the log is assumed to be in memory; None: a share of
            this machine's.
    """

    def __init__(
        self, store: MessageStore, *, executor: Executor, memory_bytes: int | None
    ) -> None:
        self._store = store
        self._executor = executor
        self._memory_bytes = _usual_bytes() if memory_bytes is None else memory_bytes

    def make(
        self,
        head: Command,
        buffers: Sequence[memoryview],
        starts: Sequence[int],
        check: Callable[[], None] | None = None,
    ) -> PartedResponse | Coroutine[Any, Any, PartedResponse]:
        """Return a response, or a coroutine that first waits for the disk.

        Args:
            head: the response without its body.
            buffers: the body, as views on the log.
            starts: the physical offset of each buffer; the first is the lowest.
            check: verifies the records once they are in memory; raises CorruptRecord.

        Raises:
            CorruptRecord: raised by ``check``.
            StoreError: the disk cannot read the records.
        """
        if self.is_cold(buffers, starts):
            return self._make_cold(head, buffers, starts, check)
        if check is not None:
            check()
        return PartedResponse(head, buffers)

    async def _make_cold(
        self,
        head: Command,
        buffers: Sequence[memoryview],
        starts: Sequence[int],
        check: Callable[[], None] | None,
    ) -> PartedResponse:
        await self._prefetch(buffers, starts)
        if check is not None:
            check()
        return PartedResponse(head, buffers)

    async def wait_in_memory(self, buffers: Sequence[memoryview], starts: Sequence[int]) -> None:
        """Return when records can be looked at without waiting for the disk.

        Args:
            buffers, starts: as for ``make``.

        Raises:
            StoreError: the disk cannot read them; in the map that would be a SIGBUS.
        """
        if self.is_cold(buffers, starts):
            await self._prefetch(buffers, starts)

    async def wait_entries(
        self, topic: str, queue_id: int, queue_offset: int, count: int = SCAN_MAX
    ) -> None:
        """Return when entries of a queue can be read without waiting for the disk."""
        job = self._store.reads.entry_prefetch(topic, queue_id, queue_offset, count)
        if job is not None:
            await self.run(job)

    async def run(self, job: EntryPrefetchJob) -> None:
        """Run a job of the store in a thread that may wait for the disk."""
        await asyncio.get_running_loop().run_in_executor(self._executor, job.run)

    def is_cold(self, buffers: Sequence[memoryview], starts: Sequence[int]) -> bool:
        """Return whether records may not be in memory; arguments as for ``make``."""
        if not starts:
            return False
        first = starts[0]
        if not self.is_recent(first):
            return True
        if first >= self._store.reads.opened_end:
            return False
        # Whatever was there when the broker was started may be on the disk only.
        end = starts[-1] + len(buffers[-1])
        return end - first > _LOOKED_AT_BYTES or not self._store.reads.is_loaded(first, end)

    def is_in_memory(self, physical_offset: int) -> bool:
        """Return whether what lies at a physical offset, and behind it, is surely in memory."""
        return physical_offset >= self._store.reads.opened_end and self.is_recent(physical_offset)

    def is_recent(self, physical_offset: int) -> bool:
        """Return whether a physical offset belongs to the end of the log that fits into memory.

        Source: RocketMQ DefaultMessageStore.checkInMemByCommitOffset.
        """
        return self._store.log_end - physical_offset <= self._memory_bytes

    async def _prefetch(self, buffers: Sequence[memoryview], starts: Sequence[int]) -> None:
        try:
            job = self._store.begin_prefetch(buffers, starts)
        except StoreError as error:
            # Connections have taken the last descriptors, which says nothing about the disk: the
            # records are read through the map, and consumers go on.
            _log.debug("not prefetched: %s", error)
        else:
            await asyncio.get_running_loop().run_in_executor(self._executor, job.run)


def _usual_bytes() -> int:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        total = 1 << 30
    return int(total * _MEMORY_RATIO)
