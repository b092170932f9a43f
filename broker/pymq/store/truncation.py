"""Cuts the log of a store that is not open, where it stops being its master's.

What is cut off is kept in ``recovered/``, all of it. The queues, the key index and the files of
timers are cut by the next start, which finds what an unclean stop leaves: entries of records that
are not in the log any more.

Source: RocketMQ DefaultMessageStore.truncateFiles, which cuts in the running store.
"""

import logging

from pymq.errors import StoreMismatch
from pymq.store.config import StoreConfig
from pymq.store.files import Files
from pymq.store.log.log_cut import LogCut
from pymq.store.log.log_scan import first_record, follow_sizes
from pymq.store.log.segments import Segments
from pymq.store.recovery.unsupported_formats import check_kind
from pymq.store.state.checkpoint import CHECKPOINT_NAME, AbortMarker, Checkpoint, DirectoryLock
from pymq.store.state.clean_stop import CleanStop

_log = logging.getLogger(__name__)


def truncate_log(config: StoreConfig, physical_end: int, *, files: Files | None = None) -> int:
    """Cut the log at a physical offset; return how many bytes are gone.

    Args:
        config: of the store, which nobody has open.
        physical_end: where a record begins, or ends.
        files: the operating system.

    Raises:
        StoreLocked: somebody has it open.
        StoreMismatch: the log has no boundary there, or these are files of another kind.
        DiskFull: there is no room to keep what would have to be copied; that was not cut off.
        FlushFailed, StoreError: the disk refused; call again.
    """
    files = files or Files()
    root = config.root_path
    lock = DirectoryLock(files, root, config.written_log_paths)
    segments = Segments(
        files,
        config.log_paths,
        config.segment_bytes,
        read_only=config.read_only_log_paths,
        warm_up=None,
    )
    try:
        check_kind(files, config)
        segments.load()
        if not _has_boundary(segments, physical_end):
            raise StoreMismatch(
                f"{root}: no record of the log begins or ends at physical offset {physical_end}: "
                "it is another log than the master's. Start this broker with an empty store"
            )
        return _cut(config, files, segments, physical_end)
    finally:
        segments.close()
        lock.release()


def _has_boundary(segments: Segments, physical_end: int) -> bool:
    if not len(segments):
        return physical_end == 0  # an attempt before this one may have cut all there was
    if physical_end == segments[-1].end:
        return True
    if not segments[0].first <= physical_end < segments[-1].end:
        return False
    segment = segments.find(physical_end)
    at, limit = 0, physical_end - segment.first
    for _ in segment.read_through(limit):
        pass  # A bad block is an error here, and a SIGBUS in the map.
    while at < limit:
        _, end, _ = follow_sizes(segment.view, at, limit)
        if end == at:
            return False
        at = end
    return True


def _cut(config: StoreConfig, files: Files, segments: Segments, physical_end: int) -> int:
    root = config.root_path
    checkpoint = Checkpoint(files, root / CHECKPOINT_NAME)
    clean_stop = CleanStop(files, root)
    checkpoint.load()
    clean_stop.load()
    log_cut = LogCut(files, segments, root, physical_end)
    log_cut.copy()
    AbortMarker(files, root).put()
    # What the master sends next may be older than what is cut off, so nothing may be trusted
    # that is not older than the file in which the log ends.
    trusted_ms = _first_time(segments, physical_end)
    for name in ("log_timestamp", "queues_timestamp", "index_timestamp", "queues_complete"):
        setattr(checkpoint, name, min(getattr(checkpoint, name), trusted_ms))
    for name in ("confirmed", "queues_end", "index_end"):
        setattr(checkpoint, name, min(getattr(checkpoint, name), physical_end))
    checkpoint.save()
    clean_stop.cut_stop(physical_end)
    cut = log_cut.cut()
    segments.flush_names()
    if cut:
        _log.warning(
            "%s: the log was cut at physical offset %d: the %d B after it are not in the master's; "
            "they had not been confirmed by the brokers that count. All of them are kept in %s, "
            "which takes room on the disk until you remove it",
            root,
            physical_end,
            cut,
            " and ".join(map(str, log_cut.kept_in)),
        )
    return cut


def _first_time(segments: Segments, physical_end: int) -> int:
    """Return the store time of a record before the end, not long before it; 0: there is none."""
    for segment in reversed(list(segments)):
        if segment.first < physical_end:
            record = first_record(segment)
            return 0 if record is None else record.store_timestamp
    return 0
