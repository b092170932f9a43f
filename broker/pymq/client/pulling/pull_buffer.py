"""Between the pulls and the polls of a pull consumer: what is there, whose turn it is, limits."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from pymq.client.group.inbox import FlowLimits, Inbox
from pymq.client.group.process_queue import ProcessQueue
from pymq.client.pulling.pulled_queue import PulledQueue
from pymq.client.ranges import PullChunk
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage

T = TypeVar("T")

#: What is pulled ahead by default: enough for columns of many small messages.
PULL_LIMITS = FlowLimits(
    queue_messages_max=65_536,
    queue_bytes_max=4 << 20,
    messages_max=1 << 20,
    bytes_max=16 << 20,
    span_max=1 << 31,
)

#: What a pull may bring at least, however many queues there are.
PULL_BYTES_MIN = 64 << 10
#: All queues may begin to pull while there is room for one: together they may exceed the limit by
#: this part of it.
PULL_PART = 4


class PullBuffer(Inbox):
    """What was pulled and not polled, of all queues. For one event loop.

    Queues take turns: a poll goes on where the one before has ended.
    """

    def __init__(self, limits: FlowLimits) -> None:
        super().__init__(limits)
        self._turns: deque[PulledQueue] = deque()

    def pull_bytes(self, queue_count: int) -> int:
        """Return how much one pull may bring, when so many queues may pull at the same time."""
        share = self._limits.bytes_max // PULL_PART // max(queue_count, 1)
        return min(max(share, PULL_BYTES_MIN), self._limits.queue_bytes_max)

    def room(self, queue: ProcessQueue, part: float = 1.0) -> int:
        """Return how many messages a queue may pull; 0 or less: none."""
        if queue.is_paused:
            return 0
        return super().room(queue, part)

    def keep(self, queue: PulledQueue, chunk: PullChunk) -> None:
        """Take what a pull of a queue returned."""
        before = queue.message_count, queue.message_bytes
        queue.keep(chunk)
        self._count(queue, before)
        self._offer(queue)

    def resume(self, queue: ProcessQueue) -> None:
        """Pull and offer a queue again."""
        queue.is_paused = False
        self._resume()
        if isinstance(queue, PulledQueue):
            self._offer(queue)

    def _offer(self, queue: PulledQueue) -> None:
        if queue.is_ready:
            if queue not in self._turns:
                self._turns.append(queue)
            self._wake_takers(1)

    def _count(self, queue: PulledQueue, before: tuple[int, int]) -> None:
        self.message_count += queue.message_count - before[0]
        self.message_bytes += queue.message_bytes - before[1]

    # --- polls

    async def wait_messages(
        self, count_max: int, timeout_s: float | None
    ) -> list[ReceivedMessage]:
        """Wait for messages; none when none came in time, or when no more will.

        Raises:
            PymqError: the message that is next cannot be read.
        """
        return await self._wait(lambda: self.take_messages(count_max), timeout_s) or []

    async def wait_chunk(self, timeout_s: float | None) -> tuple[MessageQueue, PullChunk] | None:
        """Wait for a chunk of some queue; ``None`` as for messages."""
        return await self._wait(self._take_chunk, timeout_s)

    async def _wait(self, take: Callable[[], T], timeout_s: float | None) -> T | None:
        try:
            async with asyncio.timeout(timeout_s):
                while not self._is_closed:
                    if taken := take():
                        return taken
                    await self._wait_woken()
        except TimeoutError:
            pass
        return None

    def take_messages(self, count_max: int) -> list[ReceivedMessage]:
        """Take messages that are there."""
        taken: list[ReceivedMessage] = []
        while len(taken) < count_max and (queue := self._next_queue()) is not None:
            before = queue.message_count, queue.message_bytes
            try:
                taken += queue.take(count_max - len(taken))
            except Exception:
                if taken:  # It is told when it is next.
                    self._turns.appendleft(queue)
                    break
                raise
            finally:
                self._count(queue, before)
                if queue.is_ready and queue not in self._turns:
                    self._turns.append(queue)
        self._resume()
        return taken

    def _take_chunk(self) -> tuple[MessageQueue, PullChunk] | None:
        queue = self._next_queue()
        if queue is None:
            return None
        before = queue.message_count, queue.message_bytes
        chunk = queue.take_chunk()
        self._count(queue, before)
        if queue.is_ready:
            self._turns.append(queue)
        self._resume()
        return queue.queue, chunk

    def _next_queue(self) -> PulledQueue | None:
        """Take the queue whose turn it is off the list, if there is one."""
        while self._turns:
            queue = self._turns.popleft()
            if queue.is_ready:
                return queue
        return None
