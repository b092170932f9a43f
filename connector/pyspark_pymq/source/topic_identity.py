"""Topics that were deleted and created again: an offset means another message there.

Brokers of pymq give each topic that is created an id. Where a stream stands has the ids of the
topics it has read. Where a broker tells none, as those of RocketMQ do, or one of the two ids is not
known, only the bounds of queues are left to compare.

The driver compares them when it plans a batch. Pulls carry no id: so a task, which may run much
later, compares them before it reads, and once more when it has read.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import OffsetOutOfRange
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.headers.offsets import NO_ID
from pyspark_pymq.offsets import Bounds, Offsets, Position, TopicIds
from pyspark_pymq.source.subscribed_topics import SubscribedTopics

LOG = logging.getLogger(__name__)

#: Topics that are told in one message.
_TOLD_MAX = 8


class TopicIdentity:
    """Compares the topics there are with those a stream has read. Lives in one driver process.

    Args:
        topics: whom to ask.
        fail_on_data_loss: whether another topic is an error.
        otherwise: how to read something else; for the error.
    """

    def __init__(
        self, topics: SubscribedTopics, *, fail_on_data_loss: bool, otherwise: str
    ) -> None:
        self._topics = topics
        self._fail_on_data_loss = fail_on_data_loss
        self._otherwise = otherwise
        self._told_unread: set[tuple[str, str]] = set()

    def others(self, position: Position, offsets: Mapping[MessageQueue, int]) -> list[MessageQueue]:
        """Return the queues of topics that were created again, sorted, by the last answer.

        If there are any, everybody is asked once more: some of that answer may be of before.
        Topics of which nothing was read are only told, once.

        Args:
            position: where the stream stands.
            offsets: those of its offsets that count.

        Raises:
            OffsetOutOfRange: there are some, and that is an error.
            PymqError: a broker refused.
        """
        changed = _changed(position, self._topics.topic_ids)
        if not changed:
            return []
        self._tell_unread(changed & {(q.topic, q.broker_name) for q in offsets} - _read(position))
        if not created_again(position, offsets, self._topics.topic_ids):
            return []
        self._topics.bounds(position.offsets, at_once=True)
        queues = created_again(position, offsets, self._topics.topic_ids)
        if queues and self._fail_on_data_loss:
            raise OffsetOutOfRange(
                f"{_told(queues)}. The offsets of the query are those of the old topic, and what "
                f"was not read of it is gone. To read the new one from its first message on, set "
                f"the option failOnDataLoss to false; to start elsewhere, {self._otherwise}"
            )
        if queues:
            LOG.warning(
                "data loss accepted (failOnDataLoss=false), reading continues at the first "
                "message of the new topic: %s",
                _told(queues),
            )
        return queues

    def _tell_unread(self, topics: set[tuple[str, str]]) -> None:
        """Log topics that were created again and had not been read."""
        if new := topics - self._told_unread:
            self._told_unread |= new
            LOG.warning(
                "%s: deleted, and created again, before anything was read from it; reading begins "
                "at the first message of the new topic, and what the old one held was not read",
                named_topics(new),
            )


def created_again(
    position: Position, offsets: Mapping[MessageQueue, int], topic_ids: TopicIds
) -> list[MessageQueue]:
    """Return the queues of ``offsets`` whose topic is not the one that a stream has read, sorted.

    A topic of which nothing was read is none of them: its offsets are those of any topic.

    Args:
        position: where the stream stands.
        offsets: those of its offsets that count.
        topic_ids: of the topics there are.
    """
    others = _changed(position, topic_ids) & _read(position)
    return sorted(queue for queue in offsets if (queue.topic, queue.broker_name) in others)


def _changed(position: Position, topic_ids: TopicIds) -> set[tuple[str, str]]:
    before = position.topic_ids.items()
    return {one for one, topic_id in before if _is_another(topic_id, topic_ids.get(one))}


def _read(position: Position) -> set[tuple[str, str]]:
    return {(queue.topic, queue.broker_name) for queue, at in position.offsets.items() if at > 0}


def _is_another(before: str | None, now: str | None) -> bool:
    # A broker may lose an id in a crash; it never finds one for a topic it has no id of.
    return before is not None and now not in (None, NO_ID, before)


def others_by_now(
    client: BulkClient, queues: Iterable[MessageQueue], topic_ids: TopicIds
) -> set[tuple[str, str]]:
    """Return the topics, by broker, that were created again since a task was planned.

    Everybody is asked once, and not waited for: of a broker that does not answer the driver finds
    out with the next batch.

    Args:
        client: open.
        queues: which the task reads.
        topic_ids: of the topics they were in when it was planned.

    Raises:
        PymqError: a broker refused.
    """
    asked = {(queue.topic, queue.broker_name): queue for queue in queues}
    known = [queue for one, queue in sorted(asked.items()) if one in topic_ids]
    if not known:
        return set()
    now = client.try_bounds(known).topic_ids
    return {one for one in asked if _is_another(topic_ids.get(one), now.get(one))}


def first_messages(queues: Collection[MessageQueue], bounds: Bounds) -> Offsets:
    """Return where queues begin; those without an answer at 0, as any new queue does."""
    return {queue: bounds[queue][0] if queue in bounds else 0 for queue in queues}


def with_ids(end: Position, topic_ids: TopicIds) -> Position:
    """Return where a batch ends, with the ids of its topics that are known now."""
    topics = {(queue.topic, queue.broker_name) for queue in end.offsets}
    known = {
        one: topic_id
        for one, topic_id in topic_ids.items()
        if one in topics and (topic_id != NO_ID or one not in end.topic_ids)
    }
    return replace(end, topic_ids={**end.topic_ids, **known})


def _told(queues: Collection[MessageQueue]) -> str:
    topics = {(queue.topic, queue.broker_name) for queue in queues}
    return f"{named_topics(topics)}: deleted, and created again, since the query has read from it"


def named_topics(found: Iterable[tuple[str, str]]) -> str:
    """Return topics, by broker, as errors tell them."""
    topics = sorted(found)
    texts = [f"topic {topic} on {broker_name}" for topic, broker_name in topics[:_TOLD_MAX]]
    if len(topics) > _TOLD_MAX:
        texts.append(f"{len(topics) - _TOLD_MAX} more")
    return ", ".join(texts)
