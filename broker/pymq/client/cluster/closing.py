"""The end of a client, for which everybody waits who ends it."""

import asyncio
from typing import Any

from pymq.net.tasks import Tasks, those_who_wait


class Closing:
    """The close of a client: entered by the first who closes it. For one event loop.

    Others wait until that is done: what they do next may be the end of the event loop, and with it
    of a close that has not committed yet.

    Args:
        tasks: of the client. A close waits for them, so they do not wait for it.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._closer: asyncio.Task[Any] | None = None
        self._ended: asyncio.Future[None] | None = None

    def __enter__(self) -> None:
        self._closer = asyncio.current_task()
        self._ended = asyncio.get_running_loop().create_future()

    def __exit__(self, *_: object) -> None:
        assert self._ended is not None
        self._ended.set_result(None)

    @property
    def has_begun(self) -> bool:
        """Is it being closed, or was it?"""
        return self._ended is not None

    async def wait_ended(self) -> None:
        """Wait for the close that is under way, if there is one and it does not wait for us."""
        ended, waiting = self._ended, those_who_wait()
        if ended is None or self._closer in waiting or any(map(self._tasks.owns, waiting)):
            return
        if ended.get_loop() is asyncio.get_running_loop():  # not so in a child made by ``fork``
            await asyncio.wait([ended])
