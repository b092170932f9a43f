"""Deleting what is old: segments first, then what index and queues hold of them.

A pass is a run of small jobs. Each deletes the segments that left the log before it and looks at
the disks and at the oldest segment that is left; ``done`` decides whether that one leaves the
log, too. When none does, index and queues follow, some at a time. A crash anywhere between is
harmless: segments go oldest first, entries of records that are gone are never shown, and the
first pass after the next start trims every queue.

A segment stays until it and all queue entries of its records are on the disk, and the last one
stays for ever.

Source: RocketMQ CleanCommitLogService, CleanConsumeQueueService.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from pymq.clock import Clock
from pymq.errors import StoreError
from pymq.store.commit_log import STORE_TIME_END, CommitLog, store_time_of
from pymq.store.config import StoreConfig
from pymq.store.consume_queue import ConsumeQueue
from pymq.store.files import DiskUsage, Files
from pymq.store.key_index import KeyIndex
from pymq.store.known_queues import KnownQueues
from pymq.store.queue_table import QueueTable
from pymq.store.retention import DiskLevel, level_of, may_delete
from pymq.store.retirement import Retirement
from pymq.store.segments import Segments

_log = logging.getLogger(__name__)

#: Queues looked at by one step, so that the thread of the store is soon free again.
_QUEUES_A_STEP = 64
#: RocketMQ's number of passes after one request.
_ASKED_PASSES = 20

Usages = Mapping[Path, DiskUsage]


class DiskWatch:
    """Knows how full the disks are and says so when that changes."""

    def __init__(self, config: StoreConfig, files: Files) -> None:
        self._config = config
        self._files = files
        self._log_paths = config.log_paths
        self._noted = ""
        self.level = DiskLevel.PLENTY
        #: How full they were when they were last looked at.
        self.usages: Usages = {}
        #: Why writes are refused; None while they are not.
        self.refusal: str | None = None
        #: Directories of the log where no new file should be made if there is another.
        self.full_log_paths: frozenset[Path] = frozenset()

    def look(self) -> Usages:
        """Return how full the disks are; in any thread. What cannot be seen is left out."""
        found = {}
        for path in (*self._log_paths, self._config.queues_path):
            try:
                found[path] = self._files.disk_usage(path)
            except StoreError as error:
                if str(error) != self._noted:
                    self._noted = str(error)
                    _log.warning("how full the disk is cannot be seen: %s", error)
        return found

    def note(self, usages: Usages) -> None:
        """Take over what ``look`` returned."""
        self.usages = usages
        logs = [path for path in self._log_paths if path in usages]
        self.full_log_paths = frozenset(
            path for path in logs if level_of(usages[path], self._config) >= DiskLevel.FORCE
        )
        roomiest = min(logs, key=lambda path: usages[path].ratio, default=None)
        counted = [path for path in (roomiest, self._config.queues_path) if path in usages]
        levels = {path: level_of(usages[path], self._config) for path in counted if path}
        path = max(levels, key=levels.__getitem__, default=self._config.root_path)
        level = levels.get(path, DiskLevel.PLENTY)
        if level is self.level:
            return
        text = self._text(path, usages[path]) if path in usages else f"{path}: not seen"
        _log.log(
            logging.WARNING if level > max(self.level, DiskLevel.CLEAN) else logging.INFO,
            "disk level %s (before: %s): %s",
            level.name,
            self.level.name,
            text,
        )
        self.level = level
        self.refusal = None
        if level is DiskLevel.FULL:
            self.refusal = (
                f"{text}; writes are refused above {self._config.disk_full_percent} % "
                "(diskSpaceWarningLevelRatio): free some space there, or set diskFreeEnoughBytes "
                "if what is left is enough"
            )

    def _text(self, path: Path, usage: DiskUsage) -> str:
        left = usage.available_bytes >> 20
        return f"{path}: its disk is {usage.ratio:.1%} full, {left} MiB are left"


class CleanJob:
    """One bounded piece of disk work. ``run`` in any thread, then ``MessageStore.clean_done``."""

    def __init__(
        self,
        files: Files,
        segments: Segments,
        retirement: Retirement,
        disk: DiskWatch,
        oldest: tuple[Path, Path] | None,
        directories: Collection[Path],
        index_files: list[Path],
        now_s: float,
    ) -> None:
        self._files = files
        self._segments = segments
        self._retirement = retirement
        self._disk = disk
        self._now_s = now_s
        #: The paths of the oldest segment and of its successor; None if that must stay anyway.
        self.oldest = oldest
        #: Directories of queues to be synced; afterwards those where that failed.
        self.directories = directories
        #: Index files to be deleted; afterwards those where that failed.
        self.index_files = index_files
        self.usages: Usages = {}
        self.last_write_ms: int | None = None
        #: Segments deleted or given back.
        self.count = 0

    def run(self) -> None:
        """Delete, then look. Never raises: what fails is logged, and tried again by the next."""
        self._segments.unlock_old()
        self.count = self._retirement.step(self._now_s)
        self.directories = [path for path in self.directories if not self._sync(path)]
        self.index_files = [path for path in self.index_files if not self._remove(path)]
        self.usages = self._disk.look()
        if self.oldest is not None:
            try:
                self.last_write_ms = self._last_write(*self.oldest)
            except StoreError as error:
                _log.warning("the age of the oldest commit-log file is not known: %s", error)

    def _sync(self, directory: Path) -> bool:
        try:
            self._files.sync_directory(directory)
        except StoreError as error:
            if self._files.exists(directory):  # Or its topic was deleted meanwhile.
                _log.error("%s; nothing more is deleted there until this succeeds", error)
                return False
        return True

    def _remove(self, path: Path) -> bool:
        try:
            self._files.remove(path)
            self._files.sync_directory(path.parent)
        except StoreError as error:
            _log.error("an old index file stays until this succeeds: %s", error)
            return False
        return True

    def _last_write(self, path: Path, successor: Path) -> int:
        """Return when a segment was last written.

        RocketMQ goes by the time of the file. That of a copy is young, but what the next
        segment begins with was stored when this one was full.
        """
        modified = self._files.modified_ms(path)
        rolled = store_time_of(self._files.read_part(successor, STORE_TIME_END, 0)) or 0
        return min(modified, rolled) if rolled > 0 else modified


class Cleaner:
    """Decides what goes; belongs to the thread of the store."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        known: KnownQueues,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._queues = queues
        self._index = index
        self._known = known
        self._retirement = Retirement(log.files, config.held_grace_ms / 1000)
        self._asked = 0
        self._left: int | None = None  # Segments this pass may still take; None between passes.
        self._trimmed_to = -1
        self._untrimmed: list[ConsumeQueue] = []
        self._unsynced: dict[Path, ConsumeQueue] = {}  # A file was deleted there.
        self._old_index: list[Path] = []  # Index files to be deleted.
        self._trim_again = False  # A queue could not be trimmed: the next pass tries all.
        self._noted = ""
        self.disk = DiskWatch(config, log.files)

    def clean_now(self) -> None:
        """Let the next passes go by age alone."""
        self._asked = _ASKED_PASSES

    def note_disk(self, usages: Usages) -> None:
        """Take over what was seen of the disks."""
        self.disk.note(usages)
        self._log.segments.full_paths = self.disk.full_log_paths

    def target(self, safe_end: int) -> CleanJob:
        """Return the next job.

        Args:
            safe_end: physical offset behind which nothing may be deleted.
        """
        if self._left is None:
            self._left = self._config.clean_batch_max
        segments = self._log.segments
        oldest = None
        if self._left and len(segments) > 1 and segments[0].end <= safe_end:
            oldest = segments[0].path, segments[1].path
        now_s = self._clock.monotonic_s()
        return CleanJob(
            self._log.files,
            segments,
            self._retirement,
            self.disk,
            oldest,
            list(self._unsynced),
            self._old_index,
            now_s,
        )

    def done(self, job: CleanJob) -> int:
        """Decide upon what a job has seen; return how much got done, 0 at the end of a pass."""
        self.note_disk(job.usages)
        failed = {path: self._unsynced[path] for path in job.directories}
        # Each of them may have more to delete.
        self._untrimmed += [one for path, one in self._unsynced.items() if path not in failed]
        self._unsynced = failed
        self._old_index = job.index_files
        if job.oldest is not None and self._may_go(job.last_write_ms):
            assert self._left is not None
            self._left -= 1
            self._retirement.add(self._log.segments.take_first())
            return job.count + 1
        count = job.count + self._trim()
        if not count:
            self._left = None
            if self._trim_again:
                self._trimmed_to, self._trim_again = -1, False
            self._asked = max(0, self._asked - 1)
        return count

    def expired_queues(self, may_go: Callable[[str, int], bool]) -> Iterator[ConsumeQueue]:
        """Yield queues that once held messages and hold none any more, if they may go."""
        if not self._retirement.deleted:
            return  # A crash now would bring segments back, and their entries.
        first = self._log.first
        for queue in list(self._queues):
            end = queue.end_offset
            if (
                0 < end == queue.next_offset
                and may_go(queue.topic, queue.queue_id)
                and queue.first_kept(first) == end
            ):
                yield queue

    def _may_go(self, last_write_ms: int | None) -> bool:
        return may_delete(
            last_write_ms,
            self._config,
            now_ms=self._clock.wall_ms(),
            level=self.disk.level,
            asked=self._asked > 0,
        )

    def _trim(self) -> int:
        """Let the index and some queues follow the log; return how many queues."""
        if not self._retirement.deleted:
            return 0  # A crash now would bring segments back.
        first = self._log.first
        if first != self._trimmed_to:
            self._trimmed_to = first
            self._untrimmed = list(self._queues)
            self._known.trim(first)
            if self._index is not None:
                self._old_index += self._index.take_old(first)
        due, self._untrimmed = self._untrimmed[:_QUEUES_A_STEP], self._untrimmed[_QUEUES_A_STEP:]
        for queue in due:
            if queue.path in self._unsynced:
                self._trim_again = True
            elif not queue.removed and self._try_trim(queue, first):
                self._unsynced[queue.path] = queue
        return len(due)

    def _try_trim(self, queue: ConsumeQueue, log_first: int) -> bool:
        try:
            return queue.trim(log_first)
        except StoreError as error:
            self._trim_again = True
            if str(error) != self._noted:
                self._noted = str(error)
                _log.error("an old file stays until this succeeds: %s", error)
        return False

    def close(self) -> None:
        """Delete what has left the log, and let its views go their way."""
        self._retirement.step(self._clock.monotonic_s())
        self._retirement.close()
