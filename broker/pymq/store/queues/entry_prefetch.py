"""Bringing entries of queues into memory before they are read, in a thread.

A read of a page that has to come from the disk takes milliseconds, or as long as a disk hangs. The
thread of the store asks first whether the entries that it is going to read are in memory.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from pymq.errors import StoreError
from pymq.store.config import ENTRY_BYTES
from pymq.store.files import Files
from pymq.store.queues.consume_queue import ENTRY, ConsumeQueue
from pymq.store.queues.queue_extension import ADDRESS_MAX
from pymq.store.queues.queue_files import QueueFiles

_log = logging.getLogger(__name__)

#: So many entries at the end of a queue count as in memory if this process has written them.
_RECENT_COUNT = 1 << 16
#: So many are looked at together; those in memory count as such for this long.
_WINDOW_COUNT, _CACHED_S = 4096, 1.0
_READ_BYTES_MAX = 1 << 20

#: Path of a file, size and position of a part of it.
Part: TypeAlias = tuple[str, int, int]


def entry_prefetch(
    files: QueueFiles, queue: ConsumeQueue, first: int, count: int, now_s: float
) -> "EntryPrefetchJob | None":
    """Return a job that brings entries into memory; None if they are, as nearly always.

    Args:
        files: of the queue.
        first, count: as for ``ConsumeQueue.entries``; what lies outside of the queue is left out.
        now_s: any monotonic time.
    """
    if first >= queue.loaded_end and first >= queue.end_offset - _RECENT_COUNT:
        return None
    first, end = max(first, queue.min_offset), min(first + count, queue.end_offset)
    if first >= end:
        return None
    known_first, known_end, until_s = queue.cached
    if known_first <= first and end <= known_end and now_s < until_s:
        return None
    # Some more: whoever reads these entries reads the following ones next.
    wide_end = min(max(end, first + _WINDOW_COUNT), queue.end_offset)
    parts = _parts(queue, first, wide_end)
    if queue.extension is None:
        if all(files.is_cached(*part) for part in parts):
            queue.cached = first, wide_end, now_s + _CACHED_S
            return None
        if all(files.is_cached(*part) for part in _parts(queue, first, end)):
            return None
    return EntryPrefetchJob(files.files, queue, parts)


def _parts(queue: ConsumeQueue, first: int, end: int) -> list[Part]:
    parts = []
    position, stop = first * ENTRY_BYTES, end * ENTRY_BYTES
    while position < stop:
        within = position % queue.file_bytes
        size = min(stop - position, queue.file_bytes - within)
        if (path := queue.find_path(position - within)) is not None:
            parts.append((path, size, within))
        position += size
    return parts


class EntryPrefetchJob:
    """Brings entries of a queue into memory, and their units. ``run`` in any thread, once."""

    def __init__(self, files: Files, queue: ConsumeQueue, parts: Sequence[Part]) -> None:
        self._files = files
        self._extension = queue.extension
        self._parts = parts

    def run(self) -> None:
        """Read, and drop what was read. The reader meets errors again, and reports them."""
        for part in self._parts:
            data = self._read(part)
            codes = np.frombuffer(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], ENTRY)["tag_code"]
            addresses = codes[codes <= ADDRESS_MAX].astype(np.int64)
            if self._extension is not None and len(addresses):
                for unit_part in self._extension.parts(addresses):
                    self._read(unit_part)

    def _read(self, part: Part) -> bytes:
        path, size, position = part
        try:
            return self._files.read_part(Path(path), min(size, _READ_BYTES_MAX), position)
        except StoreError as error:
            _log.debug("not prefetched: %s", error)
            return b""
