"""What a pull brought, as the messages that handlers get."""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

from pymq.client.cluster.network import Network
from pymq.client.group.retry import visible_topic
from pymq.client.operations import PullResult
from pymq.errors import RemoteProtocolError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import MessageFlag
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.record import Record, decode_records

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PulledMessages:
    """Messages of one pull.

    Attributes:
        next_offset: where the next pull begins.
        messages: those that are wanted.
        undecodable: offsets of those whose body cannot be read; they have to go back.
        newest_ms: store time of the last one that was looked at; ``None``: there was none.
        count: how many were looked at.
        is_cut: were some left for the next pull, for want of room?
    """

    next_offset: int
    messages: list[ReceivedMessage] = field(default_factory=list)
    undecodable: set[int] = field(default_factory=set)
    newest_ms: int | None = None
    count: int = 0
    is_cut: bool = False


def read_pulled(
    result: PullResult,
    queue: MessageQueue,
    network: Network,
    *,
    offset: int,
    tags: Collection[str],
    byte_room: int,
) -> PulledMessages:
    """Return the messages of a pull, as far as there is room for bodies that are compressed.

    Args:
        result: of the pull.
        queue, network: it was read from.
        offset: at which it was read. The next pull begins behind it, whatever the room.
        tags: that are wanted; none: any.
        byte_room: for bodies.

    Raises:
        CorruptRecord: something in it is not a record.
        ConfigurationError: the package that a compression needs is not installed.
    """
    pulled = PulledMessages(result.next_offset)
    for record in decode_records(result.body):
        # What is not compressed is here anyway; 64 KiB of what is may be 64 MiB.
        has_room = byte_room > 0 or not record.sys_flag & MessageFlag.COMPRESSED
        if not has_room and record.queue_offset > offset:
            pulled.next_offset, pulled.is_cut = record.queue_offset, True
            break
        pulled.count += 1
        pulled.newest_ms = record.store_timestamp
        message, is_readable = _message_of(record, queue, network)
        if not is_readable:
            pulled.undecodable.add(message.queue_offset)
        byte_room -= len(message.body)
        # Brokers compare hashes of tags; only equal tags are wanted.
        if not tags or message.tags in tags:
            pulled.messages.append(message)
    return pulled


def _message_of(
    record: Record, queue: MessageQueue, network: Network
) -> tuple[ReceivedMessage, bool]:
    """Return the message in a record of a queue, and whether its body can be read.

    If it cannot, the body is as it was stored, and the message has to go back to its broker.

    Raises:
        ConfigurationError: the package that its compression needs is not installed.
    """
    is_readable = True
    try:
        message = ReceivedMessage.from_record(record, queue.broker_name)
    except RemoteProtocolError as error:
        _log.error(
            "topic %r, %s:%d: message at %d goes back, its body cannot be read: %s",
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            record.queue_offset,
            error,
        )
        is_readable = False
        record.sys_flag &= ~MessageFlag.COMPRESSED
        message = ReceivedMessage.from_record(record, queue.broker_name)
    message.topic = network.unwrap(visible_topic(message.topic, message.properties))
    return message, is_readable
