"""Reading many messages of the timer queue, when timers are opened: it may take minutes."""

from collections.abc import Callable, Iterator
from pathlib import Path

from pymq.clock import Clock
from pymq.errors import StoreClosed
from pymq.store.log.commit_log import CommitLog
from pymq.store.progress import LoggedProgress, OnProgress
from pymq.store.queues.consume_queue import ConsumeQueue
from pymq.store.timer.timer_jobs import QueueRead
from pymq.store.timer.timer_queue import Waiting

#: What is read at once: messages, and bytes of them.
_READ_AT_ONCE, _BYTES_AT_ONCE = 1000, 4 << 20


class TimerScan:
    """Reads the messages of a timer queue, says how far it is, and may be told to stop.

    Args:
        root: of the store, for error messages.
        commit_log, queue: recovered; None: nothing ever waited.
        is_cancelled: asked repeatedly.
        on_progress: called with (bytes, bytes in all) of the part of the log that is read; None:
            the progress is logged.
    """

    def __init__(
        self,
        root: Path,
        clock: Clock,
        commit_log: CommitLog,
        queue: ConsumeQueue | None,
        is_cancelled: Callable[[], bool],
        on_progress: OnProgress | None,
    ) -> None:
        self._root = root
        self._clock = clock
        self._commit_log = commit_log
        self._queue = queue
        self._is_cancelled = is_cancelled
        self._on_progress = on_progress

    def read(self, first: int, end: int) -> Iterator[Waiting]:
        """Yield the messages from one queue offset to another, some at a time.

        Raises:
            StoreClosed: it was cancelled; the next opening starts from scratch.
            StoreError: they cannot be read.
        """
        log, queue = self._commit_log, self._queue
        if queue is None or first >= end:
            return
        on_progress = self._on_progress or LoggedProgress(
            f"{self._root}: timer messages", self._clock
        )
        begin, total = queue.entry(first)[0], _physical_end(queue, end)
        while first < end:
            self.check_wanted()
            read = QueueRead(log, queue, first, min(end - first, _READ_AT_ONCE), _BYTES_AT_ONCE)
            read.run()
            first = read.end
            yield read.queued.waiting
            on_progress(_physical_end(queue, first) - begin, total - begin)

    def check_wanted(self) -> None:
        """Raise if it was cancelled.

        Raises:
            StoreClosed: so it is.
        """
        if self._is_cancelled():
            raise StoreClosed(
                f"{self._root}: opening timers was interrupted; nothing is lost, the next start "
                "reads their messages again"
            )


def _physical_end(queue: ConsumeQueue, end: int) -> int:
    physical_offset, size, _ = queue.entry(end - 1)
    return physical_offset + size
