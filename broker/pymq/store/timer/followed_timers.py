"""What a slave keeps of its master's timers: how far they are.

The messages that wait are in the log, as all others. A slave has no timer log and no wheel of its
own; when it becomes a master, or acts for one, they are made from the messages that the checkpoint
leaves, as after a loss of the timer log (``timer_recovery``).

A slave that has acted is ahead of its master, and stays so until the master has come as far.

Source: RocketMQ SlaveSynchronize.syncTimerCheckPoint. Its slaves fill a wheel of their own.
"""

from collections.abc import Callable
from dataclasses import replace

from pymq.clock import Clock
from pymq.protocol.names import TIMER_TOPIC
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

    def begin_open(
        self, clock: Clock, is_cancelled: Callable[[], bool] = lambda: False
    ) -> "TimersOpening":
        """Return a job that opens the timers as a master would have them.

        The log may not change, and nothing may be kept, until they are closed.

        Args:
            is_cancelled: asked repeatedly, in the thread of the job; it may take minutes.
        """
        return TimersOpening(
            self._config, clock, self._log, self._queues, self._end_following, is_cancelled
        )

    def _end_following(self) -> None:
        self.keep_heard()
        self._known = None

    def _drop_own(self) -> None:
        """Remove what a master that became a slave left: it would be taken for up to date."""
        log = self._root / LOG_NAME
        for entry in self._files.list_directory(log):
            self._files.remove(log / entry.name)
        if self._files.exists(self._root / WHEEL_NAME):
            self._files.remove(self._root / WHEEL_NAME)


class TimersOpening:
    """Opens the timers of a slave: ``run`` in any thread, then ``result`` in that of the store.

    It reads many messages, and may not touch what the store has open: that opens and closes files
    as it reads them, and would close those that are read here, or reads what was opened here when
    it is closed already.

    Args:
        config, log, queues: of the store.
        prepare: called before the files are looked at, in that other thread.
        is_cancelled: as for ``open_timers``.
    """

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        queues: QueueTable,
        prepare: Callable[[], None],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._queues = queues
        self._prepare = prepare
        self._is_cancelled = is_cancelled
        self._own_log = own = CommitLog(log.files, log.segments.apart())
        own.end, own.flushed, own.store_timestamp = log.committed, log.flushed, log.store_timestamp
        self._own_queues = queues.apart(TIMER_TOPIC, 0)
        self._timers: TimerStore | None = None

    def run(self) -> None:
        """Open them.

        Raises:
            StoreError: they cannot be made, or what they need was deleted meanwhile.
            StoreClosed: it was cancelled.
        """
        log, queues = self._own_log, self._own_queues
        try:
            self._prepare()
            self._timers = open_timers(
                self._config,
                log.files,
                self._clock,
                log,
                queues,
                is_cancelled=self._is_cancelled,
            )
        finally:
            queues.files.close()
            log.segments.close()

    def result(self) -> TimerStore:
        """Return them."""
        assert self._timers is not None, "run has to succeed first"
        self._timers.use(self._log, self._queues)
        return self._timers


def checkpoint_now(timers: TimerStore) -> TimerCheckpoint:
    """Return how far timers are if all of the log is on the disk, or at a slave that has it."""
    queue_offset = timers.queue_offset
    return replace(
        timers.checkpoint,
        read_ms=timers.read_ms,
        queue_offset=queue_offset,
        master_queue_offset=queue_offset,
    )
