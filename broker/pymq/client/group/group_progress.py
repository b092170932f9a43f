"""What several masters say of one consumer group, merged: its progress, and its members."""

from collections.abc import Iterable
from dataclasses import dataclass

from pymq.protocol.bodies import ConsumerConnections, ConsumeStats, MessageQueue


@dataclass(frozen=True, slots=True, order=True)
class QueueLag:
    """How far a group is in one queue.

    ``last_timestamp_ms`` is the store time of the last message it consumed, ``None`` for none.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_timestamp_ms: int | None

    @property
    def lag(self) -> int:
        """Messages it has not consumed yet."""
        return max(self.broker_offset - self.consumer_offset, 0)


def queue_lags(answers: Iterable[ConsumeStats]) -> list[QueueLag]:
    """Return how far a group is in each queue, sorted."""
    found = [
        QueueLag(
            queue,
            progress.broker_offset,
            progress.consumer_offset,
            progress.last_timestamp_ms or None,
        )
        for answer in answers
        for queue, progress in answer.offsets.items()
    ]
    return sorted(found, key=lambda lag: lag.queue)


def merged_connections(answers: Iterable[ConsumerConnections]) -> ConsumerConnections:
    """Return a group's members, each once although it is connected to every master."""
    merged = ConsumerConnections()
    seen = set()
    for found in answers:
        new = [one for one in found.connections if one.client_id not in seen]
        seen |= {one.client_id for one in new}
        merged.connections += new
        merged.subscriptions |= found.subscriptions
        merged.consume_type = found.consume_type
        merged.message_model = found.message_model
        merged.consume_from_where = found.consume_from_where
    return merged
