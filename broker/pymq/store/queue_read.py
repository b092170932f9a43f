"""Reading a queue: entries -> selection -> runs of adjacent records as views on the log.

Source: RocketMQ DefaultMessageStore.getMessage.
"""

import numpy as np

from pymq.errors import OffsetOutOfRange
from pymq.protocol.record import OVERHEAD_BYTES
from pymq.store.log.commit_log import CommitLog
from pymq.store.matching_read import MatchingRead
from pymq.store.queue_scan import Longs, Mask, QueueScan, Runs, found_result, runs_of
from pymq.store.queues.consume_queue import ConsumeQueue, Entries
from pymq.store.queues.queue_extension import ADDRESS_MAX
from pymq.store.read_result import ReadResult, ReadStatus
from pymq.store.searches import among
from pymq.store.selection import Selection
from pymq.store.verdicts import Known

#: Entries scanned by one filtered read, as in RocketMQ (16,000 bytes of entries).
SCAN_MAX = 800


def read_queue(
    log: CommitLog,
    queue: ConsumeQueue | None,
    queue_offset: int,
    *,
    count_max: int,
    bytes_max: int,
    selection: Selection,
    scan_max: int,
) -> ReadResult | MatchingRead:
    """Return messages of a queue from an offset on; see ``Reads.begin``."""
    if queue is None:
        return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    first, end = queue.min_offset, queue.end_offset
    if not first <= queue_offset < end:
        return _outside(queue_offset, first, end, stored_end=queue.next_offset)
    count_max = max(1, count_max)
    if selection.verdicts is not None:
        known = selection.verdicts.find(queue, queue_offset)
        if known is not None:
            result = _read_known(
                *(log, queue, queue_offset, known),
                count_max=count_max,
                bytes_max=bytes_max,
                limit=min(scan_max, end - queue_offset),
            )
            if result is not None:
                return result
    is_all = selection.is_everything
    if is_all:
        # No record is smaller than its fixed part, so more entries would not fit.
        wanted = min(count_max, max(1, bytes_max // OVERHEAD_BYTES + 1))
    elif selection.matches is None:
        wanted = max(scan_max, count_max)
    else:
        wanted = scan_max  # each may have to be looked at, however many are wanted
    entries = queue.entries(queue_offset, min(wanted, end - queue_offset))
    if not len(entries):
        per_file = queue.file_bytes // entries.dtype.itemsize
        following = (queue_offset // per_file + 1) * per_file
        return ReadResult(ReadStatus.OFFSET_FOUND_NULL, min(following, end), first, end)
    physical = entries["physical_offset"].astype(np.int64)
    sizes = entries["size"].astype(np.int64)
    if is_all:
        found = _leading(log, physical, sizes, bytes_max)
        if found is not None:
            runs, sizes = found
            offsets = [queue_offset + row for row in runs[2]]
            return found_result(queue, queue_offset + len(sizes), runs, sizes, offsets)
    scan = QueueScan(
        log,
        queue,
        queue_offset,
        physical=physical,
        sizes=sizes,
        matched=_matches(queue, entries, selection),
        count_max=count_max,
        bytes_max=bytes_max,
    )
    if selection.matches is None:
        return scan.result_of_all()
    return MatchingRead(scan, selection.matches, selection.verdicts)


def _read_known(
    log: CommitLog,
    queue: ConsumeQueue,
    queue_offset: int,
    known: Known,
    *,
    count_max: int,
    bytes_max: int,
    limit: int,
) -> ReadResult | None:
    """Return the result if what the filter has decided is enough for it, else None.

    Args:
        limit: how many entries may be scanned; at least one.
    """
    skipped = queue_offset - known.first
    if skipped < len(known.physical) and known.physical[skipped] < log.first:
        return None  # expired, and still in the queue
    left = min(len(known.physical) - skipped, limit)
    at = int(known.rows.searchsorted(skipped))
    rows = known.rows[at : at + count_max] - skipped
    is_full = len(rows) == count_max and int(rows[-1]) < left
    if not is_full and left < limit:
        return None
    count = int(rows[-1]) + 1 if is_full else left
    entries = queue.entries(queue_offset, count)
    physical = entries["physical_offset"].astype(np.int64)
    if len(entries) < count or not (physical == known.physical[skipped : skipped + count]).all():
        return None
    sizes = entries["size"].astype(np.int64)
    if is_full and int(sizes.sum()) <= bytes_max:
        try:
            runs = runs_of(log, physical[rows], sizes[rows])
        except OffsetOutOfRange:
            pass  # an expired record, or damage
        else:
            offsets = (rows[runs[2]] + queue_offset).tolist()
            return found_result(queue, queue_offset + count, runs, sizes[rows], offsets)
    return QueueScan(
        log,
        queue,
        queue_offset,
        physical=physical,
        sizes=sizes,
        matched=known.selected[skipped : skipped + count],
        count_max=count_max,
        bytes_max=bytes_max,
    ).result_of_all()


def _outside(queue_offset: int, first: int, end: int, *, stored_end: int) -> ReadResult:
    """Return the result of a read before the first or after the last message of a queue.

    Who is ahead of what is visible, but not of what is stored, has read the rest at a slave, which
    had it on its disk earlier: it waits here, and is in the right place.
    """
    if end < queue_offset <= stored_end:
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, queue_offset, first, end)
    if end == 0:
        return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    if queue_offset < first:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, first, first, end)
    if queue_offset == end:
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, end, first, end)
    return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, end, first, end)


def _leading(
    log: CommitLog, physical: Longs, sizes: Longs, bytes_max: int
) -> tuple[Runs, Longs] | None:
    """Return the records that fit, at least one; None if one of their entries is special."""
    total = sizes.cumsum()
    if int(total[-1]) > bytes_max:
        count = max(1, int(total.searchsorted(bytes_max, "right")))
        physical, sizes = physical[:count], sizes[:count]
    try:
        return runs_of(log, physical, sizes), sizes
    except OffsetOutOfRange:
        return None  # An expired record, a blank entry, or damage.


def _matches(queue: ConsumeQueue, entries: Entries, selection: Selection) -> Mask:
    """Return which entries pass the filter; those with a lost tag code do, as in RocketMQ."""
    if selection.tag_codes is None:
        matched = np.ones(len(entries), np.bool_)
    else:
        codes, known = queue.tag_codes(entries)
        matched = among(codes, selection.tag_codes) | ~known
    if selection.bit_maps is not None and queue.extension is not None:
        addressed = (entries["tag_code"] <= ADDRESS_MAX).nonzero()[0]
        addresses = entries["tag_code"][addressed].astype(np.int64)
        matched[addressed] &= queue.extension.may_match(addresses, selection.bit_maps)
    return matched
