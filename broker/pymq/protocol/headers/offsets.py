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


#: The id of a topic of which the broker does not know when it was created.
NO_ID = "0"


@dataclass(slots=True, kw_only=True)
class OffsetResponse(Header):
    """A queue offset: answer to 14, 29 and 31."""

    offset: int


@dataclass(slots=True, kw_only=True)
class MaxOffsetResponse(Header):
    """The end of a queue: answer to 30."""

    offset: int
    #: Extension of pymq: which topic of that name it is, or ``NO_ID``. None: there is no such
    #: topic, or a broker of RocketMQ answered.
    topic_id: str | None = wire("pymqTopicId", default=None)


@dataclass(slots=True, kw_only=True)
class UpdateOffsetRequest(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str = ""
    topic: str
    queue_id: int | None = None
    commit_offset: int | None = None
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


@dataclass(slots=True, kw_only=True)
class ResetOffsetRequest(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220).

    Sets a group back to a time, in all queues of a topic; in 5.x also in one queue, or to an
    offset there.
    """

    topic: str
    group: str = ""
    timestamp_ms: int = wire("timestamp")  # negative: to the end
    #: Also forward?
    is_force: bool = False
    queue_id: int = -1
    offset: int | None = None


@dataclass(slots=True, kw_only=True)
class CloneOffsetsRequest(Header):
    """CLONE_GROUP_OFFSET (314)."""

    source_group: str = wire("srcGroup")
    target_group: str = wire("destGroup")
    topic: str | None = None
    #: Also topics to which the source group does not subscribe now?
    offline: bool = False
