"""Up to where each group has popped each queue.

A group's offset moves past messages when the checkpoint that stands for them is in the journal, not
before; further pops go on behind messages whose checkpoint is still being written.

Source: RocketMQ PopBufferMergeService.commitOffsets, PopMessageProcessor.getPopOffset.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pymq.broker.pop.checkpoint import Checkpoint, GroupQueue
from pymq.broker.state.offsets import OffsetTable


@dataclass(slots=True, eq=False)
class Step:
    """Messages of one queue that one pop took or passed: offsets [first, end)."""

    queue: GroupQueue
    first: int
    end: int
    is_kept: bool = False


class PopProgress:
    """The offsets of popping groups.

    Args:
        offsets: the committed ones, which others may set at any time.

    Attributes:
        forgotten_count: rises when a topic or a group is deleted.
    """

    def __init__(self, offsets: OffsetTable) -> None:
        self.forgotten_count = 0
        self._offsets = offsets
        self._steps: dict[GroupQueue, deque[Step]] = {}

    def find(self, queue: GroupQueue) -> int | None:
        """Return the offset of the next message to pop; None if nothing is known."""
        steps = self._steps.get(queue)
        if steps:
            return steps[-1].end
        topic, group, queue_id = queue
        return self._offsets.find(group, topic, queue_id)

    def commit(self, queue: GroupQueue, offset: int) -> None:
        """Set a group's offset where no messages are taken: at a start, or after a gap."""
        topic, group, queue_id = queue
        self._offsets.commit(group, topic, queue_id, offset)

    def is_taking(self, queue: GroupQueue) -> bool:
        """Return whether messages were taken whose checkpoint is still being written."""
        return queue in self._steps

    def begin(self, queue: GroupQueue, first: int, end: int) -> Step:
        """Take messages; ``keep`` or ``undo`` follows."""
        step = Step(queue, first, end)
        self._steps.setdefault(queue, deque()).append(step)
        return step

    def skip(self, queue: GroupQueue, first: int, end: int) -> None:
        """Pass messages that the group does not want."""
        if queue in self._steps:
            self.keep(self.begin(queue, first, end))
        else:
            self.commit(queue, end)

    def keep(self, step: Step) -> None:
        """Move the committed offset past messages whose checkpoint is kept, in order."""
        step.is_kept = True
        steps = self._steps.get(step.queue)
        while steps and steps[0].is_kept:
            self.commit(step.queue, steps.popleft().end)
        if not steps:
            self._steps.pop(step.queue, None)

    def undo(self, step: Step) -> None:
        """Let messages be popped again, and those taken after them: a checkpoint was not kept.

        Some may then be delivered twice, but none is lost.
        """
        steps = self._steps.get(step.queue, deque())
        if step not in steps:
            return  # one before it was undone
        while steps.pop() is not step:
            pass
        if not steps:
            del self._steps[step.queue]
            self.commit(step.queue, step.first)

    def forget_topic(self, topic: str) -> None:
        """Leave the group's offset alone whatever becomes of messages that are being taken."""
        self.forgotten_count += 1
        self._steps = {queue: steps for queue, steps in self._steps.items() if queue[0] != topic}

    def forget_group(self, group: str) -> None:
        """The same for a group that is being deleted."""
        self.forgotten_count += 1
        self._steps = {queue: steps for queue, steps in self._steps.items() if queue[1] != group}


def offsets_after(
    offsets: OffsetTable, checkpoints: Iterable[tuple[int, Checkpoint]]
) -> dict[GroupQueue, tuple[int, int]]:
    """Return the offsets that groups had reached when their last checkpoints were written.

    Args:
        offsets: as they were saved.
        checkpoints: that these may not count, with the physical offsets of their records, in that
            order.

    Returns:
        Those that are not the saved ones, and where the record lies that says so.
    """
    found: dict[GroupQueue, tuple[int, int]] = {}
    for place, one in checkpoints:
        topic, group, queue_id = queue = one.group_queue
        at = found[queue][0] if queue in found else offsets.find(group, topic, queue_id)
        if one.start_offset >= (at or 0):
            found[queue] = one.start_offset + one.differences[-1] + 1, place
    return found
