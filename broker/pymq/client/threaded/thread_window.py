"""Back-pressure for threads that begin sends without waiting for their outcome."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from pymq.errors import TooManyPending

T = TypeVar("T")


class ThreadWindow:
    """Counts what threads have handed over to an event loop and what is not over. For any thread.

    As ``SendWindow``, which cannot be asked from here: it belongs to the loop.

    Args:
        count_max: sends that may be begun and not over.
        bytes_max: no send begins while there are so many bytes.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        #: What is counted, and its bytes.
        self._open: dict[object, int] = {}
        self._size_bytes = 0
        #: What is over, perhaps more than once, and may still be counted.
        self._ended: deque[object] = deque()
        #: Of threads that begin something. Reentrant: a signal's handler may send, too.
        self._lock = threading.RLock()
        #: Locked, each of a thread that waits for room.
        self._waiting: deque[threading.Lock] = deque()

    def wait_begin(
        self, ticket: object, size_bytes: int, timeout_s: float, check_open: Callable[[], T]
    ) -> float:
        """Count a send, once there is room for it; return for how many seconds that took.

        Whatever this raises, ``end`` must be called then: an exception of a signal may have come
        when the send was counted.

        Args:
            ticket: for ``end``, another one for each send. It is kept for a while after that.
            size_bytes: of the send.
            timeout_s: longest wait.
            check_open: raises when the client is not open any more.

        Raises:
            TooManyPending: there was no room in time; nothing was sent.
        """
        if self._begin(ticket, size_bytes):
            return 0.0
        started_s = time.monotonic()
        woken = threading.Lock()
        woken.acquire()
        try:
            self._waiting.append(woken)  # before the second look, so that no end is missed
            while not self._begin(ticket, size_bytes):
                left_s = max(0.0, started_s + timeout_s - time.monotonic())
                is_woken = woken.acquire(timeout=left_s)
                check_open()
                if not is_woken:
                    raise self._refusal(timeout_s)
                self._waiting.append(woken)
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(woken)
            self._wake_one()  # There may be room for several, or we do not use it.
        return time.monotonic() - started_s

    def _begin(self, ticket: object, size_bytes: int) -> bool:
        """Count a send, if there is room for it."""
        with self._lock:
            if not self._has_room():
                return False
            # No call, after which an exception of a signal might come between the two.
            self._size_bytes += size_bytes
            self._open[ticket] = size_bytes
            return True

    def _has_room(self) -> bool:
        ended, counted = self._ended, self._open
        while ended:
            ticket = ended[0]
            if ticket in counted:
                self._size_bytes -= counted[ticket]
                del counted[ticket]
            ended.popleft()  # last: an exception of a signal comes after a call
        return len(counted) < self._count_max and self._size_bytes < self._bytes_max

    def _refusal(self, timeout_s: float) -> TooManyPending:
        count = len(self._open)
        return TooManyPending(
            f"{count} sends with {self._size_bytes} B are unanswered, expected fewer than "
            f"{self._count_max} (in_flight_max) and {self._bytes_max} B (in_flight_bytes_max); "
            f"there was no room for {timeout_s:g} s (deadline_s): find out why the brokers do not "
            "answer"
        )

    def end(self, ticket: object) -> None:
        """Count a send as over, if it is counted. Waits for nobody.

        The event loop calls it. If it waited for a thread that begins a send, and a signal's
        handler closed the client in that thread, they would wait for each other.
        """
        self._ended.append(ticket)
        self._wake_one()

    def _wake_one(self) -> None:
        if self._waiting:
            with contextlib.suppress(IndexError):  # Another one was quicker.
                self._waiting.popleft().release()
