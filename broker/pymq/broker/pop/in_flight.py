"""Messages in flight: popped, and neither acknowledged nor visible again.

Source: RocketMQ PopMessageProcessor.appendCheckPoint, AckMessageProcessor.appendAck.
"""

import asyncio
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pymq.broker.log_writer import Outcome
from pymq.broker.pop.attempt import PopAttempt
from pymq.broker.pop.checkpoint import Checkpoint, CheckpointKey, GroupQueue
from pymq.broker.pop.checkpoint_table import CheckpointTable
from pymq.broker.pop.popping import Popped, Taken
from pymq.broker.pop.progress import PopProgress, offsets_after
from pymq.broker.pop.revival import STEP_COUNT, Revival
from pymq.broker.pop.revive_journal import ReviveJournal, Told
from pymq.broker.put_answer import is_in_log
from pymq.broker.state.offsets import OffsetTable
from pymq.clock import Clock
from pymq.net.tasks import Tasks
from pymq.store import MessageStore, PutResult, PutStatus

_log = logging.getLogger(__name__)

#: How often it is checked what is due, and how long the journal is.
REVIVE_INTERVAL_S, REVIVE_IDLE_S = 0.1, 0.5
SHORTEN_INTERVAL_S = 1.0

_NOTHING = PutResult(PutStatus.OK)
#: Topic, group, queue id, start offset: a checkpoint's key without time and broker.
_Place: TypeAlias = tuple[str, str, int, int]


class InFlight:
    """The messages in flight of a broker; a duty that revives what is due.

    Args:
        queue_count: of the revive topic.
        broker_name: ours.
        count_max: most open checkpoints.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: OffsetTable,
        progress: PopProgress,
        table: CheckpointTable,
        journal: ReviveJournal,
        revival: Revival,
        clock: Clock,
        *,
        queue_count: int,
        broker_name: str,
        count_max: int,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._progress = progress
        self._table = table
        self._journal = journal
        self._revival = revival
        self._clock = clock
        self._queue_count = queue_count
        self._broker_name = broker_name
        self._count_max = count_max
        self._numbers = itertools.count()
        self._is_full_said = False
        #: Checkpoints that are being written.
        self._writing: dict[CheckpointKey, Checkpoint] = {}
        self._tasks = Tasks("popped messages")

    # --- as a duty

    def open(self) -> None:
        """Read from the journal what is in flight; before anything else, in any thread.

        Raises:
            StoreError: it cannot be read.
        """
        found = self._journal.open()
        reached = offsets_after(self._offsets, found)
        for queue, (offset, said_at) in reached.items():
            topic, _, queue_id = queue
            place = self._store.physical_offset(topic, queue_id, offset - 1)
            # A message behind the record that says that it was popped belongs to another topic of
            # that name: the old one was deleted. Places, not times: clocks are set back.
            if place is not None and place < said_at:
                self._progress.commit(queue, offset)

    def start(self) -> None:
        """Begin to revive what is due."""
        self._tasks.repeat(
            "revival", self.revive, REVIVE_INTERVAL_S, idle_s=REVIVE_IDLE_S
        )
        self._tasks.repeat("journal", self._journal.shorten, SHORTEN_INTERVAL_S)

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()
        await self._journal.close()

    async def revive(self) -> int:
        """Revive what is due; return how many checkpoints are open."""
        while await self._revival.step() == STEP_COUNT:
            await asyncio.sleep(0)
        return len(self._table)

    # --- popping and acknowledging

    @property
    def is_full(self) -> bool:
        """Whether too many messages are in flight."""
        full = len(self._table) >= self._count_max
        if full and not self._is_full_said:
            _log.warning(
                "%d checkpoints of popped messages are open (pop_checkpoint_count_max): no more "
                "is popped until consumers acknowledge messages, or their invisible time ends",
                len(self._table),
            )
        self._is_full_said = full
        return full

    def keep(
        self, popped: Popped, group: str, invisible_ms: int, ended: Callable[[PopAttempt], None]
    ) -> None:
        """Write the checkpoints of messages that were taken; there is at least one.

        Args:
            ended: gets the outcome, maybe before this returns.
        """
        revive_queue_id = next(self._numbers) % self._queue_count
        places = [(one.topic, group, one.queue_id, one.start_offset) for one in popped.taken]
        attempt = PopAttempt(self._free_time(places), revive_queue_id, ended)
        attempt.expect(len(popped.taken))
        for taken in popped.taken:
            checkpoint = Checkpoint(
                topic=taken.topic,
                group=group,
                queue_id=taken.queue_id,
                start_offset=taken.start_offset,
                pop_time=attempt.pop_time,
                invisible_ms=invisible_ms,
                broker_name=self._broker_name,
                differences=tuple(offset - taken.start_offset for offset in taken.queue_offsets),
                revive_queue_id=revive_queue_id,
            )
            self._writing[checkpoint.key] = checkpoint
            told = functools.partial(self._kept, attempt, taken, checkpoint.key)
            self._journal.write(checkpoint, told)

    def _free_time(self, places: Sequence[_Place]) -> int:
        """Return the time, or one soon after it that makes new keys for checkpoints.

        A group that was set back may pop the same messages twice in a millisecond.
        """
        time = self._clock.wall_ms()
        while any(self._is_known((*place, time, self._broker_name)) for place in places):
            time += 1
        return time

    def _is_known(self, key: CheckpointKey) -> bool:
        return key in self._writing or self._table.find(key) is not None

    def _kept(
        self,
        attempt: PopAttempt,
        taken: Taken,
        key: CheckpointKey,
        result: PutResult,
        outcome: Outcome,
    ) -> None:
        assert taken.step is not None
        del self._writing[key]
        if is_in_log(outcome):
            self._progress.keep(taken.step)
        else:
            self._progress.undo(taken.step)
        attempt.take(taken, result, outcome)

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is being deleted: others may have its name and offsets."""
        self._progress.forget_topic(topic)
        for checkpoint in self._table.of_topic(topic):
            self._journal.drop(checkpoint)

    def forget_group(self, group: str) -> None:
        """Give up what a group that is being deleted has in flight, unless it is there when due.

        As RocketMQ does. At once would be too early: members that are still there create the group
        again, and it is to have what they popped before and do not acknowledge.
        """
        self._progress.forget_group(group)
        writing = [one for one in self._writing.values() if one.group == group]
        for checkpoint in (*self._table.of_group(group), *writing):
            checkpoint.is_orphan = True

    def escaped(self, revive_queue_id: int, end: int) -> None:
        """Close what a slave has revived: checkpoints whose records are before ``end``."""
        table = self._table
        while (first := table.first_place(revive_queue_id)) is not None and first < end:
            for checkpoint in table.oldest(revive_queue_id, 1):
                self._journal.drop(checkpoint)

    def has_counted(self, queue: GroupQueue) -> bool:
        """Return whether the journal has counted all checkpoints of a group's queue."""
        return self._journal.has_counted(queue)

    def has(self, key: CheckpointKey) -> bool:
        """Return whether messages of a checkpoint are in flight."""
        return self._table.find(key) is not None

    def acknowledge(self, key: CheckpointKey, queue_offsets: Sequence[int], told: Told) -> None:
        """Acknowledge messages.

        What is not in flight needs no acknowledgement: it was acknowledged, or is visible again.

        Args:
            key: of their checkpoint, according to their handles.
            told: gets the outcome, maybe before this returns.
        """
        checkpoint = self._table.find(key)
        if checkpoint is not None:
            bits = checkpoint.bits_of(queue_offsets) & ~checkpoint.acknowledged
            if bits:
                self._journal.acknowledge(checkpoint, bits, told)
                return
        told(_NOTHING, Outcome.STORED)

    def change(
        self,
        key: CheckpointKey,
        queue_offset: int,
        invisible_ms: int,
        told: Callable[[int, PutResult, Outcome], None],
    ) -> None:
        """Have a message become visible at another time: it gets a checkpoint of its own.

        What is not in flight stays as it is.

        Args:
            key: of its checkpoint, according to its handle.
            invisible_ms: counted from now.
            told: gets the pop time for the message's new handle, and the outcome.
        """
        pop_time = self._free_time([(*key[:3], queue_offset)])
        checkpoint = self._table.find(key)
        bit = 0 if checkpoint is None else checkpoint.bits_of((queue_offset,))
        if checkpoint is None or not bit & ~checkpoint.acknowledged:
            told(pop_time, _NOTHING, Outcome.STORED)
            return
        if bit & checkpoint.acknowledging:  # nothing is changed, or both fail
            self._journal.wait_end(checkpoint, bit, functools.partial(told, pop_time))
            return
        changed = dataclasses.replace(
            checkpoint,
            start_offset=queue_offset,
            pop_time=pop_time,
            invisible_ms=invisible_ms,
            differences=(0,),
            acknowledged=0,
            acknowledging=0,
            failed_count=0,
            revive_offset=-1,
        )
        self._writing[changed.key] = changed

        def done(result: PutResult, outcome: Outcome) -> None:
            del self._writing[changed.key]
            told(pop_time, result, outcome)

        self._journal.replace(checkpoint, bit, changed, done)
