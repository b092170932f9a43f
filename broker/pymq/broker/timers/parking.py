"""What becomes of a message that is to be delivered at a time of its own.

It waits in the timer topic, with the time in TIMER_OUT_MS: the slot in which it is due, which is
over when its time has come. A message whose time has come already is stored at once. One that
cancels another (TIMER_DEL_UNIQKEY) waits in the same slot.

Source: RocketMQ HookUtils.transformTimerMessage, TimerMessageStore.isReject.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence

from pymq.errors import BrokerError, refusal
from pymq.protocol.codes import ResponseCode
from pymq.protocol.message import REAL_TOPIC, TIMER_DELAY_MS, TIMER_DELAY_S, TIMER_DELIVERY_MS
from pymq.protocol.names import TIMER_TOPIC
from pymq.protocol.parking import (
    REAL_QUEUE_ID,
    TIMER_DELETE_KEY,
    TIMER_DUE_MS,
    park,
    with_properties,
)
from pymq.protocol.record import PROPERTIES_BYTES_MAX, NewRecord
from pymq.protocol.staged_records import StagedRecords

#: The properties that ask for it, by precedence.
TIMER_PROPERTIES = (TIMER_DELAY_S, TIMER_DELAY_MS, TIMER_DELIVERY_MS)
#: A ``long`` of Java.
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_LONG_MAX = (1 << 63) - 1
#: What a message gets when it is delivered: TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES.
_DELIVERY_BYTES = 100


class TimerParking:
    """The message hook of timers.

    Args:
        now_ms: the time.
        congestion: how many messages wait in the slot of a time.
        precision_ms: length of a slot.
        delay_ms_max: how long a message may wait.
        congestion_max: above this many messages in a slot, some more are refused; above twice as
            many, all.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        congestion: Callable[[int], int],
        *,
        precision_ms: int,
        delay_ms_max: int,
        congestion_max: int,
    ) -> None:
        self._now_ms = now_ms
        self._congestion = congestion
        self._precision_ms = precision_ms
        self._delay_ms_max = delay_ms_max
        self._congestion_max = congestion_max
        self._random = random.Random()

    def park(self, record: NewRecord, properties: Mapping[str, str]) -> NewRecord:
        """Return the record that waits in the timer topic, or the one sent, if it is due.

        Raises:
            BrokerError: its time is not a number, or too far away; or too many wait for it.
        """
        if TIMER_DUE_MS in properties:  # It has waited; or a sender copied all properties.
            return record
        now_ms = self._now_ms()
        delivery_ms = self._delivery_ms(properties, now_ms)
        if delivery_ms <= now_ms:
            if TIMER_DELETE_KEY in properties:
                raise self._illegal()
            return record
        if delivery_ms - now_ms > self._delay_ms_max:
            raise self._illegal()
        due_ms = self._slot_ms(delivery_ms)
        if self._is_congested(due_ms):
            raise self._congested()
        parked = park(record, TIMER_TOPIC, 0, {TIMER_DUE_MS: str(due_ms)})
        if len(parked.properties) > PROPERTIES_BYTES_MAX - _DELIVERY_BYTES:
            # RocketMQ takes it, and cannot store it when it is due.
            raise _too_long(record.properties)
        return parked

    def park_staged(
        self, records: StagedRecords, properties: Sequence[Mapping[str, str]]
    ) -> StagedRecords:
        """Return staged records as they will wait in the timer topic.

        One whose time has come waits, too: whether the batch is published is not known yet.

        Args:
            records: as sent.
            properties: of each; with a time.

        Raises:
            BrokerError: a time is not a number, or too far away; or too many wait for it; or a
                record is not one to be staged.
        """
        now_ms = self._now_ms()
        parked, slots = list[bytes](), set[int]()
        for number, (text, one) in enumerate(
            zip(records.encoded_properties(), properties, strict=True)
        ):
            if TIMER_DELETE_KEY in one:
                raise refusal(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"record {number} (from 0) for topic {records.topic} cancels a timer message "
                    f"(property {TIMER_DELETE_KEY}), which cannot be staged; send it by itself",
                )
            delivery_ms = self._delivery_ms(one, now_ms)
            if delivery_ms - now_ms > self._delay_ms_max:
                raise refusal(
                    ResponseCode.INVALID_PARAMETER,
                    f"record {number} (from 0) of {records.count} for topic {records.topic} is to "
                    f"be delivered at {delivery_ms} ms since the epoch, {delivery_ms - now_ms} ms "
                    f"from now; expected at most {self._delay_ms_max} ms (timerMaxDelaySec)",
                )
            due_ms = self._slot_ms(max(delivery_ms, now_ms))
            slots.add(due_ms)
            changes = {
                TIMER_DUE_MS: str(due_ms),
                REAL_TOPIC: records.topic,
                REAL_QUEUE_ID: str(records.queue_id),
            }
            parked.append(with_properties(text, changes))
            if len(parked[-1]) > PROPERTIES_BYTES_MAX - _DELIVERY_BYTES:
                raise _too_long(text)
        for due_ms in slots:
            if self._is_congested(due_ms):
                raise self._congested()
        return records.parked(TIMER_TOPIC, 0, parked)

    def _slot_ms(self, delivery_ms: int) -> int:
        """Return the slot that is over when a time has come, and not before."""
        return (delivery_ms - 1) // self._precision_ms * self._precision_ms

    def _delivery_ms(self, properties: Mapping[str, str], now_ms: int) -> int:
        name = next(name for name in TIMER_PROPERTIES if name in properties)
        value = properties[name]
        if _NUMBER.fullmatch(value) is None or not -_LONG_MAX - 1 <= int(value) <= _LONG_MAX:
            raise self._illegal()
        if name == TIMER_DELIVERY_MS:
            return int(value)
        return now_ms + int(value) * (1000 if name == TIMER_DELAY_S else 1)

    def _illegal(self) -> BrokerError:
        return refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{self._delay_ms_max}ms; or if set del msg, the delay time should be bigger than the "
            "current time",
        )

    def _congested(self) -> BrokerError:
        most = self._congestion_max
        return refusal(
            ResponseCode.SYSTEM_ERROR,
            f"timer message is under flow control, max num limit is {2 * most} or the current "
            f"value is greater than {most} and less than {2 * most}, trigger random flow control",
        )

    def _is_congested(self, due_ms: int) -> bool:
        beyond = self._congestion(due_ms) - self._congestion_max
        return beyond > 0 and self._random.random() * self._congestion_max < beyond


def _too_long(properties: bytes) -> BrokerError:
    return refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"properties of {len(properties)} B leave no room for those of a timer message, "
        f"{PROPERTIES_BYTES_MAX} B in all; shorten them",
    )


def refuse_timers(record: NewRecord, properties: Mapping[str, str]) -> NewRecord:
    """Refuse a timer message, as the message hook of a broker without timers.

    Raises:
        BrokerError: always, unless the message has waited elsewhere.
    """
    if TIMER_DUE_MS in properties:
        return record
    raise _not_enabled()


def refuse_staged_timers(
    records: StagedRecords, properties: Sequence[Mapping[str, str]]
) -> StagedRecords:
    """Refuse to stage timer messages, as ``refuse_timers`` does.

    Raises:
        BrokerError: always.
    """
    # Not the code of RocketMQ, which is one to try again.
    raise refusal(ResponseCode.INVALID_PARAMETER, _not_enabled().remark or "")


def _not_enabled() -> BrokerError:
    return refusal(
        ResponseCode.SYSTEM_ERROR,
        "accurate timer message is not enabled, timerWheelEnable is false",
    )
