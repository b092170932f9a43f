"""Reads one assigned queue: where to begin, long-polling pulls, filter, commit.

::

    committed offset? --22--> policy of the group (first, last, time)   any other error: give up,
          |                          |                                  the next rebalance tries
          +-----------+--------------+
                      v
      room? -> pull -> found     deliver, pull on          }
                    -> nothing   pull on at next offset    } forever
                    -> moved     drop what is here, commit the new offset, begin there
                    -> lost      ask whether another member has read on, and go on there
                    -> failure, or nowhere at once (``pull_pace``)   pause, pull again
"""

import asyncio
import logging
import time

from pymq.client import operations
from pymq.client.cluster.routes import MASTER_ID
from pymq.client.group.first_offset import first_offset
from pymq.client.group.moved_offset import moved_offset
from pymq.client.group.process_queue import ProcessQueue
from pymq.client.group.pull_pace import FAILURE_PAUSE_S, FLOW_CONTROL, PullPace
from pymq.client.group.pulled_messages import read_pulled
from pymq.client.group.reader_parts import ReaderParts
from pymq.client.group.start_policy import StartPolicy
from pymq.client.group.subscriptions import wants_the_same
from pymq.client.group.unread import AWAY
from pymq.client.operations import PullResult, PullStatus
from pymq.errors import (
    BrokerError,
    ConfigurationError,
    PymqError,
    RemoteProtocolError,
    TopicNotExist,
)
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import MessageQueue, Subscription

_log = logging.getLogger(__name__)

#: How long a broker may hold a pull for which it has nothing (brokerSuspendMaxTimeMillis).
SUSPEND_S = 15.0
#: How long we wait for the answer to a pull (consumerTimeoutMillisWhenSuspend).
PULL_TIMEOUT_S = 30.0
#: A queue that may not pull because of one unfinished message says so after this: when the
#: message holds back others that were handled, and when it is only slow.
HELD_BACK_S = 10.0
SLOW_S = 60.0
#: For so long the offset that a reset has committed stays as it is.
RESET_SEEN_S = 1.5
#: Pause when a message needs a package that is not installed.
MISSING_PACKAGE_PAUSE_S = 5.0
#: Most messages and bytes of one pull; RocketMQ brokers give 32 and 256 KiB.
PULL_COUNT_MAX = 1024
PULL_BYTES = 4 << 20


class QueueReader:
    """Pulls one queue into an inbox.

    Args:
        queue: which.
        parts: shared with the other readers.
        subscription: what of the queue is wanted.
        start: where to begin when there is no committed offset.
        left_at: where this member left the queue, when it has read it before. A broker that is
            killed forgets what was committed in its last seconds.
    """

    def __init__(
        self,
        queue: MessageQueue,
        parts: ReaderParts,
        *,
        subscription: Subscription,
        start: StartPolicy,
        left_at: int | None,
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.offsets = parts.offsets(queue)
        self._parts = parts
        self._group = parts.group
        self._pool = parts.pool
        self._inbox = parts.inbox
        self._start = start
        self._left_at = left_at
        #: ``None`` until it is known where to begin.
        self.process_queue: ProcessQueue | None = None
        self._broker_id = MASTER_ID
        #: Where it pulled last; ``None``: nowhere, or nobody has read on since it was lost.
        self._pulled_over: AsyncChannel | None = None
        #: Does it wait until it may pull?
        self._is_waiting = False
        #: Store time of the last message that was pulled; ``None``: none was.
        self._newest_ms: int | None = None
        self._pace = PullPace()
        #: How many messages the next pull may bring; fewer if not all of the last had room.
        self._count_max = PULL_COUNT_MAX
        self._may_pull = asyncio.Event()
        self._may_pull.set()
        #: The message that kept the queue from pulling, as it was logged.
        self._held_offset: int | None = None
        self._step_scope: asyncio.Timeout | None = None
        #: Where to go on, as the broker has said.
        self._reset_to: int | None = None
        self._quiet_until_s = 0.0

    async def run(self) -> None:
        """Read until cancelled.

        Raises:
            PymqError: it cannot be found out where to begin; nothing was assumed.
        """
        self._begin(await self._first_offset())
        while True:
            assert self.process_queue is not None
            try:
                async with asyncio.timeout(None) as self._step_scope:
                    await self._pace.pause(await self._step(self.process_queue))
            except TimeoutError:
                pass  # It is to go on elsewhere.
            finally:
                self._step_scope = None
            if self._reset_to is not None:
                await self._carry_out_reset(self._reset_to)

    def subscribe(self, subscription: Subscription) -> None:
        """Want something else of the queue, from the next message that was not pulled yet on."""
        before, self.subscription = self.subscription, subscription
        if not wants_the_same(before, subscription):
            self._interrupt()  # A pull under way passes over what was not wanted before.

    def route_changed(self) -> None:
        """There may be another master: commit there, and pull now if the last pull failed."""
        self.offsets.doubt()
        self._pace.end_pause()

    def reset(self, offset: int) -> None:
        """Go on at another offset, as soon as no handler is at work in order, and commit that."""
        self._reset_to = offset
        self._interrupt()

    def _interrupt(self) -> None:
        """End the step that is under way."""
        if self._step_scope is not None and not self._step_scope.expired():
            self._step_scope.reschedule(asyncio.get_running_loop().time())

    async def _carry_out_reset(self, offset: int) -> None:
        assert self.process_queue is not None
        try:
            await self._go_on(self.process_queue, offset, "the offset of its group was reset")
        except PymqError as error:  # That is not committed: once more.
            self._failed(error)
            await asyncio.sleep(FAILURE_PAUSE_S)
        else:
            # Whoever has reset the group looks whether that was committed.
            self._quiet_until_s = time.monotonic() + RESET_SEEN_S
            if self._reset_to == offset:
                self._reset_to = None

    def _begin(self, offset: int) -> None:
        self.process_queue = ProcessQueue(self.queue, offset)
        self.process_queue.is_paused = self.is_paused

    # --- where to begin, and what is done

    async def _first_offset(self) -> int:
        return await first_offset(
            self.queue, self._pool, self.offsets, start=self._start, left_at=self._left_at
        )

    def commit_nowait(self) -> bool:
        """Commit without waiting, if need be; return whether ``offsets`` has been told all."""
        if self.is_in_doubt:
            if self._is_waiting:
                self._interrupt()  # It is to be looked whether the queue may be committed.
        elif self.process_queue is not None and time.monotonic() >= self._quiet_until_s:
            return self.offsets.commit_nowait(self.process_queue.commit_offset)
        return False

    async def commit(self) -> None:
        """Commit for good.

        Raises:
            PymqError: there is no answer, or the broker refused; what was committed before stays.
        """
        if self.process_queue is not None:
            await self.offsets.commit(self.process_queue.commit_offset)

    @property
    def is_in_doubt(self) -> bool:
        """Were we cut off, so that another member may have read on?"""
        return self._pulled_over is not None and not self._pulled_over.is_open

    async def is_behind(self) -> bool:
        """Ask whether somebody has committed more than we have finished.

        Raises:
            PymqError: it cannot be found out.
        """
        committed = await self.offsets.read()
        if committed is None or self.process_queue is None:
            return False
        return committed > self.process_queue.commit_offset

    # --- pause

    @property
    def is_paused(self) -> bool:
        """Does it neither pull nor deliver for the moment?"""
        return not self._may_pull.is_set()

    def pause(self) -> None:
        """Pull and deliver nothing until ``resume``. Idempotent."""
        self._may_pull.clear()
        self._parts.unread.forget(self.queue)
        if self.process_queue is not None:
            self.process_queue.is_paused = True

    def resume(self) -> None:
        """Go on where ``pause`` stopped. Idempotent."""
        self._may_pull.set()
        if self.process_queue is not None and self.process_queue.is_paused:
            self._inbox.resume(self.process_queue)

    # --- pulls

    async def _step(self, process_queue: ProcessQueue) -> float:
        """Pull once; return for how long to pause, in seconds."""
        if self.is_in_doubt:
            return await self._end_doubt(process_queue)
        self._is_waiting = True
        await self._may_pull.wait()
        room = await self._wait_room(process_queue)
        self._is_waiting = False
        if self.is_in_doubt:
            return 0.0
        if self._held_offset is not None and process_queue.commit_offset > self._held_offset:
            _log.info("%s: reading goes on behind offset %d", self._named, self._held_offset)
            self._held_offset = None
        asked, offset, since_s = self.subscription, process_queue.next_offset, time.monotonic()
        try:
            result = await self._pull(process_queue, room)
            if not wants_the_same(self.subscription, asked):
                return 0.0
            took_s = time.monotonic() - since_s
            if result.status is PullStatus.OFFSET_ILLEGAL:
                await self._move(process_queue, result)
            else:
                self._take(process_queue, result)
        except ConfigurationError as error:
            self._failed(error)
            return MISSING_PACKAGE_PAUSE_S
        except PymqError as error:
            self._failed(error)
            return self._pause_after(error)
        self._parts.unread.succeeded(self.queue)
        self._broker_id = result.suggested_broker_id
        has_advanced = process_queue.next_offset > offset
        return self._pace.pause_after(has_advanced=has_advanced, took_s=took_s)

    async def _end_doubt(self, process_queue: ProcessQueue) -> float:
        """Go on where another member is, if one has read on; return for how long to pause."""
        self._is_waiting = False
        try:
            committed = await self.offsets.read()
            if committed is not None and committed > process_queue.commit_offset:
                why = "another member has read on while the connection was lost"
                await self._go_on(process_queue, committed, why, is_committed=True)
        except PymqError as error:
            self._failed(error)
            return self._pause_after(error)
        self._pulled_over = None
        return 0.0

    async def _wait_room(self, process_queue: ProcessQueue) -> int:
        """Wait until the queue may pull; say once if it is one message that keeps it from that."""
        inbox = self._inbox
        while (room := inbox.room(process_queue)) <= 0:
            offset = process_queue.commit_offset
            wait_s = HELD_BACK_S if "span_max" in inbox.reached_limits(process_queue) else SLOW_S
            try:
                async with asyncio.timeout(wait_s):
                    return await inbox.wait_room(process_queue)
            except TimeoutError:
                pass
            is_held = process_queue.commit_offset == offset and process_queue.message_count > 0
            if is_held and offset != self._held_offset:
                self._held_offset = offset
                _log.warning("%s: %s", self._named, inbox.why_held_back(process_queue))
        return room

    async def _pull(self, process_queue: ProcessQueue, room: int) -> PullResult:
        # It carries no commit: RocketMQ brokers handle pulls and commits in different threads, and
        # one under way could set back what is committed in the end.
        operation = operations.Pull(
            self.queue,
            process_queue.next_offset,
            group=self._group,
            count_max=min(room, self._count_max),
            subscription=self.subscription,
            suspend_ms=int(SUSPEND_S * 1000),
            bytes_max=self._pull_bytes(),
        )
        channel = await self._pool.read_channel(self.queue, self._broker_id)
        if not self.is_in_doubt:
            self._pulled_over = channel
        process_queue.pulled_ms = time.time_ns() // 1_000_000
        return await self._pool.ask(channel, operation, timeout_s=PULL_TIMEOUT_S)

    def _pull_bytes(self) -> int:
        return PULL_BYTES

    def _take(self, process_queue: ProcessQueue, result: PullResult) -> None:
        if result.next_offset < process_queue.next_offset:
            raise RemoteProtocolError(
                f"{self._named}: a pull at {process_queue.next_offset} answered that the next one "
                f"begins at {result.next_offset}"
            )
        pulled = read_pulled(
            result,
            self.queue,
            self._pool.network,
            offset=process_queue.next_offset,
            tags=self.subscription.tags,
            byte_room=self._inbox.byte_room(process_queue),
        )
        self._newest_ms = pulled.newest_ms or self._newest_ms
        count_max = max(pulled.count, 1) if pulled.is_cut else 2 * self._count_max
        self._count_max = min(count_max, PULL_COUNT_MAX)
        held = self._inbox.deliver(
            process_queue, pulled.messages, pulled.next_offset, hold=pulled.undecodable
        )
        for delivery in held:
            self._parts.on_undecodable(delivery)

    async def _move(self, process_queue: ProcessQueue, result: PullResult) -> None:
        """Go on elsewhere: the group was reset, or the offset is outside the queue."""
        offset, why = await moved_offset(
            self.queue,
            self._pool,
            result,
            wanted=process_queue.next_offset,
            newest_ms=self._newest_ms,
        )
        # A broker that says so again and again is heard once.
        level = logging.DEBUG if self._pace.is_slowed else logging.WARNING
        await self._go_on(process_queue, offset, why, level=level)

    async def _go_on(
        self,
        process_queue: ProcessQueue,
        offset: int,
        why: str,
        *,
        is_committed: bool = False,
        level: int = logging.WARNING,
    ) -> None:
        """Drop what is here, and begin at another offset."""
        if process_queue is not self.process_queue:
            return  # It was moved meanwhile.
        text = "%s: reading goes on at offset %d, instead of %d: %s"
        _log.log(level, text, self._named, offset, process_queue.next_offset, why)
        await self._inbox.wait_idle(process_queue)
        self._inbox.drop(process_queue)
        self._begin(offset)
        if not is_committed:
            await self.offsets.commit(offset)

    def _pause_after(self, error: PymqError) -> float:
        if isinstance(error, (*AWAY, TopicNotExist)):
            self._pool.routes.doubt(self.queue.topic)
            self.offsets.doubt()
        if not isinstance(error, BrokerError) or error.code != FLOW_CONTROL:
            self._broker_id = MASTER_ID  # A slave may be read from no more.
        return self._pace.pause_after_failure(error)

    def _failed(self, error: PymqError) -> None:
        self._parts.unread.failed(self.queue, error)

    @property
    def _named(self) -> str:
        queue = self.queue
        return f"group {self._group!r}, topic {queue.topic!r}, {queue.broker_name}:{queue.queue_id}"
