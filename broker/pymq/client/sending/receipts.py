"""What a producer learns of each message that is stored."""

from collections.abc import Sequence
from dataclasses import dataclass

from pymq.client.operations import SendStatus, read_send
from pymq.client.sending.send_template import SendTemplate
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command

_SUCCESS = int(ResponseCode.SUCCESS)


@dataclass(slots=True)
class SendReceipt:
    """Where one message was stored.

    Attributes:
        status: ``OK``, or stored and not proven to be as durable as the broker's settings promise.
        message_id: the producer's id (UNIQ_KEY), which consumers see as well.
        queue: where it is.
        queue_offset: its place there; of a delayed message or an unfinished transaction, that in
            the topic where the broker keeps it meanwhile.
        offset_message_id: the broker's id: store address and physical offset. ``None``: the broker
            gave no id of its own to each message of a batch.
        recall_handle: names a message with a delivery time that brokers of RocketMQ 5.3 and later
            can be asked to recall.
    """

    status: SendStatus
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str | None
    recall_handle: str | None = None

    @property
    def durability_unknown(self) -> bool:
        """Is it stored, but not proven to survive what the broker's settings promise?"""
        return self.status is not SendStatus.OK


def read_receipt(answer: Command, template: SendTemplate, message_id: str) -> SendReceipt:
    """Return the receipt of a single message.

    Raises:
        BrokerError: the broker refused it.
        RemoteProtocolError: the answer is not one to a send.
    """
    fields, queue = answer.fields, template.queue
    if answer.code == _SUCCESS and fields is not None:
        try:  # as in nearly every answer; what is unusual about one is said below
            if int(fields["queueId"]) == queue.queue_id:
                return SendReceipt(
                    SendStatus.OK,
                    message_id,
                    queue,
                    int(fields["queueOffset"]),
                    fields["msgId"],
                    fields.get("recallHandle"),
                )
        except (KeyError, ValueError):
            pass
    found = read_send(answer, template, message_id, peer=template.address)
    handle = answer.fields.get("recallHandle") if answer.fields else None
    return SendReceipt(
        found.status, message_id, found.queue, found.queue_offset, found.offset_ids_text, handle
    )


def read_receipts(
    answer: Command, template: SendTemplate, message_ids: Sequence[str]
) -> list[SendReceipt]:
    """Return the receipts of the messages of a batch. Raises what ``read_receipt`` does."""
    found = read_send(answer, template, None, peer=template.address)
    offset_ids: Sequence[str | None] = found.offset_message_ids
    if len(offset_ids) != len(message_ids):
        offset_ids = [None] * len(message_ids)
    return [
        SendReceipt(found.status, message_id, found.queue, found.queue_offset + index, offset_id)
        for index, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True))
    ]
