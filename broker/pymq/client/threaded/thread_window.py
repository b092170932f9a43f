"""Back-pressure for threads that begin sends without waiting for their outcome."""

import threading
import time
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
        self._count = 0
        self._size_bytes = 0
        self._changed = threading.Condition()

    def wait_begin(self, size_bytes: int, timeout_s: float, check_open: Callable[[], T]) -> float:
        """Count a send, once there is room for it; return for how many seconds that took.

        Args:
            size_bytes: of the send.
            timeout_s: longest wait.
            check_open: raises when the client is not open any more.

        Raises:
            TooManyPending: there was no room in time; nothing was sent.
        """
        with self._changed:
            if self._has_room():
                waited_s = 0.0
            else:
                started_s = time.monotonic()
                is_free = self._changed.wait_for(self._has_room, timeout_s)
                check_open()
                if not is_free:
                    raise TooManyPending(
                        f"{self._count} sends with {self._size_bytes} B are unanswered, expected "
                        f"fewer than {self._count_max} (in_flight_max) and {self._bytes_max} B "
                        f"(in_flight_bytes_max); there was no room for {timeout_s:g} s "
                        "(deadline_s): find out why the brokers do not answer"
                    )
                waited_s = time.monotonic() - started_s
            self._count += 1
            self._size_bytes += size_bytes
            return waited_s

    def _has_room(self) -> bool:
        return self._count < self._count_max and self._size_bytes < self._bytes_max

    def end(self, size_bytes: int) -> None:
        """Count a send as over."""
        with self._changed:
            self._count -= 1
            self._size_bytes -= size_bytes
            self._changed.notify()
