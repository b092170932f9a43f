"""The bytes after the end of the log: searched for records, copied aside, and zeroed.

RocketMQ leaves the bytes that it cuts off in place. New records overwrite them from the front,
and after the next crash the records that are left would count as valid again.

Zeros are written over zeros, too: an earlier attempt may have written those, and failed to flush
them. Then they are in the page cache only, and the old records on the disk.
"""

from pathlib import Path

from pymq.protocol.record import Record
from pymq.store.files import Files
from pymq.store.log.log_scan import find_record_after
from pymq.store.log.segment import Segment
from pymq.store.log.segments import Segments

RECOVERED_NAME = "recovered"
#: Small enough that the next piece reuses the memory of the last one, which is in cache.
_PIECE_BYTES = 1 << 16
_ZEROS = bytes(_PIECE_BYTES)


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
        for segment in self._segments:
            if segment.end > end:
                cut += self._zero(segment, max(0, end - segment.first), stays=segment.first <= end)
        self._segments.drop_after(sum(segment.first <= end for segment in self._segments))
        return cut

    def _zero(self, segment: Segment, position: int, *, stays: bool) -> int:
        """Copy aside what is not zero after a position, then zero it; return how many bytes.

        Of a segment that stays, everything that is not a hole is zeroed, durably.
        """
        used = 0
        pieces: list[tuple[int, int]] = []
        files, fd = self._files, segment.fd
        for start, stop in files.data_ranges(fd, position, segment.size_bytes):
            while start < stop:
                piece = files.pread(fd, min(_PIECE_BYTES, stop - start), start)
                is_zero = piece == _ZEROS[: len(piece)]
                if not is_zero:
                    used = start + len(piece.rstrip(b"\0")) - position
                if stays or not is_zero:
                    pieces.append((start, len(piece)))
                start += len(piece)
        if used:
            self._keep(segment, position, used)
        if pieces:
            for start, size in pieces:
                segment.write(_ZEROS[:size], start)
            segment.flush()
        return used

    def _keep(self, segment: Segment, position: int, size: int) -> None:
        """Copy bytes of a segment aside; delete the oldest copies if there are too many bytes."""
        bound = self._kept_bytes_max
        size = min(size, bound)
        if not size:
            return
        if self._files.make_directory(self._directory):
            self._files.fsync_directory(self._directory.parent)
        kept = self._files.list_directory(self._directory)
        number = 1 + max((_number(entry.name) for entry in kept), default=0)
        used = sum(entry.size for entry in kept)
        for entry in sorted(kept, key=lambda entry: _number(entry.name)):
            if used + size <= bound:
                break
            self._files.remove(self._directory / entry.name)
            used -= entry.size
        path = self._directory / f"{number:06d}-at-{segment.first + position:020d}"
        self._files.write_file(path, segment.read(position, size))
        self._files.fsync_directory(self._directory)


def _number(name: str) -> int:
    head = name.partition("-")[0]
    return int(head) if head.isascii() and head.isdigit() else 0
