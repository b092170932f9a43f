"""Which topics and queues are read; pure. The options subscribe, subscribePattern and assign."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.names import is_system_topic, topic_objection

#: How the names of topics begin that belong to a group: retry topics and dead letters.
_OF_GROUPS = "%"


@dataclass(frozen=True, slots=True, order=True)
class AssignedQueue:
    """A queue the user chose; without a broker's name, that of every broker."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} on {self.broker_name or 'any broker'}"

    def is_among(self, queues: Iterable[MessageQueue]) -> bool:
        """Say whether one of some queues is meant."""
        return any(
            (queue.topic, queue.queue_id) == (self.topic, self.queue_id)
            and self.broker_name in ("", queue.broker_name)
            for queue in queues
        )


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """What is read: exactly one of these is given.

    Attributes:
        topics: all queues of these.
        pattern: a regular expression: all queues of the topics whose whole name it matches.
        assigned: these queues alone.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: frozenset[AssignedQueue] = frozenset()

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics the user has named; none for a pattern."""
        return self.topics or tuple(sorted({queue.topic for queue in self.assigned}))

    def takes_topic(self, topic: str) -> bool:
        """Say whether a topic is read, or some queues of it."""
        if self.pattern is None:
            return topic in self.named_topics
        if topic.startswith(_OF_GROUPS) and not self.pattern.startswith((_OF_GROUPS, "\\%")):
            return False  # ".*" means what people send, not what groups failed to consume.
        return not is_system_topic(topic) and re.fullmatch(self.pattern, topic) is not None

    def takes(self, queue: MessageQueue) -> bool:
        """Say whether a queue is read."""
        if self.assigned:
            topic, broker, number = queue.topic, queue.broker_name, queue.queue_id
            return (
                AssignedQueue(topic, broker, number) in self.assigned
                or AssignedQueue(topic, "", number) in self.assigned
            )
        return self.takes_topic(queue.topic)

    def no_longer_taken(self, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        """Return which queues of a checkpoint are not read, sorted.

        Raises:
            ConfigurationError: none of its topics is: it was written for other ones.
        """
        topics = sorted({queue.topic for queue in queues})
        if topics and not any(map(self.takes_topic, topics)):
            told = ", ".join(topics[:8]) + (", ..." if len(topics) > 8 else "")
            raise ConfigurationError(
                f"the checkpoint has positions in {told}, and {self} chooses none of these topics: "
                f"it is of another query. Use another checkpoint (option checkpointLocation) for "
                f"other topics, which then begin at startingOffsets, or choose the ones it has"
            )
        return sorted(queue for queue in queues if not self.takes(queue))

    def matching(self, topics: Iterable[str], own: Collection[str]) -> list[str]:
        """Return which of some topics are read, sorted.

        Args:
            topics: all there are.
            own: those that brokers and clusters have for themselves.
        """
        return sorted(
            {
                name
                for name in topics
                if name not in own and topic_objection(name) is None and self.takes_topic(name)
            }
        )

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern={self.pattern}"
        if self.assigned:
            return f"assign={', '.join(map(str, sorted(self.assigned)[:4]))}" + (
                f" and {len(self.assigned) - 4} more" if len(self.assigned) > 4 else ""
            )
        return f"subscribe={','.join(self.topics)}"
