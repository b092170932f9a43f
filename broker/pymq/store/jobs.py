"""Disk work that a store hands out: ``run`` in any thread, then tell the store.

A job holds all it needs, so that the thread that owns the store may go on meanwhile.
"""

import logging
import time
from collections.abc import Sequence

from pymq.errors import FlushFailed, StoreError
from pymq.store.checkpoint import Checkpoint
from pymq.store.commit_log import CommitLog, LogSync
from pymq.store.key_index import KeyIndex
from pymq.store.queue_table import QueueTable, sync_queues
from pymq.store.staging import Commit, Staging

_log = logging.getLogger(__name__)

#: One read of a prefetch.
PREFETCH_BYTES = 1 << 20


class FlushJob:
    """One sync of the commit log. ``run`` in any thread, then ``MessageStore.flush_done``."""

    def __init__(
        self, log: CommitLog, checkpoint: Checkpoint, sync: LogSync, *, save: bool
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._save = save
        self.sync = sync
        self.error: FlushFailed | None = None
        #: How long the sync took.
        self.elapsed_s = 0.0

    @property
    def end(self) -> int:
        """Physical offset up to which everything is on the disk once this is done."""
        return self.sync.end

    def run(self) -> None:
        """Sync. Never raises: ``flush_done`` does."""
        begun = time.perf_counter()
        try:
            self._log.run_sync(self.sync)
        except FlushFailed as error:
            self.error = error
            return
        finally:
            self.elapsed_s = time.perf_counter() - begun
        self._checkpoint.log_timestamp = self.sync.store_timestamp
        self._checkpoint.confirmed = self.sync.end
        if self._save:
            self.error = _save(self._checkpoint)


class CommitJob:
    """One commit of staged records to the log's files."""

    def __init__(self, staging: Staging, commit: Commit) -> None:
        self._staging = staging
        self.commit = commit
        self.error: StoreError | None = None

    def run(self) -> None:
        """Write. Never raises: ``commit_done`` does."""
        try:
            self._staging.run(self.commit)
        except StoreError as error:
            self.error = error


class QueueFlushJob:
    """One sync of the changed consume queues and index files, and the checkpoint of it."""

    def __init__(
        self,
        queues: QueueTable,
        index: KeyIndex | None,
        checkpoint: Checkpoint,
        store_timestamp: int,
        end: int,
    ) -> None:
        #: Physical offset up to which every record's queue entry is on the disk afterwards.
        self.end = end
        self._opened = queues.files
        self._paths, self._directories = self._opened.take_dirty()
        self._index = index
        self._snapshots = [] if index is None else index.take_snapshots()
        self._index_ms = None if index is None else index.end_ms
        self._checkpoint = checkpoint
        self._store_timestamp = store_timestamp
        self.error: StoreError | None = None

    def run(self) -> None:
        """Sync. Never raises: ``queue_flush_done`` does."""
        try:
            sync_queues(self._opened.files, self._paths, self._directories)
            if self._index is not None:
                self._index.save_snapshots(self._snapshots)
        except StoreError as error:
            self.error = error
            return
        self._checkpoint.note_queues(self._store_timestamp, self._index_ms)
        self.error = _save(self._checkpoint)

    def give_back(self) -> None:
        """Leave to the next job what this one could not do."""
        self._opened.dirty |= self._paths
        self._opened.dirty_directories |= self._directories
        if self._index is not None:
            self._index.give_back(self._snapshots)


def _save(checkpoint: Checkpoint) -> FlushFailed | None:
    """Save the checkpoint; return what is final about a failure."""
    try:
        checkpoint.save()
    except FlushFailed as error:
        return error
    except StoreError as error:
        # An older checkpoint is true too; recovery only takes longer.
        _log.debug("checkpoint not saved: %s", error)
    return None


class PrefetchJob:
    """Brings records into memory. ``run`` in any thread, once.

    Touching a cold page of the map would stop the whole process, whichever thread does it:
    Python's lock is held meanwhile. ``pread`` gives it up.
    """

    def __init__(
        self, log: CommitLog, buffers: Sequence[memoryview], starts: Sequence[int]
    ) -> None:
        self._files = log.files
        self._places = log.places(starts, [len(buffer) for buffer in buffers])

    def run(self) -> None:
        """Read and drop. What cannot be read is met again, and reported, by the reader."""
        for fd, position, size in self._places:
            try:
                for at in range(position, position + size, PREFETCH_BYTES):
                    self._files.pread(fd, min(PREFETCH_BYTES, position + size - at), at)
            except StoreError as error:
                _log.debug("not prefetched: %s", error)
            finally:
                self._files.close(fd)
