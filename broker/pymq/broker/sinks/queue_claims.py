"""Queues that batches are copied to: one batch at a time has a queue.

Two batches that shared some of their queues would become visible queue by queue, each of which
waits for the other batch. A batch takes all its queues at once, so nobody waits for somebody who
waits; in the order of asking, so a batch with many queues has its turn, too.
"""

import asyncio
from collections.abc import Set
from typing import TypeAlias

from pymq.errors import StoreError
from pymq.store import QueueKey

_Waiter: TypeAlias = tuple[Set[QueueKey], asyncio.Future[None]]


class QueueClaims:
    """Which queues are taken, and who waits for them."""

    def __init__(self) -> None:
        self._taken: set[QueueKey] = set()
        #: Why those of them that nobody will give back are not.
        self._kept: dict[QueueKey, str] = {}
        self._waiting: list[_Waiter] = []

    async def take(self, queues: Set[QueueKey]) -> None:
        """Take queues, once those who have one of them or asked before have given them back.

        Raises:
            StoreError: one of them will not be given back.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((queues, future))
        self._serve()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(queues)
            else:
                self._serve()
            raise

    def take_nowait(self, queues: Set[QueueKey]) -> bool:
        """Take queues, or return False if some are taken; before anybody waits."""
        if not self._taken.isdisjoint(queues):
            return False
        self._taken |= queues
        return True

    def give_back(self, queues: Set[QueueKey]) -> None:
        """Let others have queues."""
        self._taken -= queues
        self._serve()

    def keep(self, queues: Set[QueueKey], reason: str) -> None:
        """Never give queues back: whoever waits for them, or will, is told the reason."""
        self._kept.update(dict.fromkeys(queues, reason))
        self._serve()

    def _serve(self) -> None:
        wanted = set(self._taken)
        still_waiting: list[_Waiter] = []
        for queues, future in self._waiting:
            if future.done():  # Who waited was cancelled.
                continue
            kept = self._kept.keys() & queues
            if kept:
                future.set_exception(StoreError(self._kept[kept.pop()]))
                continue
            if wanted.isdisjoint(queues):
                self._taken |= queues
                future.set_result(None)
            else:
                still_waiting.append((queues, future))
            wanted |= queues
        self._waiting = still_waiting
