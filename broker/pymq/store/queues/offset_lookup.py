"""Where messages are in the log and when they were stored, by queue offset.

Source: RocketMQ ConsumeQueue.getOffsetInQueueByTime (5.1.4 and later), DefaultMessageStore.
"""

from pymq.store.log.commit_log import CommitLog
from pymq.store.queues.consume_queue import BLANK_SIZE, ConsumeQueue
from pymq.store.searches import first_true


def place_of(queue: ConsumeQueue | None, queue_offset: int) -> int | None:
    """Return the physical offset of a message; None if it does not exist or has expired."""
    if queue is None or not queue.min_offset <= queue_offset < queue.end_offset:
        return None
    return queue.entry(queue_offset)[0]


def end_before(queue: ConsumeQueue, physical_offset: int) -> int:
    """Return the end of the entries of a queue whose records lie before a physical offset."""

    def is_behind(queue_offset: int) -> bool:
        physical, size, _ = queue.entry(queue_offset)
        while size == BLANK_SIZE and queue_offset + 1 < queue.end_offset:
            queue_offset += 1  # It fills a gap, and has no record.
            physical, size, _ = queue.entry(queue_offset)
        return size == BLANK_SIZE or physical >= physical_offset

    return first_true(queue.min_offset, queue.end_offset, is_behind)


def time_of(log: CommitLog, queue: ConsumeQueue | None, queue_offset: int) -> int | None:
    """Return the store time (ms) of a message; None if it does not exist or has expired."""
    place = place_of(queue, queue_offset)
    return None if place is None else log.store_time_at(place)


def offset_by_time(
    log: CommitLog, queue: ConsumeQueue | None, timestamp_ms: int, *, upper: bool
) -> int:
    """Return the queue offset of a store time; see ``MessageStore.offset_by_time``."""
    if queue is None:
        return 0

    def time(queue_offset: int) -> int:
        # Entries whose record has expired count as too old.
        return log.store_time_at(queue.entry(queue_offset)[0]) or 0

    low, end = queue.min_offset, queue.end_offset
    if not upper:
        return first_true(low, end, lambda at: time(at) >= timestamp_ms)
    after = first_true(low, end, lambda at: time(at) > timestamp_ms)
    return max(low, after - 1)
