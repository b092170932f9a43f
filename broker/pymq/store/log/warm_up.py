"""Warm-up: every page of the next segment is written and locked in memory before it is needed.

An append then waits neither for a page nor for a block. The content does not change: zeros. The
current segment and the prepared one are locked; the one before is unlocked some seconds after
the log has left it.

Source: RocketMQ MappedFile.warmMappedFile, mlock (warmMapedFileEnable).
"""

import logging

from pymq.store.files import Files
from pymq.store.log.segment import Segment

_log = logging.getLogger(__name__)

PAGE_BYTES = 4096
#: Written at once: a put that needs the segment now waits for one of these at most.
_PIECE = bytes(1 << 20)


class WarmUp:
    """Warms segments up; ``run`` in one thread at a time, ``unlock_below`` in any other.

    Args:
        flush_bytes: flush after this many; None: leave it to the system.
    """

    def __init__(self, flush_bytes: int | None) -> None:
        self._sync_bytes = flush_bytes
        self._locked: list[Segment] = []
        self._is_refused = False
        #: Set while a put waits for the segment: the warm-up ends early.
        self.is_hurried = False

    def run(self, files: Files, segment: Segment) -> None:
        """Warm up a segment that is not in use yet, or as much of it as there is time for.

        Raises:
            DiskFull, FlushFailed, StoreError: the disk refused; the segment is removed.
        """
        try:
            self._write(segment)
        except BaseException:
            segment.remove()
            files.fsync_directory(segment.path.parent)
            raise
        if not self.is_hurried:
            self._lock(segment)

    def _write(self, segment: Segment) -> None:
        unflushed = 0
        for position in range(0, segment.size_bytes, len(_PIECE)):
            if self.is_hurried:
                return
            size = min(len(_PIECE), segment.size_bytes - position)
            segment.write(_PIECE[:size], position)
            unflushed += size
            if self._sync_bytes is not None and unflushed >= self._sync_bytes:
                segment.flush()
                unflushed = 0

    def _lock(self, segment: Segment) -> None:
        if segment.lock_in_memory():
            self._locked.append(segment)
        elif not self._is_refused:
            self._is_refused = True
            _log.warning(
                "%s: the system does not let its %d MiB be locked in memory: raise the limit "
                "(ulimit -l, LimitMEMLOCK=) to two commit-log files, or switch warmMapedFileEnable "
                "off; messages are stored all the same",
                segment.path,
                segment.size_bytes >> 20,
            )

    def unlock_below(self, first: int) -> None:
        """Unlock the segments below a physical offset."""
        for segment in [one for one in self._locked if one.first < first]:
            self._locked.remove(segment)
            segment.unlock_from_memory()
