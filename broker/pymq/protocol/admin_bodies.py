"""JSON bodies of requests that only administrators make; see ``bodies``.

Source: RocketMQ remoting/protocol/{body,admin}.
"""

from dataclasses import dataclass

from pymq.protocol.bodies import (
    ConsumeStats,
    GroupConfig,
    MessageQueue,
    Subscription,
    TopicConfig,
)
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject


@dataclass(slots=True, kw_only=True)
class TopicConfigs(JsonObject):
    """Topics to create or change (18); the keys of their attributes have a sign."""

    configs: list[TopicConfig] = wire("topicConfigList")


@dataclass(slots=True, kw_only=True)
class GroupConfigs(JsonObject):
    """Groups to create or change (225); the keys of their attributes have a sign."""

    configs: list[GroupConfig] = wire("groupConfigList")


@dataclass(slots=True, kw_only=True)
class WindowStats(JsonObject):
    """What a counter came to in a window (BrokerStatsItem)."""

    total: int = wire("sum", default=0)
    per_s: float = wire("tps", default=0.0)
    #: Per time that something was counted.
    average: float = wire("avgpt", default=0.0)


@dataclass(slots=True, kw_only=True)
class BrokerStats(JsonObject):
    """A counter of a broker (BrokerStatsData, 315)."""

    minute: WindowStats = wire("statsMinute", default_factory=WindowStats)
    hour: WindowStats = wire("statsHour", default_factory=WindowStats)
    day: WindowStats = wire("statsDay", default_factory=WindowStats)


@dataclass(slots=True, kw_only=True)
class GroupForbidden(JsonObject):
    """Whether a group may read a topic (353)."""

    group: str
    topic: str
    readable: bool


@dataclass(slots=True, kw_only=True)
class GroupSubscription(JsonObject):
    """What a group subscribes to in a topic (QuerySubscriptionResponseBody, 345)."""

    group: str
    topic: str
    subscription: Subscription | None = wire("subscriptionData", default=None)


@dataclass(slots=True, kw_only=True)
class BrokerConsumeStats(JsonObject):
    """The progress of all groups (ConsumeStatsList, 317)."""

    broker_address: str = wire("brokerAddr")
    #: One table for each group, with one member for each topic.
    groups: list[dict[str, list[ConsumeStats]]] = wire("consumeStatsList", default_factory=list)
    total_diff: int = 0
    total_inflight_diff: int = 0


@dataclass(slots=True, kw_only=True)
class QueueTimeSpan(JsonObject):
    """Store times of one queue, ms: the first, the last, the last that a group consumed."""

    queue: MessageQueue = wire("messageQueue")
    min_time_ms: int = wire("minTimeStamp", default=0)
    max_time_ms: int = wire("maxTimeStamp", default=0)
    consume_time_ms: int = wire("consumeTimeStamp", default=0)
    #: How long the next message has been waiting.
    delay_ms: int = wire("delayTime", default=0)


@dataclass(slots=True, kw_only=True)
class ConsumeTimeSpans(JsonObject):
    """How far a group is in each queue of a topic, in time (303)."""

    spans: list[QueueTimeSpan] = wire("consumeTimeSpanSet", default_factory=list)


@dataclass(slots=True, kw_only=True)
class CorrectionOffsets(JsonObject):
    """Queue id -> the least offset of other groups (308)."""

    offsets: dict[int, int] = wire("correctionOffsets", default_factory=dict)


@dataclass(slots=True, kw_only=True)
class QueueUnit(JsonObject):
    """What the extension of a queue says of a message (CqExtUnit)."""

    bit_map_size: int
    #: In base64.
    bit_map: str | None = wire("filterBitMap", default=None)
    store_timestamp: int = wire("msgStoreTime")
    size: int
    tag_code: int = wire("tagsCode")


@dataclass(slots=True, kw_only=True)
class QueueEntry(JsonObject):
    """An entry of a queue (ConsumeQueueData)."""

    physical_offset: int = wire("physicOffset")
    size: int = wire("physicSize")
    #: As it is stored: the address of the unit, if there is an extension.
    tag_code: int = wire("tagsCode")
    #: A ``QueueUnit``, as JSON.
    unit: str | None = wire("extendDataJson", default=None)
    #: The bits of the unit's bit map, the last one first.
    bit_map: str | None = None
    #: Does the group want it, by the unit?
    is_wanted: bool = wire("eval", default=False)
    #: What is wrong with it.
    remark: str | None = wire("msg", default=None)


@dataclass(slots=True, kw_only=True)
class QueueEntries(JsonObject):
    """Entries of a queue (QueryConsumeQueueResponseBody, 321)."""

    subscription: Subscription | None = wire("subscriptionData", default=None)
    #: The group's filter, as JSON, or why it is not known.
    filter: str | None = wire("filterData", default=None)
    entries: list[QueueEntry] = wire("queueData", default_factory=list)
    max_offset: int = wire("maxQueueIndex", default=0)
    min_offset: int = wire("minQueueIndex", default=0)


@dataclass(slots=True, kw_only=True)
class SlaveStatus(JsonObject):
    """How far one slave is (HARuntimeInfo.HAConnectionRuntimeInfo)."""

    #: ``host:port`` of its end of the connection.
    peer: str = wire("addr")
    confirmed_end: int = wire("slaveAckOffset")
    sent_end: int = wire("transferFromWhere")
    behind_bytes: int = wire("diff")
    in_sync: bool
    bytes_per_s: int = wire("transferredByteInSecond")
    #: Our own: the slave's id, if it has said it, and for how long it has not had everything.
    broker_id: int | None = wire("pymqBrokerId", default=None)
    behind_ms: int | None = wire("pymqBehindMs", default=None)


@dataclass(slots=True, kw_only=True)
class FollowingStatus(JsonObject):
    """How a slave follows its master (HARuntimeInfo.HAClientRuntimeInfo)."""

    #: ``host:port`` of the master's HA port.
    master: str | None = wire("masterAddr", default=None)
    log_end: int = wire("maxOffset", default=0)
    master_flushed_end: int = wire("masterFlushOffset", default=0)
    heard_ms: int = wire("lastReadTimestamp", default=0)
    spoken_ms: int = wire("lastWriteTimestamp", default=0)
    bytes_per_s: int = wire("transferredByteInSecond", default=0)
    is_active: bool = wire("isActivated", default=False)


@dataclass(slots=True, kw_only=True)
class ReplicationStatus(JsonObject):
    """How replication goes (HARuntimeInfo, 907): at a master its slaves, at a slave its master."""

    master: bool = True
    log_end: int = wire("masterCommitLogMaxOffset", default=0)
    in_sync_slave_count: int = wire("inSyncSlaveNums", default=0)
    slaves: list[SlaveStatus] = wire("haConnectionInfo", default_factory=list)
    following: FollowingStatus = wire("haClientRuntimeInfo", default_factory=FollowingStatus)


@dataclass(slots=True, kw_only=True)
class ColdReadLimits(JsonObject):
    """Limits on reads of old messages (2003): there are none, as in RocketMQ by default."""

    group_limit_bytes: int = wire("cgColdReadThreshold", default=3 << 20)
    global_limit_bytes: int = wire("globalColdReadThreshold", default=100 << 20)
    global_bytes: int = wire("globalAcc", default=0)
    group_limits: dict[str, int] = wire("configTable", default_factory=dict)
    group_bytes: dict[str, int] = wire("runtimeTable", default_factory=dict)
