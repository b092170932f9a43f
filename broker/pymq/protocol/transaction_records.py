"""The records of a transaction.

========== ============= ==========================================================================
record     topic         what it is
========== ============= ==========================================================================
half       HALF_TOPIC    the message as it was sent, parked: consumers do not see it
op         HALF_OP_TOPIC names offsets of the half topic that are closed: ``12`` or ``12,13,17,``
committed  the real one  the half message, visible; its flag says so, and where the half was
copy       HALF_TOPIC    the half message once more, because it is checked, or may not be yet
discarded  CHECK_MAX_... the half message, after too many checks
========== ============= ==========================================================================

We write op records of a single offset, which every release reads. RocketMQ gathers many offsets in
one record from 5.1 on, each followed by a comma.

Source: RocketMQ TransactionalMessageBridge, TransactionalMessageServiceImpl,
EndTransactionProcessor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pymq.protocol.codes import TRANSACTION_MASK, MessageFlag
from pymq.protocol.hashes import java_hash
from pymq.protocol.message import (
    KEYS,
    PRODUCER_GROUP,
    REAL_TOPIC,
    TAGS,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    find_property,
)
from pymq.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_OP_TOPIC, HALF_TOPIC
from pymq.protocol.parking import REAL_QUEUE_ID, copy_of, park, place_properties, with_properties
from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.record import NewRecord, Record
from pymq.protocol.record_crc import RECORD_CRC_BYTES

CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
#: Of a copy of a half message that must not be checked yet: the offset of the first one.
PREPARED_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"

#: Half messages and ops are in the first queue of their topic.
QUEUE_ID = 0
#: The tag of an op record: its half messages are to be removed.
_REMOVE = "d"
_REMOVE_CODE = java_hash(_REMOVE)
_OP_PROPERTIES = b"WAIT\x01true\x02TAGS\x01d\x02"
_COMMIT = int(MessageFlag.TRANSACTION_COMMIT)
#: Digits of the largest offset.
_DIGITS_MAX = 19
#: The same of the largest ``int`` of Java: no message is checked more often.
_TIMES_DIGITS_MAX = 10
#: What the properties of a copy of a half message may have more than those of the first one: how
#: often it was checked, where the first one is, and a checksum.
COPY_BYTES_MAX = (
    len(f"{TRANSACTION_CHECK_TIMES}\x01\x02{PREPARED_OFFSET}\x01\x02")
    + _TIMES_DIGITS_MAX
    + _DIGITS_MAX
    + RECORD_CRC_BYTES
)
_PREPARED, _UNIQUE_KEY = TRANSACTION_PREPARED.encode(), UNIQUE_KEY.encode()
_PRODUCER_GROUP = PRODUCER_GROUP.encode()
_TRANSACTION_ID_MARK = f"{TRANSACTION_ID}\x01".encode()
#: What ``half_record`` takes out before it adds it.
_OF_HALVES = tuple(name.encode() for name in (TRANSACTION_ID, REAL_TOPIC, REAL_QUEUE_ID))
_CHECK_TIMES = TRANSACTION_CHECK_TIMES.encode()
#: What a message has only because it was prepared.
OF_PREPARED = frozenset((TRANSACTION_PREPARED, REAL_TOPIC, REAL_QUEUE_ID))


@dataclass(frozen=True, slots=True)
class Identity:
    """What a half message and its copies have in common, and no other message has.

    Attributes:
        unique_key: the client's message id.
        born_timestamp: ms; a send that is repeated after a timeout has another one.
        born_host: packed address of the producer.
    """

    unique_key: bytes
    born_timestamp: int
    born_host: bytes


def identity(record: Record) -> Identity | None:
    """Return the identity of a half or a committed message; None without a unique key."""
    key = find_property(record.properties, UNIQUE_KEY.encode())
    return None if key is None else Identity(key, record.born_timestamp, record.born_host)


def decision_key(own: Identity) -> str:
    """Return the key of an op that records a decision about a message that had been checked."""
    return f"{own.unique_key.decode(errors='replace')}-{own.born_timestamp}"


def half_record(record: NewRecord, properties: Mapping[str, str]) -> NewRecord:
    """Return the half message of a message.

    Args:
        record: as it was sent.
        properties: its properties, decoded.
    """
    half = park(record, HALF_TOPIC, QUEUE_ID, {TRANSACTION_ID: properties.get(UNIQUE_KEY)})
    half.sys_flag &= ~TRANSACTION_MASK
    return half


def half_properties(properties: bytes, topic: str, queue_id: int) -> bytes | None:
    """Return the properties of the half message of a message; None if it is not a usual one.

    The same as ``half_record`` does, without decoding them.

    Args:
        properties: encoded, with a separator behind the last one.
        topic, queue_id: of the message.
    """
    prepared = find_property(properties, _PREPARED)
    key = find_property(properties, _UNIQUE_KEY)
    if prepared is None or prepared.lower() != b"true" or not key:
        return None
    if not find_property(properties, _PRODUCER_GROUP) or any(
        name in properties for name in _OF_HALVES
    ):
        return None
    return properties + _TRANSACTION_ID_MARK + key + b"\x02" + place_properties(topic, queue_id)


def op_record(
    half_offset: int, *, store_host: bytes, now_ms: int, key: str | None = None
) -> NewRecord:
    """Return the record that closes one offset of the half topic.

    Args:
        half_offset: the offset.
        store_host: our packed address.
        now_ms: the time.
        key: by which it can be found later.
    """
    return NewRecord(
        HALF_OP_TOPIC,
        QUEUE_ID,
        b"%d" % half_offset,
        _OP_PROPERTIES if key is None else _OP_PROPERTIES + f"{KEYS}\x01{key}\x02".encode(),
        store_host,
        now_ms,
        tag_code=_REMOVE_CODE,
    )


def op_records(half_offsets: Sequence[int], *, store_host: bytes, now_ms: int) -> PlainRecords:
    """Return the records that each close one offset of the half topic; see ``op_record``.

    Args:
        half_offsets: the offsets.
        store_host: our packed address, IPv4.
        now_ms: the time.
    """
    count = len(half_offsets)
    return PlainRecords(
        HALF_OP_TOPIC,
        [QUEUE_ID] * count,
        [b"%d" % offset for offset in half_offsets],
        [_OP_PROPERTIES] * count,
        born_host=store_host,
        born_timestamps=[now_ms] * count,
        flags=[0] * count,
        sys_flag=0,
        tag_codes=[_REMOVE_CODE] * count,
    )


def closed_offsets(op: Record) -> list[int]:
    """Return the offsets of the half topic that an op record closes."""
    if find_property(op.properties, TAGS.encode()) != _REMOVE.encode():
        return []
    return [offset for text in op.body.split(b",") if (offset := _number(text)) is not None]


def check_times(half: Record) -> int | None:
    """Return how often a copy of a half message says it was checked; None for the first one."""
    return _number(find_property(half.properties, _CHECK_TIMES))


def prepared_offset(half: Record) -> int | None:
    """Return where the first one was, if a half message is a copy that was not to be checked."""
    return _number(find_property(half.properties, PREPARED_OFFSET.encode()))


def _number(text: bytes | None) -> int | None:
    """Return a number that is not negative; None if there is none."""
    if text is None or not text.isdigit() or len(text) > _DIGITS_MAX:
        return None
    return int(text)


def checked_copy(half: Record) -> NewRecord:
    """Return the copy of a half message that is checked once more."""
    return _copy(half, {TRANSACTION_CHECK_TIMES: str((check_times(half) or 0) + 1)})


def resumed_copy(half: Record) -> NewRecord:
    """Return the copy of a half message whose checks are counted from 0 again."""
    return _copy(half, {TRANSACTION_CHECK_TIMES: "0"})


def immune_copy(half: Record) -> NewRecord:
    """Return the copy of a half message that must not be checked yet."""
    first = prepared_offset(half)
    return _copy(half, {PREPARED_OFFSET: str(half.queue_offset if first is None else first)})


def _copy(half: Record, changes: dict[str, str | None]) -> NewRecord:
    copy = copy_of(half, HALF_TOPIC, QUEUE_ID)
    copy.properties = with_properties(copy.properties, changes)
    return copy


def discarded_record(half: Record) -> NewRecord:
    """Return what is stored of a half message that is not checked any more."""
    return copy_of(half, CHECK_MAX_TIME_TOPIC, QUEUE_ID)


def without_prepared(record: NewRecord) -> NewRecord:
    """Return a record without the properties that it got when it was prepared."""
    changes: dict[str, str | None] = dict.fromkeys(OF_PREPARED)
    return replace(record, properties=with_properties(record.properties, changes))


def mark_committed(record: NewRecord, half_physical_offset: int) -> None:
    """Mark a record as the outcome of a transaction."""
    record.sys_flag = record.sys_flag & ~TRANSACTION_MASK | _COMMIT
    record.prepared_transaction_offset = half_physical_offset


def is_committed(record: Record) -> bool:
    """Is a record the outcome of a transaction?"""
    return record.sys_flag & TRANSACTION_MASK == _COMMIT
