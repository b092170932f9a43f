"""Dead letters of messages that were popped: no broker makes one of what is not acknowledged.

RocketMQ's proxy does it for its clients; whoever pops without one has to do it: what was handed out
once more than its group retries is sent back as a dead letter, and acknowledged.

Source: RocketMQ PopMessageResultFilterImpl, ProducerProcessor.forwardMessageToDeadLetterQueue.
"""

import logging
import math
import time

from pymq.client import operations
from pymq.client.cluster.pool import ClientPool
from pymq.errors import BrokerError, ClientClosed, PymqError
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import GroupConfig
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.outcomes import DEAD_LETTER

_log = logging.getLogger(__name__)

#: What brokers say of a group is asked for again after this.
SETTINGS_AGE_S = 60.0
#: Of groups whose settings a broker does not tell.
RETRY_TIMES_DEFAULT = 16


class PopBurials:
    """Makes dead letters for one group. For one event loop.

    Args:
        pool: connections.
        group: consumer group.
    """

    def __init__(self, pool: ClientPool, group: str) -> None:
        self._pool = pool
        self._group = group
        #: Broker name -> retries there, infinitely many, or ``None``: nobody knows; and until when
        #: that is believed.
        self._retries: dict[str, tuple[float | None, float]] = {}

    async def is_due(self, channel: AsyncChannel, message: ReceivedMessage) -> bool:
        """Say whether a message was handed out once more than its group retries.

        Args:
            channel: to its broker.
            message: as it was popped.

        Raises:
            ClientClosed: the consumer was closed.
        """
        if message.reconsume_times == 0:
            return False
        retries = await self._retry_times(channel, message.broker_name)
        return retries is not None and message.reconsume_times > retries

    async def _retry_times(self, channel: AsyncChannel, broker_name: str) -> float | None:
        retries, until_s = self._retries.get(broker_name, (None, 0.0))
        if time.monotonic() < until_s:
            return retries
        try:
            config = await self._pool.ask(channel, operations.group_config(self._group))
            retries = _retry_times(config)
        except ClientClosed:
            raise
        except BrokerError as error:  # It is too old, or does not allow us to ask.
            if retries is None:
                retries = RETRY_TIMES_DEFAULT
            _log.debug("group %r has %s retries: %s", self._group, retries, error)
        except PymqError as error:  # What nobody knows is left as it was.
            _log.debug("group %r has %s retries: %s", self._group, retries, error)
        self._retries[broker_name] = retries, time.monotonic() + SETTINGS_AGE_S
        return retries

    async def bury(self, channel: AsyncChannel, message: ReceivedMessage, handle: str) -> None:
        """Make a dead letter of a message; if that fails it comes again after its time.

        Args:
            channel: to its broker.
            message: for which it is due.
            handle: by which it is acknowledged.

        Raises:
            ClientClosed: the consumer was closed.
        """
        wrap = self._pool.network.wrap
        burial = operations.send_back(
            message, group=self._group, max_reconsume_times=0, delay_level=DEAD_LETTER
        )
        end = operations.acknowledge(wrap(self._group), wrap(message.topic), handle)
        outcome = "becomes a dead letter"
        try:
            await self._pool.ask(channel, burial)
            await self._pool.ask(channel, end)
        except ClientClosed:
            raise
        except PymqError as error:
            outcome = f"comes again, because it was not made a dead letter: {error}"
        _log.warning(
            "message %s (topic %r, %s:%d, offset %d) was handed out %d times to group %r, which "
            "never acknowledged it; it %s",
            message.message_id,
            message.topic,
            message.broker_name,
            message.queue_id,
            message.queue_offset,
            message.reconsume_times,
            self._group,
            outcome,
        )


def say_unreadable(message: ReceivedMessage, invisible_s: float, error: PymqError) -> None:
    """Log that a message is left out."""
    _log.error(
        "topic %r, %s:%d: the message at offset %d cannot be read, it comes again in %g s: %s",
        message.topic,
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        invisible_s,
        error,
    )


def _retry_times(config: GroupConfig) -> float:
    if config.retry_queue_count <= 0:
        return math.inf  # Brokers drop what such a group sends back.
    return max(config.retry_max_times, 0)
