"""The filters of consumer groups, as ``consumerFilter.json`` holds them.

Source: RocketMQ ConsumerFilterManager, ConsumerFilterData, BloomFilterData.
"""

from dataclasses import dataclass

from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject


@dataclass(slots=True, kw_only=True)
class BloomPositions(JsonObject):
    """The bits of one filter in bit maps of ``bit_count`` bits."""

    bit_count: int = wire("bitNum")
    positions: list[int] = wire("bitPos")


@dataclass(slots=True, kw_only=True)
class ConsumerFilter(JsonObject):
    """The filter of a group for a topic."""

    group: str = wire("consumerGroup")
    topic: str
    expression: str
    expression_type: str
    #: Time of the registration, ms: bit maps of later messages take account of the filter.
    born_ms: int = wire("bornTime", default=0)
    #: When its group left, ms; 0: it is there.
    dead_ms: int = wire("deadTime", default=0)
    is_dead: bool = wire("dead", default=False)
    #: Version of the subscription, ms.
    version: int = wire("clientVersion", default=0)
    bloom: BloomPositions | None = wire("bloomFilterData", default=None)


@dataclass(slots=True, kw_only=True)
class TopicFilters(JsonObject):
    """The filters for a topic, by group."""

    topic: str
    groups: dict[str, ConsumerFilter] = wire("groupFilterData", default_factory=dict)


@dataclass(slots=True, kw_only=True)
class ConsumerFilterTable(JsonObject):
    """``consumerFilter.json``: the filters by topic."""

    topics: dict[str, TopicFilters] = wire("filterDataByTopic", default_factory=dict)
