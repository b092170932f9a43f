"""Messages whose handler failed, in a broadcasting group: dropped, with a word about it.

Their broker keeps no account of the group's members, so it cannot deliver them to one again.

Source: RocketMQ ConsumeMessageConcurrentlyService.processConsumeResult, case BROADCASTING.
"""

import logging
from collections.abc import Sequence

from pymq.client.group.inbox import Delivery
from pymq.client.group.retry import FailedMessages

_log = logging.getLogger(__name__)


class DroppedFailures(FailedMessages):
    """Drops what a consumer could not handle."""

    async def handler_failed(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        """Log what is dropped, and drop it."""
        for delivery in deliveries:
            self._drop(delivery, f"its handler failed: {error!r:.200}", error)

    def send_back_soon(self, delivery: Delivery) -> None:
        """Log and drop what was to go back by name, or for being late."""
        outcome = delivery.outcome
        self._drop(delivery, "it was not done" if outcome is None else f"it {outcome.text}", None)

    def send_back_undecodable(self, delivery: Delivery) -> None:
        """Drop it; what is wrong with it has been logged."""
        self._drop(delivery, "its body cannot be read", None)

    def _drop(self, delivery: Delivery, why: str, error: BaseException | None) -> None:
        message = delivery.message
        _log.warning(
            "group %r broadcasts, so message %s is not delivered again to this member (topic %r, "
            "%s:%d, offset %d): %s",
            self._group,
            message.message_id,
            message.topic,
            message.broker_name,
            message.queue_id,
            message.queue_offset,
            why,
            exc_info=error,
        )
        self._inbox.acknowledge(delivery)
