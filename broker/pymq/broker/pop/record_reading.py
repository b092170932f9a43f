"""Records of a queue, read without making the event loop wait for a disk."""

from dataclasses import dataclass

from pymq.broker.record_response import RecordResponses
from pymq.protocol.record import Record, decode_records
from pymq.store import MessageStore, ReadStatus

#: Most bytes of one read.
READ_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class ReadRecords:
    """Records in queue order, and where to read next; none: there is nothing there."""

    records: list[Record]
    next_queue_offset: int
    status: ReadStatus


class RecordReading:
    """Reads records of queues, for the broker itself."""

    def __init__(self, store: MessageStore, responses: RecordResponses) -> None:
        self._store = store
        self._responses = responses

    def has(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Return whether a queue still has the message at an offset."""
        first, end = self._store.queue_bounds(topic, queue_id)
        return first <= queue_offset < end

    async def read(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int
    ) -> ReadRecords:
        """Return records of a queue from an offset on, at most ``count_max``.

        Raises:
            CorruptRecord: the queue or the log is damaged.
            StoreClosed: the store was closed.
        """
        await self._responses.wait_entries(topic, queue_id, queue_offset, count_max)
        result = self._store.reads.read(
            topic, queue_id, queue_offset, count_max=count_max, bytes_max=READ_BYTES_MAX
        )
        await self._responses.wait_in_memory(result.buffers, result.starts)
        result.check()
        records = [record for buffer in result.buffers for record in decode_records(buffer)]
        return ReadRecords(records, result.next_queue_offset, result.status)
