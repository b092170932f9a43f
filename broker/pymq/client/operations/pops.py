"""Popping: messages for a limited time, and what becomes of them.

Source: RocketMQ MQClientAPIImpl.processPopResponse.
"""

from pymq.client.operations.operation import Operation, Plain, new_request, nothing
from pymq.errors import RemoteProtocolError
from pymq.protocol.bodies import Subscription
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.pop import (
    AckRequest,
    ChangeInvisibleTimeRequest,
    ChangeInvisibleTimeResponse,
    NotificationRequest,
    NotificationResponse,
    PopRequest,
    PopResponse,
)
from pymq.protocol.message import POP_CHECK_POINT, find_property
from pymq.protocol.receipt_handles import ReceiptHandle, encode_handle, topic_kind, topic_of_kind
from pymq.protocol.record import Record, decode_records

#: Any queue of the topic.
_ANY_QUEUE = -1
#: Instead of the time: when the broker reads the request, by its own clock. One that is half a
#: second ahead of ours would take our pops for too old, and give us nothing.
_BORN_THERE = 0
_NOTHING = (
    int(ResponseCode.POLLING_TIMEOUT),
    int(ResponseCode.POLLING_FULL),
    int(ResponseCode.PULL_NOT_FOUND),
)


class Pop(Operation[list[tuple[Record, str]]]):
    """POP_MESSAGE (200050): returns records and their handles; none when there is nothing."""

    __slots__ = ("_broker_name", "_topic")

    def __init__(
        self,
        topic: str,
        broker_name: str,
        *,
        group: str,
        count_max: int,
        invisible_ms: int,
        subscription: Subscription,
        from_first: bool,
    ) -> None:
        """Prepare one pop, which does not wait for a message.

        Args:
            topic: which.
            broker_name: who is asked.
            group: consumer group.
            count_max: messages wanted; brokers give 32 at most.
            invisible_ms: after that others get the messages.
            subscription: what of the topic is wanted.
            from_first: where the group begins in a queue without progress.
        """
        header = PopRequest(
            consumer_group=group,
            topic=topic,
            queue_id=_ANY_QUEUE,
            message_count_max=count_max,
            invisible_ms=invisible_ms,
            poll_ms=0,
            born_time=_BORN_THERE,
            init_mode=0 if from_first else 1,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
        )
        super().__init__(new_request(RequestCode.POP_MESSAGE, header))
        self._topic = topic
        self._broker_name = broker_name

    @property
    def description(self) -> str:
        return f"a pop of topic {self._topic!r}"

    def result(self, response: Command, *, peer: str) -> list[tuple[Record, str]]:
        if response.code in _NOTHING:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise self.refusal(response, peer)
        try:
            header = PopResponse.from_fields(response.fields)
            starts = _start_offsets(header.start_offset_info)
        except (RemoteProtocolError, ValueError) as error:
            raise RemoteProtocolError(f"{peer} answered {self.description}: {error}") from error
        found = []
        for record in decode_records(response.body):
            own = find_property(record.properties, POP_CHECK_POINT.encode())
            found.append((record, own.decode() if own else self._handle(record, header, starts)))
        return found

    def _handle(
        self, record: Record, header: PopResponse, starts: dict[tuple[str, int], int]
    ) -> str:
        place = topic_kind(record.topic), record.queue_id
        handle = ReceiptHandle(
            # Without them, each queue's first record is where the checkpoint begins.
            starts.setdefault(place, record.queue_offset),
            header.pop_time,
            header.invisible_ms,
            header.revive_queue_id,
            self._broker_name,
        )
        return encode_handle(handle, record.topic, record.queue_id, record.queue_offset)


def _start_offsets(text: str | None) -> dict[tuple[str, int], int]:
    parts = [part.split(" ") for part in (text or "").split(";") if part]
    return {(kind, int(queue_id)): int(offset) for kind, queue_id, offset in parts}


def _place(handle: str) -> tuple[str, int, int]:
    """Return kind of topic, queue id and offset in a handle."""
    parts = handle.split(" ")
    return parts[4], int(parts[6]), int(parts[7])


def acknowledge(group: str, topic: str, handle: str) -> Operation[None]:
    """A popped message was consumed (200051).

    Args:
        group: that popped it.
        topic: that the group subscribed to.
        handle: of the message; it must be whole.
    """
    kind, queue_id, offset = _place(handle)
    header = AckRequest(
        consumer_group=group,
        topic=topic_of_kind(topic, group, kind),
        queue_id=queue_id,
        handle=handle,
        queue_offset=offset,
    )
    request = new_request(RequestCode.ACK_MESSAGE, header)
    return Plain(request, f"the acknowledgement of a message of topic {topic!r}", nothing)


def change_invisible(group: str, topic: str, handle: str, invisible_ms: int) -> Operation[str]:
    """A popped message becomes visible after another time; returns its new handle (200053).

    Args:
        group, topic, handle: as for ``acknowledge``.
        invisible_ms: the time, from now on.
    """
    kind, queue_id, offset = _place(handle)
    stored_topic = topic_of_kind(topic, group, kind)
    broker_name = ReceiptHandle.parse(handle).broker_name
    header = ChangeInvisibleTimeRequest(
        consumer_group=group,
        topic=stored_topic,
        queue_id=queue_id,
        handle=handle,
        queue_offset=offset,
        invisible_ms=invisible_ms,
    )

    def read(response: Command) -> str:
        changed = ChangeInvisibleTimeResponse.from_fields(response.fields)
        handle = ReceiptHandle(
            offset,
            changed.pop_time,
            changed.invisible_ms,
            changed.revive_queue_id,
            broker_name,
        )
        return encode_handle(handle, stored_topic, queue_id, offset)

    request = new_request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    return Plain(request, f"another time for a message of topic {topic!r}", read)


def wait_popped(group: str, topic: str, *, poll_ms: int) -> Operation[bool]:
    """Wait until there is a message to pop; returns whether there is one (200054)."""
    header = NotificationRequest(
        consumer_group=group,
        topic=topic,
        queue_id=_ANY_QUEUE,
        poll_ms=poll_ms,
        born_time=_BORN_THERE,
    )

    def read(response: Command) -> bool:
        return NotificationResponse.from_fields(response.fields).has_message

    request = new_request(RequestCode.NOTIFICATION, header)
    return Plain(request, f"news of topic {topic!r}", read)
