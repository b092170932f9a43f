"""What a task does to read: pull its ranges, make sure nothing is missing, make Arrow batches.

Runs on executors, which fork: connections are opened by ``read_ranges`` and closed at its end,
nothing outlives it, and it starts no thread.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructType

from pymq.client.cluster.config import ClientConfig
from pymq.client.cluster.routes import Route
from pymq.client.sockets.blocking_pool import PASSING
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import BrokerError, OffsetOutOfRange, PymqError, RemoteProtocolError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.record_batch import RecordColumns, read_columns
from pyspark_pymq.offsets import QueueRange, TopicIds, named
from pyspark_pymq.option_tables import MESSAGE_BYTES_MAX
from pyspark_pymq.retrying import Retries, note_limit
from pyspark_pymq.source.bad_records import BadRecords, SideTopic
from pyspark_pymq.source.columns import arrow_schema
from pyspark_pymq.source.decode import record_batches, value_column
from pyspark_pymq.source.masters import asks_master
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.source.topic_identity import named_topics, others_by_now
from pyspark_pymq.unrouted_queues import UNROUTED, master_bounds
from pyspark_pymq.worker_gc import spare_imports

LOG = logging.getLogger(__name__)

#: Which of some records belong to what is read; None: all of them.
Kept = npt.NDArray[np.bool_] | None

#: Small answers (a stock broker gives 32 messages at a time) are decoded together.
DECODED_BYTES_MIN = 2 << 20

_CREATED_AGAIN = "deleted, and created again, since this batch was planned"


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records of one queue that cover ``first <= queue offset < next_offset``."""

    buffer: Any  # bytes or memoryview: whole records, back to back
    first: int
    next_offset: int
    is_from_master: bool


def read_ranges(
    options: SourceOptions,
    schema: StructType,
    ranges: Sequence[QueueRange],
    routes: Iterable[Route],
    topic_ids: TopicIds,
) -> Iterator[pa.RecordBatch]:
    """Yield exactly the messages of the ranges, however often it is called.

    The ranges were planned from queues that the driver has seen, so a missing route is a broker
    that is away: it is waited for, like one that does not answer.

    Args:
        options: of the source.
        schema: the columns wanted, checked already.
        ranges: in the order they are read.
        routes: what the driver knows of the topics; name servers are asked when it is wrong.
        topic_ids: which topics of these names the ranges are of, as far as that is known.

    Raises:
        OffsetOutOfRange: messages of a range are gone, or its topic is, and ``failOnDataLoss`` is
            true.
        RemoteProtocolError: a body cannot be decoded, and ``badRecords`` is fail.
        PymqError: a broker stayed away for longer than ``retryTimeoutMs``, or its answer is
            not what was asked for.
    """
    spare_imports()
    columns, value = arrow_schema(schema), value_column(options.values, schema)
    side = _side_topic(options)
    bad = BadRecords(options.bad_records, null_corrupt=options.null_corrupt_bodies, side=side)
    client = BulkClient(
        options.name_servers,
        timeout_s=options.request_timeout_s,
        read_deadline_s=options.retry_timeout_s,
        awaits_routes=True,
        network=options.network,
        routes=routes,
    )
    try:
        unrouted: set[str] = set()
        others = others_by_now(client, (part.queue for part in ranges), topic_ids)
        if others:
            _report_loss(f"{named_topics(others)}: {_CREATED_AGAIN}", options)
        same = [p for p in ranges if (p.queue.topic, p.queue.broker_name) not in others]
        for part in same:
            for records, kept in fetch(client, part, options, unrouted):
                yield from record_batches(
                    records,
                    part.queue,
                    columns,
                    kept=kept,
                    tags=options.tags,
                    value=value,
                    bad=bad,
                )
        others = others_by_now(client, (part.queue for part in same), topic_ids)
        if others:
            text = f"{named_topics(others)}: {_CREATED_AGAIN}"
            _report_loss(f"{text}; what was read of the new one may be read twice", options)
    except PASSING as error:
        note_limit(error, options.retry_timeout_s)
        raise
    finally:
        client.close()
        if side is not None:
            side.close()
        bad.report()


def _side_topic(options: SourceOptions) -> SideTopic | None:
    """Return where bad records go, if they are to go somewhere."""
    if options.bad_records_topic is None:
        return None

    def connect() -> BulkClient:
        config = ClientConfig(
            name_servers=options.name_servers,
            timeout_s=options.request_timeout_s,
            body_bytes_max=MESSAGE_BYTES_MAX,
            network=options.network,
        )
        return BulkClient(options.name_servers, config=config)

    return SideTopic(options.bad_records_topic, connect, options.retry_timeout_s)


def fetch(
    client: BulkClient, part: QueueRange, options: SourceOptions, unrouted: set[str]
) -> Iterator[tuple[RecordColumns, Kept]]:
    """Yield a range's records in order, without gap or overlap, and which of them to keep.

    Messages are lost when a master says so. What only a replica lacks its master may have; and a
    broker that contradicts itself, as during recovery, is asked again.

    Args:
        client: open.
        part: the range.
        options: of the source.
        unrouted: topics whose route was waited for in vain; added to.

    Raises:
        OffsetOutOfRange, PymqError: as ``read_ranges``.
    """
    left, topic = part, part.queue.topic
    retries = Retries(options.retry_timeout_s, f"reading {named(part.queue)}")
    if topic in unrouted:
        left = _kept_by_master(client, left, options) or left
    pieces = _pulled(client, left, options)
    doubted: int | None = None
    while len(left):
        try:
            fetched = next(pieces, None)
        except OffsetOutOfRange as error:
            found = _still_there(client, left, options, error)
            if found is None:
                retries.wait_after(_doubtful(client, part.queue, error))
            else:
                left = found
            pieces = _pulled(client, left, options)
            continue
        except UNROUTED as error:
            unrouted.add(topic)
            found = _kept_by_master(client, left, options, error)
            if found is None:
                raise
            left, pieces = found, _pulled(client, found, options)
            continue
        except BrokerError as error:
            _explain(error, left, options)
            raise
        if fetched is None:
            raise RemoteProtocolError(
                f"{named(part.queue)}: the answers end at {left.first}, expected {left.end}"
            )
        records = read_columns(fetched.buffer)
        kept, lost = check_fetched(fetched, records.queue_offset, part, options)
        is_known = lost is None or asks_master(client, part.queue)
        is_sure = is_known and fetched.is_from_master and fetched.first == doubted
        if lost is not None and not is_sure:
            # What was read is older than the answer who the master is: it is read once more.
            doubted = fetched.first if is_known else None
            if not is_known:
                retries.wait_after(_of_slave(client, part.queue, OffsetOutOfRange(lost)))
            pieces = _pulled(client, left, replace(options, reads_replicas=False))
            continue
        if lost is not None:
            _report_loss(lost, options)
        retries.progressed()
        yield records, kept
        left = QueueRange(part.queue, fetched.next_offset, left.end)


def _explain(error: BrokerError, left: QueueRange, options: SourceOptions) -> None:
    """Say in a broker's refusal what it was about, and what can be done."""
    error.add_note(
        f"this was about messages {left.first}..{left.end - 1} of {named(left.queue)}; if the "
        f"topic has fewer queues now, raise its readQueueNums until they are read"
    )
    if options.sql is not None:
        error.add_note(
            f"it was asked for those that match option sql={options.sql[:200]!r}. If it does not "
            f"support that, set enablePropertyFilter=true in the configuration of broker "
            f"{left.queue.broker_name}; otherwise leave out the option, and filter in Spark"
        )


def _pulled(client: BulkClient, part: QueueRange, options: SourceOptions) -> Iterator[Fetched]:
    """Yield the answers of a range, small ones joined."""
    first = next_offset = part.first
    buffers: list[Any] = []
    is_from_master = True
    for chunk in client.pull_range(
        part.queue,
        part.first,
        part.end,
        group=options.consumer_group,
        tags=options.tag_expression,
        sql=options.sql,
        bytes_max=options.pull_bytes,
        passes_gaps=True,  # ``check_fetched`` finds them
        reads_replicas=options.reads_replicas,
    ):
        buffers.append(chunk.buffer)
        is_from_master = is_from_master and chunk.is_from_master
        next_offset = min(chunk.next_offset, part.end)
        if sum(map(len, buffers)) >= DECODED_BYTES_MIN:
            yield Fetched(_joined(buffers), first, next_offset, is_from_master)
            first, buffers, is_from_master = next_offset, [], True
    if first < next_offset:
        yield Fetched(_joined(buffers), first, next_offset, is_from_master)


def _joined(buffers: list[Any]) -> Any:
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def check_fetched(
    fetched: Fetched,
    offsets: npt.NDArray[np.int64],
    part: QueueRange,
    options: SourceOptions,
) -> tuple[Kept, str | None]:
    """Return which records to keep, and what is missing among them (None: nothing).

    Args:
        fetched: what the records came from.
        offsets: their queue offsets, shape (n,).
        part: the range that is being read.
        options: of the source. With a filter gaps are what was asked for.

    Raises:
        RemoteProtocolError: offsets do not ascend.
    """
    kept = None
    if len(offsets) and (offsets[0] < fetched.first or offsets[-1] >= fetched.next_offset):
        # A broker may answer beyond what was asked for; it belongs to another task.
        kept = (offsets >= fetched.first) & (offsets < fetched.next_offset)
        offsets = offsets[kept]
    if not (np.diff(offsets) > 0).all():
        raise RemoteProtocolError(f"{named(part.queue)}: queue offsets do not ascend")
    expected = fetched.next_offset - fetched.first
    if options.is_filtered or len(offsets) == expected:
        return kept, None
    elsewhere = np.flatnonzero(offsets != np.arange(len(offsets)) + fetched.first)
    missing = fetched.first + int(elsewhere[0] if len(elsewhere) else len(offsets))
    return kept, (
        f"{named(part.queue)}: {expected - len(offsets)} of {expected} messages from "
        f"{fetched.first} on are missing, the first at {missing}: retention removed them just "
        f"now, or the broker lost them and filled their places with blank entries"
    )


def _still_there(
    client: BulkClient, left: QueueRange, options: SourceOptions, error: OffsetOutOfRange
) -> QueueRange | None:
    """Return what there is of a range whose start or end the broker says is out of bounds.

    None: that cannot be known now.
    """
    bounds = client.bounds([left.queue])[left.queue]
    if _within(left, *bounds) == left or not asks_master(client, left.queue):
        return None
    return _without_loss(left, bounds, options, error)


def _kept_by_master(
    client: BulkClient,
    left: QueueRange,
    options: SourceOptions,
    error: PymqError | None = None,
) -> QueueRange | None:
    """Return what there is of a range of a topic without a route, such as a deleted one.

    None: all of it, or that cannot be known now.
    """
    bounds = master_bounds(client, [left.queue]).get(left.queue)
    if bounds is None or _within(left, *bounds) == left:
        return None
    return _without_loss(left, bounds, options, error)


def _within(left: QueueRange, first: int, end: int) -> QueueRange:
    """Return the part of a range that lies between a queue's bounds."""
    start = min(max(left.first, first), left.end)
    return QueueRange(left.queue, start, max(start, min(left.end, end)))


def _without_loss(
    left: QueueRange, bounds: tuple[int, int], options: SourceOptions, error: PymqError | None
) -> QueueRange:
    """Return the part of a range that is there, having reported what is not."""
    first, end = bounds
    there = _within(left, first, end)
    lost = f"messages {left.first}..{there.first - 1} are gone, the first is {first}"
    if end < left.end:
        lost = f"the queue ends at {end}, messages were expected up to {left.end}"
    _report_loss(f"{named(left.queue)}: {lost}", options, error)
    return there


def _doubtful(
    client: BulkClient, queue: MessageQueue, error: OffsetOutOfRange
) -> OffsetOutOfRange:
    """Return the error that is raised if nothing better comes, and look for a better source."""
    return error if asks_master(client, queue) else _of_slave(client, queue, error)


def _of_slave(client: BulkClient, queue: MessageQueue, error: OffsetOutOfRange) -> OffsetOutOfRange:
    """Return the error for what a slave lacks, and look for its master."""
    client.doubt_route(queue.topic)
    return OffsetOutOfRange(
        f"{error}. Only a slave of broker {queue.broker_name} answers, which may lag behind its "
        f"master: nothing is taken for lost, and nothing passed over, before the master says so. "
        f"Start the master"
    )


def _report_loss(
    text: str, options: SourceOptions, cause: PymqError | None = None
) -> None:
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"{text}. To continue at the next message there is, set the option failOnDataLoss "
            f"to false"
        ) from cause
    LOG.warning("data loss accepted (failOnDataLoss=false): %s", text)
