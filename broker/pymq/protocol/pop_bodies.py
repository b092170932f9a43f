"""JSON bodies of popping; see ``bodies``.

Source: RocketMQ BatchAckMessageRequestBody, BatchAck, BitSetSerializerDeserializer,
ConsumerOrderInfoManager, SetMessageRequestModeRequestBody, MessageRequestModeManager,
QueryAssignmentRequestBody, QueryAssignmentResponseBody, MessageQueueAssignment.
"""

import base64
import binascii
from dataclasses import dataclass, field
from enum import StrEnum

from pymq.errors import RemoteProtocolError
from pymq.protocol.bodies import MessageModel, MessageQueue
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject

#: Bits of one item: a pop has 32 messages at most, but others may lie between them.
_BITS_MAX = 1 << 20


@dataclass(slots=True, kw_only=True)
class BatchAck(JsonObject):
    """Messages of one checkpoint that were consumed."""

    group: str = wire("c")
    topic: str = wire("t")
    kind: str = wire("r", default="0")
    start_offset: int = wire("so", default=0)
    queue_id: int = wire("q", default=0)
    revive_queue_id: int = wire("rq", default=0)
    pop_time: int = wire("pt", default=0)
    invisible_ms: int = wire("it", default=0)
    #: A set of bits in base64, the least significant one of the first byte first.
    bits: str = wire("b", default="")

    def queue_offsets(self) -> list[int]:
        """Return the offsets of the messages.

        Raises:
            RemoteProtocolError: the bits cannot be read.
        """
        try:
            packed = base64.b64decode(self.bits, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RemoteProtocolError(f"bits {self.bits[:80]!r}: {error}") from error
        if len(packed) * 8 > _BITS_MAX:
            raise RemoteProtocolError(f"{len(packed)} B of bits, expected at most {_BITS_MAX // 8}")
        return [
            self.start_offset + number * 8 + bit
            for number, byte in enumerate(packed)
            if byte
            for bit in range(8)
            if byte >> bit & 1
        ]


@dataclass(slots=True, kw_only=True)
class BatchAckRequest(JsonObject):
    """BATCH_ACK_MESSAGE (200151)."""

    broker_name: str | None = None
    acks: list[BatchAck] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OrderInfo(JsonObject):
    """The messages of one queue that a group popped in order, last."""

    #: Of the request that popped them.
    attempt_id: str | None = wire("a", default=None)
    pop_time: int = 0
    invisible_ms: int | None = wire("i", default=None)
    #: Queue offsets; all but the first are relative to the first.
    offsets: list[int] = wire("o", default_factory=list)
    #: Queue offset -> when that message becomes visible again, ms, if it was changed.
    visible_ms: dict[int, int] | None = wire("ot", default=None)
    #: Queue offset -> how often that message was popped before, if it was.
    consumed_counts: dict[int, int] | None = wire("oc", default=None)
    consumed_ms: int = wire("l", default=0)
    #: Bit n: message n was acknowledged.
    acknowledged: int = wire("cm", default=0)


@dataclass(slots=True, kw_only=True)
class OrderInfoTable(JsonObject):
    """``consumerOrderInfo.json``: topic@group -> queue id -> what was popped last."""

    table: dict[str, dict[int, OrderInfo]] = field(default_factory=dict)


class RequestMode(StrEnum):
    """How the members of a group get messages of a topic."""

    PULL = "PULL"
    POP = "POP"


@dataclass(slots=True, kw_only=True)
class GroupRequestMode(JsonObject):
    """Sets how a group gets messages of a topic: 401, and an item of the table."""

    topic: str
    group: str = wire("consumerGroup")
    mode: str = RequestMode.PULL
    #: How many other members pop from a member's queues; 0 or less: all members from all queues.
    share_count: int = wire("popShareQueueNum", default=0)


@dataclass(slots=True, kw_only=True)
class RequestModeTable(JsonObject):
    """402 and ``messageRequestMode.json``: topic -> group -> mode."""

    modes: dict[str, dict[str, GroupRequestMode]] = wire(
        "messageRequestModeMap", default_factory=dict
    )


@dataclass(slots=True, kw_only=True)
class AssignmentQuery(JsonObject):
    """QUERY_ASSIGNMENT (400): which queues a client shall read."""

    topic: str
    group: str = wire("consumerGroup")
    client_id: str
    strategy: str = wire("strategyName", default="")
    message_model: str = MessageModel.CLUSTERING


@dataclass(slots=True, kw_only=True)
class QueueAssignment(JsonObject):
    """One queue, or with id -1 all queues of a broker, and how to read it."""

    queue: MessageQueue = wire("messageQueue")
    mode: str


@dataclass(slots=True, kw_only=True)
class Assignments(JsonObject):
    """The answer to 400; without a list the client keeps what it has."""

    assignments: list[QueueAssignment] | None = wire("messageQueueAssignments", default=None)
