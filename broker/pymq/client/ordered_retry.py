"""Messages whose handler failed, where messages are handled in order: tried again in their place.

The queue waits for a moment and begins again with the message that failed, and nothing behind it
is delivered before. After the last try it becomes a dead letter, and the queue goes on.

Source: RocketMQ ConsumeMessageOrderlyService.processConsumeResult, checkReconsumeTimes.
"""

import logging
from collections.abc import Callable, Sequence

from pymq.client import operations
from pymq.client.inbox import Delivery
from pymq.client.ordered_inbox import OrderedInbox
from pymq.client.pool import ClientPool
from pymq.client.retry import FailedMessages
from pymq.errors import PymqError

_log = logging.getLogger(__name__)


class OrderedFailures(FailedMessages):
    """Keeps what a consumer could not handle in its place.

    Args:
        group: consumer group.
        max_reconsume_times: after this many failed tries again a message becomes a dead letter;
            ``None``: it is tried for ever.
        suspend_s: how long its queue waits before each try.
        pool: connections.
        inbox: where messages are unfinished.
        is_closing: does the consumer deliver nothing more?
    """

    def __init__(
        self,
        *,
        group: str,
        max_reconsume_times: int | None,
        suspend_s: float,
        pool: ClientPool,
        inbox: OrderedInbox,
        is_closing: Callable[[], bool],
    ) -> None:
        super().__init__(
            group=group, max_reconsume_times=0, pool=pool, inbox=inbox, is_closing=is_closing
        )
        self._tries_max = max_reconsume_times
        self._suspend_s = suspend_s
        self._ordered = inbox

    async def handler_failed(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        """Make dead letters of what was tried too often; the queue begins again with the rest.

        Args:
            deliveries: what the handler was called with.
            error: what it raised.
        """
        kept: list[Delivery] = []
        refusal: PymqError | None = None
        try:
            for delivery in deliveries:
                times = delivery.message.reconsume_times
                if self._tries_max is None or times < self._tries_max:
                    kept.append(delivery)
                elif (refused := await self._bury(delivery)) is not None:
                    refusal = refused
                    kept.append(delivery)
        finally:
            self._say(deliveries, kept, error, refusal)
            self._begin_again(kept, error)

    def _begin_again(self, kept: Sequence[Delivery], error: BaseException) -> None:
        for queue in {delivery.process_queue for delivery in kept}:
            self._ordered.suspend(queue, self._suspend_s)
        for delivery in reversed(kept):
            queue = delivery.process_queue
            delivery.message.reconsume_times += 1
            queue.failures[delivery.message.queue_offset] = (
                f"its handler failed {delivery.message.reconsume_times} times, last with "
                f"{error!r:.200}, and messages are handled in order"
            )
            self._ordered.put_back(delivery)

    async def _bury(self, delivery: Delivery) -> PymqError | None:
        """Make a message a dead letter; return why it stays here, if it does."""
        queue = delivery.process_queue
        if queue.dropped:
            return None
        operation = operations.send_back(
            delivery.message, group=self._group, max_reconsume_times=0
        )
        try:
            await self._pool.ask(await self._pool.read_channel(queue.queue), operation)
        except PymqError as error:
            return error
        self._inbox.acknowledge(delivery)
        return None

    def _say(
        self,
        deliveries: Sequence[Delivery],
        kept: Sequence[Delivery],
        error: BaseException,
        refusal: PymqError | None,
    ) -> None:
        """Log the first failure of a message, then the 2nd, 4th, 8th ...: it may fail for ever."""
        message = deliveries[0].message
        tries = message.reconsume_times + 1
        if kept and tries & (tries - 1):
            return
        if not kept:
            outcome = f"it was tried {tries} times and is a dead letter now (%DLQ%{self._group})"
        else:
            outcome = (
                f"its queue waits for it and tries again in {self._suspend_s:g} s, because "
                f"messages are handled in order (try {tries})"
            )
            if refusal is not None:
                outcome += f"; its broker does not take it as a dead letter: {refusal}"
        others = f" and {len(deliveries) - 1} more" if len(deliveries) > 1 else ""
        _log.warning(
            "the handler failed for message %s%s (topic %r, %s:%d, offset %d); %s",
            message.message_id,
            others,
            message.topic,
            message.broker_name,
            message.queue_id,
            message.queue_offset,
            outcome,
            exc_info=error,
        )
