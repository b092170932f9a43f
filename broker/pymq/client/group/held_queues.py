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
from typing import Any

from pymq.client.cluster.pool import ClientPool
from pymq.client.group.broker_offsets import QueueOffsets
from pymq.client.group.inbox import Delivery, Inbox
from pymq.client.group.leaving_queue import LeavingQueue
from pymq.client.group.queue_commits import QueueCommits
from pymq.client.group.queue_locks import QueueLocks
from pymq.client.group.queue_reader import QueueReader
from pymq.client.group.reader_parts import ReaderParts
from pymq.client.group.rebalance_listener import ListenerCalls
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.unread import UnreadQueues
from pymq.errors import ConfigurationError, PymqError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import those_who_wait
from pymq.protocol.bodies import MessageQueue, Subscription

_log = logging.getLogger(__name__)

#: When something failed.
SOON_S = 1.0


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
        troubles = SaidOnce(_log)
        self._reader_parts = ReaderParts(
            group=group,
            pool=pool,
            inbox=inbox,
            offsets=offsets,
            on_undecodable=on_undecodable,
            unread=UnreadQueues(group, troubles),
        )
        self._commits = QueueCommits(group, self._is_surely_ours, troubles)
        #: For a consumer in order; set before anything is taken.
        self.locks: QueueLocks | None = None
        self.readers: dict[MessageQueue, QueueReader] = {}
        self._reading: dict[MessageQueue, asyncio.Task[None]] = {}
        self._leaving: dict[MessageQueue, LeavingQueue] = {}
        #: Queues are given up in these.
        self._ending: set[asyncio.Task[None]] = set()
        #: Their listener is told that they are given up; they are not committed yet.
        self._revoking: set[QueueReader] = set()
        #: Up to where we had finished the queues that we do not read any more.
        self._left_at: dict[MessageQueue, int] = {}
        #: Are all queues paused, also those to come?
        self._all_paused = False
        self._is_closing = False

    # --- what there is

    def subscribed(self, subscriptions: Callable[[str], Subscription | None]) -> None:
        """What is wanted of the queues may have changed."""
        for queue, reader in self.readers.items():
            reader.subscribe(subscriptions(queue.topic) or reader.subscription)

    def commit_nowait(self) -> None:
        """Commit all queues without waiting."""
        self._commits.commit_nowait((*self.readers.values(), *self._leaving_readers()))

    async def commit(self) -> None:
        """Commit all queues for good.

        Raises:
            PymqError: one is not committed.
        """
        await self._commits.commit((*self.readers.values(), *self._leaving_readers()))

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
        wanted: Callable[[], Subscription | None],
        start_in: Callable[[MessageQueue], StartPolicy],
    ) -> bool:
        """Begin to read queues; return whether all could be had that are still wanted.

        Args:
            queues: of one topic, not held.
            wanted: returns the subscription to their topic, if there still is one.
            start_in: returns where the group begins in a queue without a committed offset; it is
                asked once for each try to take the queue.
        """
        free = {queue for queue in queues if queue not in self._leaving}
        if (subscription := wanted()) is None:
            return True
        self._reader_parts.unread.keep(subscription.topic, {*queues, *self.readers})
        if not free or self._is_closing:
            return not queues
        readers: list[QueueReader] = []
        await self._finish(self._begin(free, wanted, start_in, readers))
        await self._listener.assigned({reader.queue for reader in readers})
        for reader in readers:
            if self.readers.get(reader.queue) is reader and not self._is_closing:
                task = self._pool.spawn(f"read {reader.queue}", self._read(reader))
                self._reading[reader.queue] = task
        return len(readers) == len(queues) or wanted() is None

    async def _begin(
        self,
        free: set[MessageQueue],
        wanted: Callable[[], Subscription | None],
        start_in: Callable[[MessageQueue], StartPolicy],
        readers: list[QueueReader],
    ) -> None:
        """Lock queues that nobody reads here, and append their readers."""
        starts = {queue: start_in(queue) for queue in free}  # also of what is not granted
        granted = free if self.locks is None else await self.locks.lock(free)
        subscription = wanted()
        if self._is_closing or subscription is None:
            await self._unlock(granted)
            return
        for queue in sorted(granted):
            reader = self._new_reader(queue, subscription, starts[queue])
            self.readers[queue] = reader
            readers.append(reader)
            if self._all_paused:
                reader.pause()

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
            self._reader_parts.unread.failed(queue, error)
        finally:
            is_ours = self.readers.get(queue) is reader and not self._is_closing
            if is_ours:
                self._reading.pop(queue, None)
                self._remove(queue)
                self._drop(reader)
        if is_ours:
            self._leaving[queue] = LeavingQueue(reader, is_lost=True, is_waiting=False)
            await self._finish(self._give_free(queue))
        await asyncio.sleep(SOON_S)
        self._wake()

    async def _give_free(self, queue: MessageQueue) -> None:
        """Have others read a queue that was dropped."""
        try:
            await self._unlock([queue])  # before the listener, which may close us
            await self._listener.lost([queue])
        finally:
            self._leaving.pop(queue, None)

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
        task = self._pool.spawn("queues", work)
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
        return reader is None or not await reader.is_behind()

    def _is_surely_ours(self, queue: MessageQueue) -> bool:
        return self.locks is None or self.locks.is_valid(queue)

    def _leave_soon(self, queues: Collection[MessageQueue], *, is_lost: bool) -> None:
        for reader in self._remove_all(queues):
            leaving = self._leaving[reader.queue] = LeavingQueue(reader, is_lost)
            leaving.task = self._pool.spawn(f"leave {reader.queue}", self._leave(leaving))

    async def _leave(self, leaving: LeavingQueue) -> None:
        reader = leaving.reader
        say = leaving.say_later(self._group)
        try:
            if reader.process_queue is not None:
                await self._inbox.wait_idle(reader.process_queue)
            leaving.is_waiting = False
            await (self._end_lost if leaving.is_lost else self._end_read)([reader])
        finally:
            say.cancel()
            self._leaving.pop(reader.queue, None)
            self._wake()

    async def _end_read(self, readers: list[QueueReader]) -> None:
        self._revoking.update(readers)
        await self._listener.revoked([reader.queue for reader in readers])
        for reader in readers:
            self._drop(reader)
        left = self._revoking.intersection(readers)  # less what ``close`` has given up for us
        self._revoking.difference_update(left)
        await self._commits.commit_last(left)
        await self._unlock([reader.queue for reader in left])

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
        for queue in queues:
            self._reader_parts.unread.forget(queue)
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

    # --- the end

    def stop(self) -> None:
        """Pull no more. The readers stay, to be committed."""
        self._is_closing = True
        for task in self._reading.values():
            task.cancel()

    def close_nowait(self) -> None:
        """Do what ``close`` has not done, because it was interrupted, without waiting for answers.

        In order, a queue whose handler is at work stays locked: another one would work beside it.
        """
        readers = [*self.readers.values(), *self._leaving_readers(), *self._revoking]
        if not readers:
            return
        self._commits.commit_nowait(readers)
        queues, at_work = {reader.queue for reader in readers}, set[MessageQueue]()
        if self.locks is not None:
            taken = [one for one in self._inbox.in_hand if one.taken_s]
            at_work = queues.intersection(one.process_queue.queue for one in taken)
            self.locks.unlock_nowait(queues - at_work)
        _log.warning(
            "group %r: close() was interrupted: what is finished was committed without waiting for "
            "an answer%s",
            self._group,
            f"; {len(at_work)} queues, whose handlers are at work, stay locked for a minute"
            if at_work
            else "",
        )

    async def close(self) -> None:
        """Commit all queues and give them up; call ``stop`` before, and end the handlers."""
        readers = [*self.readers.values(), *self._leaving_readers()]
        tasks = [leaving.task for leaving in self._leaving.values() if leaving.task is not None]
        for leaving in self._leaving.values():
            if leaving.is_waiting and leaving.task is not None:
                leaving.task.cancel()
        ending = {*tasks, *self._ending} - those_who_wait()
        await asyncio.gather(*ending, return_exceptions=True)
        await self._listener.revoked([reader.queue for reader in readers])
        # Of a listener that closes us: after its call it would be too late.
        readers += self._revoking
        self._revoking.clear()
        await self._commits.commit_last(readers)
        await self._unlock([reader.queue for reader in readers])
        self.readers.clear()
        self._leaving.clear()  # of tasks that were cancelled before they had begun
