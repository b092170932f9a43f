"""Messages that a consumer could not handle: delivered again later, or dead letters."""

from pymq.client.operations.operation import Operation, Plain, new_request, nothing
from pymq.client.operations.sends import PreparedMessage, Send, SendResult
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode
from pymq.protocol.compression import COMPRESS_BYTES_MIN, Compression, compress, compression_flags
from pymq.protocol.headers.retry import SendBackRequest
from pymq.protocol.message import (
    DEAD_LETTER_REASON,
    DELAY,
    INNER_COUNT,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    POP_CHECK_POINT,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRANSACTION_PREPARED,
    ReceivedMessage,
    encode_properties,
)
from pymq.protocol.names import retry_topic

#: Properties that a broker acts on, and has acted on.
_DONE = {
    *(DELAY, INNER_COUNT, MAX_RECONSUME_TIMES, POP_CHECK_POINT, RECONSUME_TIME),
    TRANSACTION_PREPARED,
}


def send_back(
    message: ReceivedMessage, *, group: str, max_reconsume_times: int | None, delay_level: int = 0
) -> Operation[None]:
    """Send a message back to its broker (36).

    Args:
        message: as it was received.
        group: consumer group.
        max_reconsume_times: so often it is tried again before it becomes a dead letter; ``None``:
            as the group's setting says.
        delay_level: when it is delivered again; 0: the broker chooses, longer after each try;
            below 0: it becomes a dead letter at once.
    """
    header = SendBackRequest(
        offset=message.physical_offset,
        group=group,
        delay_level=delay_level,
        origin_message_id=message.message_id,
        origin_topic=message.topic,
        max_reconsume_times=max_reconsume_times,
        broker_name=message.broker_name,
    )
    request = new_request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    return Plain(request, f"to take message {message.message_id} of group {group!r} back", nothing)


def bury(
    message: ReceivedMessage, *, group: str, reason: str, stored_topic: str
) -> Operation[SendResult]:
    """Make a message a dead letter that says why.

    ``send_back`` cannot say it. So this is the other way that brokers have: a send to the retry
    topic of a message that was tried too often, which they store as a dead letter instead.

    Args:
        message: as it was received.
        group: consumer group.
        reason: kept as a property.
        stored_topic: what brokers call the topic that it was sent to.

    Raises:
        LocalProtocolError: with the reason the properties are too long.

    Source: RocketMQ SendMessageProcessor.handleRetryAndDLQ.
    """
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in _DONE and not name.startswith("TIMER_")
    }
    properties.setdefault(RETRY_TOPIC, stored_topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_message_id)
    properties[DEAD_LETTER_REASON] = reason
    body, sys_flag = message.body, 0
    if len(body) >= COMPRESS_BYTES_MIN:
        body, sys_flag = compress(body, Compression.ZLIB), compression_flags(Compression.ZLIB)
    topic = retry_topic(group)
    return Send(
        PreparedMessage(
            topic,
            body,
            encode_properties(properties).decode(),
            message.message_id,
            flag=message.flag,
            sys_flag=sys_flag,
        ),
        MessageQueue(topic, message.broker_name, 0),
        group=group,
        now_ms=message.born_timestamp_ms,
        reconsume_times=message.reconsume_times + 1,
        reconsume_times_max=0,
    )
