"""Dropping the entries of records that the log no longer holds.

Which these are is found out in any thread: the entries are old, and may have to come from the disk.

Source: RocketMQ MappedFileQueue.deleteExpiredFileByOffset, ConsumeQueue.correctMinOffset.
"""

from pathlib import Path

import numpy as np

from pymq.errors import StoreError
from pymq.store.config import ENTRY_BYTES
from pymq.store.files import Files
from pymq.store.queues.consume_queue import BLANK_SIZE, ENTRY, ENTRY_STRUCT, ConsumeQueue


class TrimJob:
    """One step for one queue: ``run`` in any thread, then ``finish`` in that of the store.

    Args:
        files: the operating system.
        queue: may be removed before the job runs.
        log_first: physical offset of the first record of the log.
    """

    def __init__(self, files: Files, queue: ConsumeQueue, log_first: int) -> None:
        self.queue = queue
        self._files = files
        self._log_first = log_first
        self._oldest = queue.bases[0] if len(queue.bases) > 1 else None
        self._is_due = False
        self._kept_from = self._code = 0
        self._error: StoreError | None = None

    def run(self) -> None:
        """Find out whether its first file is due, and what is the first entry that stays."""
        queue = self.queue
        try:
            self._is_due = self._oldest is not None and not self._is_kept(self._oldest)
            self._kept_from = queue.first_kept(self._log_first, self._entry)
            if self._kept_from < queue.end_offset:
                self._code = self._entry(self._kept_from)[2]
        except StoreError as error:
            self._error = error

    def _is_kept(self, base: int) -> bool:
        """Return whether a file has an entry of a record that the log still holds."""
        size = self.queue.file_bytes
        physical, record_bytes, _ = self._entry((base + size) // ENTRY_BYTES - 1)
        if record_bytes != BLANK_SIZE:
            return physical >= self._log_first
        # It ends with a gap: the entries before it decide.
        entries = np.frombuffer(self._read(base, size, 0), ENTRY)
        kept = (entries["physical_offset"] >= self._log_first) & (entries["size"] != BLANK_SIZE)
        return bool(kept.any())

    def _entry(self, offset: int) -> tuple[int, int, int]:
        within = offset * ENTRY_BYTES % self.queue.file_bytes
        data = self._read(offset * ENTRY_BYTES - within, ENTRY_BYTES, within)
        found: tuple[int, int, int] = ENTRY_STRUCT.unpack(data or bytes(ENTRY_BYTES))
        return found

    def _read(self, base: int, size: int, position: int) -> bytes:
        """Return a part of a file; nothing if there is no such file."""
        path = self.queue.find_path(base)
        if path is None:
            return b""
        data = self._files.read_part(Path(path), size, position)
        if len(data) < size:
            raise StoreError(f"{path}: shorter than {position + size} B; restart to rebuild it")
        return data

    def finish(self) -> bool:
        """Drop what is due; return whether a file was deleted.

        One file at most, and never the last one, so that offsets go on. Its directory has to be
        flushed before the next file may be deleted: a power loss must not leave a gap.

        Raises:
            StoreError: something could not be read, or not be deleted; try again later.
        """
        if self.queue.removed:
            return False
        if self._error is not None:
            raise self._error
        if self._is_due:
            self.queue.remove_oldest()
        self.queue.begin_at(self._kept_from, self._code)
        return self._is_due
