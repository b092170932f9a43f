"""Headers of VIEW_MESSAGE_BY_ID (33) and QUERY_MESSAGE (12)."""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class ViewMessageRequest(Header):
    """VIEW_MESSAGE_BY_ID (33)."""

    physical_offset: int = wire("offset")
    topic: str | None = None  # 5.x; not used


@dataclass(slots=True, kw_only=True)
class QueryMessageRequest(Header):
    """QUERY_MESSAGE (12): times are store times, ms, both inclusive."""

    topic: str = ""
    key: str = ""
    count_max: int = wire("maxNum")
    begin_ms: int = wire("beginTimestamp")
    end_ms: int = wire("endTimestamp")
    #: Is the key the id that the producer gave (UNIQ_KEY)?
    is_unique_key: bool = wire("_UNIQUE_KEY_QUERY", default=False)


@dataclass(slots=True, kw_only=True)
class QueryMessageResponse(Header):
    """How far the index is (12): store time, ms, and physical offset of its last message."""

    index_last_ms: int = wire("indexLastUpdateTimestamp")
    index_last_offset: int = wire("indexLastUpdatePhyoffset")


@dataclass(slots=True, kw_only=True)
class QueueEntriesRequest(Header):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queue_id: int
    first: int = wire("index")
    count: int
    #: Whose filter is shown, too.
    consumer_group: str | None = None
