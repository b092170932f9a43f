"""What a filter has decided of messages, for the reads that follow.

Whoever works off a backlog reads 32 messages at a time. Looking into 32 records costs nearly as
much as into some hundreds together, so a read that goes on where the last one ended looks further
ahead than it has to, and the following ones need not look at all.

Messages do not change: an entry of a queue that points to the same place of the log means the same
message. That holds for one store alone: another one in this process may have the same topic, with
other messages at the same places.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from pymq.store.queues.consume_queue import ConsumeQueue

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Queues of which a filter remembers something, and readers of each that do not get in each other's
#: way: groups with the same filter share it.
QUEUES_MAX, READERS_MAX = 64, 4


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What is known of entries of a queue that follow one another.

    Attributes:
        first: queue offset of the first of them.
        physical: where each points, shape (n,).
        selected: whether its message is selected, shape (n,).
        rows: the indexes of those that are, ascending.
    """

    first: int
    physical: Longs
    selected: Mask
    rows: Longs


class Verdicts:
    """What one filter has decided; the filter must be always the same."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # By the queue itself, not by its name: see above. What was decided last comes last.
        self._known: WeakKeyDictionary[ConsumeQueue, list[Known]] = WeakKeyDictionary()

    def __len__(self) -> int:
        """Of how many queues something is known."""
        return len(self._known)

    def remember(self, queue: ConsumeQueue, first: int, physical: Longs, rows: Longs) -> None:
        """Remember this of a queue, instead of what was known of the entries before it.

        Args:
            queue: the queue.
            first, physical, rows: as in ``Known``; the arrays must not change afterwards.
        """
        selected = np.zeros(len(physical), np.bool_)
        selected[rows] = True
        if len(self._known) >= QUEUES_MAX and queue not in self._known:
            self._known.clear()
        known = self._known.setdefault(queue, [])
        before = self.find(queue, first)
        if before is not None:
            known.remove(before)
        elif len(known) >= READERS_MAX:
            del known[0]
        known.append(Known(first, physical, selected, rows))

    def find(self, queue: ConsumeQueue, queue_offset: int) -> Known | None:
        """Return what is known around an offset, or directly before it: then somebody reads on."""
        for known in reversed(self._known.get(queue, ())):
            if 0 <= queue_offset - known.first <= len(known.physical):
                return known
        return None
