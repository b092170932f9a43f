"""Setting a group to another place in its queues, when it has members."""

from pymq.client.operations.operation import Operation, Plain, new_request
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.client_bodies import OffsetReset
from pymq.protocol.codes import RequestCode
from pymq.protocol.headers.offsets import ResetOffsetRequest


def reset_queue(group: str, queue: MessageQueue, offset: int) -> Operation[dict[MessageQueue, int]]:
    """Set a group to an offset in one queue (222). Brokers of 4.9 take it for something else.

    They know no queue and no offset here, and reset the whole topic to the time 0.
    """
    header = ResetOffsetRequest(
        topic=queue.topic,
        group=group,
        timestamp_ms=0,
        is_force=True,
        queue_id=queue.queue_id,
        offset=offset,
    )
    where = f"topic {queue.topic!r}, queue {queue.queue_id}"
    return _reset(header, f"to reset group {group!r} to {offset} in {where}")


def reset_members(
    group: str, topic: str, timestamp_ms: int
) -> Operation[dict[MessageQueue, int]]:
    """Tell the members of a group to go on at a time; -1: at the end (222).

    Refused with ConsumerNotOnline when there are none. With ``useServerSideResetOffset`` the broker
    sets the group itself.
    """
    header = ResetOffsetRequest(
        topic=topic, group=group, timestamp_ms=timestamp_ms, is_force=True
    )
    return _reset(header, f"to reset group {group!r} in topic {topic!r}")


def _reset(header: ResetOffsetRequest, description: str) -> Operation[dict[MessageQueue, int]]:
    request = new_request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    return Plain(
        request,
        description,
        lambda response: OffsetReset.decode(response.body).offsets if response.body else {},
    )
