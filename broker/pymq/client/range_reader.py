"""Reading a range of a queue over one connection: sends the pulls of a plan, takes the answers.

Which pulls these are, and how many are in flight, is the plan's business: ``ranges``.
"""

from collections.abc import Iterator

from pymq.client.blocking_pool import PASSING, BlockingPool, timed_out
from pymq.client.operations import Pull, PullResult
from pymq.client.ranges import Joiner, PullChunk, RangePlan, Span
from pymq.errors import RequestTimeout
from pymq.net.blocking import BlockingChannel
from pymq.protocol.bodies import Subscription


def read_range(
    pool: BlockingPool,
    plan: RangePlan,
    *,
    group: str,
    subscription: Subscription,
    bytes_max: int,
) -> Iterator[PullChunk]:
    """Yield the messages of a plan's range, in order, exactly once.

    While a chunk is in the caller's hands the next pulls are in flight. What failed is pulled
    again, over new routes and connections.

    Args:
        pool: connections and routes.
        plan: nothing of it was sent yet.
        group: consumer group; nothing is committed for it.
        subscription: which messages are wanted.
        bytes_max: largest answer that a pymq broker shall give.

    Raises:
        OffsetOutOfRange: part of the range is not there; the text says what is.
        ClientMisplaced: another thread waits for an answer.
        PymqError: no progress until the deadline, or the broker refused.
    """
    joiner = Joiner()
    backoff = pool.backoff()
    channel: BlockingChannel | None = None
    ready: list[PullChunk] = []
    try:
        while True:
            try:
                if channel is None:
                    channel = pool.read_channel(plan.queue)
                with pool.alone():
                    for span in plan.unsent():
                        span.operation = pull = Pull(
                            plan.queue,
                            span.offset,
                            group=group,
                            count_max=span.count,
                            subscription=subscription,
                            bytes_max=bytes_max,
                        )
                        span.opaque = channel.send(pull.request, pool.deadline_s())
                yield from ready
                ready = []
                if plan.is_done:
                    yield from joiner.flush()
                    return
                ready = joiner.add(plan.accept(_receive(pool, channel, plan.spans[0])))
                backoff.progressed()
            except PASSING as error:
                _forget(channel, plan)
                channel = None
                backoff.wait(error, {plan.queue.topic})
    finally:
        _forget(channel, plan)


def _receive(pool: BlockingPool, channel: BlockingChannel, span: Span) -> PullResult:
    assert span.opaque is not None and span.operation is not None
    try:
        with pool.alone():
            response = channel.receive(span.opaque, pool.deadline_s())
    except RequestTimeout as error:
        raise timed_out(channel.peer, span.operation, pool.config.timeout_s) from error
    return span.operation.result(response, peer=channel.peer)


def _forget(channel: BlockingChannel | None, plan: RangePlan) -> None:
    """Give up the pulls in flight."""
    if channel is not None:
        for span in plan.spans:
            if span.opaque is not None:
                channel.forget(span.opaque)
    plan.restart()
