"""The outcome of deliveries where messages are handled in order: none goes back for being late."""

import logging
import time

from pymq.client.consuming.outcomes import STANDING_PART, Outcomes
from pymq.client.group.inbox import Delivery

_log = logging.getLogger(__name__)


class OrderedOutcomes(Outcomes):
    """``Outcomes`` that keep a message for as long as its handler needs.

    What goes back to its broker comes again behind the messages that follow it. Java's orderly
    consumers have no consume time-out either (ProcessQueue.cleanExpiredMsg).
    """

    #: Said of these.
    _late: frozenset[Delivery] = frozenset()

    def expire(self) -> None:
        """Say once of each message that it holds its queue back for long."""
        now_s = time.monotonic()
        limit_s = self._consume_timeout_s * STANDING_PART
        ages_s = {one: now_s - one.taken_s for one in self._inbox.in_hand if one.taken_s}
        late = frozenset(delivery for delivery, age_s in ages_s.items() if age_s > limit_s)
        for delivery in late - self._late:
            message = delivery.message
            _log.warning(
                "%s has had message %s (topic %r, %s:%d, offset %d) for %.0f s; its queue stands "
                "still until it is done, because messages are handled in order; give what handles "
                "messages a time limit",
                delivery.holder or "a loop",
                message.message_id,
                message.topic,
                message.broker_name,
                message.queue_id,
                message.queue_offset,
                ages_s[delivery],
            )
        self._late = late
