"""Reading a range of a queue: sends the pulls of a plan, takes the answers.

Which pulls these are, and how many are in flight, is the plan's business: ``ranges``. Where they
go: to the queue's master, or to the replica that the last answer suggested (``read_sources``). A
replica need not have all that its master has: what it fails at, the master is asked for.
"""

import time
from collections.abc import Callable, Iterator

from pymq.client.cluster.routes import MASTER_ID
from pymq.client.operations import Pull, PullResult
from pymq.client.ranges import Joiner, PullChunk, RangePlan, Span
from pymq.client.sockets.blocking_pool import PASSING, BlockingPool, timed_out
from pymq.client.sockets.read_sources import ReadSource, ReadSources
from pymq.errors import (
    BrokerError,
    CorruptRecord,
    OffsetOutOfRange,
    RemoteProtocolError,
    RequestTimeout,
)

#: How one broker can fail where another may succeed.
_FAILURES = (*PASSING, BrokerError, RemoteProtocolError, OffsetOutOfRange, CorruptRecord)


def read_range(
    pool: BlockingPool,
    sources: ReadSources,
    plan: RangePlan,
    pull: Callable[..., Pull],
    *,
    reads_replicas: bool,
) -> Iterator[PullChunk]:
    """Yield the messages of a plan's range, in order, exactly once.

    While a chunk is in the caller's hands the next pulls are in flight. What failed is pulled
    again, over new routes and connections.

    Args:
        pool: connections and routes.
        sources: where to read.
        plan: nothing of it was sent yet.
        pull: returns a pull of the queue from an offset on, which wants ``count_max`` messages.
        reads_replicas: whether to follow the broker's suggestions.

    Raises:
        OffsetOutOfRange: part of the range is not there; the text says what is. It is the master
            that says so, if the route has one.
        ClientMisplaced: another thread waits for an answer.
        PymqError: no progress until the deadline, or the broker refused.
    """
    joiner = Joiner()
    backoff = pool.backoff()
    suggested_id = MASTER_ID
    source: ReadSource | None = None
    asked: dict[Span, ReadSource] = {}  # Pulls at two brokers are in flight after a suggestion.
    ready: list[PullChunk] = []
    try:
        while True:
            failing: ReadSource | None = None
            try:
                if source is None:
                    source = sources.open(plan.queue, suggested_id)
                failing = source
                with pool.alone():
                    for span in plan.unsent():
                        asked[span] = source
                        span.operation = one = pull(span.offset, count_max=span.count)
                        span.opaque = source.channel.send(one.request, pool.deadline_s())
                yield from ready
                ready = []
                if plan.is_done:
                    yield from joiner.flush()
                    return
                oldest = plan.spans[0]
                failing = asked[oldest]
                result = _receive(pool, failing, oldest)
                del asked[oldest]
                ready = joiner.add(plan.accept(result, is_from_master=failing.is_master))
                backoff.progressed()
                if reads_replicas and result.suggested_broker_id != suggested_id:
                    suggested_id, source = result.suggested_broker_id, None
            except _FAILURES as error:
                _forget(asked, plan)
                source = None
                if failing is not None and failing.is_chosen:
                    sources.avoid(failing)
                elif isinstance(error, PASSING):
                    backoff.wait(error, {plan.queue.topic})
                else:
                    raise
    finally:
        _forget(asked, plan)


def _receive(pool: BlockingPool, source: ReadSource, span: Span) -> PullResult:
    assert span.opaque is not None and span.operation is not None
    channel, asked_s = source.channel, time.monotonic()
    try:
        with pool.alone():
            response = channel.receive(span.opaque, pool.deadline_s())
    except RequestTimeout as error:
        timeout_s = pool.config.timeout_s
        raise timed_out(channel.peer, span.operation, timeout_s, asked_s) from error
    return span.operation.result(response, peer=channel.peer)


def _forget(asked: dict[Span, ReadSource], plan: RangePlan) -> None:
    """Give up the pulls in flight."""
    for span, source in asked.items():
        if span.opaque is not None:
            source.channel.forget(span.opaque)
    asked.clear()
    plan.restart()
