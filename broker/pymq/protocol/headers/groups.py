"""Headers of the broker's codes for consumer groups."""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class DeleteGroupRequest(Header):
    """DELETE_SUBSCRIPTIONGROUP (207); 4.9 and 5.x spell the switch differently."""

    group: str = wire("groupName")
    clean_offset: bool | None = None
    remove_offset: bool | None = None

    @property
    def forget_offsets(self) -> bool:
        """Are the committed offsets to be deleted, too?"""
        return bool(self.clean_offset or self.remove_offset)


@dataclass(slots=True, kw_only=True)
class GroupPageRequest(Header):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): paged as topics are."""

    first: int | None = wire("groupSeq", default=None)
    data_version: str | None = None
    count_max: int | None = wire("maxGroupNum", default=None)


@dataclass(slots=True, kw_only=True)
class GroupPageResponse(Header):
    """How many groups there are (201); absent: all are in this answer."""

    total_count: int | None = wire("totalGroupNum", default=None)


@dataclass(slots=True, kw_only=True)
class GroupRequest(Header):
    """Codes that name a group as ``group``: 343, 352."""

    group: str


@dataclass(slots=True, kw_only=True)
class GroupForbiddenRequest(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str
    #: None: only tell.
    readable: bool | None = None


@dataclass(slots=True, kw_only=True)
class GroupTopicRequest(Header):
    """Codes that name a group as ``group`` and a topic: 303, 345."""

    group: str
    topic: str


@dataclass(slots=True, kw_only=True)
class CorrectionRequest(Header):
    """QUERY_CORRECTION_OFFSET (308)."""

    #: Groups that do not count, joined by commas.
    filter_groups: str | None = None
    compare_group: str
    topic: str


@dataclass(slots=True, kw_only=True)
class BrokerConsumeStatsRequest(Header):
    """GET_BROKER_CONSUME_STATS (317)."""

    #: Of order topics only.
    is_order: bool = False


@dataclass(slots=True, kw_only=True)
class ConsumerGroupRequest(Header):
    """Codes that name a group as ``consumerGroup``: 38, 40, 203."""

    consumer_group: str


@dataclass(slots=True, kw_only=True)
class MemberRequest(Header):
    """Codes that name one member of a group: 307, 309."""

    consumer_group: str
    client_id: str | None = None


@dataclass(slots=True, kw_only=True)
class RunningInfoRequest(MemberRequest):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    jstack_enable: bool = False


@dataclass(slots=True, kw_only=True)
class ConsumeDirectlyRequest(MemberRequest):
    """CONSUME_MESSAGE_DIRECTLY (309)."""

    #: The broker's, which says where the message is.
    message_id: str | None = wire("msgId", default=None)
    topic: str | None = None
    #: Where the message lies; the broker says so when it passes this on to the member.
    broker_name: str | None = None


@dataclass(slots=True, kw_only=True)
class ConsumerStatusRequest(Header):
    """GET_CONSUMER_STATUS_FROM_CLIENT (221), INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223)."""

    topic: str
    group: str
    #: 223: of this client only. It is called an address, and is a client id.
    client_id: str | None = wire("clientAddr", default=None)


@dataclass(slots=True, kw_only=True)
class ProducerGroupRequest(Header):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


@dataclass(slots=True, kw_only=True)
class ConsumeStatsRequest(Header):
    """GET_CONSUME_STATS (208); without topics, of all topics of the group."""

    consumer_group: str
    topic: str | None = None
    #: Several, joined by ``;`` (5.x); they count instead of ``topic``.
    topic_list: str | None = None

    @property
    def several(self) -> list[str]:
        """The topics of ``topic_list``."""
        return [topic for topic in (self.topic_list or "").split(";") if topic]
