"""Where indexing of keys goes on after a start.

The index is not brought up to date here: it catches up with the log later, while the store is in
use. What has to be decided is how much of it can be trusted.

Source: RocketMQ IndexService.load.
"""

import logging
from pathlib import Path

from pymq.errors import CorruptRecord
from pymq.protocol.record import OVERHEAD_BYTES
from pymq.store.index.key_index import IndexPosition, KeyIndex
from pymq.store.log.commit_log import CommitLog
from pymq.store.log.log_scan import first_record
from pymq.store.state.checkpoint import Checkpoint
from pymq.store.state.clean_stop import CleanStop

_log = logging.getLogger(__name__)


class IndexResumption:
    """Cuts a loaded index back to what the log and the disk vouch for.

    Args:
        index: to be cut.
        log: recovered.
        checkpoint: says up to where the index is on the disk.
        clean_stop: says where indexing was at the last clean stop.
        clean: whether the last stop was one.
    """

    def __init__(
        self,
        index: KeyIndex,
        log: CommitLog,
        checkpoint: Checkpoint,
        clean_stop: CleanStop,
        *,
        clean: bool,
    ) -> None:
        self._index = index
        self._log = log
        self._checkpoint = checkpoint
        self._clean_stop = clean_stop
        self._clean = clean

    def resume(self, index_path: Path) -> None:
        """Find where indexing goes on; keys that may not be on the disk are dropped.

        The log is indexed later, while the store is in use.
        """
        log, index, note = self._log, self._index, self._clean_stop.index
        if not self._clean or self._clean_stop.log_end != log.end:
            note = None  # The log has changed since.
        index.drop_empty()
        if not self._is_sound(note):
            _log.warning("%s: damaged, the index is rebuilt", index_path)
            index.clear()
            note = None
        if index.last_physical >= log.end:
            index.cut(log.end, log.store_time_at)
        index.end = max(index.last_physical, log.first)
        if note is not None:
            index.end, index.end_ms = note.end, note.end_ms
        if self._clean:
            return
        first = self._trusted_end()
        # Also if there is nothing to drop: the slots on the disk may be older than the header.
        index.cut(first, log.store_time_at)
        # If files are gone, it ends earlier than the checkpoint says.
        index.end = max(min(first, index.last_physical), log.first)
        # Otherwise a process that dies once a minute would read all of this every time.
        index.save_at = log.end

    def _is_sound(self, note: IndexPosition | None) -> bool:
        """Return whether headers and last item of the index can be correct."""
        index = self._index
        last = index.last_physical
        if not index.is_sound or (note is not None and note.last_physical != last):
            return False
        if not self._log.first <= last < self._log.end:
            return True  # The record is not in the log any more: nothing to compare with.
        if note is not None and note.last_count not in (-1, index.position.last_count):
            return False  # Its keys were in two files, and one is gone.
        segment = self._log.segments.find(last)
        segment.read(last - segment.first, OVERHEAD_BYTES)  # In the map a bad block is a SIGBUS.
        try:
            self._log.record_view(last)
        except CorruptRecord:
            return False
        return True

    def _trusted_end(self) -> int:
        """Return the start of the segment below which the index is complete on the disk."""
        segments = self._log.segments
        for index in range(len(segments) - 1, 0, -1):
            record = first_record(segments[index])
            if record is None or record.store_timestamp <= 0:
                continue
            if self._checkpoint.index_covers(segments[index].first, record.store_timestamp):
                return segments[index].first
        return self._log.first
