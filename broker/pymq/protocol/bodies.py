"""JSON bodies and state-file objects of RocketMQ, as plain dataclasses.

``json_object`` converts them to JSON and back. A member whose name differs from RocketMQ's carries
its wire spelling. Defaults are Java's, except that names which identify something are required.
Members that only 5.x peers know are always written: older ones ignore what they do not know.

Source: RocketMQ remoting/protocol/{body,heartbeat,route,subscription}, common/TopicConfig.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from pymq.errors import LocalProtocolError
from pymq.protocol.codes import Permission
from pymq.protocol.hashes import java_hash
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject


class ConsumeType(StrEnum):
    """How a consumer gets its messages."""

    PULL = "CONSUME_ACTIVELY"
    PUSH = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Do the members of a group share the messages, or does each get all of them?"""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(StrEnum):
    """Where a group starts in a queue for which it has no committed offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


# ------------------------------------------------------------------------- queues and routes


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue(JsonObject):
    """One queue of a topic on one broker; ordered as in Java: topic, broker name, queue id."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(slots=True, kw_only=True)
class BrokerData(JsonObject):
    """The addresses of one broker: its master has id 0, slaves have others."""

    broker_name: str
    cluster: str | None = None
    #: broker id -> ``host:port``.
    addresses: dict[int, str] = wire("brokerAddrs", default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None


@dataclass(slots=True, kw_only=True)
class QueueData(JsonObject):
    """The queues of a topic on one broker."""

    broker_name: str
    read_queue_count: int = wire("readQueueNums", default=0)
    write_queue_count: int = wire("writeQueueNums", default=0)
    perm: int = 0
    topic_sys_flag: int = 0


@dataclass(slots=True, kw_only=True)
class TopicRoute(JsonObject):
    """The route of a topic (TopicRouteData, 105). Written with quoted integer keys."""

    queues: list[QueueData] = wire("queueDatas", default_factory=list)
    brokers: list[BrokerData] = wire("brokerDatas", default_factory=list)
    order_topic_conf: str | None = None
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class ClusterInfo(JsonObject):
    """All brokers that a name server knows (106)."""

    #: broker name -> its addresses.
    brokers: dict[str, BrokerData] = wire("brokerAddrTable", default_factory=dict)
    #: cluster name -> broker names.
    clusters: dict[str, frozenset[str]] = wire("clusterAddrTable", default_factory=dict)


@dataclass(slots=True, kw_only=True)
class DataVersion(JsonObject):
    """Identifies the state of a table: two states are equal if all three numbers are."""

    timestamp_ms: int = wire("timestamp", default=0)
    counter: int = 0
    state_version: int = 0

    def next(self, now_ms: int) -> "DataVersion":
        """Return the version after one more change."""
        return DataVersion(
            timestamp_ms=now_ms, counter=self.counter + 1, state_version=self.state_version
        )


# ------------------------------------------------------------------------------------- topics


@dataclass(slots=True, kw_only=True)
class TopicConfig(JsonObject):
    """The settings of one topic on one broker."""

    topic: str = wire("topicName")
    read_queue_count: int = wire("readQueueNums", default=16)
    write_queue_count: int = wire("writeQueueNums", default=16)
    perm: int = int(Permission.READ | Permission.WRITE)
    filter_type: str = wire("topicFilterType", default="SINGLE_TAG")
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TopicTable(JsonObject):
    """All topics of a broker: 21, ``topics.json`` and the main part of a registration."""

    version: DataVersion = wire("dataVersion", default_factory=DataVersion)
    topics: dict[str, TopicConfig] = wire("topicConfigTable", default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TopicList(JsonObject):
    """Topic names (206, 224, 304, 305, 343)."""

    topics: list[str] = wire("topicList", default_factory=list)
    broker_address: str | None = wire("brokerAddr", default=None)


@dataclass(slots=True, kw_only=True)
class TopicOffset(JsonObject):
    """The bounds of one queue."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp_ms: int = wire("lastUpdateTimestamp", default=0)


@dataclass(slots=True, kw_only=True)
class TopicStats(JsonObject):
    """The bounds of a topic's queues (TopicStatsTable, 202)."""

    offsets: dict[MessageQueue, TopicOffset] = wire("offsetTable", default_factory=dict)
    put_per_s: float = wire("topicPutTps", default=0.0)


@dataclass(slots=True, kw_only=True)
class KVTable(JsonObject):
    """Strings by name (28, 219, answer to 103)."""

    table: dict[str, str] = field(default_factory=dict)


# ------------------------------------------------------------------------------------- groups


def _customized_retry() -> dict[str, Any]:
    return {"type": "CUSTOMIZED"}


@dataclass(slots=True, kw_only=True)
class GroupConfig(JsonObject):
    """The settings of one consumer group on one broker (SubscriptionGroupConfig)."""

    group: str = wire("groupName")
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_count: int = wire("retryQueueNums", default=1)
    retry_max_times: int = 16
    retry_policy: Any = wire("groupRetryPolicy", default_factory=_customized_retry)
    broker_id: int = 0
    #: Id of the broker that a group reads from when it lags too far behind.
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscriptions: Any = wire("subscriptionDataSet", default=None)
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class GroupTable(JsonObject):
    """All consumer groups of a broker: 201 and ``subscriptionGroup.json``."""

    version: DataVersion = wire("dataVersion", default_factory=DataVersion)
    groups: dict[str, GroupConfig] = wire("subscriptionGroupTable", default_factory=dict)
    #: group -> topic -> bits of what is forbidden.
    forbidden: dict[str, dict[str, int]] = wire("forbiddenTable", default_factory=dict)


@dataclass(slots=True, kw_only=True)
class GroupList(JsonObject):
    """Group names (300)."""

    groups: list[str] = wire("groupList", default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription(JsonObject):
    """A consumer group's subscription to one topic (SubscriptionData)."""

    topic: str
    expression: str = wire("subString", default="*")
    #: ``TAG`` or ``SQL92``.
    expression_type: str = "TAG"
    tags: frozenset[str] = wire("tagsSet", default=frozenset())
    #: Java hashes of ``tags``, which the broker compares.
    tag_codes: frozenset[int] = wire("codeSet", default=frozenset())
    #: ms; a later one replaces an earlier one.
    version: int = wire("subVersion", default=0)
    class_filter_mode: bool = False

    @classmethod
    def of_tags(cls, topic: str, expression: str | None, version: int) -> Self:
        """Return the subscription of a tag expression: ``*``, or tags joined by ``||``.

        Raises:
            LocalProtocolError: the expression names no tag. (Java takes ``" || "`` as
                "everything", which nobody means.)
        """
        text = (expression or "").strip()
        if text in ("", "*"):
            return cls(topic=topic, version=version)
        tags = frozenset(tag.strip() for tag in text.split("||")) - {""}
        if not tags:
            raise LocalProtocolError(
                f"tag expression {text[:80]!r} of topic {topic!r} names no tag, "
                "expected '*' or 'TagA || TagB'"
            )
        return cls(
            topic=topic,
            expression=text,
            tags=tags,
            tag_codes=frozenset(map(java_hash, tags)),
            version=version,
        )


# ------------------------------------------------------------------------------------ clients


@dataclass(slots=True, kw_only=True)
class ConsumerData(JsonObject):
    """One consumer group of a client, in its heartbeat."""

    group: str = wire("groupName")
    consume_type: str = ConsumeType.PUSH
    message_model: str = MessageModel.CLUSTERING
    consume_from_where: str = ConsumeFromWhere.LAST_OFFSET
    subscriptions: list[Subscription] = wire("subscriptionDataSet", default_factory=list)
    unit_mode: bool = False


@dataclass(slots=True, kw_only=True)
class ProducerData(JsonObject):
    """One producer group of a client, in its heartbeat."""

    group: str = wire("groupName")


@dataclass(slots=True, kw_only=True)
class Heartbeat(JsonObject):
    """What a client reports to a broker every 30 s (34)."""

    client_id: str = wire("clientID")
    producers: list[ProducerData] = wire("producerDataSet", default_factory=list)
    consumers: list[ConsumerData] = wire("consumerDataSet", default_factory=list)
    heartbeat_fingerprint: int = 0
    #: Heartbeat V2: empty subscription sets mean "unchanged", not "none".
    without_sub: bool = False


@dataclass(slots=True, kw_only=True)
class ConsumerIds(JsonObject):
    """The client ids of a consumer group (38)."""

    client_ids: list[str] = wire("consumerIdList", default_factory=list)


@dataclass(slots=True, kw_only=True)
class LockRequest(JsonObject):
    """The queues that a client wants to lock (41) or to unlock (42)."""

    consumer_group: str
    client_id: str
    queues: list[MessageQueue] = wire("mqSet", default_factory=list)
    only_this_broker: bool = False


@dataclass(slots=True, kw_only=True)
class LockResponse(JsonObject):
    """The queues that are now locked for the caller (41)."""

    queues: list[MessageQueue] = wire("lockOKMQSet", default_factory=list)


@dataclass(slots=True, kw_only=True)
class ClientConfigCheck(JsonObject):
    """A subscription that the broker is to check before a consumer starts (46)."""

    client_id: str | None = None
    group: str | None = None
    subscription: Subscription | None = wire("subscriptionData", default=None)
    namespace: str | None = None


@dataclass(slots=True, kw_only=True)
class ClientConnection(JsonObject):
    """One live client (Connection)."""

    client_id: str
    #: ``host:port``.
    client_address: str = wire("clientAddr")
    language: str = "JAVA"
    version: int = 0


@dataclass(slots=True, kw_only=True)
class ConsumerConnections(JsonObject):
    """The live members of a consumer group and what they subscribe to (203)."""

    connections: list[ClientConnection] = wire("connectionSet", default_factory=list)
    subscriptions: dict[str, Subscription] = wire("subscriptionTable", default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


@dataclass(slots=True, kw_only=True)
class ProducerConnections(JsonObject):
    """The live members of a producer group (204)."""

    connections: list[ClientConnection] = wire("connectionSet", default_factory=list)


# ------------------------------------------------------------------------------------ offsets


@dataclass(slots=True, kw_only=True)
class ConsumerOffsetTable(JsonObject):
    """Committed offsets: 43 and ``consumerOffset.json``."""

    #: ``topic@group`` -> queue id -> next queue offset to consume.
    offsets: dict[str, dict[int, int]] = wire("offsetTable", default_factory=dict)
    version: DataVersion | None = wire("dataVersion", default=None)
    #: Extension of pymq: those that the group's members have not been told of yet.
    resets: dict[str, dict[int, int]] | None = wire("pymqResets", default=None)
    #: The master's change up to which they are known; queues that moved at its slave since.
    position: str | None = wire("pymqPosition", default=None)
    moved: dict[str, list[int]] | None = wire("pymqMoved", default=None)


@dataclass(slots=True, kw_only=True)
class DelayOffsetTable(JsonObject):
    """The progress of delivery for each delay level: 45 and ``delayOffset.json``."""

    #: delay level, from 1 -> next queue offset in the schedule topic.
    offsets: dict[int, int] = wire("offsetTable", default_factory=dict)
    version: DataVersion | None = wire("dataVersion", default=None)
    #: Of pymq: the queue offsets after that of messages that have been delivered, by level.
    ahead: dict[int, list[int]] | None = wire("pymqAhead", default=None)


@dataclass(slots=True, kw_only=True)
class QueueProgress(JsonObject):
    """The progress of a group in one queue (OffsetWrapper)."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    #: Store time of the last consumed message, ms; 0 if there is none.
    last_timestamp_ms: int = wire("lastTimestamp", default=0)


@dataclass(slots=True, kw_only=True)
class ConsumeStats(JsonObject):
    """The progress of a group in its queues (208)."""

    offsets: dict[MessageQueue, QueueProgress] = wire("offsetTable", default_factory=dict)
    consumed_per_s: float = wire("consumeTps", default=0.0)
