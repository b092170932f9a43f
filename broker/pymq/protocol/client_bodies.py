"""JSON bodies about clients that are connected, and about consumers at work.

Conventions: see ``bodies``.

Source: RocketMQ remoting/protocol/body.
"""

from dataclasses import dataclass

from pymq.protocol.bodies import MessageQueue, Subscription
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject


@dataclass(slots=True, kw_only=True)
class LiveProducer(JsonObject):
    """One live producer (ProducerInfo)."""

    client_id: str
    #: ``/host:port``, as Java prints an address.
    remote_address: str = wire("remoteIP")
    language: str = "JAVA"
    version: int = 0
    #: Of its last heartbeat.
    updated_ms: int = wire("lastUpdateTimestamp", default=0)


@dataclass(slots=True, kw_only=True)
class LiveProducers(JsonObject):
    """All live producers of a broker (ProducerTableInfo, 328)."""

    #: group -> its members.
    groups: dict[str, list[LiveProducer]] = wire("data", default_factory=dict)


@dataclass(slots=True, kw_only=True)
class ConsumerStatus(JsonObject):
    """Where consumers are (GetConsumerStatusBody): of one (221), or of each one (223)."""

    #: Next queue offset to be consumed, of the consumer that was asked.
    offsets: dict[MessageQueue, int] = wire("messageQueueTable", default_factory=dict)
    #: The same by client id.
    members: dict[str, dict[MessageQueue, int]] = wire("consumerTable", default_factory=dict)


@dataclass(slots=True, kw_only=True)
class OffsetReset(JsonObject):
    """Where a group shall go on (ResetOffsetBody, 220, 222)."""

    offsets: dict[MessageQueue, int] = wire("offsetTable", default_factory=dict)


@dataclass(slots=True, kw_only=True)
class OffsetOfQueue(JsonObject):
    """One queue and its offset, for clients that have no maps with objects as keys."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


@dataclass(slots=True, kw_only=True)
class OffsetResetForCpp(JsonObject):
    """``OffsetReset`` for C++ clients (ResetOffsetBodyForC)."""

    offsets: list[OffsetOfQueue] = wire("offsetTable", default_factory=list)


@dataclass(slots=True, kw_only=True)
class ProcessQueueInfo(JsonObject):
    """A queue that a consumer reads (ProcessQueueInfo); times in milliseconds since 1970."""

    #: Before it everything is consumed.
    commit_offset: int = 0
    #: Of what was pulled and is not consumed.
    first_offset: int = wire("cachedMsgMinOffset", default=0)
    last_offset: int = wire("cachedMsgMaxOffset", default=0)
    message_count: int = wire("cachedMsgCount", default=0)
    size_mib: int = wire("cachedMsgSizeInMiB", default=0)
    #: Of what a handler in order has at the moment.
    handled_first: int = wire("transactionMsgMinOffset", default=0)
    handled_last: int = wire("transactionMsgMaxOffset", default=0)
    handled_count: int = wire("transactionMsgCount", default=0)
    #: In order: is the queue surely ours?
    is_locked: bool = wire("locked", default=False)
    unlock_tries: int = wire("tryUnlockTimes", default=0)
    locked_ms: int = wire("lastLockTimestamp", default=0)
    is_dropped: bool = wire("droped", default=False)
    pulled_ms: int = wire("lastPullTimestamp", default=0)
    consumed_ms: int = wire("lastConsumeTimestamp", default=0)


@dataclass(slots=True, kw_only=True)
class ConsumerRunningInfo(JsonObject):
    """What a consumer is at (307)."""

    #: ``PROP_...`` -> its value.
    properties: dict[str, str] = wire("properties", default_factory=dict)
    subscriptions: list[Subscription] = wire("subscriptionSet", default_factory=list)
    queues: dict[MessageQueue, ProcessQueueInfo] = wire("mqTable", default_factory=dict)
    popped: dict[MessageQueue, ProcessQueueInfo] = wire("mqPopTable", default_factory=dict)
    #: Topic -> rates of the last minute, of clients that count.
    rates: dict[str, dict[str, float]] = wire("statusTable", default_factory=dict)
    user_info: dict[str, str] = wire("userConsumerInfo", default_factory=dict)
    #: What its threads do, if that was asked for.
    stacks: str | None = wire("jstack", default=None)


@dataclass(slots=True, kw_only=True)
class DirectResult(JsonObject):
    """What became of a message that one consumer was told to handle (309).

    Source: RocketMQ ConsumeMessageDirectlyResult.
    """

    is_ordered: bool = wire("order", default=False)
    auto_commit: bool = True
    #: CR_SUCCESS, CR_LATER or CR_THROW_EXCEPTION, and others that clients of Java give.
    result: str = wire("consumeResult", default="CR_SUCCESS")
    remark: str | None = None
    took_ms: int = wire("spentTimeMills", default=0)
