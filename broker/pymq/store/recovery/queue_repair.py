"""Makes consume queues agree with the log: entries are compared with records, added and cut.

Source: RocketMQ ConsumeQueue.recover, truncateDirtyLogicFiles, putMessagePositionInfo.
"""

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pymq.protocol.record_batch import RecordColumns
from pymq.store.config import ENTRY_BYTES
from pymq.store.dispatch import WriteEntries
from pymq.store.log.commit_log import CommitLog
from pymq.store.queues.consume_queue import BLANK_ENTRY, BLANK_SIZE, ENTRY, ConsumeQueue, Entries
from pymq.store.queues.queue_entries import queue_entries
from pymq.store.queues.queue_extension import ADDRESS_MAX
from pymq.store.queues.queue_table import DIRECTORY_BYTES_MAX, QueueTable, illegal_name
from pymq.store.state.clean_stop import CleanStop

_log = logging.getLogger(__name__)

#: Files of a queue that are checked after an unclean stop, the last ones; as in RocketMQ.
_FILES_CHECKED = 3
#: A longer gap between queue offsets counts as a damaged offset.
_GAP_MAX = 1 << 16


class OlderNeeded(Exception):
    """A queue lacks entries older than the records that it was compared with first."""


class QueueRepair:
    """Compares all queues with the records of the log, which come in order.

    Args:
        log: where the records are.
        queues: all queues.
        clean_stop: says which topics were deleted when.
        delay_levels_ms: delays of levels 1, 2, ...
        lists_messages: whether light queues list messages; they do in any case if there are or were
            any.
        write: writes entries, and units of the extension where there is one.
        before_change: called before every change; idempotent.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        clean_stop: CleanStop,
        delay_levels_ms: tuple[int, ...],
        *,
        lists_messages: bool,
        write: WriteEntries,
        before_change: Callable[[], None],
    ) -> None:
        self._log = log
        self._queues = queues
        self._clean_stop = clean_stop
        self._delay_levels_ms = delay_levels_ms
        self._lists_messages = lists_messages
        self._write = write
        self._before_change = before_change
        self._cursors: dict[ConsumeQueue, int] = {}
        #: The lowest physical offset whose entry is known to be lost.
        self.lost_from = 1 << 63
        #: Runs of existing entries that were wrong.
        self.wrong_count = 0

    # -- before the log is read ---------------------------------------------------------------

    def find_ends(self) -> None:
        """Find the end of every queue's valid entries; empty the queues of deleted topics."""
        for queue in self._queues:
            self._find_end(queue)
            if queue.bases and queue.physical_end <= self._clean_stop.deleted.get(queue.topic, -1):
                # A power loss brought back a deleted queue.
                self._before_change()
                queue.reset()

    def _find_end(self, queue: ConsumeQueue) -> None:
        """Find the end of a queue's valid entries by looking at its last files."""
        if not queue.bases:
            return
        has_gap = not is_adjacent(queue)
        if has_gap:
            # Of several new files a power loss may take any. The files before the gap stay, for
            # their offsets: the log may have no other trace of these.
            _log.warning("%s: a file is missing, the files after it are rebuilt", queue.path)
            self._before_change()
            queue.drop_behind_gap()
        per_file = queue.file_bytes // ENTRY_BYTES
        for base in queue.bases[-_FILES_CHECKED:]:
            entries = self._data(queue, base)
            count = _valid_count(entries)
            queue.end_offset = base // ENTRY_BYTES + count
            if count < per_file:
                break
        end = queue.trusted_end()
        if end < queue.end_offset:
            _log.warning(
                "%s: the extension lacks units of entries %d..%d, they are rebuilt",
                queue.path,
                end,
                queue.end_offset,
            )
            self.lost_from = min(self.lost_from, queue.entry(end)[0])
            queue.end_offset = end
        if not self.units_reach_back(queue):
            _log.warning("%s: a file of its extension is missing, it is rebuilt", queue.path)
            self._rebuild(queue)
            return
        queue.physical_end = last_record_end(queue)
        if has_gap:
            self.lost_from = min(self.lost_from, max(0, queue.physical_end))

    def units_reach_back(self, queue: ConsumeQueue) -> bool:
        """Return whether no file of a queue's extension is missing, except at its end."""
        if queue.extension is None:
            return True
        first = queue.first_kept(self._log.first)
        known = queue.tag_codes(queue.entries(first, min(1, queue.end_offset - first)))[1]
        return queue.extension.is_adjacent and bool(known.all())

    def _rebuild(self, queue: ConsumeQueue) -> None:
        """Drop a queue's files; the log has to be read from its beginning."""
        self._before_change()
        queue.reset()
        self.lost_from = 0

    def _data(self, queue: ConsumeQueue, base: int) -> Entries:
        """Return the entries of a file up to its first hole."""
        opened = self._queues.files
        fd = opened.descriptor(queue.path_of(base))
        for start, end in opened.files.data_ranges(fd, 0, queue.file_bytes):
            if start:
                break
            return queue.entries(base // ENTRY_BYTES, end // ENTRY_BYTES)
        return np.empty(0, ENTRY)

    # -- while the log is read ----------------------------------------------------------------

    def restart(self) -> None:
        """Prepare for reading again from an older record on."""
        self._cursors.clear()

    def take(self, records: RecordColumns, *, oldest: bool) -> None:
        """Make the queues agree with consecutive records.

        Args:
            records: they follow those of the last call.
            oldest: whether the log was read from its first record on.

        Raises:
            OlderNeeded: a queue lacks entries older than the first records; begin there.
            DiskFull, FlushFailed, StoreError: the disk refused.
        """
        with_light = (
            self._lists_messages
            or self._queues.light_count > 0
            or self._clean_stop.has_light_queues
        )
        for topic, queue_id, rows, offsets, entries in queue_entries(
            records, self._delay_levels_ms, with_light=with_light
        ):
            queue = self._queue_of(topic, queue_id)
            if queue is None:
                continue
            deleted = self._clean_stop.deleted.get(queue.topic)
            if deleted is not None:
                kept = records.physical_offset[rows] >= deleted
                offsets, entries = offsets[kept], entries[kept]
            if len(entries):
                self._compare(queue, offsets, entries, oldest=oldest)

    def _queue_of(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        name = topic.decode("utf-8", "replace")
        reason = illegal_name(name, queue_id, bytes_max=DIRECTORY_BYTES_MAX)
        if reason is not None:
            _log.warning("the log holds records that no queue can have: %s", reason)
            return None
        return self._queues.make(name, queue_id)

    def _compare(
        self,
        queue: ConsumeQueue,
        offsets: npt.NDArray[np.int64],
        rows: Entries,
        *,
        oldest: bool,
    ) -> None:
        """Make a queue agree with its records, which are in log order."""
        breaks = (np.diff(offsets) != 1).nonzero()[0] + 1
        if not len(breaks):
            self._place(queue, int(offsets[0]), rows, oldest=oldest)
            return
        for part, place in zip(np.split(rows, breaks), np.split(offsets, breaks), strict=True):
            self._place(queue, int(place[0]), part, oldest=oldest)

    def _place(self, queue: ConsumeQueue, first: int, rows: Entries, *, oldest: bool) -> None:
        cursor = self._cursors.get(queue)
        if first == 0 and cursor:
            # The topic was deleted and created again: its offsets started from 0.
            self._before_change()
            queue.reset()
        elif cursor is None and queue.bases and first < queue.bases[0] // ENTRY_BYTES:
            # Files are trimmed after the log: a power loss took the first ones.
            if not oldest:
                raise OlderNeeded
            self._before_change()
            queue.reset()
        elif first > queue.end_offset and not self._bridge(
            queue, first, int(rows["physical_offset"][0]), cursor, oldest=oldest
        ):
            return
        overlap = max(0, min(queue.end_offset - first, len(rows)))
        good = self._good_count(queue, queue.entries(first, overlap), rows[:overlap])
        if good < overlap:
            self._before_change()
            self.wrong_count += 1
            if queue.extension is None:
                queue.put_entries(first, rows[:overlap].tobytes())
            else:
                # Units are in the order of their entries: everything from here on is deleted, and
                # written again as the log is read.
                overlap = good
                queue.erase_from(first + good)
                queue.end_offset = first + good
                if queue.trusted_end() < queue.end_offset and not oldest:
                    raise OlderNeeded
        if overlap < len(rows):
            self._before_change()
            if not queue.bases:
                queue.min_offset = first
            self._write(queue, first + overlap, rows[overlap:].tobytes())
        # What an earlier process has written may only be in the page cache. A flush of it may
        # have failed: then another one would succeed without it.
        queue.write_again(first, overlap)
        self._cursors[queue] = first + len(rows)

    def _bridge(
        self, queue: ConsumeQueue, first: int, physical: int, cursor: int | None, *, oldest: bool
    ) -> bool:
        """Prepare a queue for a record after its end; return False to leave the record out."""
        if cursor is None:
            if queue.physical_end > physical:
                return False  # From before the topic was deleted: the queue is newer.
            if not oldest:
                raise OlderNeeded
            self._before_change()
            queue.reset()  # Its older records have expired; it begins with this one.
            return True
        gap = first - queue.end_offset
        _log.warning(
            "%s: the log has no record for offsets %d..%d", queue.path, queue.end_offset, first
        )
        if gap > _GAP_MAX:
            _log.warning(
                "%s: record at physical offset %d left out: its queue offset %d cannot be right",
                queue.path,
                physical,
                first,
            )
            return False
        self._before_change()
        before = queue.physical_end
        queue.write(queue.end_offset, BLANK_ENTRY * gap)
        queue.physical_end = before
        return True

    def _good_count(self, queue: ConsumeQueue, found: Entries, wanted: Entries) -> int:
        """Return how many leading entries are as wanted, alone or with their units."""
        if found.tobytes() == wanted.tobytes():
            return len(wanted)
        wanted = wanted[: len(found)]
        codes, good = queue.tag_codes(found)
        good &= codes == wanted["tag_code"]
        good &= found["physical_offset"] == wanted["physical_offset"]
        good &= found["size"] == wanted["size"]
        addressed = found["tag_code"] <= ADDRESS_MAX
        if queue.extension is not None and addressed.any():
            # The store time detects an old unit that a power loss brought back.
            units, _ = queue.extension.units(found["tag_code"][addressed].astype(np.int64))
            physical = wanted["physical_offset"][addressed].astype(np.int64)
            good[addressed] &= units["store_timestamp"] == self._log.store_times(physical)
        return len(good) if good.all() else int(good.argmin())

    # -- after the end of the log was found ---------------------------------------------------

    def cut(self, log_end: int) -> None:
        """Drop entries of records that were cut off, and everything after the last ones."""
        for queue in list(self._queues):
            _cut(queue, log_end)


def _cut(queue: ConsumeQueue, log_end: int) -> None:
    end = queue.end_offset
    low = queue.bases[0] // ENTRY_BYTES if queue.bases else 0
    while end > low:
        first = max(low, end - 1024)
        entries = queue.entries(first, end - first)
        size = entries["size"].astype(np.int64)
        reach = np.where(size == BLANK_SIZE, 0, entries["physical_offset"] + size)
        beyond = (reach > log_end).nonzero()[0]
        # Entries before those may not have reached the disk.
        written = (size[: int(beyond[0]) if len(beyond) else None] > 0).nonzero()[0]
        count = int(written[-1]) + 1 if len(written) else 0
        if count == len(entries):
            break
        end = first + count
    if end < queue.end_offset:
        _log.warning(
            "%s: entries %d..%d pointed beyond the end of the log and were dropped",
            queue.path,
            end,
            queue.end_offset,
        )
    queue.erase_from(end)
    queue.end_offset = end
    if not queue.bases:
        queue.end_offset = 0
    queue.trusted_end()
    queue.physical_end = last_record_end(queue)


def last_record_end(queue: ConsumeQueue) -> int:
    """Return the end of the record of a queue's last entry that has one; -1: there is none."""
    low = queue.bases[0] // ENTRY_BYTES if queue.bases else queue.end_offset
    end, at_once = queue.end_offset, 1
    while end > low:
        first = max(low, end - at_once)
        entries = queue.entries(first, end - first)
        entries = entries[entries["size"] != BLANK_SIZE]
        if len(entries):
            return int(entries["physical_offset"][-1]) + int(entries["size"][-1])
        end, at_once = first, 1024
    return -1


def is_adjacent(queue: ConsumeQueue) -> bool:
    """Return whether the files of a queue, at least one, follow each other without a gap."""
    bases = queue.bases
    return bases[-1] - bases[0] == (len(bases) - 1) * queue.file_bytes


def _valid_count(entries: Entries) -> int:
    """Return how many leading entries are plausible: written, and ascending in the log."""
    physical = entries["physical_offset"].astype(np.int64)
    size = entries["size"].astype(np.int64)
    valid = (physical >= 0) & (size > 0)
    ends = np.where(size == BLANK_SIZE, 0, physical + size)
    valid[1:] &= (physical[1:] >= ends[:-1]) | (size[1:] == BLANK_SIZE)
    return len(valid) if valid.all() else int(valid.argmin())
