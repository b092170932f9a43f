"""What became of a transaction: END_TRANSACTION (37)."""

from enum import IntEnum

from pymq.client.operations.operation import Operation, Plain, new_request, nothing
from pymq.protocol.codes import MessageFlag, RequestCode
from pymq.protocol.headers.transactions import EndTransactionRequest


class TransactionStatus(IntEnum):
    """What became of a transaction (LocalTransactionState); the numbers are the wire's."""

    #: Its message is delivered.
    COMMIT = MessageFlag.TRANSACTION_COMMIT
    #: Its message is dropped.
    ROLLBACK = MessageFlag.TRANSACTION_ROLLBACK
    #: Not known yet; the broker asks again later.
    UNKNOWN = 0


def end_transaction(
    status: TransactionStatus,
    *,
    group: str,
    topic: str,
    message_id: str,
    queue_offset: int,
    physical_offset: int,
    broker_name: str,
    is_checked: bool = False,
) -> Operation[None]:
    """Tell a broker what became of a transaction.

    Official brokers do not answer ``UNKNOWN``: send that one-way.

    Args:
        status: that.
        group: of the producer.
        topic: of the message.
        message_id: the producer's id of it.
        queue_offset, physical_offset: of its half message, as last named by the broker.
        broker_name: the broker.
        is_checked: does it answer a question of the broker's?
    """
    header = EndTransactionRequest(
        producer_group=group,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        decision=int(status),
        is_checked=is_checked,
        message_id=message_id,
        transaction_id=message_id,
        topic=topic,
        broker_name=broker_name,
    )
    description = f"{status.name} of the transaction of message {message_id} to topic {topic!r}"
    return Plain(new_request(RequestCode.END_TRANSACTION, header), description, nothing)
