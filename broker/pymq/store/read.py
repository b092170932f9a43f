"""Reading a queue: entries -> tag filter -> runs of adjacent records as views on the log.

Source: RocketMQ DefaultMessageStore.getMessage.
"""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord, OffsetOutOfRange
from pymq.protocol.record import OVERHEAD_BYTES
from pymq.store.commit_log import CommitLog
from pymq.store.consume_queue import BLANK_SIZE, ConsumeQueue, Entries

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Entries looked at by one filtered read, as in RocketMQ (16,000 bytes of entries).
SCAN_MAX = 800


class ReadStatus(Enum):
    """RocketMQ GetMessageStatus."""

    FOUND = "found"
    NO_MATCHED_MESSAGE = "no matched message"
    MESSAGE_WAS_REMOVING = "message was removing"
    OFFSET_FOUND_NULL = "offset found null"
    OFFSET_OVERFLOW_BADLY = "offset overflow badly"
    OFFSET_OVERFLOW_ONE = "offset overflow one"
    OFFSET_TOO_SMALL = "offset too small"
    NO_MATCHED_LOGIC_QUEUE = "no matched logic queue"
    NO_MESSAGE_IN_QUEUE = "no message in queue"


@dataclass(slots=True)
class ReadResult:
    """What a read found.

    Attributes:
        next_offset: where to read next, or where to go instead of the offset asked for.
        min_offset, end_offset: the queue's bounds.
        buffers: the records, in queue order; records adjacent in the log share one buffer.
            Read-only views on the log's map: valid as long as they are held, even over the
            close of the store, but they keep up to a whole segment mapped (and, once it is
            deleted, on the disk): send them and let them go.
        starts: the physical offset of each buffer.
        count: number of records in all buffers.
        sizes: int64, shape (count,): the size of each record; None when there is none.
    """

    status: ReadStatus
    next_offset: int
    min_offset: int
    end_offset: int
    buffers: list[memoryview] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    count: int = 0
    sizes: Longs | None = None


def read_queue(
    log: CommitLog,
    queue: ConsumeQueue | None,
    offset: int,
    *,
    count_max: int,
    bytes_max: int,
    tag_codes: Longs | None,
    scan_max: int,
) -> ReadResult:
    """Return messages of a queue from an offset on; see ``MessageStore.read``."""
    if queue is None:
        return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    low, end = queue.min_offset, queue.end_offset
    if end == 0:
        return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    if offset < low:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, end)
    if offset >= end:
        if offset == end:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, end)
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, end, low, end)
    count_max = max(1, count_max)
    if tag_codes is None:
        # No record is smaller than its fixed part, so no more entries can be of use.
        wanted = min(count_max, max(1, bytes_max // OVERHEAD_BYTES + 1))
    else:
        wanted = max(scan_max, count_max)
    entries = queue.entries(offset, min(wanted, end - offset))
    if not len(entries):
        per_file = queue.file_bytes // entries.dtype.itemsize
        following = (offset // per_file + 1) * per_file
        return ReadResult(ReadStatus.OFFSET_FOUND_NULL, min(following, end), low, end)
    physical = entries["physical_offset"].astype(np.int64)
    sizes = entries["size"].astype(np.int64)
    if tag_codes is None:
        found = _leading(log, physical, sizes, bytes_max)
        if found is not None:
            buffers, starts, sizes = found
            count = len(sizes)
            return ReadResult(
                ReadStatus.FOUND, offset + count, low, end, buffers, starts, count, sizes
            )
    matched = _matches(queue, entries, tag_codes)
    kept = matched & (physical >= log.first) & (sizes != BLANK_SIZE)
    scanned = _scan_end(sizes, kept, count_max, bytes_max)
    removed = bool((matched & ~kept)[:scanned].any())
    picked = kept[:scanned].nonzero()[0]
    physical, sizes = physical[picked], sizes[picked]
    following = offset + scanned
    if not len(sizes):
        status = ReadStatus.MESSAGE_WAS_REMOVING if removed else ReadStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, following, low, end)
    try:
        buffers, starts = _runs(log, physical, sizes)
    except OffsetOutOfRange as error:
        raise CorruptRecord(
            f"{queue.path}: an entry in {offset}..{following} points outside the log "
            f"({error}); restart the broker to rebuild the queue"
        ) from error
    return ReadResult(ReadStatus.FOUND, following, low, end, buffers, starts, len(sizes), sizes)


def _leading(
    log: CommitLog, physical: Longs, sizes: Longs, bytes_max: int
) -> tuple[list[memoryview], list[int], Longs] | None:
    """Return the records that fit, at least one; None if any of their entries is unusual."""
    total = sizes.cumsum()
    if int(total[-1]) > bytes_max:
        count = max(1, int(total.searchsorted(bytes_max, "right")))
        physical, sizes = physical[:count], sizes[:count]
    try:
        return *_runs(log, physical, sizes), sizes
    except OffsetOutOfRange:
        return None  # A removed record, a blank entry, or damage.


def _matches(queue: ConsumeQueue, entries: Entries, tag_codes: Longs | None) -> Mask:
    """Tell which entries pass the filter: also those whose tag code is lost, as in RocketMQ."""
    if tag_codes is None:
        return np.ones(len(entries), np.bool_)
    codes, known = queue.tag_codes(entries)
    found: Mask
    if len(tag_codes) == 1:
        found = codes == tag_codes[0]
    elif len(tag_codes):
        nearest = np.minimum(tag_codes.searchsorted(codes), len(tag_codes) - 1)
        found = tag_codes[nearest] == codes
    else:
        found = np.zeros(len(entries), np.bool_)
    return found | ~known


def _scan_end(sizes: Longs, kept: Mask, count_max: int, bytes_max: int) -> int:
    """Return how many entries are consumed.

    RocketMQ asks before every entry, matching or not, whether the result is full: it holds
    something already, and this entry would be one too many or too large. The first such entry
    ends the scan.
    """
    taken = np.where(kept, sizes, 0).cumsum()
    counts = kept.cumsum()
    before = np.empty_like(taken)
    before[0], before[1:] = 0, taken[:-1]
    counted = counts - kept
    full = (counted > 0) & ((before + sizes > bytes_max) | (counted >= count_max))
    at = int(full.argmax())
    return at if full[at] else len(sizes)


def _runs(
    log: CommitLog, physical: Longs, sizes: Longs
) -> tuple[list[memoryview], list[int]]:
    """Return the records as views, one per run of adjacent ones, and where these start."""
    ends = physical + sizes
    if len(sizes) == 1 or not (breaks := (physical[1:] != ends[:-1]).nonzero()[0]).size:
        first = int(physical[0])
        return [log.slice(first, int(ends[-1]) - first)], [first]
    starts = [int(physical[0]), *physical[breaks + 1].tolist()]
    stops = [*ends[breaks].tolist(), int(ends[-1])]
    return log.slices(starts, stops), starts
