"""JSON bodies about clients that are connected, and about consumers at work.

Conventions: see ``bodies``.

Source: RocketMQ remoting/protocol/body.
"""

from dataclasses import dataclass

from pymq.protocol.bodies import MessageQueue
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
