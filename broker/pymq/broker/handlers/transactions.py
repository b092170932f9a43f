"""Ends of transactions: END_TRANSACTION (37); checking one again: RESUME_CHECK_HALF_MESSAGE (323).

Clients send ends one-way, and end a transaction once more only when they are asked about it.

Source: RocketMQ EndTransactionProcessor, AdminBrokerProcessor.resumeCheckHalfMessage.
"""

import asyncio
import logging
from collections.abc import Mapping

from pymq.broker.cold_reads import ColdReads
from pymq.broker.config import BrokerConfig
from pymq.broker.transactions.transactions import Transactions
from pymq.clock import Clock
from pymq.errors import (
    BrokerError,
    CorruptRecord,
    LocalProtocolError,
    OffsetOutOfRange,
    refusal,
)
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol.codes import MessageFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.transactions import EndTransactionRequest, ResumeCheckRequest
from pymq.protocol.message import PRODUCER_GROUP, find_property
from pymq.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from pymq.protocol.record import Record, decode_record, parse_offset_message_id
from pymq.protocol.transaction_records import CHECK_IMMUNITY_S
from pymq.store import MessageStore

_log = logging.getLogger(__name__)

_UNKNOWN, _COMMIT = 0, int(MessageFlag.TRANSACTION_COMMIT)
_ROLLBACK = int(MessageFlag.TRANSACTION_ROLLBACK)


class TransactionHandlers:
    """Checks which transaction is meant, and has it ended, or checked again.

    Args:
        store: to be read where it is in memory.
        cold_reads: read the rest.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        store: MessageStore,
        cold_reads: ColdReads,
        transactions: Transactions,
    ) -> None:
        self._config = config
        self._clock = clock
        self._store = store
        self._cold_reads = cold_reads
        self._transactions = transactions

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
        }

    def end(self, request: Request) -> Answer:
        """END_TRANSACTION (37)."""
        header = EndTransactionRequest.from_fields(request.fields)
        if header.decision not in (_UNKNOWN, _COMMIT, _ROLLBACK):
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback field wrong: {header.decision}, expected {_UNKNOWN}, {_COMMIT} "
                f"or {_ROLLBACK}",
            )
        if header.decision == _UNKNOWN:
            # Nothing that an operator could do anything about; the message is asked for again.
            _log.debug(
                "producer %s of group %.80s does not know yet what became of message %.80s: %.200s",
                request.connection.peer,
                header.producer_group,
                header.message_id,
                request.command.remark,
            )
            return request.response(ResponseCode.SUCCESS)
        physical = header.physical_offset
        if not self._cold_reads.is_in_memory(physical):
            return self._end_cold(request, header)
        try:
            view = self._store.record_view(physical)
        except (OffsetOutOfRange, CorruptRecord) as error:
            raise _not_found() from error
        self._end(request, header, view)
        return None

    async def _end_cold(self, request: Request, header: EndTransactionRequest) -> None:
        try:
            view = await self._cold_reads.record_view(header.physical_offset)
        except (OffsetOutOfRange, CorruptRecord) as error:
            raise _not_found() from error
        self._end(request, header, view)

    def _end(self, request: Request, header: EndTransactionRequest, view: memoryview) -> None:
        try:
            half = decode_record(view, verify=True)
        except CorruptRecord as error:
            raise _not_found() from error
        if half.topic != HALF_TOPIC:
            raise _not_found()
        self._check(header, half)

        def ended(code: int, remark: str | None) -> None:
            request.respond(request.response(code, remark))

        self._transactions.end(half, commit=header.decision == _COMMIT, ended=ended)

    def _check(self, header: EndTransactionRequest, half: Record) -> None:
        """Refuse the end of another transaction, or one that comes too late."""
        if not header.is_checked and self._is_too_late(half):
            raise refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"the time in its {CHECK_IMMUNITY_S} has passed, so the transaction is checked; "
                "answer the check",
            )
        group = find_property(half.properties, PRODUCER_GROUP.encode()) or b""
        if group.decode(errors="replace") != header.producer_group:
            raise refusal(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.queue_offset:
            raise refusal(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")

    def _is_too_late(self, half: Record) -> bool:
        """Has the message said when it is to be checked, and has that time come?"""
        text = find_property(half.properties, CHECK_IMMUNITY_S.encode())
        if not text:
            return False
        try:
            immune_ms = int(text) * 1000
        except ValueError:
            immune_ms = 0
        age_ms = self._clock.age_ms(half.born_timestamp)
        return age_ms > max(immune_ms, self._config.transaction_timeout_ms)

    async def resume(self, request: Request) -> Command:
        """RESUME_CHECK_HALF_MESSAGE (323): let a transaction be checked as often as at first."""
        header = ResumeCheckRequest.from_fields(request.fields)
        try:
            _, physical = parse_offset_message_id(header.message_id)
            view = await self._cold_reads.record_view(physical)
            half = decode_record(view, verify=True)
        except (LocalProtocolError, OffsetOutOfRange, CorruptRecord) as error:
            raise _not_resumed(str(error)) from error
        if half.topic not in (HALF_TOPIC, CHECK_MAX_TIME_TOPIC):
            raise _not_resumed(f"it is a message of topic {half.topic}")
        told: asyncio.Future[tuple[int, str | None]]
        told = asyncio.get_running_loop().create_future()

        def resumed(code: int, remark: str | None) -> None:
            if not told.done():  # it is when the waiting task was cancelled
                told.set_result((code, remark))

        self._transactions.resume(half, resumed)
        code, remark = await told
        if code != ResponseCode.SUCCESS:
            raise _not_resumed(remark)
        return request.response(ResponseCode.SUCCESS)


def _not_found() -> BrokerError:
    return refusal(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")


def _not_resumed(reason: str | None) -> BrokerError:
    return refusal(ResponseCode.SYSTEM_ERROR, f"Put message back to {HALF_TOPIC} failed: {reason}")
