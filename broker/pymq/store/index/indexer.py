"""Commit log -> key index: reads visible records and adds their keys.

The work is done in steps when there is time for it, so that puts are not slower. What a crash
leaves undone is read from the log again.

Source: RocketMQ ReputMessageService, CommitLogDispatcherBuildIndex.
"""

import logging
from pathlib import Path

import numpy as np

from pymq.clock import Clock
from pymq.errors import CorruptRecord
from pymq.protocol.index_keys import index_keys
from pymq.protocol.record_batch import Bytes, Longs, RecordColumns
from pymq.store.files import Files
from pymq.store.index.index_prefetch import IndexPrefetchJob
from pymq.store.index.key_index import KeyIndex
from pymq.store.log.commit_log import CommitLog
from pymq.store.log.log_scan import Stop, follow_sizes

_log = logging.getLogger(__name__)

#: What is read at once: a step has a cost of its own, so it is about so many records, which takes
#: a millisecond or two. Of how many bytes these are, the records before them tell.
STEP_RECORDS = 2_000
STEP_BYTES_LEAST, STEP_BYTES_MAX = 1 << 19, 1 << 22
#: Whether a piece is in memory is known by samples: to ask for all of it is to read it.
_SAMPLE_BYTES, _SAMPLED_EVERY_BYTES = 1 << 9, 1 << 17


class Indexer:
    """Brings a key index up to the log, piece by piece."""

    def __init__(self, log: CommitLog, index: KeyIndex, clock: Clock) -> None:
        self._files: Files = log.files
        self._log = log
        self._index = index
        self._clock = clock
        self._step_bytes = STEP_BYTES_LEAST

    def step(self, limit: int) -> int:
        """Index one piece of the log below a physical offset; return its size in bytes.

        Raises:
            DiskFull, FlushFailed, StoreError: the index could not be written; call again.
        """
        log, index = self._log, self._index
        first = index.end = max(index.end, log.first)
        if first >= limit:
            return 0
        segment = log.segments.find(first)
        end = min(limit, segment.end)
        position = first - segment.first
        data = self._files.pread(segment.fd, min(self._step_bytes, end - first), position)
        starts, stop_at, stop = follow_sizes(memoryview(data), 0, len(data))
        if not len(starts) and stop is Stop.BAD:
            # A record that is larger than a piece, or damage.
            size = int.from_bytes(data[:4])
            if len(data) < size <= end - first:
                data = self._files.pread(segment.fd, size, position)
                starts, stop_at, stop = follow_sizes(memoryview(data), 0, len(data))
        if len(starts):
            self._add(np.frombuffer(data, np.uint8)[:stop_at], starts, first)
            wanted = stop_at * STEP_RECORDS // len(starts)
            self._step_bytes = min(max(wanted, STEP_BYTES_LEAST), STEP_BYTES_MAX)
        if stop is Stop.BLANK:
            stop_at = segment.end - first
        elif not stop_at:
            self._skip(segment.path, first)
            stop_at = end - first
        index.end = first + stop_at
        return stop_at

    def begin_prefetch(self, limit: int) -> IndexPrefetchJob | None:
        """Return a job that reads what the next ``step`` needs; None: it is all in memory."""
        log, newest = self._log, self._index.newest
        first = max(self._index.end, log.first)
        if first >= limit:
            return None
        segment = log.segments.find(first)
        size = min(self._step_bytes, limit - first, segment.end - first)
        position = first - segment.first
        is_cached = all(
            self._files.is_cached(segment.fd, min(_SAMPLE_BYTES, position + size - at), at)
            for at in range(position, position + size, _SAMPLED_EVERY_BYTES)
        )
        log_part = None if is_cached else (segment.path, size, position)
        if newest is not None and (newest.has_slots or not newest.room):
            newest = None
        if log_part is None and newest is None:
            return None
        return IndexPrefetchJob(self._files, log_part, newest)

    def finish_prefetch(self, job: IndexPrefetchJob) -> None:
        """Use what a job has read."""
        if job.file is not None and job.slots is not None:
            job.file.take_slots(job.slots)

    def _add(self, data: Bytes, starts: Longs, first: int) -> None:
        try:
            records = RecordColumns(data, starts)
        except CorruptRecord as error:
            _log.error("records at physical offset %d.. are not indexed: %s", first, error)
            return
        keys = index_keys(records)
        times = records.store_timestamp
        self._index.add(
            keys.key_hash, starts[keys.row] + first, times[keys.row], self._clock.wall_ms()
        )
        self._index.end_ms = int(times[-1])

    def _skip(self, path: Path, physical_offset: int) -> None:
        _log.error(
            "%s: no record at physical offset %d; what follows in this file is not indexed. "
            "Check the store: pymq store check",
            path,
            physical_offset,
        )
