"""Where a consumer group begins in a queue for which it has no committed offset.

Source: RocketMQ ConsumeFromWhere, RebalancePushImpl.computePullFromWhere.
"""

from dataclasses import dataclass
from typing import Self

from pymq.client import operations
from pymq.client.checks import is_moment, moment_ms
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import ConsumeFromWhere, MessageQueue
from pymq.protocol.names import is_retry_topic

#: How much the clock of a broker may be behind ours.
CLOCK_SKEW_MS = 10_000

_WORDS: dict[str, ConsumeFromWhere] = {
    "latest": ConsumeFromWhere.LAST_OFFSET,
    "earliest": ConsumeFromWhere.FIRST_OFFSET,
    ConsumeFromWhere.LAST_OFFSET: ConsumeFromWhere.LAST_OFFSET,
    ConsumeFromWhere.FIRST_OFFSET: ConsumeFromWhere.FIRST_OFFSET,
}


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Where a group begins in a queue for which it has no committed offset."""

    where: ConsumeFromWhere
    #: For ``TIMESTAMP``: the first message stored at this time or later.
    timestamp_ms: int = 0

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the policy that a user's value means.

        Raises:
            ConfigurationError: it is neither a moment nor one of the words.
        """
        if is_moment(value):
            return cls(ConsumeFromWhere.TIMESTAMP, moment_ms("from_where", value))
        where = _WORDS.get(value) if isinstance(value, str) else None
        if where is None:
            raise ConfigurationError(
                f"from_where={value!r}, expected 'latest', 'earliest' or a datetime"
            )
        return cls(where)

    def for_later_queues(self, since_ms: int) -> "StartPolicy":
        """Return where to begin in queues that are found some time after the others.

        The end of such a queue would be behind the messages that came before it was found.

        Args:
            since_ms: when the others were found, ms since 1970.
        """
        if self.where is not ConsumeFromWhere.LAST_OFFSET:
            return self
        return StartPolicy(ConsumeFromWhere.TIMESTAMP, since_ms - CLOCK_SKEW_MS)

    def operation(self, queue: MessageQueue) -> operations.Operation[int]:
        """Return what to ask the broker. Retry topics are read from their beginning."""
        if self.where is ConsumeFromWhere.FIRST_OFFSET or is_retry_topic(queue.topic):
            return operations.min_offset(queue)
        if self.where is ConsumeFromWhere.LAST_OFFSET:
            return operations.max_offset(queue)
        return operations.offset_by_time(queue, self.timestamp_ms)
