"""The work of cleaning that waits for the disk: jobs, each bounded, for any thread."""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from pymq.errors import StoreError
from pymq.store.files import Files
from pymq.store.log.commit_log import STORE_TIME_END, store_time_of
from pymq.store.log.segments import Segments
from pymq.store.queues.queue_trim import TrimJob
from pymq.store.retention.deleted_segments import DeletedSegments
from pymq.store.retention.disk_watch import DiskWatch, Usages
from pymq.store.state.checkpoint import DirectoryLock

_log = logging.getLogger(__name__)


class CleanJob:
    """One bounded piece of disk work. ``run`` in any thread, then ``Retention.finish_clean``."""

    def __init__(
        self,
        files: Files,
        segments: Segments,
        deleted_segments: DeletedSegments,
        disk: DiskWatch,
        lock: DirectoryLock,
        oldest: tuple[Path, Path] | None,
        directories: Collection[Path],
        index_files: list[Path],
        trims: Sequence[TrimJob],
        now_s: float,
    ) -> None:
        self._files = files
        self._segments = segments
        self._deleted_segments = deleted_segments
        self._disk = disk
        self._lock = lock
        self._now_s = now_s
        #: Paths of the oldest segment and of the next one; None if the oldest one has to stay.
        self.oldest = oldest
        #: Directories of queues to flush; after ``run`` those where that failed.
        self.directories = directories
        #: Index files to delete; after ``run`` those where that failed.
        self.index_files = index_files
        self.trims = trims
        self.usages: Usages = {}
        self.last_write_ms: int | None = None
        #: Segments deleted, or whose memory was released.
        self.count = 0
        #: Whether nothing was done, as the store's directories are not there any more.
        self.is_lost = False

    def run(self) -> None:
        """Delete, then look. Never raises: failures are logged, and the next job tries again."""
        if self._lock.lost() is not None:
            self.is_lost = True  # What is in their place may be another store's.
            return
        self._segments.unlock_old()
        self.count = self._deleted_segments.step(self._now_s)
        self.directories = [path for path in self.directories if not self._flush(path)]
        self.index_files = [path for path in self.index_files if not self._remove(path)]
        for trim in self.trims:
            trim.run()
        self.usages = self._disk.look()
        if self.oldest is not None:
            try:
                self.last_write_ms = self._last_write(*self.oldest)
            except StoreError as error:
                _log.warning("the age of the oldest commit-log file is not known: %s", error)

    def _flush(self, directory: Path) -> bool:
        try:
            self._files.fsync_directory(directory)
        except StoreError as error:
            if self._files.exists(directory):  # Otherwise its topic was deleted in the meantime.
                _log.error("%s; nothing more is deleted there until this succeeds", error)
                return False
        return True

    def _remove(self, path: Path) -> bool:
        try:
            self._files.remove(path)
            self._files.fsync_directory(path.parent)
        except StoreError as error:
            _log.error("an old index file stays until this succeeds: %s", error)
            return False
        return True

    def _last_write(self, path: Path, successor: Path) -> int:
        """Return when a segment was last written, ms since the epoch.

        RocketMQ uses the time of the file, which for a copy is the time of copying. But the first
        record of the next segment was stored when this one was full.
        """
        modified = self._files.modified_ms(path)
        rolled = store_time_of(self._files.read_part(successor, STORE_TIME_END, 0)) or 0
        return min(modified, rolled) if rolled > 0 else modified


class WatchJob:
    """A look at the disks. ``run`` in any thread, then ``Retention.finish_watch``."""

    def __init__(
        self, files: Files, disk: DiskWatch, lock: DirectoryLock, deleted: Sequence[int]
    ) -> None:
        self._files = files
        self._disk = disk
        self._lock = lock
        self._deleted = deleted
        self.usages: Usages = {}
        #: What of the store's directories is not there any more; None: everything is.
        self.lost: Path | None = None

    def run(self) -> None:
        """Free the space of deleted queue files, then look. Never raises."""
        for fd in self._deleted:
            try:
                self._files.close(fd)
            except OSError as error:
                _log.error("a deleted consume-queue file cannot be closed: %s", error)
        self.usages = self._disk.look()
        self.lost = self._lock.lost()
