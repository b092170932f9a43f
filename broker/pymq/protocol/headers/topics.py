"""Headers of the broker's codes for topics."""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire

#: Most topics or groups in one page, whatever the request asks for.
PAGE_COUNT_MAX = 2000


@dataclass(slots=True, kw_only=True)
class UpdateTopicRequest(Header):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str | None = None
    read_queue_count: int = wire("readQueueNums")
    write_queue_count: int = wire("writeQueueNums")
    perm: int
    filter_type: str = wire("topicFilterType")
    topic_sys_flag: int | None = None
    order: bool = False
    #: ``+key=value,-key``
    attributes: str | None = None
    force: bool | None = None


@dataclass(slots=True, kw_only=True)
class TopicRequest(Header):
    """Codes that name a topic and nothing else: 202, 215, 300."""

    topic: str


@dataclass(slots=True, kw_only=True)
class TopicConfigRequest(Header):
    """GET_TOPIC_CONFIG (351)."""

    topic: str
    logical: bool | None = wire("lo", default=None)


@dataclass(slots=True, kw_only=True)
class TopicPageRequest(Header):
    """GET_ALL_TOPIC_CONFIG (21): a page of topics in name order; 4.9 sends no field at all."""

    #: Index of the first topic wanted.
    first: int | None = wire("topicSeq", default=None)
    #: JSON of the table version that earlier pages were read from; blank for the first page.
    data_version: str | None = None
    count_max: int | None = wire("maxTopicNum", default=None)


@dataclass(slots=True, kw_only=True)
class TopicPageResponse(Header):
    """How many topics there are (21); absent: all are in this answer."""

    total_count: int | None = wire("totalTopicNum", default=None)
