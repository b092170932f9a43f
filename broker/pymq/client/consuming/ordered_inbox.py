"""Messages that are handled in order: one call of a handler for each queue at a time.

Each queue has a lane. What follows in the lane waits until everything that was taken from it is
acknowledged, or was put back::

    deliver --> waiting messages --take--> at work --acknowledge--> next
                      ^                       |
                      +------- put_back ------+

A lane also waits while its queue is suspended after a failure, paused, given up, or not surely
ours (see ``queue_locks``). All messages of a sharding key are in one queue, so they are in order.

Source: RocketMQ ConsumeMessageOrderlyService, ProcessQueue.takeMessages.
"""

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence

from pymq.client.group.inbox import Delivery, FlowLimits, Inbox
from pymq.client.group.process_queue import ProcessQueue
from pymq.protocol.bodies import MessageQueue


class _Lane:
    """What was pulled from one queue and is not finished."""

    __slots__ = (
        "at_work",
        "idle",
        "is_queued",
        "is_stopped",
        "is_suspended",
        "suspended_until_s",
        "waiting",
    )

    def __init__(self) -> None:
        self.waiting: deque[Delivery] = deque()
        self.at_work: set[Delivery] = set()
        #: Is it among those that may be taken from?
        self.is_queued = False
        self.is_suspended = False
        #: By the event loop's time.
        self.suspended_until_s = 0.0
        #: Nothing more of it is delivered, for good.
        self.is_stopped = False
        #: Done when nothing is at work.
        self.idle: list[asyncio.Future[None]] = []

    def insert(self, delivery: Delivery) -> None:
        """Put a message that was taken to its place before those that follow it."""
        offset, index = delivery.message.queue_offset, 0
        while index < len(self.waiting) and self.waiting[index].message.queue_offset < offset:
            index += 1
        self.waiting.insert(index, delivery)

    def tell_idle(self) -> None:
        """Wake who waits for this lane."""
        for waiting in self.idle:
            if not waiting.done():
                waiting.set_result(None)


class OrderedInbox(Inbox):
    """An ``Inbox`` that keeps the order of each queue. For one event loop.

    Args:
        limits: how much may be pulled and not finished.
        is_ours: may messages of a queue be delivered now? For any thread.
    """

    def __init__(self, limits: FlowLimits, is_ours: Callable[[MessageQueue], bool]) -> None:
        super().__init__(limits)
        self._is_ours = is_ours
        #: Called when a message waits because its queue is not surely ours.
        self.on_doubt: Callable[[], None] = lambda: None
        #: Has messages put back that wait for a thread: nobody is at work on them.
        self.recall: Callable[[], None] = lambda: None
        self._lanes: dict[ProcessQueue, _Lane] = {}
        #: Lanes from which something can be taken, unless they are not surely ours.
        self._queued: deque[ProcessQueue] = deque()

    # --- pulls

    def _enqueue(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:  # all of one pull
            queue = deliveries[0].process_queue
            self._lanes.setdefault(queue, _Lane()).waiting.extend(deliveries)
            self._offer(queue)

    def _offer(self, queue: ProcessQueue) -> None:
        """Have a lane taken from, if it can be."""
        lane = self._lanes.get(queue)
        if lane is None or lane.is_queued or lane.at_work or not lane.waiting:
            return
        if lane.is_suspended or lane.is_stopped or queue.is_paused:
            return
        lane.is_queued = True
        self._queued.append(queue)
        self._wake_takers(1)

    def why_unfinished(self, queue: ProcessQueue) -> str:
        """Return what the first unfinished message of a queue waits for, and what would help."""
        lane = self._lanes.get(queue)
        failure = queue.failures.get(queue.commit_offset)
        if failure is None and lane is not None and not lane.at_work and lane.waiting:
            if not self._is_ours(queue.queue):
                return "its broker has not confirmed the lock of the queue; is it running?"
            return "it waits for a handler; raise concurrency, or start more members"
        return super().why_unfinished(queue)

    # --- handlers

    def take_nowait(self) -> Delivery | None:
        """Return the next message of a queue of which none is being handled."""
        for _ in range(len(self._queued)):
            queue = self._queued.popleft()
            lane = self._lanes[queue]
            lane.is_queued = False
            if self._is_closed or lane.is_stopped or lane.is_suspended or queue.is_paused:
                continue
            if not self._is_ours(queue.queue):
                lane.is_queued = True
                self._queued.append(queue)  # ``locks_changed`` says when.
                self.on_doubt()
                continue
            return self._take_from(lane)
        return None

    def take_with(self, delivery: Delivery) -> Delivery | None:
        """Return the message that follows one that was just taken, for the same call."""
        lane = self._lanes.get(delivery.process_queue)
        if lane is None or not lane.waiting or lane.is_stopped or self._is_closed:
            return None
        return self._take_from(lane)

    def may_follow(self, delivery: Delivery) -> bool:
        """May whoever has taken a message begin with it now? For any thread."""
        queue = delivery.process_queue
        lane = self._lanes.get(queue)
        if lane is None or lane.is_stopped or lane.is_suspended or self._is_closed:
            return False
        return not queue.is_paused and self._is_ours(queue.queue)

    def _take_from(self, lane: _Lane) -> Delivery:
        delivery = lane.waiting.popleft()
        lane.at_work.add(delivery)
        self._hand_out(delivery)
        return delivery

    def acknowledge(self, delivery: Delivery) -> None:
        """A message is finished; what follows it may be delivered. Idempotent."""
        super().acknowledge(delivery)
        self._released(delivery)

    def put_back(self, delivery: Delivery) -> None:
        """Deliver a message again, before those that follow it, unless it has an outcome."""
        self.in_hand.discard(delivery)
        delivery.taken_s = 0.0
        lane = self._lanes.get(delivery.process_queue)
        if lane is not None and delivery in lane.at_work and delivery.outcome is None:
            lane.insert(delivery)
            self._released(delivery)

    def begin_again(self, delivery: Delivery) -> None:
        """Deliver a message once more, before those that follow it.

        As another delivery, of a copy: whoever has this one may still be at work on it, and what
        becomes of it then must not count for the next try.
        """
        self.in_hand.discard(delivery)
        lane = self._lanes.get(delivery.process_queue)
        if lane is None or delivery not in lane.at_work:
            return
        if delivery.outcome is not None:
            delivery.message._hold(delivery.outcome)
        times = delivery.message.reconsume_times + 1
        message = dataclasses.replace(delivery.message, reconsume_times=times)
        again = Delivery(message, delivery.process_queue, delivery.settler)
        if again.settler is not None:
            message._hold(again)
        lane.insert(again)
        self._released(delivery)

    def _released(self, delivery: Delivery) -> None:
        queue = delivery.process_queue
        lane = self._lanes.get(queue)
        if lane is None:
            return
        lane.at_work.discard(delivery)
        if lane.at_work:
            return
        lane.tell_idle()
        self._offer(queue)

    # --- queues

    def suspend(self, queue: ProcessQueue, seconds: float) -> None:
        """Deliver nothing of a queue for a while; of two such times the longer one counts."""
        lane = self._lanes.setdefault(queue, _Lane())
        loop = asyncio.get_running_loop()
        lane.suspended_until_s = max(lane.suspended_until_s, loop.time() + seconds)
        loop.call_at(lane.suspended_until_s, self._end_suspension, queue, lane.suspended_until_s)
        lane.is_suspended = True

    def _end_suspension(self, queue: ProcessQueue, until_s: float) -> None:
        lane = self._lanes.get(queue)
        if lane is not None and lane.suspended_until_s <= until_s:
            lane.is_suspended = False
            self._offer(queue)

    def locks_changed(self) -> None:
        """Queues may be surely ours that were not."""
        self._wake_takers(len(self._queued))

    def resume(self, queue: ProcessQueue) -> None:
        """Deliver messages of a queue that was paused."""
        queue.is_paused = False
        self._offer(queue)

    async def wait_idle(self, queue: ProcessQueue) -> None:
        """Deliver nothing more of a queue, and wait until its handler is done."""
        lane = self._lanes.get(queue)
        if lane is None:
            return
        lane.is_stopped = True
        self.recall()
        while lane.at_work:
            done = asyncio.get_running_loop().create_future()
            lane.idle.append(done)
            try:
                await done
            finally:
                lane.idle.remove(done)

    def drop(self, process_queue: ProcessQueue) -> None:
        """Give a queue up: nothing of it is delivered any more."""
        super().drop(process_queue)
        lane = self._lanes.pop(process_queue, None)
        if lane is not None:
            lane.at_work.clear()
            lane.tell_idle()
            if lane.is_queued:
                self._queued.remove(process_queue)
