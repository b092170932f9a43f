"""What becomes of a message with a delay level: it is parked in the queue of that level.

Source: RocketMQ HookUtils.transformDelayLevelMessage.
"""

import re
from collections.abc import Mapping, Sequence

from pymq.errors import refusal
from pymq.protocol.codes import ResponseCode
from pymq.protocol.message import (
    DELAY,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_S,
    TIMER_DELIVERY_MS,
    find_property,
)
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.parking import REAL_QUEUE_ID, park, place_properties, with_properties
from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.record import PROPERTIES_BYTES_MAX, NewRecord
from pymq.protocol.staged_records import StagedRecords

_LEVEL = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_INT_MAX = (1 << 31) - 1
#: What is usual in a property of many messages.
_DIGITS_USUAL, _ZERO = 4, ord("0")
_DELAY, _REAL_TOPIC, _REAL_QUEUE_ID = (name.encode() for name in (DELAY, REAL_TOPIC, REAL_QUEUE_ID))
_NO_TIMER = dict.fromkeys((TIMER_DELIVERY_MS, TIMER_DELAY_S, TIMER_DELAY_MS))


def delay_level(text: str) -> int:
    """Return a delay level from its property.

    Raises:
        BrokerError: it is not a number; with the code that RocketMQ fails with.
    """
    if _LEVEL.fullmatch(text) is None or not -_INT_MAX - 1 <= int(text) <= _INT_MAX:
        raise refusal(
            ResponseCode.SYSTEM_ERROR,
            f"delay level {text[:40]!r} (property DELAY) is not a number of 32 bits; give the "
            "place of the delay in messageDelayLevel, counted from 1",
        )
    return int(text)


def park_delayed(level_count: int, record: NewRecord, properties: Mapping[str, str]) -> NewRecord:
    """Return the record that waits in the schedule topic instead of a delayed one.

    Args:
        level_count: how many levels there are; a higher one counts as the last.
        record: as sent.
        properties: its properties; with a delay level above 0.
    """
    level = min(delay_level(properties[DELAY]), level_count)
    changes: dict[str, str | None] = {}
    if properties[DELAY] != str(level):
        changes[DELAY] = str(level)
    if not _NO_TIMER.keys().isdisjoint(properties):
        changes |= _NO_TIMER
    return park(record, SCHEDULE_TOPIC, level - 1, changes)


def park_many(levels_ms: Sequence[int], records: PlainRecords) -> PlainRecords | None:
    """Return the records that wait in the schedule topic instead of delayed ones.

    Args:
        levels_ms: the delays of levels 1, 2, ...
        records: as sent.

    Returns:
        None if one of them is not delayed by a level that there is; or has been parked before.
    """
    topic, queue_ids, properties = records.topic, list[int](), list[bytes]()
    for queue_id, text in zip(records.queue_ids, records.properties, strict=True):
        level = find_property(text, _DELAY) or b""
        # With a zero in front, say, the property would have to be changed.
        if not level.isdigit() or len(level) > _DIGITS_USUAL or level[0] == _ZERO:
            return None
        if _REAL_TOPIC in text or _REAL_QUEUE_ID in text or int(level) > len(levels_ms):
            return None
        queue_ids.append(int(level) - 1)
        properties.append(text + place_properties(topic, queue_id))
    if max(map(len, properties)) > PROPERTIES_BYTES_MAX:
        return None
    delays_ms = [levels_ms[queue_id] for queue_id in queue_ids]
    return records.parked(
        SCHEDULE_TOPIC, queue_ids, properties, sys_flag=records.sys_flag, delays_ms=delays_ms
    )


def park_staged(
    level_count: int, records: StagedRecords, properties: Sequence[Mapping[str, str]]
) -> StagedRecords:
    """Return staged records as they will wait in the schedule topic.

    Args:
        level_count: how many levels there are; a higher one counts as the last.
        records: as sent.
        properties: of each; with a delay level above 0, the same one.
    """
    texts = [one[DELAY] for one in properties]
    levels = {min(delay_level(text), level_count) for text in set(texts)}
    if len(levels) > 1:
        raise refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"staged records for topic {records.topic} have the delay levels "
            f"{sorted(levels)} (property DELAY), expected one; stage each level by itself",
        )
    level = levels.pop()
    changes: dict[str, str | None] = {
        **_NO_TIMER,
        DELAY: str(level),
        REAL_TOPIC: records.topic,
        REAL_QUEUE_ID: str(records.queue_id),
    }
    parked = [with_properties(one, changes) for one in records.encoded_properties()]
    return records.parked(SCHEDULE_TOPIC, level - 1, parked)
