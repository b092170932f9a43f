"""Bounds of queues, offsets by time, and what groups have committed."""

from collections.abc import MutableMapping

from pymq.client.operations.operation import SUCCESS, Operation, Plain, new_request, nothing
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.offsets import (
    MaxOffsetRequest,
    MaxOffsetResponse,
    OffsetResponse,
    QueryOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    TimestampResponse,
    UpdateOffsetRequest,
)


def _offset(response: Command) -> int:
    return OffsetResponse.from_fields(response.fields).offset


def min_offset(queue: MessageQueue) -> Operation[int]:
    """The first offset of a queue that is kept; 0 when the queue is unknown (31)."""
    header = QueueRequest(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
    request = new_request(RequestCode.GET_MIN_OFFSET, header)
    return Plain(request, f"the first offset of {_named(queue)}", _offset)


def max_offset(
    queue: MessageQueue, topic_ids: MutableMapping[tuple[str, str], str] | None = None
) -> Operation[int]:
    """The end of a queue: the offset its next message gets; 0 when it is unknown (30).

    Args:
        queue: which.
        topic_ids: takes up the topic's id there, by topic and broker name, if the broker tells it.
    """
    header = MaxOffsetRequest(
        topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
    )

    def read(response: Command) -> int:
        found = MaxOffsetResponse.from_fields(response.fields)
        if topic_ids is not None and found.topic_id is not None:
            topic_ids[queue.topic, queue.broker_name] = found.topic_id
        return found.offset

    request = new_request(RequestCode.GET_MAX_OFFSET, header)
    return Plain(request, f"the end of {_named(queue)}", read)


def offset_by_time(queue: MessageQueue, timestamp_ms: int) -> Operation[int]:
    """The offset of the first message stored at a moment or later (29).

    For a moment behind the last message, 4.9 brokers give the last message's offset, others
    the queue's end.
    """
    header = SearchOffsetRequest(
        topic=queue.topic,
        queue_id=queue.queue_id,
        timestamp_ms=timestamp_ms,
        broker_name=queue.broker_name,
    )
    request = new_request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    return Plain(request, f"the offset at {timestamp_ms} ms of {_named(queue)}", _offset)


def earliest_store_time(queue: MessageQueue) -> Operation[int | None]:
    """When the first message kept was stored, ms; ``None`` for no message (32)."""
    header = QueueRequest(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)

    def read(response: Command) -> int | None:
        found = TimestampResponse.from_fields(response.fields).timestamp_ms
        return None if found < 0 else found

    request = new_request(RequestCode.GET_EARLIEST_MSG_STORETIME, header)
    return Plain(request, f"the earliest store time of {_named(queue)}", read)


def query_offset(
    group: str, queue: MessageQueue, *, zero_if_new: bool = True
) -> Operation[int | None]:
    """The offset a group committed, ``None`` for none (14).

    Args:
        group: which.
        queue: where.
        zero_if_new: a group without one, in a queue that still has its first message, is told 0,
            from which new groups begin. Brokers of 4.9 do so in any case.
    """
    header = QueryOffsetRequest(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=None if zero_if_new else False,
        broker_name=queue.broker_name,
    )

    def read(response: Command) -> int | None:
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = _offset(response)
        return None if offset < 0 else offset

    return Plain(
        new_request(RequestCode.QUERY_CONSUMER_OFFSET, header),
        f"the offset of group {group!r} in {_named(queue)}",
        read,
        (*SUCCESS, int(ResponseCode.QUERY_NOT_FOUND)),
    )


def update_offset(group: str, queue: MessageQueue, offset: int) -> Operation[None]:
    """Commit an offset of a group (15)."""
    header = UpdateOffsetRequest(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=offset,
        broker_name=queue.broker_name,
    )
    request = new_request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    return Plain(request, f"to commit {offset} of group {group!r} in {_named(queue)}", nothing)


def _named(queue: MessageQueue) -> str:
    return f"topic {queue.topic!r}, queue {queue.queue_id}"
