"""Messages whose handler failed: sent back to their broker, or else tried again here.

The broker delivers a message again later, and makes a dead letter of it in the end. While it
cannot take one back, the message stays here, is tried again after ``LOCAL_RETRY_S``, and the
committed offset of its queue stays before it.
"""

import logging
from collections.abc import Callable, Sequence

from pymq.client import operations
from pymq.client.inbox import Delivery, Inbox
from pymq.client.pool import ClientPool
from pymq.errors import PymqError
from pymq.protocol.message import RETRY_TOPIC
from pymq.protocol.names import is_retry_topic

_log = logging.getLogger(__name__)

LOCAL_RETRY_S = 5.0


def visible_topic(stored_topic: str, properties: dict[str, str]) -> str:
    """Return the topic a handler sees: a retried message has its first one again."""
    if is_retry_topic(stored_topic):
        return properties.get(RETRY_TOPIC, stored_topic)
    return stored_topic


class FailedMessages:
    """Sends back what a consumer could not handle.

    Args:
        group: consumer group.
        max_reconsume_times: after this many failed tries a message becomes a dead letter.
        pool: connections.
        inbox: where messages are unfinished.
        is_closing: does the consumer deliver nothing more?
    """

    def __init__(
        self,
        *,
        group: str,
        max_reconsume_times: int,
        pool: ClientPool,
        inbox: Inbox,
        is_closing: Callable[[], bool],
    ) -> None:
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._pool = pool
        self._inbox = inbox
        self._is_closing = is_closing

    async def handler_failed(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        """Send messages back, or keep them for another try, and say which.

        Args:
            deliveries: what the handler was called with.
            error: what it raised.
        """
        outcome = "delivered again, because the consumer was closed before it was sent back"
        try:
            refusals = [await self._send_back(delivery) for delivery in deliveries]
            outcome = self._outcome(deliveries, refusals, error)
        finally:
            first = deliveries[0].message
            others = f" and {len(deliveries) - 1} more" if len(deliveries) > 1 else ""
            _log.warning(
                "the handler failed for message %s%s (topic %r, %s:%d, offset %d); %s",
                first.message_id,
                others,
                first.topic,
                first.broker_name,
                first.queue_id,
                first.queue_offset,
                outcome,
                exc_info=error,
            )

    def _outcome(
        self,
        deliveries: Sequence[Delivery],
        refusals: Sequence[PymqError | None],
        error: BaseException,
    ) -> str:
        kept = 0
        reason: PymqError | None = None
        for delivery, refusal in zip(deliveries, refusals, strict=True):
            if refusal is None:
                continue
            kept, reason = kept + 1, refusal
            message = delivery.message
            delivery.process_queue.failures[message.queue_offset] = (
                f"its handler failed {message.reconsume_times} times, last with {error!r:.200}, "
                f"and the broker does not take it back ({refusal})"
            )
        if not kept:
            return "the broker delivers it again later"
        which = "it" if len(deliveries) == 1 else f"{kept} of {len(deliveries)}"
        return (
            f"{which} will be tried again here in {LOCAL_RETRY_S:g} s, because the broker does "
            f"not take it back: {reason}"
        )

    def send_back_undecodable(self, delivery: Delivery) -> None:
        """Send back a message whose body cannot be read, again and again until that is done."""
        if self._is_closing() or delivery.process_queue.dropped:
            return
        self._pool.spawn("send back", self._send_back_undecodable(delivery))

    async def _send_back_undecodable(self, delivery: Delivery) -> None:
        refusal = await self._send_back(delivery)
        if refusal is not None:
            delivery.process_queue.failures[delivery.message.queue_offset] = (
                f"its body cannot be read, and the broker does not take it back ({refusal})"
            )

    async def _send_back(self, delivery: Delivery) -> PymqError | None:
        """Let the broker deliver a message again; return why it stays here, if it does."""
        message, queue = delivery.message, delivery.process_queue.queue
        operation = operations.send_back(
            message, group=self._group, max_reconsume_times=self._max_reconsume_times
        )
        try:
            await self._pool.ask(await self._pool.read_channel(queue), operation)
        except PymqError as error:
            message.reconsume_times += 1
            again = self.send_back_undecodable if delivery.is_held else self._inbox.put_back
            self._pool.loop.call_later(LOCAL_RETRY_S, again, delivery)
            return error
        self._inbox.acknowledge(delivery)
        return None
