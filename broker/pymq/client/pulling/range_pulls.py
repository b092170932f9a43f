"""Reading a range of a queue with asyncio: sends the pulls of a plan, takes the answers.

Which pulls these are is the plan's business (``ranges``); ``range_reader`` does the same for
blocking clients. A slave is read while the master is away; what it lacks is waited for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from pymq.client.cluster.pool import ClientPool
from pymq.client.operations import Pull
from pymq.client.pulling.read_patience import ReadPatience
from pymq.client.ranges import Joiner, PullChunk, RangePlan, Span
from pymq.client.sockets.blocking_pool import PASSING
from pymq.errors import OffsetOutOfRange, RouteNotFound
from pymq.protocol.command import Command


class _Asked(NamedTuple):
    """A pull in flight."""

    answer: asyncio.Future[Command]
    is_master: bool


class RangePulls:
    """The pulls in flight for one plan. For one event loop.

    Args:
        pool: connections and routes.
        plan: nothing of it was sent yet.
        pull: returns a pull of the queue from an offset on, which wants ``count_max`` messages.
        deadline_s: what fails is tried again until this has passed without progress.
    """

    def __init__(
        self,
        pool: ClientPool,
        plan: RangePlan,
        pull: Callable[..., Pull],
        *,
        deadline_s: float,
    ) -> None:
        self._pool = pool
        self._plan = plan
        self._pull = pull
        self._patience = ReadPatience(pool, plan.queue.topic, deadline_s=deadline_s)
        self._joiner = Joiner()
        self._in_flight: dict[Span, _Asked] = {}

    async def chunks(self) -> AsyncIterator[PullChunk]:
        """Yield the messages of the range, in order, exactly once.

        While a chunk is in the caller's hands the next pulls are in flight.

        Raises:
            OffsetOutOfRange: part of the range is not there, as the master says; the text says
                what is.
            PymqError: no progress until the deadline, or the broker refused.
        """
        plan = self._plan
        try:
            while not plan.is_done:
                chunk = await self._step()
                if chunk is not None:
                    for ready in self._joiner.add(chunk):
                        yield ready
            for ready in self._joiner.flush():
                yield ready
        finally:
            self._forget()

    async def _send(self) -> None:
        """Send what the plan wants in flight."""
        queue = self._plan.queue
        channel = await self._pool.read_channel(queue)
        route = self._pool.routes.find(queue.topic)
        # A route that has changed this very moment may call a master a slave: it is asked again.
        masters = {} if route is None else route.masters()
        is_master = masters.get(queue.broker_name) == channel.address
        for span in self._plan.unsent():
            span.operation = one = self._pull(span.offset, count_max=span.count)
            future = channel.request_nowait(
                one.request, self._pool.timeout_s, description=one.description
            )
            future.add_done_callback(_seen)
            span.opaque = one.request.opaque
            self._in_flight[span] = _Asked(future, is_master)

    async def _receive(self) -> PullChunk:
        """Wait for the oldest answer, and send what comes after it."""
        if not self._plan.spans:
            await self._send()
        oldest = self._plan.spans[0]
        asked = self._in_flight[oldest]
        answer = await asked.answer
        assert oldest.operation is not None
        peer = self._plan.queue.broker_name
        result = oldest.operation.result(answer, peer=peer)
        try:
            chunk = self._plan.accept(result, is_from_master=asked.is_master)
        except OffsetOutOfRange as error:
            if asked.is_master:
                raise
            raise RouteNotFound(
                f"{error}; that is what a slave has, which may lag: start the master of {peer!r}"
            ) from error
        del self._in_flight[oldest]
        self._patience.progressed()
        try:
            await self._send()
        except PASSING:
            self._restart()  # It is told when it stays so.
        return chunk

    async def _step(self) -> PullChunk | None:
        """Return the next chunk; ``None`` after a failure, when it is time for another try.

        Raises:
            PymqError: it is time to give up.
        """
        try:
            return await self._receive()
        except PASSING as error:
            self._restart()
            await self._patience.wait(error)
        return None

    def _restart(self) -> None:
        self._forget()
        self._plan.restart()

    def _forget(self) -> None:
        for asked in self._in_flight.values():
            asked.answer.cancel()
        self._in_flight.clear()


def _seen(future: asyncio.Future[Command]) -> None:
    if not future.cancelled():
        future.exception()  # Whoever waits for it raises it; nobody may.
