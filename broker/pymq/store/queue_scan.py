"""Entries of a queue, and the records that a read takes of them.

Source: RocketMQ DefaultMessageStore.getMessage.
"""

import numpy as np
import numpy.typing as npt

from pymq.errors import OffsetOutOfRange
from pymq.protocol.multi_dispatch import is_light
from pymq.store.log.commit_log import CommitLog
from pymq.store.queues.consume_queue import BLANK_SIZE, ConsumeQueue
from pymq.store.read_result import ReadResult, ReadStatus, damaged

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: Buffers of records, their physical offsets, and the index of the first record of each.
Runs = tuple[list[memoryview], list[int], list[int]]


class QueueScan:
    """Entries in which a read looks for messages, from ``queue_offset`` on.

    Attributes:
        physical, sizes: of the entries' records; int64, shape (n,).
        count_max, bytes_max: how many messages are wanted at most, and bytes of them.
        present: those of which the queue knows that they match, or does not know, and whose
            records the log has; shape (n,).
    """

    def __init__(
        self,
        log: CommitLog,
        queue: ConsumeQueue,
        queue_offset: int,
        *,
        physical: Longs,
        sizes: Longs,
        matched: Mask,
        count_max: int,
        bytes_max: int,
    ) -> None:
        self._log = log
        self.queue = queue
        self.queue_offset = queue_offset
        self.physical = physical
        self.sizes = sizes
        self.count_max = count_max
        self._matched = matched
        self.bytes_max = bytes_max
        self.present = matched & (physical >= log.first) & (sizes != BLANK_SIZE)

    def has_gap(self, first: int, end: int) -> bool:
        """Return whether one of these entries matches, but its record is gone or never was."""
        return bool((self._matched & ~self.present)[first:end].any())

    def result_of_all(self) -> ReadResult:
        """Return the result with all of those present, as far as they fit.

        Raises:
            CorruptRecord: an entry is damaged.
        """
        end = _scan_end(self.sizes, self.present, self.count_max, self.bytes_max)
        return self.result(self.present[:end].nonzero()[0], end)

    def result(self, picked: Longs, end: int) -> ReadResult:
        """Return the result with some of those present.

        Args:
            picked: which, ascending; they fit.
            end: how many entries are consumed.

        Raises:
            CorruptRecord: an entry is damaged.
        """
        queue, queue_offset, first = self.queue, self.queue_offset, self._log.first
        following = queue_offset + end
        physical, matched = self.physical[:end], self._matched[:end]
        # Blank entries, which fill a gap, have no record and are not damage.
        expired = matched & (physical < first) & (self.sizes[:end] != BLANK_SIZE)
        if expired.any() and queue.first_kept(first) <= queue_offset + int(expired.argmax()):
            raise damaged(
                queue.path,
                f"an entry in {queue_offset}..{following} points to before the start of the log",
            )
        if not len(picked):
            is_removed = bool((matched & ~self.present[:end]).any())
            status = (
                ReadStatus.MESSAGE_WAS_REMOVING if is_removed else ReadStatus.NO_MATCHED_MESSAGE
            )
            return ReadResult(status, following, queue.min_offset, queue.end_offset)
        runs = self.runs(picked)
        offsets = (picked[runs[2]] + queue_offset).tolist()
        return found_result(queue, following, runs, self.sizes[picked], offsets)

    def span(self, picked: Longs) -> memoryview | None:
        """Return the log from the first to the last record of some entries.

        With what lies between them. None if they are not in one file, or entries are damaged.
        """
        first, last = int(self.physical[picked[0]]), picked[-1]
        try:
            return self._log.slice(first, int(self.physical[last] + self.sizes[last]) - first)
        except OffsetOutOfRange:
            return None

    def runs(self, picked: Longs) -> Runs:
        """Return the records of some entries.

        Raises:
            CorruptRecord: an entry is damaged.
        """
        try:
            return runs_of(self._log, self.physical[picked], self.sizes[picked])
        except OffsetOutOfRange as error:
            raise damaged(
                self.queue.path,
                f"an entry in {self.queue_offset}..{self.queue_offset + len(self.sizes)} points "
                f"outside the log ({error})",
            ) from error


def found_result(
    queue: ConsumeQueue, following: int, runs: Runs, sizes: Longs, offsets: list[int]
) -> ReadResult:
    """Return a result with records.

    Args:
        following: queue offset where to read next.
        runs: the records.
        sizes: of all records.
        offsets: queue offset of the first record of each buffer.
    """
    buffers, starts, firsts = runs
    return ReadResult(
        ReadStatus.FOUND,
        following,
        queue.min_offset,
        queue.end_offset,
        buffers,
        starts,
        len(sizes),
        sizes,
        _heads(firsts, sizes, offsets),
        queue.path,
        -1 if is_light(queue.topic) else queue.queue_id,
    )


def _scan_end(sizes: Longs, kept: Mask, count_max: int, bytes_max: int) -> int:
    """Return how many entries are consumed.

    Before every entry, matching or not, RocketMQ checks whether the result is full: it is not
    empty, and this entry would be one too many or too large. The first such entry ends the scan.
    """
    taken = np.where(kept, sizes, 0).cumsum()
    counts = kept.cumsum()
    before = np.empty_like(taken)
    before[0], before[1:] = 0, taken[:-1]
    counted = counts - kept
    full = (counted > 0) & ((before + sizes > bytes_max) | (counted >= count_max))
    at = int(full.argmax())
    return at if full[at] else len(sizes)


def runs_of(log: CommitLog, physical: Longs, sizes: Longs) -> Runs:
    """Return the records as views, one per run of adjacent ones."""
    ends = physical + sizes
    if len(sizes) == 1 or not (breaks := (physical[1:] != ends[:-1]).nonzero()[0]).size:
        first = int(physical[0])
        return [log.slice(first, int(ends[-1]) - first)], [first], [0]
    firsts = [0, *(breaks + 1).tolist()]
    starts = physical[firsts].tolist()
    stops = [*ends[breaks].tolist(), int(ends[-1])]
    return log.slices(starts, stops), starts, firsts


def _heads(firsts: list[int], sizes: Longs, offsets: list[int]) -> list[tuple[int, int]]:
    """Return what ``ReadResult.heads`` is.

    Args:
        firsts: which record each buffer begins with.
        sizes: of all records.
        offsets: the queue offset of the first record of each buffer.
    """
    if len(firsts) == 1:
        return [(offsets[0], int(sizes[-1]))]
    lasts = [first - 1 for first in firsts[1:]]
    return list(zip(offsets, [*sizes[lasts].tolist(), int(sizes[-1])], strict=True))
