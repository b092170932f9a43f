"""Questions about one queue that name a place or a size in it; each is one or two requests."""

from pymq.client.bulk_client import BulkClient
from pymq.client.operations import PullResult
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.record_batch import read_columns
from pyspark_pymq.source.message_sizes import SAMPLE_COUNT

#: What a pymq broker may answer with for a sample; it gives one message at least.
SAMPLE_BYTES = 64 << 10


def offset_at(
    client: BulkClient, queue: MessageQueue, timestamp_ms: int, *, end: int, group: str
) -> int:
    """Return the offset of the first message stored at a moment or later.

    Args:
        client: open.
        queue: where to look.
        timestamp_ms: the moment, ms since 1970, by the broker's clock.
        end: of the queue, as it was asked for before.
        group: to pull in.

    Returns:
        ``end`` or more if there was no such message then.

    Raises:
        PymqError: no answer until the deadline, or the broker refused.
    """
    found = client.offset_by_time(queue, timestamp_ms)
    if found == end - 1:
        # Brokers before 5.0 give the last message, where others give the end.
        last = _pull(client, queue, found, group=group, count_max=1)
        if last.body and int(read_columns(last.body).store_timestamp[0]) < timestamp_ms:
            return end
    return found


def average_size(
    client: BulkClient, queue: MessageQueue, offset: int, *, group: str
) -> float | None:
    """Return how many bytes the next messages from an offset on are stored in, on average.

    None: there is none.

    Raises:
        PymqError: no answer until the deadline, or the broker refused.
    """
    some = _pull(client, queue, offset, group=group, count_max=SAMPLE_COUNT)
    return float(read_columns(some.body).size.mean()) if some.body else None


def _pull(
    client: BulkClient, queue: MessageQueue, offset: int, *, group: str, count_max: int
) -> PullResult:
    return client.pull(queue, offset, count_max=count_max, bytes_max=SAMPLE_BYTES, group=group)
