"""The bytes after the end of the log: searched for records, copied aside, and zeroed.

RocketMQ leaves the bytes that it cuts off in place. New records overwrite them from the front,
and after the next crash the records that are left would count as valid again.

Zeros are written over zeros, too: an earlier attempt may have written those, and failed to flush
them. Then they are in the page cache only, and the old records on the disk.

What an unclean stop leaves was acknowledged by nobody, so there is a limit to what is kept of it.
What is cut off because a master has other bytes is kept whole: ``pymq.store.log.log_cut``.
"""

import logging
from pathlib import Path

from pymq.protocol.record import Record
from pymq.store.files import Files
from pymq.store.log.cut_bytes import number_of, rest_of, zero
from pymq.store.log.log_scan import find_record_after
from pymq.store.log.segment import Segment
from pymq.store.log.segments import Segments

_log = logging.getLogger(__name__)

RECOVERED_NAME = "recovered"


class TornTail:
    """The bytes of the log after a physical offset.

    Args:
        files: the operating system.
        segments: of the log.
        root: of the store; what is cut off is kept in its directory ``recovered``.
        kept_bytes_max: how much is kept there; the oldest is deleted first.
    """

    def __init__(
        self, files: Files, segments: Segments, root: Path, *, kept_bytes_max: int
    ) -> None:
        self._files = files
        self._segments = segments
        self._directory = root / RECOVERED_NAME
        self._kept_bytes_max = kept_bytes_max
        #: Of one cut: how much more of it may be kept, how much is not, and where it is.
        self._left_bytes = 0
        self._lost_bytes = 0
        self._own: set[str] = set()

    def first_record(self, end: int) -> Record | None:
        """Return the first valid record at or after a physical offset, if there is one."""
        for segment in self._segments:
            if segment.end > end:
                position = max(0, end - segment.first)
                record = find_record_after(self._files, segment, position)
                if record is not None:
                    return record
        return None

    def cut(self, end: int) -> int:
        """Copy aside and zero what follows; delete the segments after it; return how many bytes.

        Raises:
            DiskFull, FlushFailed, StoreError: the disk refused; call again.
        """
        cut = 0
        self._left_bytes, self._lost_bytes, self._own = self._kept_bytes_max, 0, set()
        for segment in self._segments:
            if segment.end > end:
                cut += self._zero(segment, max(0, end - segment.first), stays=segment.first <= end)
        self._segments.drop_after(sum(segment.first <= end for segment in self._segments))
        if self._lost_bytes:
            _log.warning(
                "%s: only the first %d of %d B that are cut off at physical offset %d are kept "
                "(pymqRecoveredBytesMax)",
                self._directory,
                cut - self._lost_bytes,
                cut,
                end,
            )
        return cut

    def _zero(self, segment: Segment, position: int, *, stays: bool) -> int:
        """Copy aside what is not zero after a position, then zero it; return how many bytes.

        Of a segment that stays, everything that is not a hole is zeroed, durably.
        """
        rest = rest_of(self._files, segment, position)
        if rest.used:
            self._keep(segment, position, rest.used)
        zero(segment, rest.pieces if stays else rest.nonzero)
        return rest.used

    def _keep(self, segment: Segment, position: int, size: int) -> None:
        """Copy bytes of a segment aside; delete the oldest copies if there are too many bytes."""
        self._lost_bytes += size
        size = min(size, self._left_bytes)
        if not size:
            return
        if self._files.make_directory(self._directory):
            self._files.fsync_directory(self._directory.parent)
        every = self._files.list_directory(self._directory)
        number = 1 + max((number_of(entry.name) for entry in every), default=0)
        # Directories are what was cut off elsewhere: those are the user's to delete.
        kept = [entry for entry in every if not entry.is_directory]
        used = sum(entry.size for entry in kept)
        for entry in sorted(kept, key=lambda entry: number_of(entry.name)):
            if used + size <= self._kept_bytes_max:
                break
            if entry.name not in self._own:
                self._files.remove(self._directory / entry.name)
                used -= entry.size
        name = f"{number:06d}-at-{segment.first + position:020d}"
        self._files.write_file(self._directory / name, segment.read(position, size))
        self._files.fsync_directory(self._directory)
        self._own.add(name)
        self._left_bytes -= size
        self._lost_bytes -= size
