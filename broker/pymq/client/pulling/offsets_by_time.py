"""The offset of the first message of a queue that was stored at a moment or later.

Brokers of RocketMQ before 5.1.4 answer with any of the messages stored at that very time, and
otherwise with the one before or behind it, whichever is nearer in time. So the message that a
broker names and the one before are looked at; where these show another place, it is looked for.
"""

from pymq.client import operations
from pymq.client.cluster.pool import ClientPool
from pymq.client.operations import PullStatus
from pymq.client.pulling.queue_questions import OpenChannel
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import MessageQueue, Subscription
from pymq.protocol.names import TOOLS_GROUP
from pymq.protocol.record import decode_records


async def offset_at(
    pool: ClientPool,
    queue: MessageQueue,
    timestamp_ms: int,
    *,
    open_channel: OpenChannel | None = None,
) -> int:
    """Return the offset; the queue's end where there is no such message.

    Args:
        pool: connections and routes.
        queue: where to look.
        timestamp_ms: the moment, ms since 1970, by the broker's clock.
        open_channel: whom to ask; by default whoever is read.

    Raises:
        PymqError: the broker could not be asked.
    """
    open_channel = open_channel or pool.read_channel
    channel = await open_channel(queue)
    low = await pool.ask(channel, operations.min_offset(queue))
    high = await pool.ask(channel, operations.max_offset(queue))
    named = await pool.ask(channel, operations.offset_by_time(queue, timestamp_ms))
    middle = min(max(named, low), high - 1)

    async def is_late(offset: int) -> bool:
        return await _is_late(pool, await open_channel(queue), queue, offset, timestamp_ms)

    # All before low are early; high and all behind it are late.
    while low < high:
        if await is_late(middle):
            high = middle
            if high > low and not await is_late(high - 1):
                return high
            high = max(high - 1, low)
        else:
            low = middle + 1
        middle = (low + high) // 2
    return high


async def _is_late(
    pool: ClientPool, channel: AsyncChannel, queue: MessageQueue, offset: int, timestamp_ms: int
) -> bool:
    """Say whether a message was stored at a moment or later; one that is gone counts as earlier."""
    subscription = Subscription.of_tags(queue.topic, "*", 0)
    pull = operations.Pull(
        queue, offset, group=TOOLS_GROUP, count_max=1, subscription=subscription
    )
    found = await pool.ask(channel, pull)
    if found.status is PullStatus.FOUND:
        for record in decode_records(found.body):
            return record.store_timestamp >= timestamp_ms
    return offset >= found.min_offset
