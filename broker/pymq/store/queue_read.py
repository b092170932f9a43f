"""Reading a queue: entries -> tag filter -> runs of adjacent records as views on the log.

Source: RocketMQ DefaultMessageStore.getMessage.
"""

import struct
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord, OffsetOutOfRange
from pymq.protocol.record import MAGIC_V1, MAGIC_V2, OVERHEAD_BYTES
from pymq.store.log.commit_log import CommitLog
from pymq.store.queues.consume_queue import BLANK_SIZE, ConsumeQueue, Entries
from pymq.store.searches import among

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: Buffers of records, their physical offsets, and the index of the first record of each.
Runs = tuple[list[memoryview], list[int], list[int]]

#: The start of a record: size, magic, queue id, queue offset.
_HEAD = struct.Struct(">iI4xi4xq")
_SIZE = struct.Struct(">i")

#: Entries scanned by one filtered read, as in RocketMQ (16,000 bytes of entries).
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
        next_queue_offset: where to read next, or instead of the requested offset.
        queue_first, queue_end: the queue's bounds.
        buffers: the records, in queue order; records adjacent in the log share one buffer.
            Read-only views on the log's map: valid while they are referenced, also after the
            store was closed. But they keep up to a whole segment mapped (and, once it is
            deleted, on the disk): send them and release them.
        starts: the physical offset of each buffer.
        count: number of records in all buffers.
        sizes: int64, shape (count,): the size of each record; None without records.
        heads: of each buffer, the queue offset of its first record and the size of its last one.
        path, queue_id: the queue's directory and its number.
    """

    status: ReadStatus
    next_queue_offset: int
    queue_first: int
    queue_end: int
    buffers: list[memoryview] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    count: int = 0
    sizes: Longs | None = None
    heads: list[tuple[int, int]] = field(default_factory=list)
    path: Path = Path()
    queue_id: int = 0

    def check(self) -> None:
        """Check whether the records are those that the entries belong to.

        Reads the first and the last record of every buffer. What is between them agrees with the
        entries, otherwise it would not be one buffer.

        Raises:
            CorruptRecord: they are not. Entries have no checksum: this check detects a changed
                one.
        """
        unpack, wanted_id = _HEAD.unpack_from, self.queue_id
        for buffer, start, (offset, last_size) in zip(
            self.buffers, self.starts, self.heads, strict=True
        ):
            last_at = len(buffer) - last_size
            if last_at < 0 or last_size < _HEAD.size:
                raise _damaged(self.path, f"entry {offset} or one next to it has another size")
            size, magic, queue_id, found = unpack(buffer)
            if (
                found != offset
                or queue_id != wanted_id
                or (magic != MAGIC_V1 and magic != MAGIC_V2)
                or (size != last_size if last_at == 0 else size > last_at)
                or (last_at and _SIZE.unpack_from(buffer, last_at)[0] != last_size)
            ):
                raise _damaged(
                    self.path,
                    f"entry {offset} or one next to it does not fit the record at physical "
                    f"offset {start} (magic {magic:08x}, queue {queue_id}, offset {found})",
                )


def _damaged(path: Path, what: str) -> CorruptRecord:
    return CorruptRecord(
        f"{path}: {what}: the queue's file or the log is damaged. Stop the broker; `pymq store "
        "check` shows more, `pymq store rebuild` rebuilds the queues"
    )


def read_queue(
    log: CommitLog,
    queue: ConsumeQueue | None,
    queue_offset: int,
    *,
    count_max: int,
    bytes_max: int,
    tag_codes: Longs | None,
    scan_max: int,
) -> ReadResult:
    """Return messages of a queue from an offset on; see ``MessageStore.read``."""
    if queue is None:
        return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    first, end = queue.min_offset, queue.end_offset
    if not first <= queue_offset < end:
        return _outside(queue_offset, first, end)
    count_max = max(1, count_max)
    if tag_codes is None:
        # No record is smaller than its fixed part, so more entries would not fit.
        wanted = min(count_max, max(1, bytes_max // OVERHEAD_BYTES + 1))
    else:
        wanted = max(scan_max, count_max)
    entries = queue.entries(queue_offset, min(wanted, end - queue_offset))
    if not len(entries):
        per_file = queue.file_bytes // entries.dtype.itemsize
        following = (queue_offset // per_file + 1) * per_file
        return ReadResult(ReadStatus.OFFSET_FOUND_NULL, min(following, end), first, end)
    physical = entries["physical_offset"].astype(np.int64)
    sizes = entries["size"].astype(np.int64)
    if tag_codes is None:
        found = _leading(log, physical, sizes, bytes_max)
        if found is not None:
            runs, sizes = found
            offsets = [queue_offset + row for row in runs[2]]
            return _found(queue, queue_offset + len(sizes), runs, sizes, offsets)
    matched = _matches(queue, entries, tag_codes)
    kept = matched & (physical >= log.first) & (sizes != BLANK_SIZE)
    scanned = _scan_end(sizes, kept, count_max, bytes_max)
    following = queue_offset + scanned
    # Blank entries, which fill a gap, have no record and are not damage.
    expired = matched & (physical < log.first) & (sizes != BLANK_SIZE)
    if expired[:scanned].any() and (
        queue.first_kept(log.first) <= queue_offset + int(expired.argmax())
    ):
        raise _damaged(
            queue.path,
            f"an entry in {queue_offset}..{following} points to before the start of the log",
        )
    picked = kept[:scanned].nonzero()[0]
    if not len(picked):
        is_removed = bool((matched & ~kept)[:scanned].any())
        status = ReadStatus.MESSAGE_WAS_REMOVING if is_removed else ReadStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, following, first, end)
    physical, sizes = physical[picked], sizes[picked]
    try:
        runs = _runs(log, physical, sizes)
    except OffsetOutOfRange as error:
        raise _damaged(
            queue.path, f"an entry in {queue_offset}..{following} points outside the log ({error})"
        ) from error
    return _found(queue, following, runs, sizes, (picked[runs[2]] + queue_offset).tolist())


def _outside(queue_offset: int, first: int, end: int) -> ReadResult:
    """Return the result of a read before the first or after the last message of a queue."""
    if end == 0:
        return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    if queue_offset < first:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, first, first, end)
    if queue_offset == end:
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, end, first, end)
    return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, end, first, end)


def _found(
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
        queue.queue_id,
    )


def _leading(
    log: CommitLog, physical: Longs, sizes: Longs, bytes_max: int
) -> tuple[Runs, Longs] | None:
    """Return the records that fit, at least one; None if one of their entries is special."""
    total = sizes.cumsum()
    if int(total[-1]) > bytes_max:
        count = max(1, int(total.searchsorted(bytes_max, "right")))
        physical, sizes = physical[:count], sizes[:count]
    try:
        return _runs(log, physical, sizes), sizes
    except OffsetOutOfRange:
        return None  # An expired record, a blank entry, or damage.


def _matches(queue: ConsumeQueue, entries: Entries, tag_codes: Longs | None) -> Mask:
    """Return which entries pass the filter; those with a lost tag code do, as in RocketMQ."""
    if tag_codes is None:
        return np.ones(len(entries), np.bool_)
    codes, known = queue.tag_codes(entries)
    return among(codes, tag_codes) | ~known


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


def _runs(log: CommitLog, physical: Longs, sizes: Longs) -> Runs:
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
