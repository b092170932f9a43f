"""The transient store pool: records are collected in memory and written to the files later.

A put does not touch the page cache then: it copies into an anonymous buffer, as large as a
segment, locked in memory where the system allows it. A commit writes what came since the last
one to the file; only then is it dispatched, read and flushed. So with ``FlushMode.ASYNC`` an
acknowledged record that is not committed yet is lost with the process. With ``FlushMode.SYNC``
nothing is acknowledged before it is committed and flushed, as without a pool.

A segment gets a buffer when it becomes the last one and returns it when all of it is committed.
When none is free, records are written to the segment directly, as without a pool.

A failed commit loses nothing: the data are still in the buffer, and a commit is idempotent.

Source: RocketMQ TransientStorePool, CommitRealTimeService.
"""

import logging
from dataclasses import dataclass, field

from pymq.errors import StoreBusy, StoreError
from pymq.store.files import Files
from pymq.store.log.segment import Segment

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CommitJob:
    """One write of pooled records to the log's files: ``run`` in any thread, then finish it.

    Attributes:
        files: the operating system.
        end: physical offset up to which the files hold everything afterwards.
        store_timestamp: of the last record below ``end``, ms.
        pieces: descriptor (a duplicate, closed by ``run``), bytes, position in the file.
        error: why ``run`` failed; None if it did not.
    """

    files: Files
    end: int
    store_timestamp: int
    pieces: list[tuple[int, memoryview, int]] = field(default_factory=list)
    error: StoreError | None = None

    def run(self) -> None:
        """Write, oldest first. Never raises: ``finish_commit`` raises the error."""
        try:
            for fd, data, position in self.pieces:
                self.files.pwrite(fd, data, position)
        except StoreError as error:
            self.error = error
        finally:
            self.close()

    def close(self) -> None:
        """Close the descriptors and release the buffers."""
        while self.pieces:
            fd, data, _ = self.pieces.pop()
            data.release()
            self.files.close(fd)


class TransientPool:
    """The buffers of a log; belongs to the thread of the store, ``run`` to any other.

    Args:
        files: the operating system.
        buffer_bytes: size of one, that of a segment.
        count: how many at most; allocated when they are needed, and then kept.
        is_refusing: refuse puts when none is free, instead of writing directly.
    """

    def __init__(
        self, files: Files, buffer_bytes: int, *, count: int, is_refusing: bool
    ) -> None:
        self._files = files
        self._buffer_bytes = buffer_bytes
        self._unmade = count
        self._count = count
        self._is_refusing = is_refusing
        self._free: list[memoryview] = []
        #: Buffer of each segment that is not fully committed, oldest first; None: no buffer.
        self._buffers: dict[Segment, memoryview | None] = {}
        self._is_lock_refused = False
        self._is_committing = False
        #: Buffer for the records of the current segment; None: they go into its file.
        self.current: memoryview | None = None
        #: Everything below is in the files.
        self.committed = 0
        #: Store time of the last record committed, ms.
        self.store_timestamp = 0

    @property
    def free_count(self) -> int:
        """How many buffers are not in use (RocketMQ availableBufferNums)."""
        return len(self._free) + self._unmade

    def check_free(self) -> None:
        """Raise if there is no buffer for the next segment and ``is_refusing`` is set.

        Raises:
            StoreBusy: so it is.
        """
        if self._is_refusing and not self._free and not self._unmade:
            raise StoreBusy(
                f"all {self._count} buffers (transientStorePoolSize) wait for the disk, and "
                "fastFailIfNoBufferInStorePool is set: send more slowly, or again later"
            )

    def enter(self, segment: Segment) -> None:
        """Begin a segment: give it a buffer, if one is free."""
        if not self._free and self._unmade:
            self._unmade -= 1
            self._free.append(self._make())
        self.current = self._free.pop() if self._free else None
        self._buffers[segment] = self.current

    def _make(self) -> memoryview:
        buffer = self._files.map_memory(self._buffer_bytes)
        if not self._files.lock_in_memory(buffer, when_used=True) and not self._is_lock_refused:
            self._is_lock_refused = True
            _log.warning(
                "the system does not let the %d buffers of the transient store pool (%d MiB each) "
                "be locked in memory: raise the limit (ulimit -l, LimitMEMLOCK=), or they may be "
                "swapped out",
                self._count,
                self._buffer_bytes >> 20,
            )
        return buffer

    def begin_commit(self, end: int, store_timestamp: int) -> CommitJob | None:
        """Return a job that commits everything below ``end``; None if there is nothing to do.

        One at a time: None is returned until ``finish_commit`` is given the last one.

        Raises:
            StoreError: the process has too many open files; try again later.
        """
        if self._is_committing or end == self.committed:
            return None
        job = CommitJob(self._files, end, store_timestamp)
        try:
            for segment, buffer in self._buffers.items():
                start, stop = max(self.committed, segment.first), min(end, segment.end)
                if buffer is not None and start < stop:
                    first = start - segment.first
                    data = buffer[first : stop - segment.first]
                    job.pieces.append((self._files.duplicate(segment.fd), data, first))
        except BaseException:
            job.close()
            raise
        self._is_committing = True
        return job

    def finish_commit(self, job: CommitJob) -> None:
        """Record the outcome of a job that has run; take back buffers that are committed.

        Raises:
            DiskFull, FlushFailed, StoreError: the job failed; a part may have been written, and
                the next job writes all of it again.
        """
        self._is_committing = False
        if job.error is not None:
            raise job.error
        self.committed = job.end
        self.store_timestamp = job.store_timestamp
        for segment in list(self._buffers)[:-1]:
            if segment.end <= self.committed:
                buffer = self._buffers.pop(segment)
                if buffer is not None:
                    self._free.append(buffer)
