"""Reads that may meet the disk, for requests that can wait for it while all others go on.

What is in memory is read at once; the rest in a thread, see ``RecordResponses``.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from pymq.broker.record_response import RecordResponses
from pymq.store import MessageStore


class ColdReads:
    """Reads single records, store times, and offsets of store times.

    Args:
        responses: knows what is in memory.
        executor: reads the rest.
    """

    def __init__(self, store: MessageStore, responses: RecordResponses, executor: Executor) -> None:
        self._store = store
        self._responses = responses
        self._executor = executor
        #: The lowest physical offset kept, and when its record was stored.
        self._earliest: tuple[int, int | None] = -1, None

    def is_in_memory(self, physical_offset: int) -> bool:
        """Return whether what lies at a physical offset, and behind it, counts as in memory."""
        return self._responses.is_in_memory(physical_offset)

    def is_recent(self, physical_offset: int) -> bool:
        """Return whether a physical offset belongs to the end of the log that fits into memory."""
        return self._responses.is_recent(physical_offset)

    async def wait_entries(self, topic: str, queue_id: int, queue_offset: int, count: int) -> None:
        """Return when entries of a queue can be read without waiting for the disk."""
        await self._responses.wait_entries(topic, queue_id, queue_offset, count)

    async def record_view(self, physical_offset: int) -> memoryview:
        """Return the record at an offset as it is stored; all of it is in memory.

        Raises:
            OffsetOutOfRange: there is nothing visible at the offset.
            CorruptRecord: there is no record at the offset.
            StoreError: the disk cannot read it, or the process has too many open files.
        """
        store = self._store
        if self.is_in_memory(physical_offset):
            return store.record_view(physical_offset)
        job = store.begin_record_prefetch(physical_offset)
        await asyncio.get_running_loop().run_in_executor(self._executor, job.run)
        view = store.record_view(physical_offset)
        await self._responses.wait_in_memory([view], [physical_offset])
        return view

    async def earliest_time(self) -> int | None:
        """Return the store time (ms) of the oldest record kept; None in an empty store.

        Raises:
            StoreError: the disk cannot read that record, or the process has too many open files.
        """
        store = self._store
        first = store.log_first
        if first != self._earliest[0] or self._earliest[1] is None:
            if not self.is_in_memory(first) and first < store.dispatch.end:
                job = store.begin_record_prefetch(first)
                await asyncio.get_running_loop().run_in_executor(self._executor, job.run)
            self._earliest = first, store.earliest_time
        return self._earliest[1]

    async def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """Return the queue offset of a store time; see ``MessageStore.offset_by_time``."""
        store = self._store
        if self.is_in_memory(store.log_first):
            return store.offset_by_time(topic, queue_id, timestamp_ms, upper=upper)
        job = store.begin_offset_search(topic, queue_id, timestamp_ms, upper=upper)
        await asyncio.get_running_loop().run_in_executor(self._executor, job.run)
        return job.result()

    async def message_times(self, messages: Sequence[tuple[str, int, int]]) -> list[int | None]:
        """Return store times (ms); None for messages that do not exist or have expired.

        Args:
            messages: (topic, queue id, queue offset) of each.
        """
        store = self._store
        if self.is_in_memory(store.log_first):
            return [store.message_time(*message) for message in messages]
        job = store.begin_time_lookup(messages)
        await asyncio.get_running_loop().run_in_executor(self._executor, job.run)
        return job.result()
