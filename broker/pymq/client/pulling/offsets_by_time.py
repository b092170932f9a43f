"""The offset of the first message of a queue that was stored at a moment or later.

Brokers of RocketMQ before 5.1.4 answer with any of the messages stored at that very time, and
otherwise with the one before or behind it, whichever is nearer in time. So the message that a
broker names and the one before are looked at; where these show another place, it is looked for.
"""

from pymq.client import operations
from pymq.client.cluster.pool import ClientPool
from pymq.client.operations import PullStatus
from pymq.protocol.bodies import MessageQueue, Subscription
from pymq.protocol.names import TOOLS_GROUP
from pymq.protocol.record import decode_records


async def offset_at(pool: ClientPool, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the offset; the queue's end where there is no such message.

    Args:
        pool: connections and routes.
        queue: where to look.
        timestamp_ms: the moment, ms since 1970, by the broker's clock.

    Raises:
        PymqError: the broker could not be asked.
    """
    channel = await pool.read_channel(queue)
    low = await pool.ask(channel, operations.min_offset(queue))
    high = await pool.ask(channel, operations.max_offset(queue))
    named = await pool.ask(channel, operations.offset_by_time(queue, timestamp_ms))
    middle = min(max(named, low), high - 1)
    # All before low are early; high and all behind it are late.
    while low < high:
        if await _is_late(pool, queue, middle, timestamp_ms):
            high = middle
            if high > low and not await _is_late(pool, queue, high - 1, timestamp_ms):
                return high
            high = max(high - 1, low)
        else:
            low = middle + 1
        middle = (low + high) // 2
    return high


async def _is_late(pool: ClientPool, queue: MessageQueue, offset: int, timestamp_ms: int) -> bool:
    """Say whether a message was stored at a moment or later; one that is gone counts as earlier."""
    subscription = Subscription.of_tags(queue.topic, "*", 0)
    pull = operations.Pull(
        queue, offset, group=TOOLS_GROUP, count_max=1, subscription=subscription
    )
    found = await pool.ask(await pool.read_channel(queue), pull)
    if found.status is PullStatus.FOUND:
        for record in decode_records(found.body):
            return record.store_timestamp >= timestamp_ms
    return offset >= found.min_offset
