"""Responses whose bodies are records of the log, without copying them.

What is no longer in memory is first read in a thread: a page of the map that has to come from the
disk would block the event loop, and with it everybody else.

Source: RocketMQ ManyMessageTransfer, OneMessageTransfer, QueryMessageTransfer.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from typing import Any

from pymq.errors import StoreError
from pymq.net.dispatcher import PartedResponse
from pymq.protocol.command import Command
from pymq.store import MessageStore

_log = logging.getLogger(__name__)


class RecordResponses:
    """Makes responses whose bodies are records.

    Args:
        executor: reads records that may no longer be in memory.
        memory_bytes: how much of the end of the log is assumed to be in memory.
    """

    def __init__(self, store: MessageStore, *, executor: Executor, memory_bytes: int) -> None:
        self._store = store
        self._executor = executor
        self._memory_bytes = memory_bytes

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
        """
        if self.is_cold(starts):
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

    async def wait_in_memory(
        self, buffers: Sequence[memoryview], starts: Sequence[int]
    ) -> None:
        """Return when records can be looked at without waiting for the disk.

        Args:
            buffers, starts: as for ``make``.
        """
        if self.is_cold(starts):
            await self._prefetch(buffers, starts)

    def is_cold(self, starts: Sequence[int]) -> bool:
        """Return whether records may no longer be in memory; ``starts`` as for ``make``."""
        return bool(starts) and not self.is_in_memory(starts[0])

    def is_in_memory(self, physical_offset: int) -> bool:
        """Return whether what lies at a physical offset, and behind it, counts as in memory."""
        return self._store.log_end - physical_offset <= self._memory_bytes

    async def _prefetch(self, buffers: Sequence[memoryview], starts: Sequence[int]) -> None:
        try:
            job = self._store.begin_prefetch(buffers, starts)
        except StoreError as error:
            _log.debug("not prefetched: %s", error)  # it is read when it is used, if possible
        else:
            await asyncio.get_running_loop().run_in_executor(self._executor, job.run)
