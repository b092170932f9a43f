"""The outcome of each delivery: from its handler's end, or by name, from any thread; never two.

::

    handler returns  -> RETURNED ---------------------------.
    message.ack()    -> ACKNOWLEDGED ------------------------+-> finished: the offset moves on
    handler raises   -> RAISED  --.                          |
    message.retry()  -> ...       +-> back to its broker ----'
    message.reject() -> ...       |       | refused
    stands too long  -> EXPIRED --'       v
                              tried again here: RAISED and retry() by the handler, the rest by us
"""

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence

from pymq.client.cluster.pool import ClientPool
from pymq.client.group.inbox import Delivery, Inbox
from pymq.client.group.retry import FailedMessages
from pymq.errors import NotInHand, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.outcomes import EXPIRED, RAISED, RETURNED, Outcome

_log = logging.getLogger(__name__)

#: A queue that stands behind one message says so after this part of the consume time-out.
STANDING_PART = 0.25


class _Named:
    """An outcome that a thread gives a delivery by name, and whether that was carried out."""

    __slots__ = ("delivery", "is_over", "outcome")

    def __init__(self, delivery: Delivery, outcome: Outcome) -> None:
        self.delivery = delivery
        self.outcome = outcome
        self.is_over = False


class Outcomes:
    """Gives deliveries their outcomes. ``settle`` and ``decide`` are for any thread.

    There is no lock: a signal's handler that closes the consumer may have interrupted the thread
    that holds it, and the event loop would wait for that as the handler does for the loop.

    Args:
        inbox: where deliveries are unfinished.
        failed_messages: sends back what is not done.
        pool: of the consumer, whose event loop carries the outcomes out.
        consume_timeout_s: what stands for longer goes back to its broker.
    """

    def __init__(
        self,
        inbox: Inbox,
        failed_messages: FailedMessages,
        pool: ClientPool,
        *,
        consume_timeout_s: float,
    ) -> None:
        self._inbox = inbox
        self._failed_messages = failed_messages
        self._pool = pool
        self._consume_timeout_s = consume_timeout_s
        #: Queue -> the message behind which it stands, as it was logged.
        self._standing: dict[MessageQueue, Delivery] = {}
        #: What threads have begun to settle, in that order. An exception of a signal may keep one
        #: from telling the loop of what it has decided: so this comes before the decision.
        self._named: deque[_Named] = deque()
        #: Nothing is settled any more.
        self._is_closed = False

    # --- in any thread

    def settle(self, delivery: Delivery, outcome: Outcome) -> None:
        """Give a delivery its outcome by name.

        Raises:
            AlreadySettled: it has one.
            NotInHand: the message is not ours any more.
            ClientMisplaced: it was delivered to the parent of this process.
        """
        home = self._pool.home
        if home.is_forked:
            home.check_process()
        if home.is_own_thread:
            self._decide(delivery, outcome)
            self._carry_out(delivery)
            return
        named = _Named(delivery, outcome)
        self._named.append(named)
        try:
            self._decide(delivery, outcome)
        except PymqError:
            named.is_over = True  # or those behind it would be kept with their messages
            raise
        try:
            home.loop.call_soon_threadsafe(self._carry_out_named, named)
        except RuntimeError as error:  # The loop has ended, and with it the consumer.
            raise _not_ours(delivery, outcome, "its consumer's event loop has ended") from error

    def _decide(self, delivery: Delivery, outcome: Outcome) -> None:
        while (decided := delivery.outcome) is None:
            self._check(delivery, outcome)
            if delivery.decide(outcome):
                return
        decided.settle(delivery.message, outcome)

    def _check(self, delivery: Delivery, outcome: Outcome) -> None:
        if self._is_closed:
            raise _not_ours(delivery, outcome, "the consumer was closed")
        if delivery.process_queue.dropped:
            queue = delivery.process_queue.queue
            raise _not_ours(
                delivery,
                outcome,
                f"its queue {queue.broker_name}:{queue.queue_id} is read by another member now, or "
                "again from another offset",
            )

    def decide(self, deliveries: Iterable[Delivery], outcome: Outcome) -> list[Delivery]:
        """Give this outcome to those that have none; return them."""
        return [delivery for delivery in deliveries if delivery.decide(outcome)]

    # --- in the event loop

    def returned(self, deliveries: Sequence[Delivery]) -> None:
        """Messages were handled; those that have an outcome by name keep it."""
        for delivery in self.decide(deliveries, RETURNED):
            self._inbox.acknowledge(delivery)

    async def raised(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        """The handler failed; messages that have an outcome by name keep it."""
        failed = self.decide(deliveries, RAISED)
        if failed:
            await self._failed_messages.handler_failed(failed, error)
        if len(failed) < len(deliveries):
            first = next(delivery for delivery in deliveries if delivery.outcome is not RAISED)
            _log.warning(
                "the handler raised, but message %s (topic %r) had its outcome before that, which "
                "stays: it %s",
                first.message.message_id,
                first.message.topic,
                "" if first.outcome is None else first.outcome.text,
                exc_info=error,
            )

    def expire(self) -> None:
        """Send back what somebody has had for longer than the consume time-out.

        Before that, say once that a queue stands still behind it.
        """
        self.carry_out_left()
        now_s = time.monotonic()
        limit_s = self._consume_timeout_s
        ages = [(now_s - one.taken_s, one) for one in self._inbox.in_hand if one.taken_s]
        self._say_standing(
            [(age_s, one) for age_s, one in ages if age_s > limit_s * STANDING_PART]
        )
        late = [one for age_s, one in ages if age_s > limit_s]
        for delivery in self.decide(late, EXPIRED):
            message = delivery.message
            _log.warning(
                "message %s (topic %r, %s:%d, offset %d) goes back to its broker, because %s has "
                "had it for longer than %g s (consume_timeout_s): it is delivered again, though it "
                "may still be handled here; give what handles messages a time limit",
                message.message_id,
                message.topic,
                message.broker_name,
                message.queue_id,
                message.queue_offset,
                delivery.holder or "a loop",
                self._consume_timeout_s,
            )
            self._carry_out(delivery)

    def _say_standing(self, old: list[tuple[float, Delivery]]) -> None:
        standing: dict[MessageQueue, Delivery] = {}
        for age_s, delivery in old:
            process_queue, message = delivery.process_queue, delivery.message
            queue = process_queue.queue
            if message.queue_offset != process_queue.commit_offset:
                continue
            standing[queue] = delivery
            if self._standing.get(queue) is not delivery:
                _log.warning(
                    "topic %r, %s:%d stands still behind message %s at offset %d, which %s has had "
                    "for %.0f s: what is committed stays before it, and would be delivered again "
                    "after a restart. After %g s (consume_timeout_s) it goes back to its broker; "
                    "give what handles messages a time limit",
                    message.topic,
                    queue.broker_name,
                    queue.queue_id,
                    message.message_id,
                    message.queue_offset,
                    delivery.holder or "a loop",
                    age_s,
                    self._consume_timeout_s,
                )
        for queue in self._standing.keys() - standing.keys():
            _log.info(
                "topic %r, %s:%d does not stand still any more",
                queue.topic,
                queue.broker_name,
                queue.queue_id,
            )
        self._standing = standing

    def carry_out_left(self) -> None:
        """Carry out what threads have decided and have not told the loop of."""
        for _ in range(len(self._named)):
            named = self._named.popleft()
            delivery = named.delivery
            if named.is_over:
                continue
            if delivery.outcome is named.outcome:
                self._carry_out_once(named)
            elif delivery.outcome is None and delivery in self._inbox.in_hand:
                self._named.append(named)  # Perhaps it is being decided.

    def _carry_out_named(self, named: _Named) -> None:
        self._carry_out_once(named)
        while self._named and self._named[0].is_over:
            self._named.popleft()

    def _carry_out_once(self, named: _Named) -> None:
        if not named.is_over:
            named.is_over = True
            self._carry_out(named.delivery)

    def _carry_out(self, delivery: Delivery) -> None:
        outcome = delivery.outcome
        assert outcome is not None
        if outcome.delay_level is None:
            self._inbox.acknowledge(delivery)
        elif self._pool.is_open:
            self._failed_messages.send_back_soon(delivery)

    def close(self) -> None:
        """Settle nothing any more."""
        self._is_closed = True


def _not_ours(delivery: Delivery, outcome: Outcome, why: str) -> NotInHand:
    message = delivery.message
    return NotInHand(
        f"{outcome.name} of message {message.message_id} (topic {message.topic!r}) has no effect, "
        f"because {why}: the message is delivered again, so handling it must be idempotent"
    )
