"""Listing messages in light queues when they are stored; see ``pymq.protocol.multi_dispatch``.

The places in light queues are given like those in ordinary ones, from the same counter of the
queue, in the order of the log: so they are dense, and the same that a recovery finds. A message
that names a queue twice has one place in it.

Source: RocketMQ LmqDispatch, ConsumeQueueStore (lmqTopicQueueTable).
"""

import logging
from collections.abc import Sequence

from pymq.protocol.codes import MessageFlag
from pymq.protocol.message import decode_properties
from pymq.protocol.multi_dispatch import (
    DISPATCH,
    LIGHT_QUEUE_ID,
    OFFSETS,
    is_final,
    is_light,
    split_names,
)
from pymq.protocol.names import HALF_TOPIC
from pymq.protocol.parking import changed
from pymq.protocol.record import NewRecord
from pymq.store.dispatch import PendingDispatch
from pymq.store.queues.consume_queue import ConsumeQueue
from pymq.store.queues.queue_table import (
    DIRECTORY_BYTES_MAX,
    QueueTable,
    illegal_name,
    same_files,
)

_log = logging.getLogger(__name__)

_PREPARED = int(MessageFlag.TRANSACTION_PREPARED)


class MultiDispatch:
    """Gives messages their places in light queues.

    Args:
        queues: all queues.
    """

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues

    @property
    def count(self) -> int:
        """How many light queues there are."""
        return self._queues.light_count

    def __contains__(self, name: str) -> bool:
        return self._queues.find(name, LIGHT_QUEUE_ID) is not None

    def objection(self, topic: str, names: Sequence[str]) -> str | None:
        """Say why a message of a topic cannot be listed in light queues; None if it can.

        RocketMQ takes such messages: it counts one more message in each light queue, without an
        entry.
        """
        found = _naming_objection(topic, names)
        if found is not None:
            return found
        alike = {name.casefold(): name for name in names}
        for name in names:
            other = alike[name.casefold()]
            if other != name and self._queues.folds_case:
                return same_files(name, other)
            found = self._queues.objection(name)
            if found is not None:
                return found
        return None

    def place(self, record: NewRecord) -> tuple[NewRecord, Sequence[ConsumeQueue]]:
        """Return the record to store instead of one, and the light queues that list it.

        Nothing is counted yet: see ``add``. A message that names what cannot be a light queue is
        listed in none: whoever sends one is told so before, by the broker.
        """
        if record.sys_flag & _PREPARED or record.topic == HALF_TOPIC or not is_final(record.topic):
            return record, ()
        names = split_names(decode_properties(record.properties).get(DISPATCH, ""))
        if not any(map(is_light, names)):
            return record, ()
        objection = self.objection(record.topic, names)
        if objection is not None:
            _log.warning("a message for topic %s is in no light queue: %s", record.topic, objection)
            return _with_offsets(record, None), ()
        queues = {name: self._queues.make(name, LIGHT_QUEUE_ID) for name in names}
        offsets = ",".join(str(queues[name].next_offset) for name in names)
        return _with_offsets(record, offsets), list(queues.values())

    @staticmethod
    def add(run: PendingDispatch, queues: Sequence[ConsumeQueue], entry: bytes) -> None:
        """List a record that was added to a run, by the entry in the queue of its topic."""
        for queue in queues:
            group = run.groups.get(queue)
            if group is None:
                run.groups[queue] = (queue.next_offset, [entry])
            else:
                group[1].append(entry)
            queue.next_offset += 1


def _naming_objection(topic: str, names: Sequence[str]) -> str | None:
    if is_light(topic):
        return f"topic {topic} is a light queue itself"
    for name in names:
        if not is_light(name):
            return (
                f"{name[:64]!r} is not the name of a light queue, expected names that begin "
                "with %LMQ%"
            )
        reason = illegal_name(name, LIGHT_QUEUE_ID, bytes_max=DIRECTORY_BYTES_MAX)
        if reason is not None:
            return reason
    return None


def _with_offsets(record: NewRecord, offsets: str | None) -> NewRecord:
    """Return a record that says where light queues list it; None: nowhere."""
    return changed(record, record.topic, record.queue_id, {OFFSETS: offsets})
