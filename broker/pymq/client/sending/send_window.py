"""How much a producer may have in flight: a number of sends, and their bytes."""

import asyncio
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from pymq.errors import TooManyPending


class _Waiter:
    """Somebody who waits for room.

    Attributes:
        woken: done when he should look whether it is his turn; another one after each look.
        is_gone: he waits no more, and it was not his turn.
    """

    __slots__ = ("is_gone", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.woken: asyncio.Future[None] = loop.create_future()
        self.is_gone = False


class SendWindow:
    """Counts what is unanswered; whoever wants to begin a send waits for room. For one event loop.

    First come, first served: while anybody waits, it is full for all others. Who waits stays in the
    line until it is his turn, so that no room is set aside that could be lost with him.

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
        *("_bytes_max", "_count_max", "_gone_count", "_idle", "_open_to", "_turn", "_waiting"),
        *("count", "gathered", "lost_count", "request_count", "size_bytes"),
    )

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        #: ``count_max``, or 0 while anybody waits: one comparison for whoever comes.
        self._open_to = count_max
        #: Who has waited and may begin now, though others wait.
        self._turn: asyncio.Task[Any] | None = None
        self.count = 0
        self.size_bytes = 0
        self.lost_count = 0
        self.request_count = 0
        self.gathered: set[SendWindow] = set()
        self._waiting: deque[_Waiter] = deque()
        #: Who left the line in its middle since it was cleared of them.
        self._gone_count = 0
        self._idle: asyncio.Future[None] | None = None

    def end_limits(self) -> None:
        """Be never full, but count on: somebody else limits what begins."""
        self._count_max = self._bytes_max = self._open_to = sys.maxsize

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
        windows = list(self.gathered)  # Threads may add some meanwhile.
        carried = sum(one.request_count for one in windows)
        gathered = sum(one.count + one.lost_count for one in windows)
        return self.count + self.lost_count - carried, gathered

    @property
    def is_full(self) -> bool:
        """Must the next send wait?"""
        if self.count < self._open_to and self.size_bytes < self._bytes_max:
            return False
        return self._turn is None or asyncio.current_task() is not self._turn or not self._has_room

    def begin(self, size_bytes: int) -> None:
        """Count a send that begins."""
        self.count += 1
        self.size_bytes += size_bytes
        if self._waiting:
            self._end_turn()

    def end(self, size_bytes: int, count: int = 1) -> None:
        """Count what is answered, by default one send, and let the next one begin."""
        self.count -= count
        self.size_bytes -= size_bytes
        if self._waiting:
            self._wake(count)
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

    # --- the line

    @property
    def _has_room(self) -> bool:
        """May the first of those who wait begin?"""
        return self.count < self._count_max and self.size_bytes < self._bytes_max

    def _first(self) -> _Waiter | None:
        """Return who is first in the line, without those who have left it."""
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            if not (first.is_gone or first.woken.cancelled()):
                return first
            waiting.popleft()
        self._open_to = self._count_max
        return None

    def _wake(self, count: int = 0) -> None:
        """Wake the first if there is room, and those for whom ``count`` places have become free.

        These look in the same turn of the loop, one behind the other. It is the first who counts:
        whoever leaves the line, or begins, wakes the one who is first then.
        """
        first = self._first()
        if first is None or not self._has_room:
            return
        if not first.woken.done():
            first.woken.set_result(None)
        free = self._count_max - self.count
        if free <= len(self._waiting):
            for at in range(max(free - count, 1), free):
                woken = self._waiting[at].woken
                if not woken.done():
                    woken.set_result(None)

    def _leave(self, waiter: _Waiter) -> None:
        """Take somebody out of the line; those in its middle together: each would cost a search."""
        waiter.is_gone = True
        self._gone_count += 1
        if 2 * self._gone_count > len(self._waiting):
            self._waiting = deque(one for one in self._waiting if not one.is_gone)
            self._gone_count = 0

    def _end_turn(self) -> None:
        """Let nobody begin but who is first: who could, has begun, or did not want to."""
        self._turn = None
        self._wake()

    def wake_all(self) -> None:
        """Wake whoever waits: the client is closed."""
        for waiter in self._waiting:
            if not waiter.woken.done():
                waiter.woken.set_result(None)

    async def wait_room(self, check_open: Callable[[], None], until_s: float | None = None) -> None:
        """Wait until another send may begin; nobody else may, until the caller waits for something.

        Args:
            check_open: raises when the client is not open any more.
            until_s: on the clock of the event loop; ``None``: however long.

        Raises:
            ClientClosed: the client was closed meanwhile.
            TooManyPending: there was no room in time.
        """
        if not self.is_full:
            return
        try:
            async with asyncio.timeout_at(until_s):
                await self._wait_turn(check_open)
        except TimeoutError as error:
            raise self.refusal() from error

    async def _wait_turn(self, check_open: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop)
        self._waiting.append(waiter)
        self._open_to = 0
        try:
            await waiter.woken
            check_open()
            while self._first() is not waiter or not self._has_room:
                waiter.woken = loop.create_future()
                await waiter.woken
                check_open()
        except BaseException:
            self._leave(waiter)
            if not loop.is_closed():  # Else it was not cancelled, but is collected as garbage.
                self._wake()
            raise
        self._waiting.popleft()
        if self._first() is not None:
            self._turn = asyncio.current_task()
            loop.call_soon(self._end_turn)  # The next one's, should we not begin anything now.

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
            f"{self._count_max} (in_flight_max) and {self._bytes_max} B (in_flight_bytes_max), and "
            "nobody who waits for room already; await wait_room() before sending more, and find "
            "out why the brokers do not answer"
        )
