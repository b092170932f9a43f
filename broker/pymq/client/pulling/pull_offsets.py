"""A pull consumer's places in its queues: where it is, where it goes on, what is committed."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from pymq.client import operations
from pymq.client.checks import Moment, check_count, moment_ms
from pymq.client.operations import Operation
from pymq.client.pulling.offsets_by_time import offset_at
from pymq.client.pulling.pull_member import PullMember
from pymq.client.pulling.queue_choice import place_in
from pymq.client.pulling.queue_questions import ask_each, of_each
from pymq.errors import (
    CommitFailed,
    ConfigurationError,
    OffsetOutOfRange,
    PymqError,
    RequestTimeout,
)
from pymq.protocol.bodies import MessageQueue


class PullOffsets(PullMember):
    """What ``PullConsumer`` knows of offsets."""

    async def seek(self, queue: MessageQueue, where: int | Moment | str) -> int:
        """Go on elsewhere in a queue that is ours; what was pulled of it is dropped.

        With ``auto_commit`` what lies before counts as consumed.

        Args:
            queue: which.
            where: an offset; a time, for the first message stored then or later (a datetime
                without a zone is local; a ``numpy.datetime64`` is UTC); ``"first"``, or
                ``"last"`` for its end, where the next message will be.

        Returns:
            The offset.

        Raises:
            ConfigurationError: the queue is not ours, or ``where`` is nothing of these.
            OffsetOutOfRange: the queue has no such offset; the text says which it has.
            PymqError: its broker could not be asked.
        """
        held = self._held()
        self._ours([queue])
        if isinstance(where, int) and not isinstance(where, bool):
            await self._check_offset(queue, where)
            offset = where
        else:
            offset = await place_in(self._pool, queue, where)
        self._ours([queue])  # It may have gone meanwhile.
        held.move(queue, offset)
        return offset

    async def _check_offset(self, queue: MessageQueue, offset: int) -> None:
        (first,) = (await self.begin_offsets([queue])).values()
        (end,) = (await self.end_offsets([queue])).values()
        if not first <= offset <= end:
            raise OffsetOutOfRange(
                f"topic {queue.topic!r}, {queue.broker_name}:{queue.queue_id}: cannot go to "
                f"offset {offset}, the queue holds {first} up to {end}"
            )

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that a poll returns of a queue that is ours.

        Raises:
            ConfigurationError: the queue is not ours.
            RequestTimeout: its broker does not say where to begin.
        """
        held = self._held()
        self._ours([queue])
        self._polled()  # What has reached the caller is behind it.
        try:
            async with asyncio.timeout(self._pool.timeout_s):
                return await held.wait_position(queue)
        except TimeoutError as error:
            raise RequestTimeout(
                f"topic {queue.topic!r}, {queue.broker_name}:{queue.queue_id}: where to begin is "
                f"not known after {self._pool.timeout_s:g} s; is its broker running?"
            ) from error

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit, and see that the brokers have taken it.

        Args:
            offsets: of the next message to be consumed, by queue; the queues must be ours, and
                have that offset or end there. By default what was polled of all queues counts as
                consumed.

        Raises:
            ConfigurationError: ``offsets`` is no mapping.
            CommitFailed: an offset was not committed; ``failed`` says which and why. The others
                were.
            ClientClosed: the consumer is not open.
        """
        held = self._held()
        if offsets is None:
            offsets = {one.queue: one.polled_offset for one in self._polled()}
        elif not isinstance(offsets, Mapping):
            raise ConfigurationError(f"offsets={offsets!r:.80}: expected a mapping, by queue")
        failed: dict[Any, PymqError] = {}

        async def commit(queue: MessageQueue, offset: int) -> None:
            try:
                check_count(f"offset of {queue}", offset, 0)
                reader = held.reader(queue)
                if reader is None:
                    raise ConfigurationError(f"{queue} is not ours, or not any more")
                if reader.pulled is None or offset > reader.pulled.position:
                    await self._check_offset(queue, offset)
                await reader.commit_offset(offset)
            except PymqError as error:
                failed[queue] = error

        await asyncio.gather(*(commit(*one) for one in offsets.items()))
        if failed:
            text = "; ".join(str(error) for error in list(failed.values())[:3])
            raise CommitFailed(
                f"group {self.group!r}: {len(failed)} of {len(offsets)} queues are not committed, "
                f"their messages will be delivered again: {text}",
                failed,
            )

    async def committed(
        self, queues: Iterable[MessageQueue] | None = None
    ) -> dict[MessageQueue, int | None]:
        """Return what the group has committed in queues; ``None`` where it has not.

        (Brokers of 4.9 answer 0 for a group that has committed nothing in a young queue.)

        Args:
            queues: any; by default those that are ours.

        Raises:
            PymqError: a broker could not be asked.
        """

        def operation(queue: MessageQueue) -> Operation[int | None]:
            return operations.query_offset(self.group, queue, zero_if_new=False)

        return await ask_each(self._pool, self._asked(queues), operation)

    async def begin_offsets(
        self, queues: Iterable[MessageQueue] | None = None
    ) -> dict[MessageQueue, int]:
        """Return the offset of the first message that each queue still has. As ``committed``."""
        return await ask_each(self._pool, self._asked(queues), operations.min_offset)

    async def end_offsets(
        self, queues: Iterable[MessageQueue] | None = None
    ) -> dict[MessageQueue, int]:
        """Return the offset that each queue's next message will get. As ``committed``."""
        return await ask_each(self._pool, self._asked(queues), operations.max_offset)

    async def offsets_for_time(
        self, when: Moment, queues: Iterable[MessageQueue] | None = None
    ) -> dict[MessageQueue, int]:
        """Return the offset of the first message stored at a time or later. As ``committed``.

        Where there is none, the queue's end. A datetime without a zone is local time; a
        ``numpy.datetime64`` is UTC.
        """
        time_ms = moment_ms("when", when)
        pool = self._pool
        return await of_each(self._asked(queues), lambda queue: offset_at(pool, queue, time_ms))
