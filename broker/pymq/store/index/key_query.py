"""Messages by their keys.

Source: RocketMQ DefaultMessageStore.queryMessage.
"""

import bisect
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pymq.errors import CorruptRecord, StoreError
from pymq.protocol.codes import TRANSACTION_MASK
from pymq.protocol.index_keys import KEYS, UNIQUE_KEY, index_keys, key_hash
from pymq.protocol.message import find_property
from pymq.protocol.record import Record, decode_record
from pymq.protocol.record_batch import RecordColumns
from pymq.store.index.key_index import KeyIndex, candidates
from pymq.store.log.commit_log import CommitLog
from pymq.store.log.segment import Segment

#: Messages one query returns at most (RocketMQ maxMsgsNumBatch).
QUERY_COUNT_MAX = 64
#: Messages whose keys only share the hash that was asked for. By chance there are a few; a producer
#: can make as many as it likes. Each is read.
OTHER_COUNT_MAX = 1024
#: Properties up to this size are hashed here; for others the arrays of the indexer are quicker.
_HASHED_BYTES_MAX = 1024
#: First read of a record; most records are smaller.
_READ_BYTES = 4096
_AT_0 = np.zeros(1, np.int64)


@dataclass(slots=True)
class QueryResult:
    """What a query by key found.

    Attributes:
        buffers: the records, newest first; read-only views as in ``ReadResult``.
        index_last_ms: store time of the last message in the index; 0 in an empty one.
        index_last_physical: its physical offset.
    """

    buffers: list[memoryview] = field(default_factory=list)
    index_last_ms: int = 0
    index_last_physical: int = 0


class KeyQuery:
    """A query by key. ``run`` in any thread, then ``Keys.finish_query``.

    It reads files with ``pread``: a page of a map that has to come from the disk would stop the
    whole process.

    RocketMQ returns every message that shares the hash, and compares the times of the index, which
    are rounded down to a second. Here every message is checked, and a query fails that would have
    to check too many.
    """

    def __init__(
        self,
        log: CommitLog,
        index: KeyIndex,
        topic: str,
        key: str,
        *,
        count_max: int,
        begin_ms: int,
        end_ms: int,
    ) -> None:
        self._files = log.files
        self._segments = list(log.segments)
        self._hash = key_hash(topic, key)
        self._chains = index.chains(self._hash, begin_ms=begin_ms, end_ms=end_ms)
        self._topic = topic
        self._key = key.encode("utf-8", "replace")  # no message has half of a surrogate pair
        self._count_max = min(count_max, QUERY_COUNT_MAX)
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._other_count = 0
        #: (physical offset, size) of the messages found, newest first.
        self.places: list[tuple[int, int]] = []
        self.error: StoreError | None = None
        self.index_last_ms = self.index_last_physical = 0
        newest = index.newest
        if newest is not None:
            self.index_last_ms = newest.header.end_ms
            self.index_last_physical = newest.header.last_physical

    def run(self) -> None:
        """Search. Never raises: ``finish_query`` does."""
        if self._count_max <= 0:  # finds nothing, as in RocketMQ
            return
        opened: dict[Path, int] = {}
        try:
            self._run(opened)
        except StoreError as error:
            self.error = error
        finally:
            for fd in opened.values():
                self._files.close(fd)

    def _run(self, opened: dict[Path, int]) -> None:
        seen = set()
        begin_ms, end_ms = self._begin_ms, self._end_ms
        for offset in candidates(self._files, self._chains, begin_ms=begin_ms, end_ms=end_ms):
            if offset in seen:
                continue
            seen.add(offset)
            size = self._size_if_wanted(offset, opened)
            if size is None:
                return  # It has expired, and so have all older ones.
            if size:
                self.places.append((offset, size))
                if len(self.places) == self._count_max:
                    return

    def _size_if_wanted(self, physical_offset: int, opened: dict[Path, int]) -> int | None:
        """Check a message; return its size, 0 if it does not match, None if it has expired."""
        at = bisect.bisect_right(self._segments, physical_offset, key=_first) - 1
        if at < 0:
            return None
        segment = self._segments[at]
        fd = opened.get(segment.path)
        if fd is None:
            try:
                fd = opened[segment.path] = self._files.open(segment.path)
            except FileNotFoundError:
                return None
        position = physical_offset - segment.first
        data = self._files.pread(fd, _READ_BYTES, position)
        size = min(int.from_bytes(data[:4]), segment.size_bytes - position)
        if size > len(data):
            data = self._files.pread(fd, size, position)
        try:
            record = decode_record(data, 0)
            if record.topic == self._topic and _has_key(record.properties, self._key):
                in_time = self._begin_ms <= record.store_timestamp <= self._end_ms
                return record.size if in_time else 0
            if not self._shares_hash(record):
                columns = RecordColumns(np.frombuffer(data[: record.size], np.uint8), _AT_0)
                if self._hash not in index_keys(columns).key_hash:
                    raise CorruptRecord("it has no such key")
        except CorruptRecord as error:
            raise CorruptRecord(
                f"{segment.path}: the key index leads to position {position}, but there "
                f"is no message of that key: {error}. `pymq store check` shows which of them is "
                "damaged"
            ) from error
        self._other_count += 1
        if self._other_count > OTHER_COUNT_MAX:
            raise StoreError(
                f"the index leads to more than {OTHER_COUNT_MAX} messages with other keys of the "
                "same hash, and no more are read; a narrower range of times may have fewer"
            )
        return 0

    def _shares_hash(self, record: Record) -> bool:
        """Has a message a key of the wanted hash? If not, that is not certain."""
        properties = record.properties
        if len(properties) > _HASHED_BYTES_MAX or record.sys_flag & TRANSACTION_MASK:
            return False
        keys = (find_property(properties, KEYS) or b"").split(b" ")
        keys.append(find_property(properties, UNIQUE_KEY) or b"")
        # Malformed text hashes differently in the index: it does not count here.
        return any(
            key_hash(record.topic, str(key, "utf-8", "replace")) == self._hash
            for key in keys
            if key
        )


def _first(segment: Segment) -> int:
    return segment.first


def _has_key(properties: bytes, wanted: bytes) -> bool:
    if find_property(properties, UNIQUE_KEY) == wanted:
        return True
    keys = find_property(properties, KEYS)
    return keys is not None and wanted in keys.split(b" ")
