"""Where a reader begins in its queue: where its group is, where this member was, or as it says."""

from pymq.client import operations
from pymq.client.cluster.pool import ClientPool
from pymq.client.group.broker_offsets import QueueOffsets
from pymq.client.group.start_policy import StartPolicy
from pymq.protocol.bodies import MessageQueue


async def first_offset(
    queue: MessageQueue,
    pool: ClientPool,
    offsets: QueueOffsets,
    *,
    start: StartPolicy,
    left_at: int | None,
) -> int:
    """Return where to begin; it is committed.

    Args:
        queue: which.
        pool: connections.
        offsets: keeps the offset of the group.
        start: where to begin when there is no committed offset.
        left_at: where this member left the queue, when it has read it before.

    Raises:
        PymqError: it cannot be found out; nothing was assumed.
    """
    committed = await offsets.read()
    if committed is not None:
        return committed
    offset = None if left_at is None else await _where_left(queue, pool, left_at)
    if offset is None:
        channel = await pool.read_channel(queue)
        offset = await pool.ask(channel, start.operation(queue))
    # Committed at once: a restart must go on here, not where the queue ends by then.
    await offsets.commit(offset)
    return offset


async def _where_left(queue: MessageQueue, pool: ClientPool, offset: int) -> int:
    channel = await pool.read_channel(queue)
    if offset <= await pool.ask(channel, operations.max_offset(queue)):
        return offset
    # Another queue of the same name: its topic was deleted and created again.
    return await pool.ask(channel, operations.min_offset(queue))
