"""Questions about one queue that name a place or a size in it; each is a few requests."""

from collections.abc import Callable

from pymq.client.operations import PullResult
from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.record_batch import read_columns
from pyspark_pymq.source.message_sizes import SAMPLE_COUNT

#: What a pymq broker may answer with for a sample; it gives one message at least.
SAMPLE_BYTES = 64 << 10


def offset_at(
    client: BulkClient,
    queue: MessageQueue,
    timestamp_ms: int,
    *,
    bounds: tuple[int, int],
    group: str,
) -> int:
    """Return the offset of the first message stored at a moment or later.

    Brokers of RocketMQ before 5.1.4 answer with any of the messages stored at that very time, and
    otherwise with the one before or behind it, whichever is nearer in time. So the message that a
    broker names, and the one before, are looked at, which mostly is one pull; and where these show
    another place, it is looked for from there on.

    Args:
        client: open.
        queue: where to look.
        timestamp_ms: the moment, ms since 1970, by the broker's clock.
        bounds: of the queue, as they were asked for before.
        group: to pull in.

    Returns:
        The end or more if there was no such message then.

    Raises:
        PymqError: no answer until the deadline, or the broker refused.
    """
    first, end = bounds
    named = max(client.offset_by_time(queue, timestamp_ms), first)
    if first >= end:
        return named
    times = _StoreTimes(client, queue, group)
    return _first_late(
        lambda offset: times.is_late(offset, timestamp_ms), first, max(end, named + 1), named
    )


def _first_late(is_late: Callable[[int], bool], first: int, end: int, near: int) -> int:
    """Return the first offset of ``first..end`` that is late, as all behind it are; or ``end``.

    Args:
        is_late: asks about an offset before ``end``.
        first, end: where to look, ``first <= near < end``.
        near: an offset next to which it is probably.
    """
    low, high = first, end  # all before the one are early, the other and all behind it are late
    step, offset = 1, near - 1
    while offset >= low and is_late(offset):
        high = offset
        offset -= step
        step *= 2
    low = max(low, offset + 1)
    step, offset = 1, near
    while offset < high and not is_late(offset):
        low = offset + 1
        offset += step
        step *= 2
    high = min(high, offset)
    while low < high:
        middle = (low + high) // 2
        if is_late(middle):
            high = middle
        else:
            low = middle + 1
    return low


class _StoreTimes:
    """When messages of one queue were stored, asked for two at a time."""

    def __init__(self, client: BulkClient, queue: MessageQueue, group: str) -> None:
        self._client = client
        self._queue = queue
        self._group = group
        self._times: dict[int, int] = {}
        self._bounds: tuple[int, int] | None = None

    def is_late(self, offset: int, timestamp_ms: int) -> bool:
        """Say whether a message was stored at a moment or later.

        One that is gone counts as earlier, one that is still to come as late, and a place without
        a message as the next message there is.

        Raises:
            PymqError: no answer until the deadline, or the broker refused.
        """
        if offset not in self._times and not self._is_outside(offset):
            self._ask(offset)
        if offset in self._times:
            return self._times[offset] >= timestamp_ms
        assert self._bounds is not None
        return offset >= self._bounds[0]

    def _is_outside(self, offset: int) -> bool:
        return self._bounds is not None and not self._bounds[0] <= offset < self._bounds[1]

    def _ask(self, offset: int) -> None:
        some = _pull(self._client, self._queue, offset, group=self._group, count_max=2)
        self._bounds = some.min_offset, some.max_offset
        if some.body:
            records = read_columns(some.body)
            found = zip(
                records.queue_offset.tolist(), records.store_timestamp.tolist(), strict=True
            )
            self._times |= found
            self._times.setdefault(offset, int(records.store_timestamp[0]))


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
