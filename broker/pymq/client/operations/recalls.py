"""Takes back a message that waits for its delivery time: RECALL_MESSAGE (370)."""

from pymq.client.operations.operation import Operation, Plain, new_request
from pymq.protocol.codes import RequestCode
from pymq.protocol.headers.timers import RecallRequest, RecallResponse


def recall_message(topic: str, handle: str, *, group: str) -> Operation[str]:
    """Ask the broker that has a message not to deliver it; returns its id.

    Args:
        topic: of the message.
        handle: names it; the answer to its send had it.
        group: of the producer.
    """
    header = RecallRequest(topic=topic, recall_handle=handle, producer_group=group)
    return Plain(
        new_request(RequestCode.RECALL_MESSAGE, header),
        f"the recall of a message to topic {topic!r}",
        lambda response: RecallResponse.from_fields(response.fields).message_id,
    )
