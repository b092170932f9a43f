"""The queues that are a consumer's at the moment: one reader for each, from first to last.

::

    take: lock it (in order only) -> listener.assigned -> read
    give up: stop reading -> wait for its handler (in order only) -> listener.revoked -> commit
             -> unlock
    lose: stop reading -> wait for its handler (in order only) -> listener.lost

In order, a queue that waits for its handler is *leaving*: it is neither read nor taken again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pymq.client.cluster.pool import ClientPool
from pymq.client.group.broker_offsets import QueueOffsets
from pymq.client.group.inbox import Delivery, Inbox
from pymq.client.group.queue_locks import QueueLocks
from pymq.client.group.queue_reader import QueueReader, ReaderParts
from pymq.client.group.rebalance_listener import ListenerCalls
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.unread import say_unread
from pymq.errors import ConfigurationError, PymqError
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue, Subscription

_log = logging.getLogger(__name__)

#: When something failed.
SOON_S = 1.0
#: A queue whose handler keeps it from being given up says so after this.
LEAVING_S = 30.0


@dataclass(slots=True, eq=False)
class _Leaving:
    """A queue that is read no more, and waits for its handler."""

    reader: QueueReader
    is_lost: bool
    is_waiting: bool = True
    task: asyncio.Task[None] | None = None


class HeldQueues:
    """Readers by queue. For one event loop.

    Args:
        group: consumer group.
        pool: connections.
        inbox: gets the messages.
        offsets: returns who keeps the offset of a queue.
        on_undecodable: gets messages whose body cannot be decompressed.
        listener: of the program.
        wake: has the queues divided again.
    """

    def __init__(
        self,
        group: str,
        *,
        pool: ClientPool,
        inbox: Inbox,
        offsets: Callable[[MessageQueue], QueueOffsets],
        on_undecodable: Callable[[Delivery], None],
        listener: ListenerCalls,
        wake: Callable[[], None],
    ) -> None:
        self._group = group
        self._pool = pool
        self._inbox = inbox
        self._listener = listener
        self._wake = wake
        self._troubles = SaidOnce(_log)
        self._reader_parts = ReaderParts(
            group=group,
            pool=pool,
            inbox=inbox,
            offsets=offsets,
            on_undecodable=on_undecodable,
            troubles=self._troubles,
        )
        #: For a consumer in order; set before anything is taken.
        self.locks: QueueLocks | None = None
        self.readers: dict[MessageQueue, QueueReader] = {}
        self._reading: dict[MessageQueue, asyncio.Task[None]] = {}
        self._leaving: dict[MessageQueue, _Leaving] = {}
        #: Queues are given up in these.
        self._ending: set[asyncio.Task[None]] = set()
        #: Up to where we had finished the queues that we do not read any more.
        self._left_at: dict[MessageQueue, int] = {}
        #: Are all queues paused, also those to come?
        self._all_paused = False
        self._is_closing = False

    # --- what there is

    def subscribed(self, subscriptions: Callable[[str], Subscription | None]) -> None:
        """What is wanted of the queues may have changed."""
        for queue, reader in self.readers.items():
            reader.subscription = subscriptions(queue.topic) or reader.subscription

    def commit_nowait(self) -> None:
        """Commit all queues without waiting."""
        for reader in (*self.readers.values(), *self._leaving_readers()):
            reader.commit_nowait()

    async def commit(self) -> None:
        """Commit all queues for good.

        Raises:
            PymqError: one is not committed.
        """
        readers = (*self.readers.values(), *self._leaving_readers())
        await asyncio.gather(*(reader.commit() for reader in readers))

    def _leaving_readers(self) -> list[QueueReader]:
        return [one.reader for one in self._leaving.values() if one.is_waiting and not one.is_lost]

    # --- pause

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues of ours that are paused."""
        return sorted(queue for queue, reader in self.readers.items() if reader.is_paused)

    def pause(self, queues: Iterable[MessageQueue] | None) -> None:
        """Pull and deliver nothing of queues; ``None``: of all, also of those to come.

        Raises:
            ConfigurationError: one is not ours.
        """
        if queues is None:
            self._all_paused = True
        for reader in self._ours(queues):
            reader.pause()

    def resume(self, queues: Iterable[MessageQueue] | None) -> None:
        """Go on with queues; ``None``: with all.

        Raises:
            ConfigurationError: one is not ours.
        """
        if queues is None:
            self._all_paused = False
        for reader in self._ours(queues):
            reader.resume()

    def _ours(self, queues: Iterable[MessageQueue] | None) -> list[QueueReader]:
        if queues is None:
            return list(self.readers.values())
        wanted = list(queues)
        for queue in wanted:
            if queue not in self.readers:
                raise ConfigurationError(
                    f"{queue!r:.200} is not a queue of this member at the moment; see `assignment`"
                )
        return [self.readers[queue] for queue in wanted]

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere in queues, as far as they are ours: their group was reset."""
        for queue, offset in offsets.items():
            if queue in self.readers:
                self.readers[queue].reset(offset)

    # --- take

    async def take(
        self,
        queues: Collection[MessageQueue],
        subscription: Subscription,
        start_in: Callable[[MessageQueue], StartPolicy],
    ) -> bool:
        """Begin to read queues; return whether all could be had.

        Args:
            queues: of one topic, not held.
            subscription: to their topic.
            start_in: returns where the group begins in a queue without a committed offset.
        """
        free = {queue for queue in queues if queue not in self._leaving}
        granted = free
        if self.locks is not None and free:
            granted = await self.locks.lock(free)
        if self._is_closing or not granted:
            return not queues
        for queue in sorted(granted):
            reader = self._new_reader(queue, subscription, start_in(queue))
            self.readers[queue] = reader
            if self._all_paused:
                reader.pause()
        await self._listener.assigned(granted)
        if not self._is_closing:
            for queue in sorted(granted & self.readers.keys()):
                work = self._read(self.readers[queue])
                self._reading[queue] = self._pool.spawn(f"read {queue}", work)
        return len(granted) == len(queues)

    def _new_reader(
        self, queue: MessageQueue, subscription: Subscription, start: StartPolicy
    ) -> QueueReader:
        return QueueReader(
            queue,
            self._reader_parts,
            subscription=subscription,
            start=start,
            left_at=self._left_at.get(queue),
        )

    async def _read(self, reader: QueueReader) -> None:
        queue = reader.queue
        try:
            await reader.run()
        except PymqError as error:
            # Where to begin is not known, and guessing would skip messages or repeat all.
            say_unread(self._troubles, self._group, queue, error)
        finally:
            is_ours = self.readers.get(queue) is reader and not self._is_closing
            if is_ours:
                self._reading.pop(queue, None)
                self._remove(queue)
                self._drop(reader)
        if is_ours:
            await self._listener.lost([queue])
            await self._unlock([queue])
        await asyncio.sleep(SOON_S)
        self._wake()

    # --- give up

    async def give_up(self, queues: Collection[MessageQueue]) -> None:
        """Stop reading queues and commit them, so that their next readers go on where we were.

        In order, that is done for each of them when its handler is.
        """
        if self.locks is not None:
            self._leave_soon(queues, is_lost=False)
        elif readers := self._remove_all(queues):
            await self._finish(self._end_read(readers))

    async def lose(self, queues: Collection[MessageQueue]) -> None:
        """Stop reading queues that cannot be committed."""
        if self.locks is not None:
            self._leave_soon(queues, is_lost=True)
        elif readers := self._remove_all(queues):
            await self._finish(self._end_lost(readers))

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what ``close`` must wait for."""
        task = self._pool.spawn("give up queues", work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        await asyncio.wait([task])

    def lost_lock(self, queue: MessageQueue) -> None:
        """Another member reads a queue of ours."""
        self._leave_soon([queue], is_lost=True)
        if queue in self._leaving:
            self._leaving[queue].is_lost = True

    async def may_go_on(self, queue: MessageQueue) -> bool:
        """Return whether nobody else has read on in a queue while its lock was in doubt."""
        reader = self.readers.get(queue)
        if reader is None or reader.process_queue is None:
            return True
        committed = await reader.offsets.read()
        return committed is None or committed <= reader.process_queue.commit_offset

    def _leave_soon(self, queues: Collection[MessageQueue], *, is_lost: bool) -> None:
        for reader in self._remove_all(queues):
            leaving = self._leaving[reader.queue] = _Leaving(reader, is_lost)
            leaving.task = self._pool.spawn(f"leave {reader.queue}", self._leave(leaving))

    async def _leave(self, leaving: _Leaving) -> None:
        reader = leaving.reader
        say = self._pool.loop.call_later(LEAVING_S, self._say_leaving, reader)
        try:
            if reader.process_queue is not None:
                await self._inbox.wait_idle(reader.process_queue)
            leaving.is_waiting = False
            await (self._end_lost if leaving.is_lost else self._end_read)([reader])
        finally:
            say.cancel()
            self._leaving.pop(reader.queue, None)
            self._wake()

    def _say_leaving(self, reader: QueueReader) -> None:
        queue = reader.queue
        offset = reader.process_queue.commit_offset if reader.process_queue is not None else -1
        _log.warning(
            "group %r, topic %r, %s:%d: this queue is another member's now, but the handler of the "
            "message at offset %d is not done after %g s; it keeps the queue until then, because "
            "messages are handled in order; give what handles messages a time limit",
            self._group,
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            offset,
            LEAVING_S,
        )

    async def _end_read(self, readers: list[QueueReader]) -> None:
        queues = [reader.queue for reader in readers]
        await self._listener.revoked(queues)
        for reader in readers:
            self._drop(reader)
        await asyncio.gather(*(self._commit(reader) for reader in readers))
        await self._unlock(queues)

    async def _end_lost(self, readers: list[QueueReader]) -> None:
        for reader in readers:
            self._drop(reader)
            if self.locks is not None:
                self.locks.forget(reader.queue)
        await self._listener.lost([reader.queue for reader in readers])

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        if self.locks is not None:
            await self.locks.unlock(queues)

    def _remove_all(self, queues: Collection[MessageQueue]) -> list[QueueReader]:
        return [reader for queue in queues if (reader := self._remove(queue)) is not None]

    def _remove(self, queue: MessageQueue) -> QueueReader | None:
        task = self._reading.pop(queue, None)
        if task is not None:
            task.cancel()
        return self.readers.pop(queue, None)

    def _drop(self, reader: QueueReader) -> None:
        """Deliver nothing more of a queue, and remember how far it was finished.

        A broker that is killed may forget what was committed in its last seconds.
        """
        if reader.process_queue is not None:
            self._left_at[reader.queue] = reader.process_queue.commit_offset
            self._inbox.drop(reader.process_queue)

    async def _commit(self, reader: QueueReader) -> None:
        broker = reader.queue.broker_name
        try:
            await reader.commit()
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

    # --- the end

    def stop(self) -> None:
        """Pull no more. The readers stay, to be committed."""
        self._is_closing = True
        for task in self._reading.values():
            task.cancel()

    async def close(self) -> None:
        """Commit all queues and give them up; call ``stop`` before, and end the handlers."""
        readers = [*self.readers.values(), *self._leaving_readers()]
        tasks = [leaving.task for leaving in self._leaving.values() if leaving.task is not None]
        for leaving in self._leaving.values():
            if leaving.is_waiting and leaving.task is not None:
                leaving.task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)
        queues = [reader.queue for reader in readers]
        await self._listener.revoked(queues)
        await asyncio.gather(*(self._commit(reader) for reader in readers))
        await self._unlock(queues)
        self.readers.clear()
