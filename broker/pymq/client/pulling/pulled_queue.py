"""What was pulled of one queue and not polled yet, as its broker sent it.

::

    committed   consumed       polled      position                          next_offset
        |           |             |            |                                  |
        |           | was polled  | was taken  |   chunks: whole stored records   |   next pull
    ----+-----------+-------------+------------+----------------------------------+------------

Messages are decoded when they are taken; whoever wants columns takes whole chunks. What was taken
counts as polled when the caller has got it: on the way to his thread it may be lost.
"""

from collections import deque

from pymq.client.cluster.network import PLAIN, Network
from pymq.client.group.process_queue import ProcessQueue
from pymq.client.group.retry import visible_topic
from pymq.client.ranges import PullChunk, records_before
from pymq.errors import PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.record import OVERHEAD_BYTES, Record, decode_records


class PulledQueue(ProcessQueue):
    """One queue of a pull consumer.

    Attributes:
        position: offset of the next message to be taken.
        polled_offset: what lies before it has certainly reached the caller.
        consumed_offset: what lies before it counts as consumed; it is what is committed.
        tags: of the subscription; empty: any.
    """

    __slots__ = (
        *("_chunks", "_count", "_network", "_records"),
        *("consumed_offset", "polled_offset", "position", "tags"),
    )

    def __init__(
        self, queue: MessageQueue, next_offset: int, network: Network = PLAIN
    ) -> None:
        super().__init__(queue, next_offset)
        self.position = self.polled_offset = self.consumed_offset = next_offset
        self.tags: frozenset[str] = frozenset()
        self._chunks: deque[PullChunk] = deque()
        #: Of the first chunk, what is not taken yet; ``None``: it is not decoded.
        self._records: deque[Record] | None = None
        self._count = 0
        self._network = network

    @property
    def message_count(self) -> int:
        """How many messages wait to be taken; with a filter there may be fewer."""
        return self._count

    @property
    def commit_offset(self) -> int:
        """Where a restart has to begin."""
        return self.consumed_offset

    @property
    def span(self) -> int:
        """Entries between what was taken and the next pull."""
        return self.next_offset - self.position

    @property
    def is_ready(self) -> bool:
        """May something be taken?"""
        return bool(self._chunks) and not self.is_paused and not self.dropped

    def keep(self, chunk: PullChunk) -> None:
        """Take what a pull returned; where nothing matched it costs no room."""
        self.next_offset = chunk.next_offset
        if len(chunk.buffer):
            self._chunks.append(chunk)
            self._count += _count_of(chunk)
            self.message_bytes += len(chunk.buffer)
        elif self._chunks:
            self._count -= _count_of(self._chunks[-1])
            self._chunks[-1].next_offset = chunk.next_offset
            self._count += _count_of(self._chunks[-1])
        else:
            if self.polled_offset == self.position:
                self.polled_offset = chunk.next_offset
            self.position = chunk.next_offset

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """Take the next messages, which moves the position behind them.

        Raises:
            PymqError: the next message cannot be read; the position stays there.
        """
        taken: list[ReceivedMessage] = []
        while self._chunks and len(taken) < count_max:
            records = self._decoded()
            while records and len(taken) < count_max:
                record = records[0]
                try:
                    message = self._message(record)
                except PymqError:
                    if taken:
                        return taken
                    raise
                records.popleft()
                self.position = record.queue_offset + 1
                # Brokers compare hashes of tags; only equal tags are wanted.
                if not self.tags or message.tags in self.tags:
                    taken.append(message)
            if not records:
                self._end_first()
        return taken

    def take_chunk(self) -> PullChunk:
        """Take what is left of the first chunk; there must be one."""
        chunk, first = self._chunks[0], self.position
        buffer = chunk.buffer
        if first > chunk.first:
            buffer = buffer[len(records_before(buffer, first)) :]
        self._end_first()
        return PullChunk(buffer, first, chunk.next_offset, chunk.is_from_master)

    def _decoded(self) -> deque[Record]:
        if self._records is None:
            found = decode_records(self._chunks[0].buffer)
            self._records = deque(one for one in found if one.queue_offset >= self.position)
        return self._records

    def _end_first(self) -> None:
        chunk = self._chunks.popleft()
        self._records = None
        self._count -= _count_of(chunk)
        self.message_bytes -= len(chunk.buffer)
        self.position = chunk.next_offset

    def _message(self, record: Record) -> ReceivedMessage:
        queue = self.queue
        try:
            message = ReceivedMessage.from_record(record, queue.broker_name)
        except PymqError as error:
            raise error.retold(
                f"topic {queue.topic!r}, {queue.broker_name}:{queue.queue_id}: the message at "
                f"offset {record.queue_offset} cannot be read: {error}. The position stays before "
                f"it; seek(queue, {record.queue_offset + 1}) passes it over"
            ) from error
        message.topic = self._network.unwrap(visible_topic(message.topic, message.properties))
        return message


def _count_of(chunk: PullChunk) -> int:
    """Return how many messages a chunk has at most."""
    return min(chunk.next_offset - chunk.first, len(chunk.buffer) // OVERHEAD_BYTES)
