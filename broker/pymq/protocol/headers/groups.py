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
class ConsumerGroupRequest(Header):
    """Codes that name a group as ``consumerGroup``: 38, 40, 203."""

    consumer_group: str


@dataclass(slots=True, kw_only=True)
class ConsumeStatsRequest(Header):
    """GET_CONSUME_STATS (208); without topics, of all topics of the group."""

    consumer_group: str
    topic: str | None = None
    #: Several, joined by ``;`` (5.x).
    topic_list: str | None = None

    @property
    def topics(self) -> list[str]:
        """The requested topics; empty: all."""
        several = (self.topic_list or "").split(";")
        return [topic for topic in (self.topic, *several) if topic]
