"""Messages that a consumer could not handle: their broker delivers them again later."""

from pymq.client.operations.operation import Operation, Plain, new_request, nothing
from pymq.protocol.codes import RequestCode
from pymq.protocol.headers.retry import SendBackRequest
from pymq.protocol.message import ReceivedMessage


def send_back(message: ReceivedMessage, *, group: str, max_reconsume_times: int) -> Operation[None]:
    """Send a message back; the broker chooses when it is delivered again (36).

    Args:
        message: as it was received.
        group: consumer group.
        max_reconsume_times: after this many failed tries it becomes a dead letter.
    """
    header = SendBackRequest(
        offset=message.physical_offset,
        group=group,
        delay_level=0,
        origin_message_id=message.message_id,
        origin_topic=message.topic,
        max_reconsume_times=max_reconsume_times,
        broker_name=message.broker_name,
    )
    request = new_request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    return Plain(request, f"to take message {message.message_id} of group {group!r} back", nothing)
