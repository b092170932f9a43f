"""Stores messages at other brokers, for those parts of this one that store messages when due.

What is sent is what would have been stored here, as far as a sender can say it: the host where it
was born becomes this broker's.

Source: RocketMQ EscapeBridge.putMessage.
"""

import asyncio
import logging

from pymq.broker.escape.brokers import OtherBrokers
from pymq.broker.log_writer import Done, Outcome
from pymq.errors import PymqError, RequestTimeout
from pymq.net.tasks import Tasks
from pymq.protocol.codes import HOST_IPV6_MASK, LanguageCode, MessageFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.message import (
    DELAY,
    PRODUCER_GROUP,
    TIMER_DELAY_MS,
    TIMER_DELAY_S,
    TIMER_DELIVERY_MS,
    find_property,
)
from pymq.protocol.names import DEFAULT_TOPIC
from pymq.protocol.parking import with_properties
from pymq.protocol.record import NewRecord
from pymq.store import Put, PutResult, PutStatus

_log = logging.getLogger(__name__)

#: As RocketMQ's.
SEND_TIMEOUT_S = 3.0
#: Messages in flight at most.
IN_FLIGHT_MAX = 256
_QUEUE_COUNT = 4
#: What would have the message wait once more.
_WAITED = dict.fromkeys((DELAY, TIMER_DELIVERY_MS, TIMER_DELAY_S, TIMER_DELAY_MS))
#: Stored there, if perhaps not as safe as promised there.
_STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


class RemoteWriter:
    """Sends what a ``LogWriter`` would append.

    Args:
        brokers: say where.
        name: the sender's group, for messages that name none.

    Attributes:
        sent_count: messages that others have stored.
    """

    def __init__(self, brokers: OtherBrokers, name: str) -> None:
        self._brokers = brokers
        self._name = name
        self._in_flight = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._pending_count = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._tasks = Tasks("escape")
        self.sent_count = 0

    def append(self, put: Put, done: Done, *, wait: bool = True) -> None:
        """Send a message that has waited and is due.

        Args:
            put: a ``NewRecord``.
            done: gets the outcome; FAILED: it may have been stored.
            wait: of no account.
        """
        assert isinstance(put, NewRecord), put
        put.properties = with_properties(put.properties, _WAITED)
        self.send(put, done)

    def send(self, record: NewRecord, done: Done) -> None:
        """Send a message as it is; ``done`` as for ``append``."""
        self._pending_count += 1
        self._is_idle.clear()
        self._tasks.start("send", self._deliver(record, done))

    async def wait_idle(self) -> None:
        """Return when the outcome of all that is in flight is known."""
        await self._is_idle.wait()

    async def _deliver(self, record: NewRecord, done: Done) -> None:
        result, outcome = PutResult(PutStatus.BUSY, remark="this broker stops"), Outcome.FAILED
        try:
            async with self._in_flight:
                result, outcome = await self._send(record)
        finally:
            self._pending_count -= 1
            if not self._pending_count:
                self._is_idle.set()
            done(result, outcome)

    async def _send(self, record: NewRecord) -> tuple[PutResult, Outcome]:
        try:
            place = await self._brokers.place(record.topic, record.queue_id)
            channel = await self._brokers.channel(place.address)
        except PymqError as error:
            self._brokers.failed(record.topic)
            return PutResult(PutStatus.BUSY, remark=str(error)), Outcome.REFUSED
        command = Command(
            RequestCode.SEND_MESSAGE_V2,
            self._header(record, place.broker_name, place.queue_id).to_v2(),
            record.body,
            language=LanguageCode.JAVA,
        )
        sent_s = asyncio.get_running_loop().time()
        try:
            answer = await channel.request(command, SEND_TIMEOUT_S, description="escape")
        except PymqError as error:
            self._brokers.failed(record.topic)
            if isinstance(error, RequestTimeout) and channel.read_at < sent_s:
                channel.abort()  # it may be dead; one that is only slow acknowledges the others
            return PutResult(PutStatus.BUSY, remark=str(error)), Outcome.FAILED
        if answer.code in _STORED:
            self.sent_count += 1
            return PutResult(PutStatus.OK, count=1), Outcome.STORED
        self._brokers.failed(record.topic)
        status = PutStatus.BUSY
        if answer.code == ResponseCode.MESSAGE_ILLEGAL:
            status = PutStatus.MESSAGE_ILLEGAL
        remark = f"{place.broker_name} at {place.address}: code {answer.code}, {answer.remark}"
        return PutResult(status, remark=remark), Outcome.REFUSED

    def _header(self, record: NewRecord, broker_name: str, queue_id: int) -> SendRequest:
        group = find_property(record.properties, PRODUCER_GROUP.encode()) or self._name.encode()
        return SendRequest(
            producer_group=group.decode(errors="replace"),
            topic=record.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_count=_QUEUE_COUNT,
            queue_id=queue_id,
            sys_flag=record.sys_flag & ~HOST_IPV6_MASK & ~int(MessageFlag.TRANSACTION_COMMIT),
            born_timestamp=record.born_timestamp,
            flag=record.flag,
            properties=record.properties.decode(errors="replace"),
            reconsume_times=record.reconsume_times,
            unit_mode=False,
            max_reconsume_times=None,
            batch=False,
            broker_name=broker_name,
        )

    async def close(self) -> None:
        """Stop; what is in flight may be stored or not; idempotent."""
        await self._tasks.close()
        self._brokers.close()
