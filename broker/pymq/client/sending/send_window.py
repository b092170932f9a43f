"""How much a producer may have in flight: a number of sends, and their bytes."""

import asyncio
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from pymq.errors import TooManyPending


class SendWindow:
    """Counts what is unanswered; whoever wants to begin a send waits for room. For one event loop.

    A send may begin as long as there is room for one byte, so the bytes may exceed their limit by
    one message: a limit that each message had to fit under would never let a large one pass.

    Args:
        count_max: sends that may be in flight.
        bytes_max: no send begins while there are so many bytes.

    Attributes:
        count: sends in flight.
        size_bytes: their bytes.
        lost_count: those that ended without an answer because their event loop did.
        gathered: windows of those who keep messages back, and send them through this one.
        request_count: of such a window: sends of the other one that carry what is counted here, and
            are unanswered or lost.
    """

    # It refers to no client: ``unclosed`` looks at it when its client is gone.
    __slots__ = (
        *("_bytes_max", "_count_max", "_idle", "_waiting"),
        *("count", "gathered", "lost_count", "request_count", "size_bytes"),
    )

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.count = 0
        self.size_bytes = 0
        self.lost_count = 0
        self.request_count = 0
        self.gathered: set[SendWindow] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None

    def end_limits(self) -> None:
        """Be never full, but count on: somebody else limits what begins."""
        self._count_max = self._bytes_max = sys.maxsize

    def gather(self, window: "SendWindow", owner: object) -> None:
        """Keep somebody's window in ``gathered`` while he is there, or if he leaves something."""
        self.gathered.add(window)
        weakref.finalize(owner, self._forget, window).atexit = False

    def _forget(self, window: "SendWindow") -> None:
        if not window.count and not window.lost_count:
            self.gathered.discard(window)

    @property
    def unanswered(self) -> tuple[int, int]:
        """Sends without an answer, lost ones included, and messages gathered that have none.

        Requests with what was gathered are not among the sends, or it would be counted twice.
        """
        carried = sum(one.request_count for one in self.gathered)
        gathered = sum(one.count + one.lost_count for one in self.gathered)
        return self.count + self.lost_count - carried, gathered

    @property
    def is_full(self) -> bool:
        """Must the next send wait?"""
        return self.count >= self._count_max or self.size_bytes >= self._bytes_max

    def begin(self, size_bytes: int) -> None:
        """Count a send that begins."""
        self.count += 1
        self.size_bytes += size_bytes
        if self._waiting and not self.is_full:
            self._wake_one()

    def end(self, size_bytes: int, count: int = 1) -> None:
        """Count what is answered, by default one send, and let the next one begin."""
        self.count -= count
        self.size_bytes -= size_bytes
        if self._waiting and not self.is_full:
            self._wake_one()
        if not self.count and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def begin_alone(self, sent: asyncio.Future[Any], size_bytes: int) -> None:
        """Count a message that the other window has a send for of its own, until that ends."""
        self.begin(size_bytes)
        self.request_count += 1
        sent.add_done_callback(lambda _: self._end_alone(size_bytes))

    def _end_alone(self, size_bytes: int) -> None:
        self.request_count -= 1
        self.end(size_bytes)

    def end_request(self, lost_count: int) -> None:
        """Count a request of the other window that has ended.

        Args:
            lost_count: messages that have no answer because their event loop ended.
        """
        if lost_count:  # That window goes on to count the request.
            self.lost_count += lost_count
        else:
            self.request_count -= 1

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break

    def wake_all(self) -> None:
        """Wake whoever waits: the client is closed."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_room(
        self, check_open: Callable[[], None], until_s: float | None = None
    ) -> None:
        """Wait until another send may begin.

        Args:
            check_open: raises when the client is not open any more.
            until_s: on the clock of the event loop; ``None``: however long.

        Raises:
            ClientClosed: the client was closed meanwhile.
            TooManyPending: there was no room in time.
        """
        try:
            async with asyncio.timeout_at(until_s):
                await self._wait_room(check_open)
        except TimeoutError as error:
            raise self.refusal() from error

    async def _wait_room(self, check_open: Callable[[], None]) -> None:
        while self.is_full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                if waiter.done() and not waiter.cancelled() and not self.is_full:
                    self._wake_one()  # Somebody else's turn, should we be cancelled just now.
            check_open()

    async def wait_idle(self) -> None:
        """Wait until nothing is in flight."""
        while self.count:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def refusal(self) -> TooManyPending:
        """Return what to raise for a send for which there is no room; nothing of it was sent."""
        return TooManyPending(
            f"{self.count} sends with {self.size_bytes} B are unanswered, expected fewer than "
            f"{self._count_max} (in_flight_max) and {self._bytes_max} B (in_flight_bytes_max); "
            "await wait_room() before sending more, and find out why the brokers do not answer"
        )
