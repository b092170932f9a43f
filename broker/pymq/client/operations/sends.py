"""Storing messages: one, or a batch to one queue."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pymq.client.operations.operation import Operation
from pymq.errors import BrokerError, LocalProtocolError, PymqError, RemoteProtocolError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.names import DEFAULT_TOPIC, check_topic, takes_no_sends

#: RocketMQ ``maxMessageSize``: what a broker takes as one body by default.
BODY_BYTES_MAX = 4 << 20
#: RocketMQ ``defaultTopicQueueNums``: most queues of a topic that a send creates.
DEFAULT_QUEUE_COUNT = 4

#: Another queue or broker may take a send that was refused with one of these
#: (DefaultMQProducer.retryResponseCodes).
_RETRY_CODES = frozenset({17, 14, 1, 16, 204, 205, 2})

_SEND_V2 = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)


class SendStatus(StrEnum):
    """How a stored message was secured (SendStatus)."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


_SEND_STATUSES = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(slots=True)
class SendResult:
    """Where a message, or the first of a batch, was stored.

    ``message_id`` is the client's (UNIQ_KEY), several joined by ``,`` for a batch; ``None``
    when the caller encoded the batch itself.
    """

    status: SendStatus
    message_id: str | None
    offset_ids_text: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None

    @property
    def durability_unknown(self) -> bool:
        """Is it stored, but not proven to survive what the broker's settings promise?"""
        return self.status is not SendStatus.OK

    @property
    def offset_message_ids(self) -> list[str]:
        """The broker's ids, one per message: store address and physical offset."""
        return self.offset_ids_text.split(",")


@dataclass(slots=True)
class PreparedMessage:
    """A message, or a batch of one queue, encoded once; each try to send it is an operation.

    ``body`` must not change until the send is answered.
    """

    topic: str
    body: bytes | memoryview
    properties: str
    message_id: str | None
    flag: int = 0
    sys_flag: int = 0
    batch: bool = False


class Sent(Protocol):
    """What a response to a send is about: where it went, and its description for errors."""

    @property
    def queue(self) -> MessageQueue: ...

    @property
    def description(self) -> str: ...


def read_send(
    response: Command, sent: Sent, message_id: str | None, *, peer: str | None
) -> SendResult:
    """Return where a message, or the first of a batch, is.

    Args:
        response: to its send.
        sent: what it is about.
        message_id: for the result.
        peer: ``host:port`` of who answered, for error messages.

    Raises:
        BrokerError: the broker refused it.
        RemoteProtocolError: the response is not one to a send.
    """
    status = _SEND_STATUSES.get(response.code)
    if status is None:
        raise BrokerError.of(
            response.code, response.remark, peer=str(peer), request=sent.description
        )
    fields = response.fields or {}
    queue = sent.queue
    try:
        queue_id = int(fields["queueId"])
        if queue_id != queue.queue_id:  # -1 leaves the choice to the broker
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        return SendResult(
            status,
            message_id,
            fields["msgId"],
            queue,
            int(fields["queueOffset"]),
            fields.get("transactionId"),
        )
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(
            f"{peer} answered {sent.description}: msgId, queueId, queueOffset belong there, "
            f"found {fields!r:.200}"
        ) from error


class Send(Operation[SendResult]):
    """SEND_MESSAGE_V2 (310) or SEND_BATCH_MESSAGE (320): the hottest one, so spelled out."""

    __slots__ = ("_message_id", "queue")

    def __init__(
        self,
        prepared: PreparedMessage,
        queue: MessageQueue,
        *,
        group: str,
        now_ms: int,
        default_queue_count: int = DEFAULT_QUEUE_COUNT,
        reconsume_times: int = 0,
        reconsume_times_max: int | None = None,
    ) -> None:
        """Prepare one try.

        Args:
            prepared: what to send.
            queue: where to; its topic is the message's.
            group: producer group.
            now_ms: becomes the born timestamp.
            default_queue_count: most queues the topic gets if this send creates it.
            reconsume_times: for a message that is sent to a retry topic.
            reconsume_times_max: likewise.
        """
        header = SendRequest(
            group,
            prepared.topic,
            DEFAULT_TOPIC,
            default_queue_count,
            queue.queue_id,
            prepared.sys_flag,
            now_ms,
            prepared.flag,
            prepared.properties,
            reconsume_times,
            False,
            reconsume_times_max,
            prepared.batch,
            queue.broker_name,
        )
        code = _SEND_BATCH if prepared.batch else _SEND_V2
        self.request = Command(code, header.to_v2(), prepared.body)
        self.queue = queue
        self._message_id = prepared.message_id

    @property
    def description(self) -> str:
        what = "a send" if self.request.code == _SEND_V2 else "a batch"
        return f"{what} to topic {self.queue.topic!r}, queue {self.queue.queue_id}"

    def result(self, response: Command, *, peer: str) -> SendResult:
        return read_send(response, self, self._message_id, peer=peer)


def may_send_elsewhere(error: PymqError) -> bool:
    """Does RocketMQ's rule allow another try, on any queue? It may store a second copy."""
    if isinstance(error, BrokerError):
        return error.code in _RETRY_CODES
    return error.retriable


def check_send_topic(topic: str) -> None:
    """Accept a topic that clients may send to.

    Raises:
        LocalProtocolError: the name is illegal, or the topic is the broker's own.
    """
    check_topic(topic)
    if takes_no_sends(topic):
        raise LocalProtocolError(f"topic {topic!r} belongs to the broker; send to another")
