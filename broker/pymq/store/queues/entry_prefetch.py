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
_READ_BYTES_MAX = 1 << 20

#: Path of a file, size and position of a part of it.
Part: TypeAlias = tuple[str, int, int]


def entry_prefetch(
    files: QueueFiles, queue: ConsumeQueue, first: int, count: int
) -> "EntryPrefetchJob | None":
    """Return a job that brings entries into memory; None if they are, as nearly always.

    Args:
        files: of the queue.
        first, count: as for ``ConsumeQueue.entries``; what lies outside of the queue is left out.
    """
    if first >= queue.loaded_end and first >= queue.end_offset - _RECENT_COUNT:
        return None
    first, end = max(first, queue.min_offset), min(first + count, queue.end_offset)
    parts = list[Part]()
    position, stop = first * ENTRY_BYTES, end * ENTRY_BYTES
    while position < stop:
        within = position % queue.file_bytes
        size = min(stop - position, queue.file_bytes - within)
        if (path := queue.find_path(position - within)) is not None:
            parts.append((path, size, within))
        position += size
    if not parts or (queue.extension is None and all(files.is_cached(*part) for part in parts)):
        return None
    return EntryPrefetchJob(files.files, queue, parts)


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
