"""Where queues go on of which a master has no record: those whose messages have all expired.

A store keeps the end of such a queue. But a slave that began with an empty store has only the
offsets of groups: no record of the queue was in the log that it got. If its numbers began at 0
again, a group that has committed a higher offset would be told that this is beyond the end, and go
to the end: what was acknowledged in between would be lost to it. So the queue goes on where the
foremost group is, each time that a broker becomes the master, until it has a message.

What nobody has committed is not known: without any offset, a queue begins at 0.
"""

import logging

from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.protocol.multi_dispatch import is_light
from pymq.protocol.record import OVERHEAD_BYTES
from pymq.store import MessageStore

_log = logging.getLogger(__name__)


def begin_empty_queues(store: MessageStore, topics: TopicTable, offsets: OffsetTable) -> None:
    """Have queues without a record begin at the highest offset that a group has committed.

    Anybody may commit any number. One that is above the count of records that the log can have had
    is a mistake, and is left out; below that, a queue that begins too high costs nothing.

    Args:
        store: nothing was written to it by this process.
        topics: those that exist; what is committed for others is a rest.
        offsets: of the groups.
    """
    count_max = store.log_end // OVERHEAD_BYTES
    highest: dict[tuple[str, int], int] = {}
    for key, queues in offsets.body().offsets.items():
        topic = key.partition("@")[0]
        if topic not in topics and not is_light(topic):
            continue
        for queue_id, offset in queues.items():
            if offset <= count_max:
                highest[topic, queue_id] = max(offset, highest.get((topic, queue_id), 0))
    begun = [key for key, offset in highest.items() if offset and store.begin_queue(*key, offset)]
    if begun:
        _log.info(
            "queues without messages go on where their foremost groups are: %d of them, such as "
            "queue %d of topic %s at %d",
            len(begun),
            begun[0][1],
            begun[0][0],
            highest[begun[0]],
        )
