"""Responses to pops: the messages, and what their handles are made of.

A message of a retry topic is sent as one of the topic that was asked for: clients know nothing of
retry topics. Its handle, which they could not make themselves then, is one of its properties.

Source: RocketMQ PopMessageProcessor.popMsgFromQueue, readGetMessageResult.
"""

from collections.abc import Coroutine
from typing import Any

from pymq.broker.pop.attempt import PopAttempt
from pymq.broker.pop.popping import Taken
from pymq.broker.record_response import RecordResponses
from pymq.net.dispatcher import PartedResponse
from pymq.protocol.codes import HOST_IPV6_MASK
from pymq.protocol.command import Command
from pymq.protocol.message import POP_CHECK_POINT, find_property
from pymq.protocol.names import is_retry_topic
from pymq.protocol.receipt_handles import (
    ReceiptHandle,
    encode_handle,
    message_offset_info,
    start_offset_info,
)
from pymq.protocol.record import (
    PROPERTIES_BYTES_MAX,
    NewRecord,
    Record,
    decode_records,
    encode_record,
    record_size,
    topic_field,
)
from pymq.protocol.record_crc import cut_record_crc


class PopResponses:
    """Makes responses.

    Args:
        broker_name: ours.
        rename: whether messages of retry topics are sent as of the topic that was asked for.
    """

    def __init__(self, responses: RecordResponses, *, broker_name: str, rename: bool) -> None:
        self._responses = responses
        self._broker_name = broker_name
        self._rename = rename

    def make(
        self, head: Command, topic: str, invisible_ms: int, attempt: PopAttempt
    ) -> PartedResponse | Coroutine[Any, Any, PartedResponse]:
        """Return a response, or a coroutine that first waits for the disk.

        Args:
            head: the response without its body.
            topic: the one that was asked for.
            invisible_ms: part of the handles.
            attempt: has the messages.

        Raises:
            CorruptRecord: a message is not what its queue says.
        """
        if any(
            self._responses.is_cold(taken.result.buffers, taken.result.starts)
            for taken in attempt.kept
        ):
            return self._make_cold(head, topic, invisible_ms, attempt)
        return self._make(head, topic, invisible_ms, attempt)

    async def _make_cold(
        self, head: Command, topic: str, invisible_ms: int, attempt: PopAttempt
    ) -> PartedResponse:
        for taken in attempt.kept:
            await self._responses.wait_in_memory(taken.result.buffers, taken.result.starts)
        return self._make(head, topic, invisible_ms, attempt)

    def _make(
        self, head: Command, topic: str, invisible_ms: int, attempt: PopAttempt
    ) -> PartedResponse:
        parts: list[memoryview] = []
        for taken in attempt.kept:
            taken.result.check()
            if self._rename and is_retry_topic(taken.topic):
                parts += self._renamed(taken, topic, invisible_ms, attempt)
            else:
                parts += taken.result.buffers
        return PartedResponse(head, parts)

    def _renamed(
        self, taken: Taken, topic: str, invisible_ms: int, attempt: PopAttempt
    ) -> list[memoryview]:
        handle = ReceiptHandle(
            taken.start_offset,
            attempt.pop_time,
            invisible_ms,
            attempt.revive_queue_id,
            self._broker_name,
        )
        records = [record for part in taken.result.buffers for record in decode_records(part)]
        return [
            memoryview(_renamed(record, topic, handle, offset))
            for record, offset in zip(records, taken.queue_offsets, strict=True)
        ]


def _renamed(record: Record, topic: str, handle: ReceiptHandle, queue_offset: int) -> bytes:
    """Return a record as one of another topic, with its handle."""
    # Its checksum, if it has one, is that of the other record.
    properties = cut_record_crc(record.properties)
    if find_property(properties, POP_CHECK_POINT.encode()) is None:
        text = encode_handle(handle, record.topic, record.queue_id, queue_offset)
        properties = f"{POP_CHECK_POINT}\x01{text}\x02".encode() + properties
    if len(properties) > PROPERTIES_BYTES_MAX:
        # Clients make the handle themselves if they see the topic that the message lies in.
        topic, properties = record.topic, record.properties
    new = NewRecord(
        topic,
        record.queue_id,
        record.body,
        properties,
        record.born_host,
        record.born_timestamp,
        record.flag,
        record.sys_flag & ~HOST_IPV6_MASK,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )
    field = topic_field(topic.encode())
    hosts = len(record.born_host) + len(record.store_host)
    return b"".join(
        encode_record(
            new,
            field,
            size=record_size(len(record.body), len(field), len(properties), hosts),
            queue_offset=record.queue_offset,
            physical_offset=record.physical_offset,
            store_timestamp=record.store_timestamp,
            store_host=record.store_host,
        )
    )


def start_offsets(attempt: PopAttempt) -> str:
    """Return ``startOffsetInfo``."""
    return ";".join(
        start_offset_info(one.topic, one.queue_id, one.start_offset) for one in attempt.kept
    )


def message_offsets(attempt: PopAttempt) -> str:
    """Return ``msgOffsetInfo``."""
    return ";".join(
        message_offset_info(one.topic, one.queue_id, one.queue_offsets) for one in attempt.kept
    )
