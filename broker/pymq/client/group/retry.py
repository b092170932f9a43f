"""Messages that are not done: sent back to their broker, or else tried again here.

The broker delivers a message again later, and makes a dead letter of it in the end. While it
cannot take one back, the message stays here, and the committed offset of its queue stays before
it. After ``LOCAL_RETRY_S`` it is tried again: by its handler, or, if it was to become a dead letter
or stood for too long, by sending it back once more.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from pymq.client import operations
from pymq.client.cluster.pool import ClientPool
from pymq.client.group.inbox import Delivery, Inbox
from pymq.client.operations import SendResult, SendStatus
from pymq.errors import (
    BrokerError,
    DurabilityUnknown,
    LocalProtocolError,
    NotReplicated,
    PymqError,
    ServiceNotAvailable,
    SystemBusy,
)
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.protocol.codes import MQ_VERSION_OWN_TIMES, ResponseCode
from pymq.protocol.message import RETRY_TOPIC, ReceivedMessage
from pymq.protocol.names import dead_letter_topic, is_retry_topic
from pymq.protocol.outcomes import DEAD_LETTER, EXPIRED, GROUP_DELAYS

_log = logging.getLogger(__name__)

LOCAL_RETRY_S = 5.0
#: For brokers before 4.9.3, which fail without a number; their groups have it by default.
OLD_TIMES_MAX = 16
#: Of messages that are as safe where they are as another try could make them.
_KEPT = (SendStatus.OK, SendStatus.SLAVE_NOT_AVAILABLE)


def visible_topic(stored_topic: str, properties: dict[str, str]) -> str:
    """Return the topic a handler sees: a retried message has its first one again."""
    if is_retry_topic(stored_topic):
        return properties.get(RETRY_TOPIC, stored_topic)
    return stored_topic


class FailedMessages:
    """Sends back what a consumer could not handle.

    Args:
        group: consumer group.
        max_reconsume_times: so often a message is tried again before it becomes a dead letter;
            ``None``: as the group's setting at the broker says.
        pool: connections.
        inbox: where messages are unfinished.
        is_closing: does the consumer deliver nothing more?
    """

    def __init__(
        self,
        *,
        group: str,
        max_reconsume_times: int | None,
        pool: ClientPool,
        inbox: Inbox,
        is_closing: Callable[[], bool],
    ) -> None:
        self._group = group
        self._dlq = dead_letter_topic(group)
        self._max_reconsume_times = max_reconsume_times
        self._pool = pool
        self._inbox = inbox
        self._is_closing = is_closing
        self._said = SaidOnce(_log)
        #: Those under way, by name rather than by a handler's failure.
        self._sending: set[asyncio.Task[None]] = set()

    async def handler_failed(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        """Send messages back, or keep them for another try, and say which.

        Args:
            deliveries: what the handler was called with.
            error: what it raised.
        """
        outcome = "delivered again, because the consumer was closed before it was sent back"
        try:
            if all(delivery.process_queue.dropped for delivery in deliveries):
                outcome = "delivered again, to the member that reads its queue now"
                return
            # Before they are sent, because what is known of them goes with them.
            ends = [self._becomes_dead_letter(delivery) for delivery in deliveries]
            refusals = [await self._send_back(delivery) for delivery in deliveries]
            outcome = self._outcome(deliveries, ends, refusals, error)
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
        ends: Sequence[bool | None],
        refusals: Sequence[PymqError | None],
        error: BaseException,
    ) -> str:
        dead, again = [], []
        reason: PymqError | None = None
        for delivery, end, refusal in zip(deliveries, ends, refusals, strict=True):
            message = delivery.message
            if refusal is None:
                if end:
                    dead.append(message.reconsume_times + 1)
                else:
                    again.append(end)
                continue
            reason = refusal
            delivery.process_queue.failures[message.queue_offset] = (
                f"its handler failed {message.reconsume_times} times, last with {error!r:.200}, "
                f"and the broker does not take it back ({refusal})"
            )
        total = len(deliveries)
        kept = total - len(dead) - len(again)
        said = []
        if dead and total == 1:
            said.append(f"it was tried {dead[0]} times and becomes a dead letter ({self._dlq})")
        elif dead:
            said.append(
                f"{len(dead)} of {total} were tried up to {max(dead)} times and become dead "
                f"letters ({self._dlq})"
            )
        if again:
            text = f"the broker delivers {_which(len(again), total)} again later"
            if None in again:
                text += f", or makes {'it a dead letter' if total == 1 else 'them dead letters'}"
            said.append(text)
        if kept:
            said.append(
                f"{_which(kept, total)} will be tried again here in {LOCAL_RETRY_S:g} s, because "
                f"the broker does not take it back: {reason}"
            )
        return "; ".join(said)

    def _becomes_dead_letter(self, delivery: Delivery) -> bool | None:
        """Is a message a dead letter once its broker has it? ``None``: only the broker knows."""
        outcome, tries_max = delivery.outcome, self._max_reconsume_times
        if delivery.process_queue.dropped:
            return False  # It is not sent back: its queue's next reader gets it.
        if outcome is not None and outcome.delay_level == DEAD_LETTER:
            return True
        if tries_max is None:
            return None
        if delivery.message.reconsume_times < tries_max:
            return False
        # The broker does not count the tries here.
        is_counted = delivery.message.queue_offset not in delivery.process_queue.failures
        return True if is_counted else None

    def send_back_undecodable(self, delivery: Delivery) -> None:
        """Send back a message whose body cannot be read, again and again until that is done."""
        if self._is_closing() or delivery.process_queue.dropped:
            return
        self._pool.spawn("send back", self._send_back_undecodable(delivery))

    async def _send_back_undecodable(self, delivery: Delivery) -> None:
        is_dead_letter = self._becomes_dead_letter(delivery)
        refusal = await self._send_back(delivery)
        if refusal is None:
            if is_dead_letter:
                self._say_dead_letter(delivery.message, "its body cannot be read")
            self._say_taken(delivery.message)
        else:
            text = f"its body cannot be read, and the broker does not take it back ({refusal})"
            self._say_kept(delivery, text)

    # --- outcomes by name

    def send_back_soon(self, delivery: Delivery) -> None:
        """Send a message back as its outcome says, and say so if it becomes a dead letter.

        That its broker does not take it is said once.

        Args:
            delivery: of the message.
        """
        if not self._pool.is_open or delivery.process_queue.dropped:
            return
        task = self._pool.spawn("send back", self._send_back_as_told(delivery))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_back_as_told(self, delivery: Delivery) -> None:
        message, outcome = delivery.message, delivery.outcome
        assert outcome is not None
        is_dead_letter = self._becomes_dead_letter(delivery)
        refusal = await self._send_back(delivery)
        if refusal is None:
            if is_dead_letter:
                self._say_dead_letter(message, outcome.reason or outcome.name)
            self._say_taken(message)
        else:
            text = f"it {outcome.text}, and the broker does not take it back ({refusal})"
            self._say_kept(delivery, text)

    def _say_taken(self, message: ReceivedMessage) -> None:
        name = message.broker_name
        self._said.over(name, "broker %r takes messages back again", name)

    def _say_kept(self, delivery: Delivery, text: str) -> None:
        message = delivery.message
        delivery.process_queue.failures[message.queue_offset] = text
        self._said.warn(
            message.broker_name,
            "message %s (topic %r, %s:%d, offset %d) stays here: %s. It is tried again every %g s, "
            "and what is committed of its queue stays before it until that is done",
            message.message_id,
            message.topic,
            message.broker_name,
            message.queue_id,
            message.queue_offset,
            text,
            LOCAL_RETRY_S,
        )

    def _say_dead_letter(self, message: ReceivedMessage, why: str) -> None:
        _log.warning(
            "message %s (topic %r, %s:%d, offset %d) was tried %d times and becomes a dead letter "
            "(%s): %.200s",
            message.message_id,
            message.topic,
            message.broker_name,
            message.queue_id,
            message.queue_offset,
            message.reconsume_times + 1,
            self._dlq,
            why,
        )

    async def wait_sent(self, timeout_s: float) -> None:
        """Wait for messages that are being sent back, if need be not for all of them."""
        if self._sending and timeout_s > 0:
            await asyncio.wait(self._sending, timeout=timeout_s)

    # --- one message

    async def _send_back(self, delivery: Delivery) -> PymqError | None:
        """Let the broker have a message again; return why it stays here, if it does."""
        if delivery.process_queue.dropped:
            return None  # Its queue's next reader gets it anyway.
        try:
            await self._give_back(delivery)
        except PymqError as error:
            if not _is_decided(delivery):
                delivery.message.reconsume_times += 1
            self._pool.loop.call_later(LOCAL_RETRY_S, self._try_again, delivery)
            return error
        self._inbox.acknowledge(delivery)
        return None

    async def _give_back(self, delivery: Delivery) -> None:
        message, outcome = delivery.message, delivery.outcome
        channel = await self._pool.read_channel(delivery.process_queue.queue)
        if outcome is not None and outcome.reason is not None:
            try:
                burial = operations.bury(
                    message,
                    group=self._group,
                    reason=outcome.reason,
                    stored_topic=self._pool.network.wrap(message.topic),
                )
                _check_kept(await self._pool.ask(channel, burial), channel.peer)
                return
            except (NotReplicated, ServiceNotAvailable, SystemBusy):
                raise  # A broker that takes it in a moment takes its reason, too.
            except (BrokerError, LocalProtocolError) as error:
                _log.warning(
                    "message %s (topic %r) becomes a dead letter without its reason, %r: %s",
                    message.message_id,
                    message.topic,
                    outcome.reason,
                    error,
                )
        level = (outcome.delay_level if outcome is not None else None) or GROUP_DELAYS

        async def send_back(times: int | None) -> None:
            operation = operations.send_back(
                message, group=self._group, max_reconsume_times=times, delay_level=level
            )
            await self._pool.ask(channel, operation)

        try:
            await send_back(self._max_reconsume_times)
        except BrokerError as error:
            if self._max_reconsume_times is not None or error.code != ResponseCode.SYSTEM_ERROR:
                raise
            # The others mean something else with it, perhaps that it is stored and not flushed.
            if not await self._needs_times(channel):
                raise
            await send_back(OLD_TIMES_MAX)

    async def _needs_times(self, channel: AsyncChannel) -> bool:
        try:
            version = await self._pool.heartbeats.ask_version(channel)
        except PymqError as error:
            _log.debug("whether a broker has the tries of its groups is not known: %s", error)
            return False
        return version < MQ_VERSION_OWN_TIMES

    def _try_again(self, delivery: Delivery) -> None:
        if delivery.is_held:
            self.send_back_undecodable(delivery)
        elif _is_decided(delivery):
            self.send_back_soon(delivery)
        else:
            delivery.outcome = None
            self._inbox.put_back(delivery)


def _is_decided(delivery: Delivery) -> bool:
    """Is there no point in calling the handler again, even if its broker refuses the message?"""
    outcome = delivery.outcome
    return outcome is not None and (outcome is EXPIRED or outcome.delay_level == DEAD_LETTER)


def _check_kept(result: SendResult, peer: str) -> None:
    """Accept a dead letter that is not lost if its broker is; what was sent back is answered so.

    Raises:
        DurabilityUnknown: it may be lost, and must be sent once more.
    """
    if result.status not in _KEPT:
        raise DurabilityUnknown(
            f"{peer} has stored it as a dead letter with {result.status}, and may lose it"
        )


def _which(count: int, total: int) -> str:
    return "it" if total == 1 else f"{count} of {total}"
