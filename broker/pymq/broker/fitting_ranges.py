"""How far ranges of queues go within a number of bytes, by the entries of the queues.

Entries say how long records are. They are added up some at a time, in turns of the event loop, as
``many_queues`` does: 32768 of them are half a millisecond of work. What is not in memory is brought
there by a thread first.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pymq.broker.cold_reads import ColdReads
from pymq.protocol.range_bodies import Fitting, QueueRange
from pymq.protocol.record import OVERHEAD_BYTES
from pymq.store import MessageStore

#: Entries that are added up in one turn.
ENTRIES_A_TURN = 1 << 15
#: Entries of one request: 80 MB of queue files. What lies behind them is another request.
ENTRIES_MAX = 1 << 22
#: Entries that are read at once, at least; and what each read counts as, however few it has.
_ENTRIES_MIN = 64
_READ_COST = 256


class FittingLookup:
    """Looks for the ends of ranges.

    Args:
        store: has the queues.
        cold_reads: brings entries into memory.
    """

    def __init__(self, store: MessageStore, cold_reads: ColdReads) -> None:
        self._store = store
        self._cold_reads = cold_reads

    async def find(self, ranges: Sequence[QueueRange]) -> list[Fitting]:
        """Return what fits of each range; see ``range_bodies``.

        Raises:
            BrokerError: the disk is too slow; ask again.
            CorruptRecord: a file of a queue is gone.
            StoreClosed: the store was closed.
        """
        entries_max = max(ENTRIES_MAX // max(len(ranges), 1), _ENTRIES_MIN)
        turn = _Turn()
        return [await self._find(one, entries_max, turn) for one in ranges]

    async def _find(self, wanted: QueueRange, entries_max: int, turn: "_Turn") -> Fitting:
        topic, queue_id = wanted.topic, wanted.queue_id
        kept, queue_end = self._store.queue_bounds(topic, queue_id)
        end = min(wanted.end, queue_end)
        if wanted.first >= end:
            return Fitting(wanted.first, 0)
        # What has expired takes no bytes.
        at = min(max(wanted.first, kept), end)
        size_bytes, stop = 0, min(end, at + entries_max)
        while at < stop:
            room = max(wanted.bytes_max - size_bytes, 0)
            count = min(max(room // OVERHEAD_BYTES, _ENTRIES_MIN), ENTRIES_A_TURN, stop - at)
            await turn.take(count)
            await self._cold_reads.wait_entries(topic, queue_id, at, count)
            sizes = self._store.entries.record_sizes(topic, queue_id, at, count)
            taken = fitting_count(sizes, room, is_begun=size_bytes > 0)
            size_bytes += int(sizes[:taken].sum())
            at += taken
            if taken < count:
                break  # The next one does not fit; or the queue was changed meanwhile.
        return Fitting(at, size_bytes)


class _Turn:
    """Lets others have a turn after some entries."""

    def __init__(self) -> None:
        self._left = ENTRIES_A_TURN

    async def take(self, count: int) -> None:
        if self._left <= 0:
            await asyncio.sleep(0)
            self._left = ENTRIES_A_TURN
        self._left -= max(count, _READ_COST)


def fitting_count(sizes: npt.NDArray[np.int64], bytes_max: int, *, is_begun: bool) -> int:
    """Return how many of some records fit.

    Args:
        sizes: of each; 0: there is none.
        bytes_max: all together.
        is_begun: whether there are others before them: otherwise one record fits in any case.
    """
    sums = sizes.cumsum()
    count = int(sums.searchsorted(bytes_max, "right"))
    if not is_begun and count < len(sums) and (count == 0 or sums[count - 1] == 0):
        # All before it are none: it is the first.
        count += 1
    return count
