"""Store times of messages, and offsets of store times, where the records may be on the disk only.

The answers are those of ``queues.offset_lookup``, which reads maps: a page of a map that has to
come from the disk would stop the whole process, whichever thread touches it. A job reads the files
with ``pread``, in a thread of its own, and never needs the store while it does.

Source: RocketMQ ConsumeQueue.getOffsetInQueueByTime (5.1.4 and later), DefaultMessageStore.
"""

import bisect
from collections.abc import Sequence
from pathlib import Path

from pymq.errors import CorruptRecord, StoreError
from pymq.store.config import ENTRY_BYTES
from pymq.store.files import Files
from pymq.store.log.commit_log import STORE_TIME_END, CommitLog, store_time_of
from pymq.store.log.segment import Segment
from pymq.store.queues.consume_queue import ENTRY_STRUCT, ConsumeQueue
from pymq.store.searches import first_true


class _OpenFiles:
    """Files opened once and read; what has been deleted meanwhile reads as empty."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._opened: dict[str, int | None] = {}

    def read(self, path: str, size: int, position: int) -> bytes:
        if path not in self._opened:
            try:
                self._opened[path] = self._files.open(Path(path))
            except FileNotFoundError:
                self._opened[path] = None
        fd = self._opened[path]
        return b"" if fd is None else self._files.pread(fd, size, position)

    def close(self) -> None:
        for fd in self._opened.values():
            if fd is not None:
                self._files.close(fd)


class _LogPlaces:
    """Where the log's records are, as of now."""

    def __init__(self, log: CommitLog) -> None:
        self.files: Files = log.files
        self._segments = list(log.segments)
        self._first, self._end = log.first, log.committed

    def time(self, opened: _OpenFiles, physical_offset: int) -> int | None:
        """Return the store time (ms) of a record; None if it has expired."""
        if not self._first <= physical_offset < self._end:
            return None
        at = bisect.bisect_right(self._segments, physical_offset, key=_first) - 1
        segment = self._segments[at]
        data = opened.read(str(segment.path), STORE_TIME_END, physical_offset - segment.first)
        return store_time_of(data)


def _first(segment: Segment) -> int:
    return segment.first


class _QueuePlaces:
    """Where a queue's entries are, as of now."""

    def __init__(self, queue: ConsumeQueue | None) -> None:
        self.first = 0 if queue is None else queue.min_offset
        self.end = 0 if queue is None else queue.end_offset
        self._file_bytes = 1 if queue is None else queue.file_bytes
        self._paths = {} if queue is None else queue.paths()

    def place(self, opened: _OpenFiles, queue_offset: int) -> int | None:
        """Return the physical offset of a message; None if its entry is gone."""
        position = queue_offset * ENTRY_BYTES
        within = position % self._file_bytes
        path = self._paths.get(position - within)
        data = b"" if path is None else opened.read(path, ENTRY_BYTES, within)
        if path is None or not data:
            return None
        if len(data) < ENTRY_BYTES:
            raise CorruptRecord(f"{path}: ends inside entry {queue_offset}; restart to rebuild it")
        place: int = ENTRY_STRUCT.unpack(data)[0]
        return place


class OffsetSearch:
    """The search of the offset of a store time. ``run`` in any thread, then ``result``.

    Args:
        log, queue: of the thread that makes it; None: there is no such queue.
        timestamp_ms, upper: as for ``MessageStore.offset_by_time``.
    """

    def __init__(
        self, log: CommitLog, queue: ConsumeQueue | None, timestamp_ms: int, *, upper: bool
    ) -> None:
        self._log = _LogPlaces(log)
        self._queue = _QueuePlaces(queue)
        self._timestamp_ms = timestamp_ms
        self._upper = upper
        self._offset = 0
        self._error: StoreError | None = None

    def run(self) -> None:
        """Search. Never raises: ``result`` does."""
        opened = _OpenFiles(self._log.files)
        try:
            self._offset = self._search(opened)
        except StoreError as error:
            self._error = error
        finally:
            opened.close()

    def _search(self, opened: _OpenFiles) -> int:
        low, end, wanted = self._queue.first, self._queue.end, self._timestamp_ms

        def time(queue_offset: int) -> int:
            # Messages that have expired count as too old.
            place = self._queue.place(opened, queue_offset)
            return 0 if place is None else self._log.time(opened, place) or 0

        if not self._upper:
            return first_true(low, end, lambda at: time(at) >= wanted)
        after = first_true(low, end, lambda at: time(at) > wanted)
        return max(low, after - 1)

    def result(self) -> int:
        """Return the offset that was found.

        Raises:
            StoreError: a file could not be read.
        """
        if self._error is not None:
            raise self._error
        return self._offset


class TimeLookup:
    """Looks up the store times of messages. ``run`` in any thread, then ``result``.

    Args:
        log: of the thread that makes it.
        messages: (queue, queue offset) of each; a queue that does not exist is None.
    """

    def __init__(
        self, log: CommitLog, messages: Sequence[tuple[ConsumeQueue | None, int]]
    ) -> None:
        self._log = _LogPlaces(log)
        self._messages = [(_QueuePlaces(queue), offset) for queue, offset in messages]
        self._times: list[int | None] = []
        self._error: StoreError | None = None

    def run(self) -> None:
        """Look them up. Never raises: ``result`` does."""
        opened = _OpenFiles(self._log.files)
        try:
            self._times = [self._time(opened, *message) for message in self._messages]
        except StoreError as error:
            self._error = error
        finally:
            opened.close()

    def _time(self, opened: _OpenFiles, queue: _QueuePlaces, offset: int) -> int | None:
        if not queue.first <= offset < queue.end:
            return None
        place = queue.place(opened, offset)
        return None if place is None else self._log.time(opened, place)

    def result(self) -> list[int | None]:
        """Return the time (ms) of each message; None if it does not exist or has expired.

        Raises:
            StoreError: a file could not be read.
        """
        if self._error is not None:
            raise self._error
        return self._times
