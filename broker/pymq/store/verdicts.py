"""What a filter has decided of messages, for the reads that follow.

Whoever works off a backlog reads 32 messages at a time. Looking into 32 records costs nearly as
much as into some hundreds together, so a read that goes on where the last one ended looks further
ahead than it has to, and the following ones need not look at all.

Messages do not change: an entry of a queue that points to the same place of the log means the same
message, also when the topic was deleted and created again in between.
"""

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pymq.store.queues.queue_table import QueueKey

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Queues of which a filter remembers something.
QUEUES_MAX = 64


class Known(NamedTuple):
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
        self._known: OrderedDict[QueueKey, Known] = OrderedDict()

    def remember(self, queue: QueueKey, first: int, physical: Longs, rows: Longs) -> None:
        """Remember this of a queue, instead of what was known of it.

        Args:
            queue: topic and queue id.
            first, physical, rows: as in ``Known``; the arrays must not change afterwards.
        """
        selected = np.zeros(len(physical), np.bool_)
        selected[rows] = True
        self._known[queue] = Known(first, physical, selected, rows)
        self._known.move_to_end(queue)
        if len(self._known) > QUEUES_MAX:
            self._known.popitem(last=False)

    def find(self, queue: QueueKey, queue_offset: int) -> Known | None:
        """Return what is known around an offset, or directly before it: then somebody reads on."""
        known = self._known.get(queue)
        if known is None or not 0 <= queue_offset - known.first <= len(known.physical):
            return None
        return known
