"""The outcome of deliveries where messages are handled in order: none goes back for being late."""

import logging
import time

from pymq.client.inbox import Delivery
from pymq.client.outcomes import Outcomes

_log = logging.getLogger(__name__)


class OrderedOutcomes(Outcomes):
    """``Outcomes`` that keep a message for as long as its handler needs.

    What goes back to its broker comes again behind the messages that follow it. Java's orderly
    consumers have no consume time-out either (ProcessQueue.cleanExpiredMsg).
    """

    #: Said of these.
    _late: frozenset[Delivery] = frozenset()

    def expire(self) -> None:
        """Say once of each message that it holds its queue back for longer than the time-out."""
        now_s = time.monotonic()
        late = frozenset(
            delivery
            for delivery in self._inbox.in_hand
            if delivery.taken_s and now_s - delivery.taken_s > self._consume_timeout_s
        )
        for delivery in late - self._late:
            message = delivery.message
            _log.warning(
                "%s has had message %s (topic %r, %s:%d, offset %d) for longer than %g s "
                "(consume_timeout_s); its queue stands still until it is done, because messages "
                "are handled in order; give what handles messages a time limit",
                delivery.holder or "its loop",
                message.message_id,
                message.topic,
                message.broker_name,
                message.queue_id,
                message.queue_offset,
                self._consume_timeout_s,
            )
        self._late = late
