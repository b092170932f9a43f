"""Headers for consumer offsets and the bounds of queues."""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class QueryOffsetRequest(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: int
    #: 5.x; absent counts as true.
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = wire("bname", default=None)


@dataclass(slots=True, kw_only=True)
class OffsetResponse(Header):
    """A queue offset: answer to 14, 29, 30 and 31."""

    offset: int


@dataclass(slots=True, kw_only=True)
class UpdateOffsetRequest(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int
    broker_name: str | None = wire("bname", default=None)


@dataclass(slots=True, kw_only=True)
class SearchOffsetRequest(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: int
    timestamp_ms: int = wire("timestamp")
    #: ``LOWER`` (default) or ``UPPER``, any case (5.x).
    boundary_type: str | None = None
    broker_name: str | None = wire("bname", default=None)


@dataclass(slots=True, kw_only=True)
class MaxOffsetRequest(Header):
    """GET_MAX_OFFSET (30)."""

    topic: str
    queue_id: int
    committed: bool | None = None
    broker_name: str | None = wire("bname", default=None)


@dataclass(slots=True, kw_only=True)
class QueueRequest(Header):
    """Codes that name a queue: GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: int
    broker_name: str | None = wire("bname", default=None)


@dataclass(slots=True, kw_only=True)
class TimestampResponse(Header):
    """When the earliest message was stored, ms; -1 if there is none (32)."""

    timestamp_ms: int = wire("timestamp")
