"""A slave that acts for its master does its errands, until the master is back.

They begin when the slave acts and follows no log any more, and end before a master that comes back
is told how far they are: what was delivered here is not delivered there again. A master that is
about to be online asks for that (EXCHANGE_BROKER_HA_INFO); when it is not heard of again, they go
on.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from pymq.broker.escape.writer import RemoteWriter
from pymq.broker.ha.slave import Slave
from pymq.errors import StoreError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.2
#: How long a master that has announced itself may take to have this slave follow its log.
PAUSE_S = 15.0


class Errand(Protocol):
    """One kind of messages that are to be stored elsewhere when they are due."""

    async def begin(self, is_cancelled: Callable[[], bool]) -> None:
        """Begin where the master was.

        Args:
            is_cancelled: asked, in any thread, by those who take long; then there is only the end.

        Raises:
            StoreError: what waits cannot be read, or it was cancelled.
        """

    async def end(self) -> None:
        """Stop, and record how far it has come; nothing is in flight any more.

        What cannot be recorded is logged, and delivered again.
        """


class Escaping:
    """Does errands while it should.

    Args:
        slave: says whether it acts.
        errands: in the order in which they begin.
        writer: theirs.
    """

    def __init__(self, slave: Slave, errands: Sequence[Errand], writer: RemoteWriter) -> None:
        self._slave = slave
        self._errands = errands
        self._writer = writer
        self._running: AsyncExitStack | None = None
        self._paused_until_s = 0.0
        self._lock = asyncio.Lock()
        self._said = SaidOnce(_log)
        self._tasks = Tasks("escape")

    def start(self) -> None:
        """Begin to look."""
        self._tasks.repeat("look", self._look, LOOK_INTERVAL_S)

    async def _look(self) -> None:
        async with self._lock:
            if not self._is_wanted:
                await self._end()
            elif self._running is None:
                await self._begin()

    @property
    def _is_wanted(self) -> bool:
        slave = self._slave
        is_paused = asyncio.get_running_loop().time() < self._paused_until_s
        return slave.is_acting and not slave.hands_over and not is_paused

    async def _begin(self) -> None:
        stack = AsyncExitStack()
        loop = asyncio.get_running_loop()

        def is_cancelled() -> bool:
            return loop.time() < self._paused_until_s

        try:
            for errand in self._errands:
                stack.push_async_callback(errand.end)
                await errand.begin(is_cancelled)
        except StoreError as error:
            await stack.aclose()
            if is_cancelled():
                return
            self._said.warn(
                "errands",
                "messages that wait here are not sent to other groups (enableRemoteEscape): %s; "
                "trying again",
                error,
            )
            return
        except BaseException:
            await stack.aclose()
            raise
        self._said.over("errands")
        self._running = stack
        _log.warning(
            "what is due in this group is sent to other groups until its master is back "
            "(enableRemoteEscape)"
        )

    async def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()
            _log.info(
                "nothing is sent to other groups any more; %d messages were since the start",
                self._writer.sent_count,
            )

    async def pause(self) -> None:
        """Return when nothing is delivered any more: a master is about to be online."""
        self._paused_until_s = asyncio.get_running_loop().time() + PAUSE_S
        async with self._lock:
            await self._end()

    async def close(self) -> None:
        """Stop; idempotent."""
        self._paused_until_s = math.inf
        async with self._lock:  # what is beginning is ended, not cut off
            await self._end()
        await self._tasks.close()
        await self._writer.close()
