"""Commits queues as far as they are ours: a member must not set back whoever reads on instead."""

import asyncio
from collections.abc import Callable, Iterable

from pymq.client.group.queue_reader import QueueReader
from pymq.errors import CommitFailed, PymqError
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue


class QueueCommits:
    """The commits of one member of a group. For one event loop.

    Args:
        group: consumer group.
        is_surely_ours: is a queue not another member's, as far as its lock says?
        troubles: says what could not be committed.
    """

    def __init__(
        self, group: str, is_surely_ours: Callable[[MessageQueue], bool], troubles: SaidOnce
    ) -> None:
        self._group = group
        self._is_surely_ours = is_surely_ours
        self._troubles = troubles

    def commit_nowait(self, readers: Iterable[QueueReader]) -> None:
        """Commit without waiting."""
        for reader in readers:
            if self._is_surely_ours(reader.queue):
                reader.commit_nowait()

    async def commit(self, readers: Iterable[QueueReader]) -> None:
        """Commit for good.

        Raises:
            PymqError: one is not committed.
        """
        await asyncio.gather(*(self._commit(reader) for reader in readers))

    async def commit_last(self, readers: Iterable[QueueReader]) -> None:
        """Commit what is given up; say what cannot be."""
        await asyncio.gather(*(self._commit_last(reader) for reader in readers))

    async def _commit(self, reader: QueueReader) -> None:
        """Commit a queue, unless that would set back whoever has read it while we were in doubt."""
        is_ours = self._is_surely_ours(reader.queue) and not reader.is_in_doubt
        if not is_ours and await reader.is_behind():
            raise CommitFailed(
                f"group {self._group!r}, {reader.queue}: another member has read this queue while "
                "our lock or our connection was in doubt; what it has committed stays"
            )
        await reader.commit()

    async def _commit_last(self, reader: QueueReader) -> None:
        broker = reader.queue.broker_name
        try:
            await self._commit(reader)
        except PymqError as error:
            self._troubles.warn(
                ("commit", broker),
                "group %r: queues of broker %r are not committed, their last messages will be "
                "delivered again: %s",
                self._group,
                broker,
                error,
            )
        else:
            self._troubles.over(("commit", broker))
