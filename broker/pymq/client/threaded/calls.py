"""Coroutines that threads have run in an event loop, and wait for.

An exception of a signal (Ctrl-C) may come at any moment of a thread, also when its loop has been
told of a coroutine and nobody knows of it yet. So each is made before the loop hears of it, and one
that was left before it began is cancelled when it does.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from pymq.client.threaded.futures import ThreadFuture
from pymq.net.tasks import begin_task

T = TypeVar("T")


class Call(Generic[T]):
    """A coroutine whose result one thread waits for.

    Args:
        work: the coroutine.
    """

    __slots__ = ("_is_left", "_over", "_task", "_work")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._is_left = False
        # Not a future: an exception of a signal may leave the lock of one locked.
        self._over = threading.Lock()
        self._over.acquire()

    def begin(self) -> None:
        """Start it. In the loop."""
        self._task = task = begin_task(self._work)
        if self._is_left:  # after the task is known, as ``leave`` looks in the other order
            task.cancel()
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # Who has left it does not ask.
        self._over.release()

    def wait(self) -> T:
        """Wait for its end; return its result. In the thread, once.

        Raises:
            CancelledError: it was cancelled, by the end of the loop.
        """
        self._over.acquire()
        task = self._task
        assert task is not None
        return task.result()

    def leave(self) -> None:
        """Wait for it no more; it is cancelled. In the thread."""
        self._is_left = True
        task = self._task
        if task is not None and not task.done():
            _cancel(task)


class CallFuture(ThreadFuture[T]):
    """The outcome of a coroutine; cancelling it cancels that. It may be made before it begins."""

    _task: asyncio.Task[T] | None = None

    def begin(self, work: Coroutine[Any, Any, T]) -> None:
        """Start the coroutine. In the loop."""
        self._task = task = begin_task(work)
        if self.cancelled():  # after the task is known, as ``cancel`` looks in the other order
            task.cancel()
        task.add_done_callback(self._end)

    def cancel(self) -> bool:
        """See ``concurrent.futures.Future``."""
        is_cancelled = super().cancel()
        if is_cancelled and (task := self._task) is not None and not task.done():
            _cancel(task)
        return is_cancelled

    def _end(self, task: asyncio.Task[T]) -> None:
        error = None
        if task.cancelled():
            super().cancel()
        else:
            error = task.exception()
        if not self.set_running_or_notify_cancel():
            return
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())


def _cancel(task: asyncio.Task[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # The loop has ended, and has cancelled it.
        task.get_loop().call_soon_threadsafe(task.cancel)
