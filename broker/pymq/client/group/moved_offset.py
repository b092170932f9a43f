"""Where the reader of a queue goes on after its broker has said that it is in the wrong place."""

from pymq.client import operations
from pymq.client.cluster.pool import ClientPool
from pymq.client.operations import PullResult
from pymq.protocol.bodies import MessageQueue


async def moved_offset(
    queue: MessageQueue,
    pool: ClientPool,
    result: PullResult,
    *,
    wanted: int,
    newest_ms: int | None,
) -> tuple[int, str]:
    """Return the offset to go on at, and why.

    The group was reset; or the offset is outside the queue, then it is the nearest one inside that
    is new.

    Args:
        queue: which.
        pool: connections.
        result: of the pull.
        wanted: where that began.
        newest_ms: store time of the last message that was pulled; ``None``: none was.

    Raises:
        PymqError: it cannot be found out.
    """
    if result.min_offset <= wanted <= result.max_offset:
        return result.next_offset, "the offset of its group was reset"
    if wanted < result.min_offset:
        return result.next_offset, "that is outside the queue, what was there before has expired"
    offset = result.next_offset
    if newest_ms is not None:
        # In a queue that was created again even the first message may be new.
        channel = await pool.read_channel(queue)
        unread = operations.offset_by_time(queue, newest_ms + 1)
        offset = min(offset, await pool.ask(channel, unread))
    return offset, (
        "that is outside the queue; its topic was deleted and created again, or its broker lost "
        "the end of its log"
    )
