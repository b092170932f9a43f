"""Futures that an interruption by a signal leaves usable.

Entering and leaving a ``threading.Condition`` calls functions written in Python. What the handler
of a signal raises in one of them (Ctrl-C: KeyboardInterrupt) leaves the lock with the main thread
for good, and an event loop that then waits for it to end the future stands still for ever. Nothing
comes between the entering and leaving of what is written in C.
"""

import _thread
import concurrent.futures
import threading
from typing import TypeVar

T = TypeVar("T")


class _Condition(_thread.RLock):  # type: ignore[misc]  # final only for type checkers
    """What a ``Future`` needs of a condition; its ``with`` runs no code in Python."""

    #: Locked, each of a thread that waits; changed by who holds this one.
    waiting: "tuple[threading.Lock, ...]" = ()

    def wait(self, timeout: float | None = None) -> bool:
        """Do not wait: ``ThreadFuture`` has done that, without this lock."""
        return False

    def _wake(self) -> None:
        waiting, self.waiting = self.waiting, ()
        for woken in waiting:
            woken.release()

    notify_all = _wake


class ThreadFuture(concurrent.futures.Future[T]):
    """A ``Future`` whose lock no exception of a signal's handler leaves locked."""

    def __init__(self) -> None:
        super().__init__()
        # Known of Python 3.11 to 3.14. Where it were not there, this would be a plain future.
        if hasattr(self, "_condition"):
            self._condition = _Condition()  # type: ignore[assignment]

    def result(self, timeout: float | None = None) -> T:
        """See ``concurrent.futures.Future``."""
        try:
            return super().result(self._wait(timeout))
        finally:
            del self  # an exception refers to this frame, and would be referred to by it

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See ``concurrent.futures.Future``."""
        return super().exception(self._wait(timeout))

    def _wait(self, timeout_s: float | None) -> float | None:
        """Wait until it is done, or for so long; return for how long its class is to wait then."""
        condition = getattr(self, "_condition", None)
        if not isinstance(condition, _Condition):
            return timeout_s
        if self.done() or (timeout_s is not None and timeout_s <= 0):
            return 0
        woken = threading.Lock()
        woken.acquire()
        try:
            with condition:
                if self.done():
                    return 0
                condition.waiting = (*condition.waiting, woken)
            woken.acquire(timeout=-1 if timeout_s is None else timeout_s)
        finally:
            with condition:
                condition.waiting = tuple(one for one in condition.waiting if one is not woken)
        return 0
