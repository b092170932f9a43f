"""Messages by their keys.

Source: RocketMQ DefaultMessageStore.queryMessage.
"""

from dataclasses import dataclass, field

from pymq.errors import OffsetOutOfRange
from pymq.protocol.index_keys import KEYS, UNIQUE_KEY, key_hash
from pymq.protocol.message import find_property
from pymq.store.commit_log import CommitLog
from pymq.store.key_index import KeyIndex

#: Messages one query returns at most (RocketMQ maxMsgsNumBatch).
QUERY_COUNT_MAX = 64


@dataclass(slots=True)
class QueryResult:
    """What a query by key found.

    Attributes:
        buffers: the records, newest first; read-only views as in ``ReadResult``.
        index_last_ms: store time of the last message the index knows; 0 in an empty one.
        index_last_offset: its physical offset.
    """

    buffers: list[memoryview] = field(default_factory=list)
    index_last_ms: int = 0
    index_last_offset: int = 0


def query_key(
    log: CommitLog,
    index: KeyIndex,
    topic: str,
    key: str,
    *,
    count_max: int,
    begin_ms: int,
    end_ms: int,
) -> QueryResult:
    """Return messages that have a key; see ``MessageStore.query``.

    RocketMQ returns whatever shares the hash, and takes times as the index has them, rounded
    down to a second. Here every message is looked at.
    """
    result = QueryResult()
    newest = index.newest
    if newest is not None:
        result.index_last_ms, result.index_last_offset = (
            newest.header.end_ms,
            newest.header.end_offset,
        )
    count_max = max(1, min(count_max, QUERY_COUNT_MAX))
    seen = set()
    for physical_offset in index.find(key_hash(topic, key), begin_ms=begin_ms, end_ms=end_ms):
        if physical_offset in seen:
            continue
        seen.add(physical_offset)
        try:
            record = log.record_at(physical_offset)
        except OffsetOutOfRange:
            break  # It has expired, and so have all that are older.
        if (
            begin_ms <= record.store_timestamp <= end_ms
            and record.topic == topic
            and _has_key(record.properties, key)
        ):
            result.buffers.append(log.slice(physical_offset, record.size))
            if len(result.buffers) == count_max:
                break
    return result


def _has_key(properties: bytes, key: str) -> bool:
    wanted = key.encode()
    if find_property(properties, UNIQUE_KEY) == wanted:
        return True
    keys = find_property(properties, KEYS)
    return keys is not None and wanted in keys.split(b" ")
