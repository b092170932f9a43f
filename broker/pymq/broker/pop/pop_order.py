"""Popping in order: no checkpoints, but queues that are blocked until their messages are done.

Source: RocketMQ PopMessageProcessor, AckMessageProcessor.ackOrderly,
ChangeInvisibleTimeProcessor.processChangeInvisibleTimeForOrder, ConsumerOrderInfoLockManager.
"""

from collections.abc import Callable

from pymq.broker.pop.attempt import PopAttempt
from pymq.broker.pop.checkpoint import GroupQueue
from pymq.broker.pop.popping import Popped
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.order_info import OrderTable, Refused
from pymq.broker.state.topics import TopicTable
from pymq.clock import Clock
from pymq.protocol.receipt_handles import ORDER_REVIVE_QUEUE, order_count_info


class PopOrder:
    """Pops and acknowledges in order.

    Args:
        wake: called with a queue when requests that wait for it may find messages.
    """

    def __init__(
        self,
        orders: OrderTable,
        offsets: OffsetTable,
        topics: TopicTable,
        groups: GroupTable,
        clock: Clock,
        wake: Callable[[GroupQueue], None],
    ) -> None:
        self._orders = orders
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._wake = wake

    def open(self) -> None:
        """Forget what groups have gone past, at another master or before a crash."""
        self._orders.forget_passed(self._reached)

    def keep(
        self, popped: Popped, group: str, invisible_ms: int, attempt_id: str | None
    ) -> PopAttempt:
        """Block the queues of messages that were taken."""
        attempt = PopAttempt(self._clock.wall_ms(), ORDER_REVIVE_QUEUE)
        attempt.kept = popped.taken
        parts: list[str] = []
        for one in popped.taken:
            counts, least = self._orders.pop(
                (one.topic, group, one.queue_id),
                one.queue_offsets,
                attempt_id=attempt_id,
                pop_time=attempt.pop_time,
                invisible_ms=invisible_ms,
            )
            parts += order_count_info(one.topic, one.queue_id, counts, least)
        attempt.order_counts = ";".join(parts)
        return attempt

    def acknowledge(self, queue: GroupQueue, queue_offset: int, pop_time: int) -> str | None:
        """Acknowledge a message; return why it cannot be, or None."""
        before = self._reached(queue)
        if queue_offset < before:
            return None
        reached = self._orders.acknowledge(queue, queue_offset, pop_time, before)
        topic, group, queue_id = queue
        if reached is Refused.UNKNOWN:
            return (
                f"offset is illegal, key:{topic}@{group}@{queue_id}, commit:{queue_offset}: "
                f"{reached.value}"
            )
        if isinstance(reached, int):
            if not self._offsets.has_reset(group, topic, queue_id):
                self._offsets.commit(group, topic, queue_id, reached)
            if not self._orders.is_blocked(queue):
                self._wake(queue)
        return None

    def change(
        self, queue: GroupQueue, queue_offset: int, pop_time: int, invisible_ms: int
    ) -> int | None:
        """Have a message become visible at another time, counted from now.

        Returns:
            Its invisible time counted from its pop time; None if it was acknowledged already.
        """
        if queue_offset < self._reached(queue):
            return None
        visible_ms = self._clock.wall_ms() + invisible_ms
        self._orders.change(queue, queue_offset, pop_time, visible_ms)
        return visible_ms - pop_time

    def _reached(self, queue: GroupQueue) -> int:
        topic, group, queue_id = queue
        return self._offsets.find(group, topic, queue_id) or 0

    def step(self) -> int:
        """Wake who waits for queues that have become free; return how many are popped in order."""
        for queue in self._orders.take_free():
            self._wake(queue)
        return len(self._orders)

    def clean(self) -> None:
        """Forget what nobody needs any more."""
        self._orders.clean(self._is_there)

    def _is_there(self, topic: str, group: str, queue_id: int) -> bool:
        config = self._topics.find(topic)
        return (
            config is not None and queue_id < config.read_queue_count and group in self._groups
        )
