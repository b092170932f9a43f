"""Messages whose handler failed, where messages are handled in order: tried again in their place.

The queue waits for a moment and begins again with the message that failed, and nothing behind it
is delivered before. After the last try it becomes a dead letter, and the queue goes on.

Source: RocketMQ ConsumeMessageOrderlyService.processConsumeResult, checkReconsumeTimes.
"""

import logging
from collections.abc import Callable, Sequence

from pymq.client.cluster.pool import ClientPool
from pymq.client.consuming.ordered_inbox import OrderedInbox
from pymq.client.group.inbox import Delivery
from pymq.client.group.retry import FailedMessages
from pymq.errors import PymqError
from pymq.protocol.outcomes import DEAD_LETTER, DELAY_LEVELS_S, rejected

_log = logging.getLogger(__name__)


class OrderedFailures(FailedMessages):
    """Keeps what a consumer could not handle in its place.

    Args:
        group: consumer group.
        max_reconsume_times: so often a message is tried again before it becomes a dead letter;
            ``None``: without limit.
        suspend_s: how long its queue waits before each try.
        pool: connections.
        inbox: where messages are unfinished.
        is_closing: does the consumer deliver nothing more?
    """

    def __init__(
        self,
        *,
        group: str,
        max_reconsume_times: float | None,
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
                    continue
                reason = f"its handler failed {times + 1} times, last with {error!r:.500}"
                delivery.outcome = rejected(reason)
                refusal = await self._send_back(delivery) or refusal
        finally:
            self._say(deliveries, kept, error, refusal)
            for delivery in reversed(kept):
                self._begin_again(delivery, self._suspend_s, f"last with {error!r:.200}")

    def send_back_soon(self, delivery: Delivery) -> None:
        """Do what a message's outcome says: a dead letter, or once more in its place."""
        outcome = delivery.outcome
        level = None if outcome is None else outcome.delay_level
        if level == DEAD_LETTER:
            super().send_back_soon(delivery)
            return
        after_s = DELAY_LEVELS_S[level - 1] if level else self._suspend_s
        times, tries_max = delivery.message.reconsume_times, self._tries_max
        if tries_max is not None and times >= tries_max:
            delivery.outcome = rejected(f"it was tried {times + 1} times, last with retry()")
            super().send_back_soon(delivery)
            return
        self._begin_again(delivery, after_s, "last with retry()")

    def _begin_again(self, delivery: Delivery, after_s: float, why: str) -> None:
        queue, message = delivery.process_queue, delivery.message
        if queue.dropped:
            return
        queue.failures[message.queue_offset] = (
            f"it was tried {message.reconsume_times + 1} times, {why}, and messages are handled in "
            "order"
        )
        self._ordered.suspend(queue, after_s)
        self._ordered.begin_again(delivery)

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
            outcome = f"it was tried {tries} times and becomes a dead letter (%DLQ%{self._group})"
            if refusal is not None:
                outcome += f", once its broker takes it; now it does not: {refusal}"
        else:
            outcome = (
                f"its queue waits for it and tries again in {self._suspend_s:g} s, because "
                f"messages are handled in order (try {tries})"
            )
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
