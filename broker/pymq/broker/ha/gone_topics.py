"""Topics that a master has deleted: when their queues may go at a slave.

Messages of such a topic may still be in flight; and it may be created again, also before the
slave hears of that. So the master is asked twice. What it lacks both times, and has no message
behind the end that the log had in between, is the topic that was deleted.

A topic that was created again before the slave has noticed that it was gone is another one. A pymq
master tells where its log ended when it was created: queues whose messages are all before that are
the earlier topic's. Those with messages behind it begin again by themselves (``Replication``).
"""

from collections.abc import Callable

from pymq.broker.deletions import Deletions
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.protocol.bodies import TopicTable as TopicTableBody
from pymq.store import MessageStore, QueueRemoval


class GoneTopics:
    """Follows the topics of a master, and deletes what it has deleted.

    Args:
        remove: removes the files of deleted queues, now or later.
    """

    def __init__(
        self,
        topics: TopicTable,
        offsets: OffsetTable,
        deletions: Deletions,
        store: MessageStore,
        remove: Callable[[QueueRemoval], object],
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._deletions = deletions
        self._store = store
        self._remove = remove
        self._gone: set[str] = set()
        #: Topics that were created again, and from which physical offset on they have messages.
        self._replaced: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether topics are to be deleted."""
        return bool(self._gone or self._replaced)

    def take_ids(self, body: bytes) -> None:
        """Have the ids of the master's topics."""
        self._topics.ids.take_over(body)
        self.look()

    def look(self) -> None:
        """Find topics that were created again while this slave had queues of earlier ones."""
        has_old = self._store.replication.has_queues_before
        firsts = self._topics.ids.first_offsets()
        self._replaced = {topic: first for topic, first in firsts.items() if has_old(topic, first)}

    def take_topics(self, told: TopicTableBody) -> None:
        """Have the topics of the master."""
        self._gone.update(self._topics.take_over(told))
        self._gone.difference_update(self._topics.names())

    def delete(self, log_end: int) -> None:
        """Delete the queues and offsets of topics that are gone.

        Args:
            log_end: physical offset where the master's log ended after it had lacked them once and
                before it did again; this slave has it up to there.

        Raises:
            StoreError: of a topic, which stays as it is; it is tried again the next time, and so
                are those behind it.
        """
        for topic in sorted(self._gone):
            if self._store.replication.queues_end_before(topic, log_end):
                self._delete_queues(topic)  # first: only this can be refused
                self._deletions.topic(topic)
                self._offsets.delete_topic(topic)
            self._gone.discard(topic)
        for topic, first in list(self._replaced.items()):
            if first <= log_end:
                self._delete_queues(topic, before=first)
                self._deletions.topic(topic)
                self._offsets.delete_topic(topic)  # those of the new one are asked for again
                del self._replaced[topic]

    def _delete_queues(self, topic: str, *, before: int | None = None) -> None:
        removal = self._store.retention.begin_delete(topic, before=before)
        if removal is not None:
            self._remove(removal)
