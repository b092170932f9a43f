"""Messages that wait in a system topic, and the messages that are stored in their stead later.

A delayed message, a timer message and a half message are parked: stored in a topic that nobody
subscribes to, with their own topic and queue in the properties REAL_TOPIC and REAL_QID. When its
time has come, a parked message is stored again, as a new record in its own topic; what consumers
see of it (body, flags, properties, when and where it was born) stays as it was sent.

Source: RocketMQ HookUtils.transformDelayLevelMessage, ScheduleMessageService.messageTimeUp,
TransactionalMessageBridge.parseHalfMessageInner, EndTransactionProcessor.endMessageTransaction.
"""

from collections.abc import Mapping

from pymq.protocol.codes import HOST_IPV6_MASK
from pymq.protocol.message import REAL_TOPIC, TAGS, find_property
from pymq.protocol.names import HALF_TOPIC, TOPIC_BYTES_MAX, is_legal
from pymq.protocol.record import NewRecord, Record
from pymq.protocol.record_crc import RECORD_CRC_NAME
from pymq.protocol.tag_codes import tag_code

REAL_QUEUE_ID = "REAL_QID"
TIMER_DUE_MS = "TIMER_OUT_MS"
TIMER_DELETE_KEY = "TIMER_DEL_UNIQKEY"
TIMER_ROLLS = "TIMER_ROLL_TIMES"
_REAL_TOPIC, _REAL_QUEUE_ID, _TAGS = (name.encode() for name in (REAL_TOPIC, REAL_QUEUE_ID, TAGS))
_TIMER_ROLLS = TIMER_ROLLS.encode()
_CRC = RECORD_CRC_NAME.encode()
_INT_DIGITS_MAX = 10
#: More rounds than this in digits no message has made; and Python reads no more than 4300.
_ROLLS_DIGITS_MAX = 9
#: Queues with higher numbers are possible, but not usual.
_USUAL_QUEUES = 1 << 16


def with_properties(properties: bytes, changes: Mapping[str, str | None]) -> bytes:
    """Return encoded properties with some changed; the others stay, byte for byte.

    A checksum of a record among them is dropped: it is not that of the new one.

    Args:
        properties: encoded.
        changes: new values, appended in this order; None removes a property.
    """
    text = "".join(f"{name}\x01{value}\x02" for name, value in changes.items() if value is not None)
    if _CRC not in properties:
        for name in changes:
            if name.encode() in properties:
                break
        else:  # nothing to take out: the usual case
            gap = b"\x02" if properties and properties[-1] != 2 else b""
            return properties + gap + text.encode()
    names = {name.encode() for name in changes} | {_CRC}
    pieces = [
        piece + b"\x02"
        for piece in properties.split(b"\x02")
        if piece and piece.partition(b"\x01")[0] not in names
    ]
    return b"".join(pieces) + text.encode()


def park(
    record: NewRecord,
    topic: str,
    queue_id: int,
    changes: Mapping[str, str | None] | None = None,
) -> NewRecord:
    """Return the record to store instead of one that has to wait.

    Args:
        record: what was sent.
        topic, queue_id: where it waits.
        changes: further properties that it gets, or loses; see ``with_properties``.
    """
    own = {REAL_TOPIC: record.topic, REAL_QUEUE_ID: str(record.queue_id)}
    return changed(record, topic, queue_id, {**changes, **own} if changes else own)


def changed(
    record: NewRecord, topic: str, queue_id: int, changes: Mapping[str, str | None]
) -> NewRecord:
    """Return the same message for a place, with some properties changed.

    Args:
        record: what was sent.
        topic, queue_id: where it goes.
        changes: see ``with_properties``.
    """
    return NewRecord(  # dataclasses.replace takes twice as long as all the rest
        topic,
        queue_id,
        record.body,
        with_properties(record.properties, changes),
        record.born_host,
        record.born_timestamp,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        record.prepared_transaction_offset,
        record.tag_code,
    )


def place_properties(topic: str, queue_id: int) -> bytes:
    """Return the properties that a parked message has besides its own."""
    return f"{REAL_TOPIC}\x01{topic}\x02{REAL_QUEUE_ID}\x01{queue_id}\x02".encode()


def real_place(properties: bytes) -> tuple[str, int] | None:
    """Return (topic, queue id) of a parked message by its properties.

    None if they do not say: then it was not parked by a broker.
    """
    topic = find_property(properties, _REAL_TOPIC)
    queue_id = find_property(properties, _REAL_QUEUE_ID)
    if topic is None or queue_id is None:
        return None
    if not queue_id.isdigit() or len(queue_id) > _INT_DIGITS_MAX:
        return None
    return topic.decode(errors="replace"), int(queue_id)


def timer_rolls(properties: bytes) -> int:
    """Return how many rounds a timer message has made; 0 if what it says is no such number.

    A producer may say anything: RocketMQ's brokers count on from that, too.
    """
    rolls = find_property(properties, _TIMER_ROLLS) or b""
    return int(rolls) if rolls.isdigit() and len(rolls) <= _ROLLS_DIGITS_MAX else 0


def is_deliverable(topic: str) -> bool:
    """Return whether parked messages can be stored in a topic once they wait no longer."""
    return is_legal(topic) and topic != HALF_TOPIC


def is_usual_place(topic: str, queue_id: int) -> bool:
    """Return whether nothing about a queue for which messages wait needs a closer look."""
    return is_deliverable(topic) and len(topic) <= TOPIC_BYTES_MAX and queue_id < _USUAL_QUEUES


def copy_of(record: Record, topic: str, queue_id: int) -> NewRecord:
    """Return a new record with the contents of a stored one.

    Its body stays as it is stored, compressed or not; that it belonged to a transaction is left to
    the caller to say again (``prepared_transaction_offset``).

    Args:
        record: as stored.
        topic, queue_id: where the new one belongs.
    """
    tags = find_property(record.properties, _TAGS)
    return NewRecord(
        topic,
        queue_id,
        record.body,
        record.properties,
        record.born_host,
        record.born_timestamp,
        record.flag,
        record.sys_flag & ~HOST_IPV6_MASK,
        record.reconsume_times,
        0,
        0 if tags is None else tag_code(tags.decode(errors="replace")),
    )
