"""What is stored of a message when it is prepared, and when its transaction is committed.

Source: RocketMQ SendMessageProcessor, EndTransactionProcessor.endMessageTransaction.
"""

import dataclasses
from collections.abc import Mapping

from pymq.broker.config import BrokerConfig
from pymq.broker.message_hooks import MessageHooks, asked_for
from pymq.errors import BrokerError, refusal
from pymq.protocol.codes import TRANSACTION_MASK, MessageFlag, ResponseCode
from pymq.protocol.message import DELAY, PRODUCER_GROUP, TRANSACTION_PREPARED, decode_properties
from pymq.protocol.names import HALF_TOPIC
from pymq.protocol.parking import copy_of, real_place
from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.record import PROPERTIES_BYTES_MAX, NewRecord, Record, unpack_host
from pymq.protocol.transaction_records import (
    COPY_BYTES_MAX,
    OF_PREPARED,
    QUEUE_ID,
    half_properties,
    half_record,
    mark_committed,
    without_prepared,
)
from pymq.store import QueueKey

#: More properties of a half message leave no room for those of its copies.
_HALF_BYTES_MAX = PROPERTIES_BYTES_MAX - COPY_BYTES_MAX
_INNER_BATCH = int(MessageFlag.INNER_BATCH)
#: What the hooks may want to see of a half message that is an ordinary one otherwise.
_PREPARED = [TRANSACTION_PREPARED]


class TransactionalMessages:
    """Turns messages into half messages, and these into committed ones.

    Args:
        hooks: know where a message belongs once it is committed: it may be a delayed one.
        store_host: our packed address.
    """

    def __init__(self, config: BrokerConfig, hooks: MessageHooks, store_host: bytes) -> None:
        self._config = config
        self._hooks = hooks
        self._store_host = store_host

    def prepare(self, record: NewRecord, properties: Mapping[str, str]) -> NewRecord:
        """Return the half message of a transactional message; see ``MessageHooks``."""
        if record.reconsume_times > 0 and _number(properties.get(DELAY, "")) > 0:
            # A retry by a client older than 4.6.1, with the properties of the original.
            plain = dataclasses.replace(record, sys_flag=record.sys_flag & ~TRANSACTION_MASK)
            rest = {name: properties[name] for name in properties if name != TRANSACTION_PREPARED}
            return self._hooks.apply(plain, rest)
        if self._config.reject_transactions:
            raise refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{unpack_host(self._store_host)[0]}] sending transaction message is "
                "forbidden",
            )
        if PRODUCER_GROUP not in properties:
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a transactional message without property {PRODUCER_GROUP} could never be ended; "
                "send it with the producer's group",
            )
        if record.sys_flag & _INNER_BATCH:
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL, "an inner batch cannot be a transactional message"
            )
        half = half_record(record, properties)
        excess = len(half.properties) - _HALF_BYTES_MAX
        if excess > 0:
            # RocketMQ takes it, and cannot store the copy when it is to be checked.
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"properties of {len(record.properties)} B, {excess} B more than leave room for "
                f"those of a transaction and its checks, {PROPERTIES_BYTES_MAX} B in all; shorten "
                "them",
            )
        return half

    def prepare_many(self, records: PlainRecords) -> PlainRecords | None:
        """Return the half messages of transactional messages; see ``MessageHooks``.

        None if anything about one of them is not usual.
        """
        if self._config.reject_transactions:
            return None
        halves = []
        for queue_id, text in zip(records.queue_ids, records.properties, strict=True):
            half = half_properties(text, records.topic, queue_id)
            if half is None:
                return None
            halves.append(half)
        if max(map(len, halves)) > _HALF_BYTES_MAX:
            return None
        sys_flag = records.sys_flag & ~TRANSACTION_MASK
        return records.parked(HALF_TOPIC, [QUEUE_ID] * len(halves), halves, sys_flag=sys_flag)

    def committed(self, half: Record) -> NewRecord:
        """Return what is stored when the transaction of a half message is committed.

        Raises:
            BrokerError: nothing can be: it says no place, or is of a kind that is not supported.
        """
        place = real_place(half.properties)
        if place is None:
            raise refusal(
                ResponseCode.SYSTEM_ERROR, "the half message does not say its topic and queue"
            )
        message = copy_of(half, *place)
        message.sys_flag &= ~TRANSACTION_MASK
        if message.sys_flag & _INNER_BATCH or asked_for(b"\x02" + half.properties) != _PREPARED:
            message = self._transformed(message)
        mark_committed(message, half.physical_offset)
        return message

    def _transformed(self, message: NewRecord) -> NewRecord:
        """Return what is stored of a committed message that may be a delayed one, say."""
        properties = decode_properties(message.properties)
        for name in OF_PREPARED:
            properties.pop(name, None)
        if self._hooks.apply(message, properties) is message:
            return message
        # RocketMQ's committed messages keep the properties of the half message, unless they are
        # parked a second time.
        return self._hooks.apply(without_prepared(message), properties)

    def places(self, half: Record) -> set[QueueKey]:
        """Return the queues where the message of a half message may be when it is committed."""
        place = real_place(half.properties)
        if place is None:
            return set()
        try:
            message = self.committed(half)
        except BrokerError:
            return {place}  # It cannot be committed here, but may have been by another broker.
        return {place, (message.topic, message.queue_id)}


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
