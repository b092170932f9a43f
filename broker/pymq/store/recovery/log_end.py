"""Where the log of a store ends that is not open: what recovery will find, before it is made.

A broker that waits for its role says it to the controller, which elects whoever goes furthest.
"""

from collections.abc import Callable

from pymq.errors import StoreClosed
from pymq.store.config import StoreConfig
from pymq.store.files import Files
from pymq.store.log.log_scan import RecordCrcRule, Stop, first_record, scan_segment
from pymq.store.log.segments import Segments
from pymq.store.recovery.end_check import check_clean_stop, check_flushed
from pymq.store.recovery.loading import make_index, make_queues
from pymq.store.recovery.unsupported_formats import check_kind
from pymq.store.state.checkpoint import (
    CHECKPOINT_NAME,
    AbortMarker,
    Checkpoint,
    DirectoryLock,
    make_root,
)
from pymq.store.state.clean_stop import CleanStop


def find_log_end(
    config: StoreConfig, files: Files, *, is_cancelled: Callable[[], bool] = lambda: False
) -> int:
    """Return the physical offset after the last valid record; nothing is changed.

    After a clean stop it is known. Otherwise the last files are read, as recovery does. What would
    keep the store from being opened, and can be seen without reading more, is an error here, too.

    Args:
        config: of the store.
        files: the operating system.
        is_cancelled: asked repeatedly; a long read ends early when it returns True.

    Raises:
        StoreLocked: a broker has it open, or a directory of its log.
        StoreMismatch: these are files of another kind or size.
        LogEndMissing: the log ends before what was safe on the disk.
        CorruptRecord: a record lacks the checksum that it must have.
        StoreError: the disk refused.
        StoreClosed: it was cancelled.
    """
    root = config.root_path
    make_root(files, root)
    lock = DirectoryLock(files, root, config.written_log_paths)
    segments = Segments(
        files,
        config.log_paths,
        config.segment_bytes,
        read_only=config.read_only_log_paths,
        warm_up=None,
    )
    queues, index = make_queues(config, files), make_index(config, files)
    try:
        check_kind(files, config)
        segments.load()
        queues.load()
        if index is not None:
            index.load()
        is_clean = not AbortMarker(files, root).present()
        clean_stop = CleanStop(files, root)
        clean_stop.load()
        checkpoint = Checkpoint(files, root / CHECKPOINT_NAME)
        checkpoint.load()
        # Zeros are after the end also of a log that RocketMQ has cut since then.
        is_ours = is_clean and not checkpoint.is_foreign
        if is_ours and _ends_at(segments, clean_stop.log_end):
            return clean_stop.log_end
        start = _start(segments, None if is_clean else checkpoint)
        end, newest_ms = _scan(config, segments, start, is_cancelled)
        if not checkpoint.is_foreign:  # or the queues have to tell, too: see ``Recovery``
            check_clean_stop(config, clean_stop, end=end, newest_ms=newest_ms)
        check_flushed(config, segments, checkpoint, end=end, newest_ms=newest_ms)
        return end
    finally:
        if index is not None:
            index.close()
        queues.files.close()
        segments.close()
        lock.release()


def _ends_at(segments: Segments, end: int) -> bool:
    if not len(segments):
        return end == 0
    last = segments[-1]
    position = end - last.first
    if not 0 <= position <= last.size_bytes or any(last.read(position, 8)):
        return False
    return not position or first_record(last) is not None  # or its content is gone


def _start(segments: Segments, checkpoint: Checkpoint | None) -> int:
    """Return the number of the last segment before which nothing is missing.

    Args:
        checkpoint: says what is on the disk; None: everything is.
    """
    for index in range(len(segments) - 1, 0, -1):
        record = first_record(segments[index])
        if record is None or record.store_timestamp <= 0:
            continue
        if checkpoint is None or checkpoint.covers(segments[index].first, record.store_timestamp):
            return index
    return 0


def _scan(
    config: StoreConfig, segments: Segments, start: int, is_cancelled: Callable[[], bool]
) -> tuple[int, int]:
    """Return where the log ends, and the latest store time in the segments that were read."""
    end, newest_ms = (segments[start].first if len(segments) else 0), 0
    for index in range(start, len(segments)):
        segment = segments[index]
        stop = Stop.END
        for chunk in scan_segment(
            segment,
            check_crc=config.check_crc_on_recover,
            record_crc=RecordCrcRule.of(config),
        ):
            end, stop = segment.first + chunk.end_position, chunk.stop
            if chunk.columns is not None:
                newest_ms = max(newest_ms, int(chunk.columns.store_timestamp.max()))
            if is_cancelled():
                raise StoreClosed(f"{config.root_path}: the end of the log was not looked for")
        if stop is not Stop.BLANK:
            break
        end = segment.end
    return end, newest_ms
