"""Jobs of disk work: ``run`` in any thread; then the part that began a job finishes it.

A job has everything it needs, so that the thread of the store can go on in the meantime.
"""

import logging
import time
from collections.abc import Sequence

from pymq.errors import FlushFailed, StoreError
from pymq.store.index.key_index import KeyIndex
from pymq.store.log.commit_log import CommitLog, LogFlush
from pymq.store.log.segment import PIECE_BYTES
from pymq.store.queues.queue_files import QueueFiles
from pymq.store.state.checkpoint import Checkpoint

_log = logging.getLogger(__name__)

#: Read to learn how large a record is; most are not larger.
SMALL_RECORD_BYTES = 16 << 10


class FlushJob:
    """One flush of the commit log. ``run`` in any thread, then ``Durability.finish_flush``."""

    def __init__(self, flush: LogFlush, checkpoint: Checkpoint, *, save: bool) -> None:
        self._checkpoint = checkpoint
        self._save = save
        self.flush = flush
        self.error: FlushFailed | None = None
        #: Duration of the flush.
        self.elapsed_s = 0.0

    @property
    def physical_end(self) -> int:
        """Physical offset up to which everything is on the disk once this is done."""
        return self.flush.end

    def run(self) -> None:
        """Flush. Never raises: ``finish_flush`` does."""
        begun = time.perf_counter()
        try:
            self.flush.run()
        except FlushFailed as error:
            self.error = error
            return
        finally:
            self.elapsed_s = time.perf_counter() - begun
        self._checkpoint.log_timestamp = self.flush.store_timestamp
        self._checkpoint.confirmed = self.flush.end
        if self._save:
            self.error = _save(self._checkpoint)


class QueueFlushJob:
    """One flush of the changed consume queues and index files, and of the checkpoint.

    ``run`` in any thread, then ``Durability.finish_queue_flush``.
    """

    def __init__(
        self,
        queue_files: QueueFiles,
        index: KeyIndex | None,
        checkpoint: Checkpoint,
        store_timestamp: int,
        physical_end: int,
    ) -> None:
        #: Physical offset up to which every record's queue entry is on the disk afterwards.
        self.physical_end = physical_end
        self.queue_flush = queue_files.begin_flush()
        self.index_flush = None if index is None else index.begin_flush()
        self._index_ms = None if index is None else index.end_ms
        self._index_end = None if index is None else index.end
        self._checkpoint = checkpoint
        self._store_timestamp = store_timestamp
        self.error: StoreError | None = None

    def run(self) -> None:
        """Flush. Never raises: ``finish_queue_flush`` does."""
        try:
            self.queue_flush.run()
            if self.index_flush is not None:
                self.index_flush.run()
        except StoreError as error:
            self.error = error
            return
        self._checkpoint.record_queues(
            self._store_timestamp,
            self._index_ms,
            queues_end=self.physical_end,
            index_end=self._index_end,
        )
        self.error = _save(self._checkpoint)


def _save(checkpoint: Checkpoint) -> FlushFailed | None:
    """Save the checkpoint; return the error if it is final."""
    try:
        checkpoint.save()
    except FlushFailed as error:
        return error
    except StoreError as error:
        # The older checkpoint is correct, too; recovery only takes longer.
        _log.debug("checkpoint not saved: %s", error)
    return None


class PrefetchJob:
    """Brings records into memory. ``run`` in any thread, once, or never: then it is just dropped.

    Touching a cold page of the map would stop the whole process, whichever thread does it:
    Python's lock is held meanwhile. ``pread`` releases it. And where the disk cannot read, the map
    would end the process with a SIGBUS: it must not be touched if ``run`` fails.
    """

    def __init__(self, log: CommitLog, sizes: Sequence[int], starts: Sequence[int]) -> None:
        self._files = log.files
        self._places: list[tuple[int, int, int]] = []
        self._places = log.places(starts, sizes)

    def run(self) -> None:
        """Read, and drop what was read.

        Raises:
            StoreError: the disk cannot read all of it.
        """
        try:
            for fd, position, size in self._places:
                for at in range(position, position + size, PIECE_BYTES):
                    self._files.pread(fd, min(PIECE_BYTES, position + size - at), at)
        finally:
            self._close()

    def _close(self) -> None:
        places, self._places = self._places, []
        for fd in {fd for fd, _, _ in places}:
            self._files.close(fd)

    def __del__(self) -> None:
        self._close()  # whoever waited for it gave up before it had begun


class ReadJob:
    """Reads a part of one file of the log. ``run`` in any thread, once, or never.

    Attributes:
        data: what was read, if there was no error.
        error: why it was not; None: it was.
    """

    def __init__(self, log: CommitLog, physical_offset: int, size_bytes: int) -> None:
        self._files = log.files
        self._fd: int | None = None
        ((self._fd, self._position, self._size_bytes),) = log.places(
            [physical_offset], [size_bytes]
        )
        self.data = b""
        self.error: StoreError | None = None

    def run(self) -> None:
        """Read. Never raises: ``error`` says what went wrong."""
        assert self._fd is not None
        try:
            self.data = self._files.pread(self._fd, self._size_bytes, self._position)
        except StoreError as error:
            self.error = error
        finally:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._files.close(fd)

    def __del__(self) -> None:
        self._close()  # whoever waited for it gave up before it had begun


class TouchJob:
    """Has the system find memory for what is written next. ``run`` in any thread, once.

    Args:
        log: has begun the file that the bytes belong to.
        first, end: physical offsets.
    """

    def __init__(self, log: CommitLog, first: int, end: int) -> None:
        self._files = log.files
        segment = log.segments.find(first)
        self._place = segment.path, end - first, first - segment.first

    def run(self) -> None:
        """Touch the pages. It is the writes that report errors."""
        try:
            self._files.touch(*self._place)
        except StoreError as error:
            _log.debug("not touched: %s", error)


class TrialJob:
    """Finds out whether the disk takes a write to the log. ``run`` in any thread, once.

    Writes a zero where the next record will go, and where there is one already. Nothing may be
    written to the log until it has ended.
    """

    def __init__(self, log: CommitLog) -> None:
        self._files = log.files
        self._place: tuple[int, int] | None = None
        if len(log.segments) and log.end < log.segments.at(-1).end:
            segment = log.segments[-1]
            self._place = log.files.duplicate(segment.fd), log.end - segment.first

    def run(self) -> None:
        """Write.

        Raises:
            StoreError: it failed, as the next write will.
        """
        if self._place is None:
            return
        fd, position = self._place
        try:
            self._files.pwrite(fd, b"\0", position)
        finally:
            self._files.close(fd)
