"""Work for which several callers wait at the same time, done once for all of them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from pymq.errors import ClientClosed
from pymq.net.tasks import Tasks

T = TypeVar("T")


class SharedWork(Generic[T]):
    """One task for each key that somebody waits for. For one event loop.

    Args:
        tasks: their owner; they end with it.
        name: of the tasks, in front of the key.
        work: called with the key.
    """

    def __init__(
        self, tasks: Tasks, name: str, work: Callable[[str], Coroutine[Any, Any, T]]
    ) -> None:
        self._tasks = tasks
        self._name = name
        self._work = work
        self._running: dict[str, asyncio.Task[T]] = {}

    async def wait_result(self, key: str) -> T:
        """Return the result for a key; the work goes on when this caller is cancelled.

        Raises:
            ClientClosed: the task was cancelled, which is not to be taken for our own cancellation.
        """
        task = self._running.get(key)
        if task is None:
            task = self._tasks.start(f"{self._name} {key}", self._work(key))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
        await asyncio.wait([task])
        if task.cancelled():
            raise ClientClosed("the client was closed meanwhile")
        return task.result()
