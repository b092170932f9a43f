"""Revival: messages that nobody acknowledged in time go to the retry topic of their group.

The message's copy and the acknowledgement of the message go into the log together.

Source: RocketMQ PopReviveService.
"""

import functools
import itertools
import logging

from pymq.broker.log_writer import Outcome
from pymq.broker.pop.checkpoint import Checkpoint
from pymq.broker.pop.checkpoint_table import CheckpointTable
from pymq.broker.pop.record_reading import RecordReading
from pymq.broker.pop.revive_journal import ReviveJournal
from pymq.broker.put_answer import is_in_log
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.clock import Clock
from pymq.errors import StoreClosed, StoreError
from pymq.protocol import names
from pymq.protocol.codes import HOST_IPV6_MASK
from pymq.protocol.message import FIRST_POP_TIME, TAGS, find_property, without_property
from pymq.protocol.record import PROPERTIES_BYTES_MAX, NewRecord, Record
from pymq.protocol.tag_codes import tag_code
from pymq.store import PutResult

_log = logging.getLogger(__name__)

#: Seconds until the next attempt with messages that could not be revived.
RETRY_S = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
#: Checkpoints revived in one step.
STEP_COUNT = 100
#: Until messages of a group that is not known here are looked at again, ms.
AWAIT_GROUP_MS = 10_000
_TAGS = TAGS.encode()


class Revival:
    """Revives what is due.

    Args:
        retry_v2: whether retry topics have names of the new form.
        creates_topics: whether retry topics are created; otherwise they are somebody else's.
        host: our packed address.
    """

    def __init__(
        self,
        reading: RecordReading,
        journal: ReviveJournal,
        table: CheckpointTable,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        clock: Clock,
        *,
        retry_v2: bool,
        creates_topics: bool,
        host: bytes,
    ) -> None:
        self._reading = reading
        self._journal = journal
        self._table = table
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clock = clock
        self._retry_v2 = retry_v2
        self._creates_topics = creates_topics
        self._host = host

    async def step(self) -> int:
        """Revive messages of checkpoints that are due; return how many checkpoints were."""
        due = self._table.take_due(self._clock.wall_ms(), STEP_COUNT)
        for checkpoint in due:
            try:
                await self._revive(checkpoint)
            except StoreClosed:
                raise
            except StoreError as error:
                self._failed(checkpoint, str(error))
            except Exception as error:  # nobody else comes back to it, nor to those behind it
                self._failed(checkpoint, repr(error), error)
        return len(due)

    async def _revive(self, checkpoint: Checkpoint) -> None:
        one = checkpoint
        topic = names.popped_topic(one.topic, one.group)
        if topic not in self._topics:
            self._journal.drop(one)
            return
        has_group = one.group in self._groups
        if not has_group and not one.is_orphan:
            self._await_group(one)
            return
        bits = one.all_bits & ~(one.acknowledged | one.acknowledging)
        if not bits:
            # Acknowledgements are being written; if they fail the messages are due again.
            self._table.postpone(one, self._clock.wall_ms() + 1000)
            return
        records = await self._read(one, bits) if has_group else {}
        if not self._table.is_open(one):
            return  # Its topic was deleted meanwhile.
        # It was acknowledged meanwhile.
        bits &= ~(one.acknowledged | one.acknowledging)
        if one.all_bits & one.acknowledging:  # they fail, perhaps, and nobody else comes back
            self._table.postpone(one, self._clock.wall_ms() + 1000)
        failures: list[str] = []
        told = functools.partial(self._revived, one, failures)
        gone = 0
        for offset in one.offsets_of(bits):
            bit = one.bits_of((offset,))
            if offset in records:
                copy = self._copy(records[offset], self._retry_topic(one), one)
                self._journal.revive(one, bit, copy, told)
            else:
                gone |= bit
        if gone:  # expired, or given up with their group
            self._journal.acknowledge(one, gone, told)

    def _await_group(self, one: Checkpoint) -> None:
        """Keep messages for a group that is not known here and was not deleted (``is_orphan``).

        Its creation may have been lost with a crash, or with the last master, but it has gone past
        these messages: they come when it does, while there are any. Without offsets it would begin
        from scratch. RocketMQ gives them up in any case.
        """
        reached = self._offsets.find(one.group, one.topic, one.queue_id)
        last = one.start_offset + one.differences[-1]
        if reached is not None and self._reading.has(one.topic, one.queue_id, last):
            self._table.postpone(one, self._clock.wall_ms() + AWAIT_GROUP_MS)
        else:
            self._journal.drop(one)

    def _retry_topic(self, checkpoint: Checkpoint) -> str:
        topic = checkpoint.topic
        if not names.is_retry_topic(topic):
            topic = names.pop_retry_topic(topic, checkpoint.group, v2=self._retry_v2)
        if self._creates_topics and topic not in self._topics:
            self._topics.create(topic, queue_count=1)
            if self._offsets.find(checkpoint.group, topic, 0) is None:
                self._offsets.commit(checkpoint.group, topic, 0, 0)
        return topic

    async def _read(self, checkpoint: Checkpoint, bits: int) -> dict[int, Record]:
        """Return messages by their queue offset; those that have expired are missing."""
        found: dict[int, Record] = {}
        wanted = checkpoint.offsets_of(bits)
        for _, run in itertools.groupby(enumerate(wanted), lambda pair: pair[1] - pair[0]):
            offsets = [offset for _, offset in run]
            at, end = offsets[0], offsets[-1] + 1
            while at < end:
                read = await self._reading.read(
                    checkpoint.topic, checkpoint.queue_id, at, end - at
                )
                found.update((record.queue_offset, record) for record in read.records)
                if read.next_queue_offset <= at:
                    break
                at = read.next_queue_offset
        return found

    def _copy(self, record: Record, topic: str, checkpoint: Checkpoint) -> NewRecord:
        return NewRecord(
            topic,
            0,
            record.body,
            _with_first_pop_time(record, checkpoint.pop_time),
            self._host,
            record.born_timestamp,
            record.flag,
            record.sys_flag & ~HOST_IPV6_MASK,
            record.reconsume_times + 1,
            0,
            tag_code((find_property(record.properties, _TAGS) or b"").decode(errors="replace")),
        )

    def _revived(
        self, checkpoint: Checkpoint, failures: list[str], result: PutResult, outcome: Outcome
    ) -> None:
        if not is_in_log(outcome):
            failures.append(result.remark or outcome.value)
            if len(failures) == 1:
                self._failed(checkpoint, failures[0])

    def _failed(
        self, checkpoint: Checkpoint, reason: str, unexpected: Exception | None = None
    ) -> None:
        pause_s = RETRY_S[min(checkpoint.failed_count, len(RETRY_S) - 1)]
        checkpoint.failed_count += 1
        _log.error(
            "messages that group %s popped from queue %d of %s and did not acknowledge cannot be "
            "delivered again: %s; next attempt in %d s",
            checkpoint.group,
            checkpoint.queue_id,
            checkpoint.topic,
            reason,
            pause_s,
            exc_info=unexpected,
        )
        self._table.postpone(checkpoint, self._clock.wall_ms() + pause_s * 1000)


def _with_first_pop_time(record: Record, pop_time: int) -> bytes:
    """Return a message's properties with the time when it was popped first.

    The property comes first: the last one may be a checksum, which has to stay the last.
    """
    properties, name = record.properties, FIRST_POP_TIME.encode()
    if record.reconsume_times and find_property(properties, name) is not None:
        return properties
    text = str(properties, "utf-8", "surrogateescape")
    text = f"{FIRST_POP_TIME}\x01{pop_time}\x02{without_property(text, FIRST_POP_TIME)}"
    changed = text.encode("utf-8", "surrogateescape")
    return changed if len(changed) <= PROPERTIES_BYTES_MAX else properties
