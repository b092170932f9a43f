"""Supervised tasks: the only place in the package that starts any."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: The code of the request whose handler waits in this task; None: no handler does.
waiting_code: ContextVar[int | None] = ContextVar("waiting_code", default=None)

#: The task that waits for what goes on in this context, in whatever task or thread; empty when it
#: does not wait any more.
_caller: ContextVar[list[asyncio.Task[Any]]] = ContextVar("_caller")


@contextmanager
def calling() -> Iterator[None]:
    """Call what may end the component whose task this is, in tasks or threads of its own, too."""
    task = asyncio.current_task()
    assert task is not None
    callers = [task]
    token = _caller.set(callers)
    try:
        yield
    finally:
        _caller.reset(token)
        callers.clear()  # What was begun meanwhile and goes on has a copy of the context.


def begin_call(task: asyncio.Task[Any]) -> list[asyncio.Task[Any]]:
    """Do what ``calling`` does, at a tenth of its cost, for a task that does it for each message.

    Args:
        task: the current one.

    Returns:
        What is to be cleared when the call has ended.
    """
    callers = [task]
    _caller.set(callers)
    return callers


def those_who_wait() -> set[asyncio.Task[Any] | None]:
    """Return the tasks that wait for what goes on here, which must not wait for them."""
    return {asyncio.current_task(), *_caller.get(())}


def is_cancelled() -> bool:
    """Was the current task cancelled from outside, rather than what it calls from within?"""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def begin_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start what another thread waits for, which hears what it raises and ends it."""
    return asyncio.get_running_loop().create_task(work)


class Tasks:
    """The background tasks of one component; they end when it closes."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Does it start nothing any more?"""
        return self._closed

    def owns(self, task: asyncio.Task[Any] | None) -> bool:
        """Is this one of them, and does it run?"""
        return task in self._running

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` until it returns; an exception that escapes it is logged."""
        assert not self._closed, f"{self._owner} is closed and starts no {name}"
        context = copy_context()
        context.run(waiting_code.set, None)  # what a handler starts goes on without its request
        task = asyncio.get_running_loop().create_task(
            work, name=f"{self._owner}: {name}", context=context
        )
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def repeat(
        self,
        name: str,
        step: Callable[[], object],
        interval_s: float,
        *,
        idle_s: float | None = None,
    ) -> asyncio.Task[Any]:
        """Call ``step`` every ``interval_s`` seconds, first after one interval.

        ``step`` does one bounded piece of work and may be a coroutine function. What it
        raises is logged with its traceback, and the next interval tries again.

        Args:
            idle_s: the interval after a step that returned nothing, or 0; default: no difference.
        """
        return self.start(name, self._repeat(name, step, interval_s, idle_s or interval_s))

    async def _repeat(
        self, name: str, step: Callable[[], object], interval_s: float, idle_s: float
    ) -> None:
        done: object = None
        while True:
            await asyncio.sleep(interval_s if done else idle_s)
            done = None
            try:
                done = step()
                if isinstance(done, Awaitable):
                    done = await done
            except Exception:
                _log.exception("%s: %s failed; trying again in %g s", self._owner, name, interval_s)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Cancel what still runs, but who waits for this, and wait for its end; idempotent."""
        self._closed = True
        running = self._running - those_who_wait()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
