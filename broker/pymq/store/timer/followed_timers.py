"""What a slave keeps of its master's timers: how far they are.

The messages that wait are in the log, as all others. A slave has no timer log and no wheel of its
own; when it becomes a master, they are made from the messages that the checkpoint leaves, as after
a loss of the timer log (``timer_recovery``).

Source: RocketMQ SlaveSynchronize.syncTimerCheckPoint. Its slaves fill a wheel of their own.
"""

from dataclasses import replace

from pymq.store.config import StoreConfig
from pymq.store.files import Files
from pymq.store.timer.timer_checkpoint import TimerCheckpoint
from pymq.store.timer.timer_store import CHECKPOINT_PATH, LOG_NAME, WHEEL_NAME


class FollowedTimers:
    """Keeps the checkpoint of a master.

    Args:
        config: of the slave's store, which is opened without timers.
        files: the operating system.
    """

    def __init__(self, config: StoreConfig, files: Files) -> None:
        self._root = config.root_path
        self._files = files
        self._known: TimerCheckpoint | None = None

    def keep(self, body: bytes) -> None:
        """Keep a checkpoint as masters tell it (GET_TIMER_CHECK_POINT); in any thread.

        Args:
            body: 56 bytes, or 32 of older masters; nothing is kept of one that has no timers yet.

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

    def _drop_own(self) -> None:
        """Remove what a master that became a slave left: it would be taken for up to date."""
        log = self._root / LOG_NAME
        for entry in self._files.list_directory(log):
            self._files.remove(log / entry.name)
        if self._files.exists(self._root / WHEEL_NAME):
            self._files.remove(self._root / WHEEL_NAME)
