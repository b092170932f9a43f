"""How far a group is in one queue, as its broker keeps it."""

import asyncio
import logging
import time
from functools import partial
from typing import Protocol

from pymq.client import operations
from pymq.client.cluster.pool import ClientPool
from pymq.client.operations import Operation
from pymq.errors import (
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    ServiceNotAvailable,
    SystemBusy,
    TooManyPending,
)
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.command import Command

_log = logging.getLogger(__name__)

#: An offset that does not change is committed again after this: a group that was deleted, or a
#: broker that lost it, would not know it.
COMMIT_AGAIN_S = 60.0
#: What the next commit may do better, perhaps at another master.
_PASSING = (ConnectionFailed, RequestTimeout, ServiceNotAvailable, SystemBusy)


class QueueOffsets(Protocol):
    """Keeps the offset of a group in one queue."""

    async def read(self) -> int | None:
        """Return the committed offset; ``None``: there is none.

        Raises:
            PymqError: it cannot be found out.
        """

    def commit_nowait(self, offset: int) -> bool:
        """Commit without waiting, if there is something new, or now and then.

        Returns:
            Has its keeper been told this offset, now or before?
        """

    async def commit(self, offset: int) -> None:
        """Commit for good.

        Raises:
            PymqError: it is not known to be done; what was committed before stays.
        """

    def doubt(self) -> None:
        """What was committed may be forgotten by now."""


class BrokerOffsets:
    """Commits a group's offset in one queue to its broker. For one event loop.

    Args:
        group: consumer group.
        queue: which.
        pool: connections.
    """

    def __init__(self, group: str, queue: MessageQueue, pool: ClientPool) -> None:
        self._group = group
        self._queue = queue
        self._pool = pool
        #: The committed offset, as the broker knows it.
        self._committed: int | None = None
        #: Monotonic.
        self._commit_again_s = 0.0

    async def read(self) -> int | None:
        """Ask the broker."""
        channel = await self._pool.read_channel(self._queue)
        offset = await self._pool.ask(channel, operations.query_offset(self._group, self._queue))
        # Of a group that has committed nothing brokers say 0, too; a reset needs what they keep.
        if offset:
            self._note(offset)
        return offset

    def commit_nowait(self, offset: int) -> bool:
        """Tell the broker, if there is a connection. Its answer is not waited for, but looked at.

        A broker that has become a slave refuses, and may be read from all the same: only its answer
        says that the offset is kept nowhere.
        """
        if offset == self._committed and time.monotonic() < self._commit_again_s:
            return True
        route = self._pool.routes.find(self._queue.topic)
        address = route.masters().get(self._queue.broker_name) if route is not None else None
        channel = self._pool.open_channel(address)
        if channel is None:
            return False
        operation = operations.update_offset(self._group, self._queue, offset)
        try:
            answer = channel.request_nowait(operation.request, self._pool.timeout_s)
        except TooManyPending as error:
            _log.debug("%s", error)
            return False
        answer.add_done_callback(partial(self._answered, operation, channel.address))
        self._note(offset)
        return True

    def _answered(
        self, operation: Operation[None], address: str, answer: asyncio.Future[Command]
    ) -> None:
        if answer.cancelled():
            return
        try:
            with self._pool.routes.hearing(address):
                operation.result(answer.result(), peer=address)
        except PymqError as error:
            _log.debug("not committed: %s", error)
            if isinstance(error, _PASSING):
                self.doubt()

    async def commit(self, offset: int) -> None:
        """Commit, look whether it is there, and if it is not, commit again.

        A RocketMQ broker has many threads for commits: one sent before, without waiting for an
        answer, may be handled last; and of the first two commits of a group in a topic, for
        different queues, handled at a time, it may answer both and keep one.
        """
        pool, queue = self._pool, self._queue
        channel = await pool.read_channel(queue)
        update = operations.update_offset(self._group, queue, offset)
        await pool.ask(channel, update)
        committed = await pool.ask(channel, operations.query_offset(self._group, queue))
        if committed is None or committed < offset:
            await pool.ask(channel, update)
        self._note(offset)

    def doubt(self) -> None:
        """A broker that was killed forgets what it had not saved."""
        self._committed = None

    def _note(self, offset: int) -> None:
        self._committed = offset
        self._commit_again_s = time.monotonic() + COMMIT_AGAIN_S
