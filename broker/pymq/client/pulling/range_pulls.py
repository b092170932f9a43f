"""Reading a range of a queue with asyncio: sends the pulls of a plan, takes the answers.

Which pulls these are is the plan's business (``ranges``); ``range_reader`` does the same for
blocking clients.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from pymq.client.cluster.pool import ClientPool
from pymq.client.operations import Pull
from pymq.client.ranges import Joiner, PullChunk, RangePlan, Span
from pymq.client.sockets.blocking_pool import PASSING
from pymq.protocol.command import Command

#: Pause between two tries: first, and longest.
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0


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
        self._deadline_s = deadline_s
        self._joiner = Joiner()
        self._in_flight: dict[Span, asyncio.Future[Command]] = {}
        self._failed_s: float | None = None
        self._pause_s = PAUSE_FIRST_S

    async def chunks(self) -> AsyncIterator[PullChunk]:
        """Yield the messages of the range, in order, exactly once.

        While a chunk is in the caller's hands the next pulls are in flight.

        Raises:
            OffsetOutOfRange: part of the range is not there; the text says what is.
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
        channel = await self._pool.read_channel(self._plan.queue)
        for span in self._plan.unsent():
            span.operation = one = self._pull(span.offset, count_max=span.count)
            future = channel.request_nowait(
                one.request, self._pool.timeout_s, description=one.description
            )
            future.add_done_callback(_seen)
            span.opaque = one.request.opaque
            self._in_flight[span] = future

    async def _receive(self) -> PullChunk:
        """Wait for the oldest answer, and send what comes after it."""
        if not self._plan.spans:
            await self._send()
        oldest = self._plan.spans[0]
        answer = await self._in_flight[oldest]
        assert oldest.operation is not None
        peer = self._plan.queue.broker_name
        chunk = self._plan.accept(oldest.operation.result(answer, peer=peer))
        del self._in_flight[oldest]
        self._failed_s, self._pause_s = None, PAUSE_FIRST_S
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
            now_s = self._pool.loop.time()
            if self._failed_s is None:
                self._failed_s = now_s
            if now_s + self._pause_s > self._failed_s + self._deadline_s:
                error.add_note(f"it was tried again for {now_s - self._failed_s:.0f} s")
                raise
        self._pool.routes.doubt(self._plan.queue.topic)
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return None

    def _restart(self) -> None:
        self._forget()
        self._plan.restart()

    def _forget(self) -> None:
        for future in self._in_flight.values():
            future.cancel()
        self._in_flight.clear()


def _seen(future: asyncio.Future[Command]) -> None:
    if not future.cancelled():
        future.exception()  # Whoever waits for it raises it; nobody may.
