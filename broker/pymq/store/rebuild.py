"""Rebuilds everything that can be rebuilt from the log: queues, extensions, index, checkpoint.

1. Queue and index files that prevent a store from opening (wrong size or name) are removed. Then
   the store is opened and closed as by any start: a damaged log is refused there, unchanged, and
   an unfinished end is cut off.
2. Everything is built in a separate store, ``ROOT/rebuilding``, which shares the log. Up to here,
   the old files are still in use after a crash.
3. The new files replace the old ones, queue by queue. Meanwhile there is an abort marker and no
   checkpoint: after a crash the next start, ours or RocketMQ's, reads the whole log and makes
   what is missing. The old files are deleted when everything is in place and on the disk.

Queues whose records have all expired stay as they are: the log does not contain their ends, and
without these, offsets would start from 0 again.
"""

import logging
from dataclasses import replace
from pathlib import Path

from pymq.clock import Clock
from pymq.errors import CorruptRecord, StoreError
from pymq.store.config import StoreConfig
from pymq.store.files import Files, ReadOnlyFiles
from pymq.store.inspection import Summary, summarize
from pymq.store.inspection.findings import Findings, Kind, Severity
from pymq.store.inspection.layout import StoreLayout, read_layout
from pymq.store.message_store import MessageStore
from pymq.store.progress import OnProgress
from pymq.store.queues.queue_table import QueueKey, queue_directories
from pymq.store.state.checkpoint import CHECKPOINT_NAME, AbortMarker, Checkpoint, DirectoryLock
from pymq.store.state.clean_stop import CleanStop

_log = logging.getLogger(__name__)

REBUILDING_NAME = "rebuilding"
_OLD_NAME = "old"
_MISFITS = (Kind.QUEUE_FILE, Kind.INDEX_FILE)


def rebuild_store(
    config: StoreConfig,
    clock: Clock,
    *,
    files: Files | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> Summary:
    """Rebuild queues, index and checkpoint of a store from its log.

    Log and state files do not change. There must be room for a second set of queues and index
    files.

    Args:
        config: its settings; sizes of files are taken from the existing ones.
        clock: time for names and stamps.
        files: the operating system; tests pass one that fails.
        on_progress: called with (bytes, bytes in all) from time to time.

    Returns:
        What is in the store now.

    Raises:
        StoreLocked: a broker has it open.
        CorruptRecord: the log is damaged, and was not changed.
        StoreMismatch: the directory of the log has a file that does not belong to it.
        DiskFull, FlushFailed, StoreError: the disk refused; the old files are still in use, or
            the next start makes what is missing.
    """
    files = files or Files()
    config = _remove_misfits(config, files)
    MessageStore.open(config, clock, files=files, on_progress=on_progress).close()
    lock = DirectoryLock(files, config.root_path)
    try:
        lock.mark()
        rebuild = _Rebuild(config, clock, files)
        try:
            rebuild.build(on_progress)
        except StoreError:
            rebuild.give_up()
            raise
        rebuild.swap()
    finally:
        lock.release()
    return summarize(config)


def _remove_misfits(config: StoreConfig, files: Files) -> StoreConfig:
    """Return the settings with the actual sizes of files; remove files that prevent opening.

    These can be rebuilt from the log: with an abort marker and without a checkpoint, the next
    start does it, even if this process dies.
    """
    findings = Findings()
    layout = read_layout(config, ReadOnlyFiles(), findings)
    layout.close()
    if layout.in_use or findings.count(Severity.DAMAGE, Kind.LOG_FILE):
        return layout.config  # Opening the store reports what is wrong.
    misfits = [
        finding.path
        for severity, kind, _, kept in findings.groups()
        for finding in kept
        if kind in _MISFITS and severity is Severity.DAMAGE and files.exists(finding.path)
    ]
    if layout.index_files and layout.index_layout is None:
        misfits += [one.path for one in layout.index_files]
    if not misfits:
        return layout.config
    lock = DirectoryLock(files, layout.root)
    try:
        lock.mark()
        _forget_ends(layout, files)
        for path in misfits:
            _log.warning("%s: no queue or index file of this store, removed", path)
            files.remove(path)
    finally:
        lock.release()
    return _remove_misfits(config, files)


def _forget_ends(layout: StoreLayout, files: Files) -> None:
    AbortMarker(files, layout.root).put()
    files.remove(layout.root / CHECKPOINT_NAME)
    files.fsync_directory(layout.root)


class _Rebuild:
    """Builds in a separate directory, then swaps; the caller has locked the store."""

    def __init__(self, config: StoreConfig, clock: Clock, files: Files) -> None:
        root = config.root_path
        self._config = config
        self._clock = clock
        self._files = files
        self._root = root
        self._apart = root / REBUILDING_NAME
        self._old = self._apart / _OLD_NAME
        self._abort = AbortMarker(files, root)
        self._clean_stop, self._checkpoint = _notes(files, root)
        if self._abort.present():
            raise StoreError(f"{root}: the store could not be closed cleanly; see the log")

    # -- building -------------------------------------------------------------------------------

    def build(self, on_progress: OnProgress) -> None:
        """Build everything from the log; nothing that is in use changes."""
        files, apart = self._files, self._apart
        _remove_tree(files, apart)
        files.make_directory(apart, 0o700)
        # For the recovery of the new store: how far the log goes and is on the disk, which topics
        # were deleted, and that there are no queues yet.
        clean_stop = CleanStop(files, apart)
        checkpoint = Checkpoint(files, apart / CHECKPOINT_NAME)
        clean_stop.adopt(self._clean_stop)
        clean_stop.forget_ends()
        checkpoint.log_timestamp = self._checkpoint.log_timestamp
        checkpoint.confirmed = self._checkpoint.flushed_end
        checkpoint.save()
        AbortMarker(files, apart).put()
        config = replace(self._config, root_path=apart, commit_log_paths=self._config.log_paths)
        try:
            store = MessageStore.open(
                config,
                self._clock,
                files=files,
                on_progress=lambda done, total: on_progress(done, 2 * total),
            )
        except CorruptRecord as error:
            raise CorruptRecord(str(error).replace(str(apart), str(self._root))) from error
        try:
            total = store.log_end - store.log_first
            while store.keys.index_step():
                on_progress(2 * total - store.keys.behind_bytes, 2 * total)
        finally:
            store.close()
        if files.exists(apart / "abort"):
            raise StoreError(f"{apart}: not everything could be built; see the log")

    def give_up(self) -> None:
        """Free the space used so far, if possible."""
        try:
            _remove_tree(self._files, self._apart)
        except StoreError as error:
            _log.warning("%s: left behind (%s); the next rebuild removes it", self._apart, error)

    # -- replacing the old files ----------------------------------------------------------------

    def swap(self) -> None:
        """Replace the old files by the new ones, durably."""
        files, root = self._files, self._root
        built, checkpoint = _notes(files, self._apart)
        kept = self._kept_ends()
        self._abort.put()
        files.remove(root / CHECKPOINT_NAME)
        self._clean_stop.forget_ends()
        files.fsync_directory(root)
        changed = self._swap_queues(set(kept))
        if self._config.key_index:
            changed |= self._swap_one(self._config.index_path.name)
        for directory in sorted(changed):
            files.fsync_directory(directory)
        self._checkpoint.log_timestamp = checkpoint.log_timestamp
        self._checkpoint.queues_timestamp = checkpoint.queues_timestamp
        self._checkpoint.queues_complete = checkpoint.queues_complete
        self._checkpoint.index_timestamp = checkpoint.index_timestamp
        self._checkpoint.confirmed = checkpoint.confirmed
        self._checkpoint.queues_end = checkpoint.queues_end
        self._checkpoint.index_end = checkpoint.index_end
        self._checkpoint.save()
        built.ends |= kept
        self._clean_stop.adopt(built)
        self._abort.remove()
        _remove_tree(files, self._apart)

    def _kept_ends(self) -> dict[QueueKey, int]:
        """Return the ends of the queues that stay: the log does not contain these ends."""
        built = {
            (topic, queue_id)
            for topic, queue_id, _ in queue_directories(
                self._files, self._apart / self._config.queues_path.name
            )
        }
        layout = read_layout(self._config, ReadOnlyFiles(), Findings())
        try:
            return {
                key: queue.end_offset
                for key, queue in layout.queues.by_key.items()
                if key not in built and queue.physical_end <= layout.log_first
            }
        finally:
            layout.close()

    def _swap_queues(self, kept: set[QueueKey]) -> set[Path]:
        """Replace queues and extensions, one by one; return the directories that changed."""
        changed: set[Path] = set()
        for name in (self._config.queues_path.name, self._config.queue_extensions_path.name):
            places = {
                (topic, queue_id)
                for root in (self._root, self._apart)
                for topic, queue_id, _ in queue_directories(self._files, root / name)
            }
            for topic, queue_id in sorted(places - kept):
                changed |= self._swap_one(f"{name}/{topic}/{queue_id}")
                self._files.remove_directory(self._root / name / topic)
        return {path for path in changed if self._files.exists(path)}

    def _swap_one(self, name: str) -> set[Path]:
        """Move the old directory away, and the new one, if any, to its place."""
        files, place, new = self._files, self._root / name, self._apart / name
        if files.exists(place):
            files.make_directory((self._old / name).parent)
            files.rename(place, self._old / name)
        if files.exists(new):
            files.make_directory(place.parent)
            files.rename(new, place)
        return {path for path in place.parents if path.is_relative_to(self._root)}


def _notes(files: Files, root: Path) -> tuple[CleanStop, Checkpoint]:
    clean_stop = CleanStop(files, root)
    checkpoint = Checkpoint(files, root / CHECKPOINT_NAME)
    clean_stop.load()
    checkpoint.load()
    return clean_stop, checkpoint


def _remove_tree(files: Files, path: Path) -> None:
    """Delete a directory with everything in it."""
    for entry in files.list_directory(path):
        if entry.is_directory:
            _remove_tree(files, path / entry.name)
        else:
            files.remove(path / entry.name)
    files.remove_directory(path)
