"""Topics that a master has deleted: when their queues may go at a slave.

Messages of such a topic may still be in flight; and it may be created again, also before the
slave hears of that. So the master is asked twice. What it lacks both times, and has no message
behind the end that the log had in between, is the topic that was deleted.
"""

from pymq.broker.deletions import Deletions
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.protocol.bodies import TopicTable as TopicTableBody
from pymq.store import MessageStore


class GoneTopics:
    """Follows the topics of a master, and deletes what it has deleted."""

    def __init__(
        self, topics: TopicTable, offsets: OffsetTable, deletions: Deletions, store: MessageStore
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._deletions = deletions
        self._store = store
        self._gone: set[str] = set()

    def __bool__(self) -> bool:
        """Whether topics are to be deleted."""
        return bool(self._gone)

    def take_topics(self, body: bytes) -> None:
        """Have the topics of the master."""
        self._gone.update(self._topics.take_over(TopicTableBody.decode(body)))
        self._gone.difference_update(self._topics.names())

    def delete(self, log_end: int) -> None:
        """Delete the queues and offsets of topics that are gone.

        Args:
            log_end: physical offset where the master's log ended after it had lacked them once and
                before it did again; this slave has it up to there.

        Raises:
            StoreError: they are tried again the next time.
        """
        for topic in sorted(self._gone):
            if self._store.replication.queues_end_before(topic, log_end):
                self._deletions.topic(topic)
                self._offsets.delete_topic(topic)
                self._store.retention.delete_queues(topic)
            self._gone.discard(topic)
