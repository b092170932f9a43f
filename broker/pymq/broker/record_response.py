"""Responses whose bodies are records out of the log, without copying them.

What is not in memory any more is read in a thread first: a page of the map that has to come from
the disk would stop the loop, and with it everybody else.

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
        executor: where records are read that may not be in memory any more.
        memory_bytes: how much of the end of the log is taken to be in memory.
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
        """Return a response, or what waits until the disk has given its records.

        Args:
            head: the response without its body.
            buffers: the body, as views on the log.
            starts: the physical offset of each buffer; the first is the lowest.
            check: looks at the records once they are in memory; raises CorruptRecord.

        Raises:
            CorruptRecord: by ``check``.
        """
        if starts and self._store.log_end - starts[0] > self._memory_bytes:
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
        try:
            job = self._store.begin_prefetch(buffers, starts)
        except StoreError as error:
            _log.debug("not prefetched: %s", error)  # read when it is sent, if it can be
        else:
            await asyncio.get_running_loop().run_in_executor(self._executor, job.run)
        if check is not None:
            check()
        return PartedResponse(head, buffers)
