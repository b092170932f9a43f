"""The parts of an open store: created, locked and recovered in the only safe order.

Nothing is written before everything in the directory was read and understood.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from pymq.clock import Clock
from pymq.store.config import FlushMode, StoreConfig
from pymq.store.dispatch import BitMapOf, ExtendedEntries, WriteEntries
from pymq.store.files import Files
from pymq.store.index.key_index import KeyIndex
from pymq.store.log.commit_log import CommitLog
from pymq.store.log.segments import Segments
from pymq.store.log.transient_pool import TransientPool
from pymq.store.log.warm_up import PAGE_BYTES, WarmUp
from pymq.store.progress import LoggedProgress, OnProgress
from pymq.store.queues.consume_queue import ConsumeQueue
from pymq.store.queues.queue_removal import remove_left
from pymq.store.queues.queue_table import QueueTable
from pymq.store.recovery.loading import make_index, make_queues
from pymq.store.recovery.recovery import Recovery
from pymq.store.state.checkpoint import (
    CHECKPOINT_NAME,
    AbortMarker,
    Checkpoint,
    DirectoryLock,
    make_root,
)
from pymq.store.state.clean_stop import CleanStop
from pymq.store.timer.timer_recovery import open_timers
from pymq.store.timer.timer_store import TimerStore


@dataclass(slots=True)
class StoreParts:
    """The parts of one ``MessageStore``.

    Attributes:
        write: writes entries of consume queues.
        timers: None if timer messages are not enabled.
    """

    lock: DirectoryLock
    log: CommitLog
    queues: QueueTable
    index: KeyIndex | None
    checkpoint: Checkpoint
    abort: AbortMarker
    clean_stop: CleanStop
    write: WriteEntries
    timers: TimerStore | None = None

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        clock: Clock,
        files: Files,
        *,
        is_cancelled: Callable[[], bool],
        bit_map_of: BitMapOf | None,
        on_progress: OnProgress | None,
    ) -> Self:
        """Lock and recover a store directory; arguments and errors as ``MessageStore.open``."""
        make_root(files, config.root_path)
        log = CommitLog(files, _segments(config, files))
        queues = make_queues(config, files)
        parts = cls(
            DirectoryLock(files, config.root_path, config.written_log_paths),
            log,
            queues,
            make_index(config, files),
            Checkpoint(files, config.root_path / CHECKPOINT_NAME),
            AbortMarker(files, config.root_path),
            CleanStop(files, config.root_path),
            ExtendedEntries(log, queues, bit_map_of).write
            if config.queue_extension
            else ConsumeQueue.write,
        )
        try:
            recovery = Recovery(
                config,
                files,
                log,
                queues,
                parts.index,
                parts.checkpoint,
                parts.abort,
                parts.clean_stop,
                parts.write,
                is_cancelled,
                on_progress or LoggedProgress(f"{config.root_path}: recovery", clock),
            )
            recovery.load()
            parts.lock.mark()
            recovery.run()
            for topic in parts.clean_stop.deleted:
                remove_left(queues.files, queues.directories_of(topic))
            if config.timer_wheel:
                parts.timers = open_timers(
                    config,
                    files,
                    clock,
                    log,
                    queues,
                    is_cancelled=is_cancelled,
                    on_progress=on_progress,
                )
            if config.transient_pool:
                log.use_pool(_pool(config, files))
        except BaseException:
            parts.close()
            raise
        return parts

    def close(self) -> None:
        """Close all files and release the lock of the directory. Views stay valid."""
        if self.timers is not None:
            self.timers.close()
        self.queues.files.close()
        if self.index is not None:
            self.index.close()
        self.log.segments.close()
        self.lock.release()


def _segments(config: StoreConfig, files: Files) -> Segments:
    warm_up = None
    if config.warm_segments:
        is_sync = config.flush_mode is FlushMode.SYNC
        warm_up = WarmUp(config.warm_flush_pages * PAGE_BYTES if is_sync else None)
    return Segments(
        files,
        config.log_paths,
        config.segment_bytes,
        read_only=config.read_only_log_paths,
        warm_up=warm_up,
    )


def _pool(config: StoreConfig, files: Files) -> TransientPool:
    return TransientPool(
        files,
        config.segment_bytes,
        count=config.transient_pool_size,
        is_refusing=config.transient_pool_refuses,
    )
