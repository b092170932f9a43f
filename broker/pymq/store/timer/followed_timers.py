"""What a slave keeps of its master's timers: how far they are.

The messages that wait are in the log, as all others. A slave has no timer log and no wheel of its
own; when it becomes a master, or acts for one, they are made from the messages that the checkpoint
leaves, as after a loss of the timer log (``timer_recovery``).

A slave that has acted is ahead of its master, and stays so until the master has come as far.

Source: RocketMQ SlaveSynchronize.syncTimerCheckPoint. Its slaves fill a wheel of their own.
"""

from dataclasses import replace

from pymq.clock import Clock
from pymq.store.config import StoreConfig
from pymq.store.log.commit_log import CommitLog
from pymq.store.queues.queue_table import QueueTable
from pymq.store.timer.timer_checkpoint import TimerCheckpoint
from pymq.store.timer.timer_recovery import open_timers
from pymq.store.timer.timer_store import CHECKPOINT_PATH, LOG_NAME, WHEEL_NAME, TimerStore


class FollowedTimers:
    """Keeps the checkpoint of a master.

    Args:
        config: of the slave's store, which is opened without timers.
        log, queues: of that store.
    """

    def __init__(self, config: StoreConfig, log: CommitLog, queues: QueueTable) -> None:
        self._config = config
        self._root = config.root_path
        self._log = log
        self._queues = queues
        self._files = log.files
        self._known: TimerCheckpoint | None = None
        self._heard = b""

    def hear(self, body: bytes) -> None:
        """Take a checkpoint that is not worth a flush yet, as ``keep`` does later."""
        self._heard = body

    def keep_heard(self) -> None:
        """Keep what was heard last; in any thread.

        Raises:
            DiskFull, FlushFailed, StoreError: as ``keep``.
        """
        heard, self._heard = self._heard, b""
        if heard:
            self.keep(heard, may_be_ahead=True)

    def keep(self, body: bytes, *, may_be_ahead: bool) -> None:
        """Keep a checkpoint as masters tell it (GET_TIMER_CHECK_POINT); in any thread.

        Args:
            body: 56 bytes, or 32 of older masters; nothing is kept of one that has no timers yet.
            may_be_ahead: whether this slave may have delivered more than its master knows of, while
                it acted.

        Raises:
            DiskFull, FlushFailed, StoreError: the file may be outdated, but not wrong.
        """
        told = TimerCheckpoint.decode(body.ljust(56, b"\0"))
        if told is None or not told.read_ms:
            return
        # Whatever is at that position of the master's timer log is not in ours.
        told = replace(told, log_flushed=max(told.log_flushed, 1))
        if told == self._known:
            return
        own = TimerCheckpoint.load(self._files, self._root / CHECKPOINT_PATH)
        if may_be_ahead and own is not None and own.read_ms > told.read_ms:
            return
        self._drop_own()
        told.save(self._files, self._root / CHECKPOINT_PATH)
        self._known = told

    def told(self) -> bytes:
        """Return what was kept last, as masters tell it; in any thread.

        Raises:
            StoreError: the file cannot be read.
        """
        known = TimerCheckpoint.load(self._files, self._root / CHECKPOINT_PATH)
        return (known or TimerCheckpoint()).encode()

    def open(self, clock: Clock) -> TimerStore:
        """Return the timers as a master would have them, while the log does not change.

        In any thread, but nothing may be kept until they are closed.

        Raises:
            StoreError: they cannot be made.
        """
        self.keep_heard()
        self._known = None
        return open_timers(self._config, self._files, clock, self._log, self._queues)

    def _drop_own(self) -> None:
        """Remove what a master that became a slave left: it would be taken for up to date."""
        log = self._root / LOG_NAME
        for entry in self._files.list_directory(log):
            self._files.remove(log / entry.name)
        if self._files.exists(self._root / WHEEL_NAME):
            self._files.remove(self._root / WHEEL_NAME)


def checkpoint_now(timers: TimerStore) -> TimerCheckpoint:
    """Return how far timers are if all of the log is on the disk, or at a slave that has it."""
    queue_offset = timers.queue_offset
    return replace(
        timers.checkpoint,
        read_ms=timers.read_ms,
        queue_offset=queue_offset,
        master_queue_offset=queue_offset,
    )
