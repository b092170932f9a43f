"""Checkpoints and acknowledgements, and their records in the revive topic.

The record of a checkpoint has the tag ``ck``, that of an acknowledgement ``ack`` (one message) or
``bAck`` (several of one checkpoint); their bodies are JSON::

    ck    bm  bits of messages already acknowledged    n   number of messages
          d   their offsets, relative to so            rp  how often they could not be revived
          it  invisible time
    ack   ao  the offset that was acknowledged
    bAck  aol the offsets that were
    all   t topic, c group, q queue id, so start offset, pt pop time, bn broker name

RocketMQ gives these records to its timer, which delivers them when the messages are due. Here they
are written to the revive topic at once: the topic is the journal of what is in memory, and
RocketMQ reads it, too. Records that RocketMQ's timer has delivered are the same.

Source: RocketMQ PopCheckPoint, AckMsg, BatchAckMsg, PopMessageProcessor.buildCkMsg.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pymq.errors import RemoteProtocolError
from pymq.protocol import fastjson
from pymq.protocol.message import TAGS, TIMER_DELIVERY_MS, UNIQUE_KEY, find_property
from pymq.protocol.record import NewRecord, Record
from pymq.protocol.tag_codes import tag_code

#: Most messages of one pop: the bits of a Java int.
MESSAGES_MAX = 32
_CHECKPOINT_TAG, _ACK_TAG, _BATCH_ACK_TAG = "ck", "ack", "bAck"
_TAG_CODES = {tag: tag_code(tag) for tag in (_CHECKPOINT_TAG, _ACK_TAG, _BATCH_ACK_TAG)}
#: RocketMQ's timer delivers a checkpoint this long before its messages are due.
_CHECKPOINT_EARLY_MS = 1000
_INT_END, _LONG_END = 1 << 31, 1 << 63

#: Topic, group, queue id, start offset, pop time, broker name.
CheckpointKey: TypeAlias = tuple[str, str, int, int, int, str]
#: Topic, group, queue id.
GroupQueue: TypeAlias = tuple[str, str, int]


@dataclass(slots=True, eq=False)
class Checkpoint:
    """Messages of one queue that were popped together.

    Attributes:
        topic, queue_id: where the messages lie.
        start_offset, pop_time, broker_name: identify it, as in handles; ms.
        invisible_ms: counted from the pop time.
        differences: offset of each message, relative to ``start_offset``.
        acknowledged: bit n is set once message n need not be revived, and the journal says so.
        acknowledging: bits whose record is being written.
        failed_count: how often messages could not be revived.
        revive_queue_id, revive_offset: place of its record; -1 before it has one.
        is_orphan: its group was deleted, and may be there again; not known after a restart.
    """

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time: int
    invisible_ms: int
    broker_name: str
    differences: tuple[int, ...]
    revive_queue_id: int
    acknowledged: int = 0
    acknowledging: int = 0
    failed_count: int = 0
    revive_offset: int = -1
    is_orphan: bool = False

    @property
    def key(self) -> CheckpointKey:
        """What its acknowledgements refer to."""
        return (
            self.topic,
            self.group,
            self.queue_id,
            self.start_offset,
            self.pop_time,
            self.broker_name,
        )

    @property
    def group_queue(self) -> GroupQueue:
        """Whose messages these are."""
        return self.topic, self.group, self.queue_id

    @property
    def due_ms(self) -> int:
        """When messages that are not acknowledged become visible again."""
        return self.pop_time + self.invisible_ms

    @property
    def all_bits(self) -> int:
        """One bit for each message."""
        return (1 << len(self.differences)) - 1

    @property
    def is_done(self) -> bool:
        """Whether every message is acknowledged."""
        return self.acknowledged == self.all_bits

    def bits_of(self, queue_offsets: Sequence[int]) -> int:
        """Return the bits of messages; offsets that are none of them are left out."""
        bits = 0
        for offset in queue_offsets:
            try:
                bits |= 1 << self.differences.index(offset - self.start_offset)
            except ValueError:
                continue
        return bits

    def offsets_of(self, bits: int) -> list[int]:
        """Return the queue offsets of messages."""
        return [
            self.start_offset + difference
            for number, difference in enumerate(self.differences)
            if bits >> number & 1
        ]


@dataclass(slots=True)
class Acknowledgement:
    """Messages of one checkpoint that were consumed."""

    key: CheckpointKey
    queue_offsets: Sequence[int]


def checkpoint_record(
    checkpoint: Checkpoint, topic: str, *, host: bytes, now_ms: int
) -> NewRecord:
    """Return the record of a checkpoint for the revive topic ``topic``."""
    one = checkpoint
    bits = one.acknowledged - ((one.acknowledged >> 31) << 32)  # an int of Java
    again = f'"rp":"{one.failed_count}",' if one.failed_count else ""
    due = one.pop_time + one.invisible_ms
    body = (
        f'{{"bm":{bits},"bn":{json.dumps(one.broker_name)},"c":{json.dumps(one.group)},'
        f'"d":[{",".join(map(str, one.differences))}],"it":{one.invisible_ms},'
        f'"n":{len(one.differences)},"pt":{one.pop_time},"q":{one.queue_id},"reviveTime":{due},'
        f'"ro":0,{again}"so":{one.start_offset},"t":{json.dumps(one.topic)}}}'
    )
    return _record(
        topic,
        one.revive_queue_id,
        _CHECKPOINT_TAG,
        body,
        due - _CHECKPOINT_EARLY_MS,
        host,
        now_ms,
    )


def acknowledgement_record(
    checkpoint: Checkpoint, queue_offsets: Sequence[int], topic: str, *, host: bytes, now_ms: int
) -> NewRecord:
    """Return the record that acknowledges messages of a checkpoint."""
    one = checkpoint
    tag = _ACK_TAG if len(queue_offsets) == 1 else _BATCH_ACK_TAG
    offsets = (
        f'"ao":{queue_offsets[0]}'
        if tag == _ACK_TAG
        else f'"ao":-1,"aol":[{",".join(map(str, queue_offsets))}]'
    )
    body = (
        f'{{{offsets},"bn":{json.dumps(one.broker_name)},"c":{json.dumps(one.group)},'
        f'"pt":{one.pop_time},"q":{one.queue_id},"so":{one.start_offset},'
        f'"t":{json.dumps(one.topic)}}}'
    )
    due = one.pop_time + one.invisible_ms
    return _record(topic, one.revive_queue_id, tag, body, due, host, now_ms)


def _record(
    topic: str, queue_id: int, tag: str, body: str, delivery_ms: int, host: bytes, now_ms: int
) -> NewRecord:
    # Without a unique key, which RocketMQ adds: nobody looks these records up (``is_ours``).
    properties = f"{TAGS}\x01{tag}\x02{TIMER_DELIVERY_MS}\x01{delivery_ms}\x02"
    return NewRecord(
        topic, queue_id, body.encode(), properties.encode(), host, now_ms, tag_code=_TAG_CODES[tag]
    )


def is_ours(record: Record) -> bool:
    """Return whether a record of the revive topic was written by pymq."""
    return find_property(record.properties, UNIQUE_KEY.encode()) is None


def read_revive_record(
    record: Record, *, broker_name: str
) -> Checkpoint | Acknowledgement | None:
    """Return what a record of the revive topic says; None if it has another tag.

    Args:
        record: of the revive topic.
        broker_name: ours; acknowledgements of old brokers do not name one.

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    tag = (find_property(record.properties, TAGS.encode()) or b"").decode(errors="replace")
    if tag not in _TAG_CODES:
        return None
    members = fastjson.parse(record.body)
    if type(members) is not dict:
        raise RemoteProtocolError(f"{members!r:.80}, expected an object")
    try:
        if tag == _CHECKPOINT_TAG:
            return _checkpoint(members, record)
        return _acknowledgement(members, tag, broker_name)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RemoteProtocolError(
            f"record {record.queue_offset} of revive queue {record.queue_id} with tag {tag} "
            f"cannot be read: {error!r}"
        ) from error


def _checkpoint(members: Mapping[str, Any], record: Record) -> Checkpoint:
    count = _number(members["n"])
    if not 0 <= count <= MESSAGES_MAX:
        raise ValueError(f"n is {count}, expected 0..{MESSAGES_MAX} (MESSAGES_MAX)")
    differences = members.get("d")
    if not differences:  # of old brokers: the messages follow one another
        differences = range(count)
    elif len(differences) > count:
        raise ValueError(f"d has {len(differences)} offsets, expected at most n, {count}")
    else:
        count = len(differences)
    return Checkpoint(
        topic=str(members["t"]),
        group=str(members["c"]),
        queue_id=_queue_id(members["q"]),
        start_offset=_number(members["so"]),
        pop_time=_number(members["pt"]),
        invisible_ms=_number(members["it"]),
        broker_name=str(members.get("bn") or ""),
        differences=tuple(map(_number, differences)),
        revive_queue_id=record.queue_id,
        acknowledged=_number(members.get("bm", 0)) & ((1 << count) - 1),
        failed_count=_times(members.get("rp")),
        revive_offset=record.queue_offset,
    )


def _number(value: Any) -> int:
    """Return a long of Java: one without a limit makes sums that nothing here is made for."""
    number = int(value)
    if not -_LONG_END <= number < _LONG_END:
        raise ValueError(f"a number of {number.bit_length()} bits, expected one of 64")
    return number


def _queue_id(value: Any) -> int:
    number = _number(value)
    if not 0 <= number < _INT_END:
        raise ValueError(f"q is {number}, expected 0..{_INT_END - 1}")
    return number


def _times(text: Any) -> int:
    try:
        return _number(text or 0)
    except (TypeError, ValueError, OverflowError):
        return 0


def _acknowledgement(
    members: Mapping[str, Any], tag: str, broker_name: str
) -> Acknowledgement:
    def member(short: str, long: str) -> Any:
        return members[short] if short in members else members[long]

    if tag == _ACK_TAG:
        offsets = [_number(member("ao", "ackOffset"))]
    else:
        offsets = [_number(offset) for offset in member("aol", "ackOffsetList")]
    named = members.get("bn") or members.get("brokerName") or broker_name
    key = (
        str(member("t", "topic")),
        str(member("c", "consumerGroup")),
        _queue_id(member("q", "queueId")),
        _number(member("so", "startOffset")),
        _number(member("pt", "popTime")),
        str(named),
    )
    return Acknowledgement(key, offsets)


def is_changed(new: Checkpoint, end: Checkpoint | Acknowledgement | None) -> bool:
    """Return whether a checkpoint is not of a pop, but of a message that has another one.

    The record that ends the other one is the next: the group may have been set back since it
    popped that message, and is not where the checkpoint says.
    """
    return (
        isinstance(end, Acknowledgement)
        and end.key != new.key
        and end.key[:3] == new.key[:3]
        and [*end.queue_offsets] == [new.start_offset]
        and len(new.differences) == 1
    )
