"""What a store serves."""

from tests.crash.checkers import Found

from pymq.protocol.record import decode_records
from pymq.store import MessageStore


def served(store: MessageStore) -> dict[str, list[Found]]:
    """Return all messages that a store serves, by topic."""
    found: dict[str, list[Found]] = {}
    for topic, queue_id in store.queues():
        offset, end = store.queue_bounds(topic, queue_id)
        while offset < end:
            result = store.read(topic, queue_id, offset, count_max=32, bytes_max=1 << 16)
            assert result.next_queue_offset > offset, f"{topic} {queue_id} {offset}: {result}"
            result.check()
            offset = result.next_queue_offset
            found.setdefault(topic, []).extend(
                Found(one.queue_id, one.queue_offset, one.physical_offset, one.body)
                for buffer in result.buffers
                for one in decode_records(buffer, verify=True)
            )
    return found
