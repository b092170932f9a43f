"""Replies to requests of producers: SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325).

A producer that asks (``request()`` of the official clients) names itself in its message. Who
consumes that message sends the reply to the broker, which passes it on over the producer's own
connection (PUSH_REPLY_MESSAGE_TO_CLIENT, 326), and keeps a copy in the reply topic.

Source: RocketMQ ReplyMessageProcessor.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from pymq.broker.config import BrokerConfig
from pymq.broker.log_writer import LogWriter, Outcome
from pymq.broker.put_answer import is_in_log
from pymq.broker.state.clients import ClientTable
from pymq.clock import Clock
from pymq.errors import BrokerError, ProtocolError, PymqError, refusal
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import REGION, PushReplyRequest, SendRequest, SendResponse
from pymq.protocol.message import (
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    encode_properties,
    parse_properties,
)
from pymq.protocol.record import offset_message_id
from pymq.store import Put, PutResult

_log = logging.getLogger(__name__)

#: How long who asked may take to accept a reply.
ACCEPT_S = 10.0
_FIELDS = {"MSG_REGION": REGION, "TRACE_ON": "true"}


class ReplyHandlers:
    """Passes replies on.

    Args:
        address: ours, ``host:port``.
        store_host: the same, packed.
        accept: checks a reply as any other send; returns what is to be stored, its queue, and
            whether to wait for the flush.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        clients: ClientTable,
        log_writer: LogWriter,
        *,
        address: str,
        store_host: bytes,
        accept: Callable[[Request], tuple[Put, int, bool]],
    ) -> None:
        self._config = config
        self._clock = clock
        self._clients = clients
        self._log_writer = log_writer
        self._address = address
        self._store_host = store_host
        self._accept = accept

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    async def reply(self, request: Request) -> Command:
        """Pass a reply on to who asked, and store it; the answer says whether it was accepted.

        It is stored whether it was accepted or not, and what becomes of that is only said, not
        judged, as in RocketMQ: nobody reads the reply topic.
        """
        try:
            put, queue_id, wait = self._accept(request)
        except BrokerError as error:
            return request.response(error.code, error.remark, _FIELDS)
        except ProtocolError as error:
            return request.response(ResponseCode.MESSAGE_ILLEGAL, str(error), _FIELDS)
        storing = self._store(put, wait=wait) if self._config.store_replies else None
        code, remark, fields = ResponseCode.SUCCESS, None, _FIELDS
        try:
            await self._push(request)
        except BrokerError as error:
            _log.warning("%s: %.200s", request.connection.peer, error)
            code, remark = ResponseCode.SYSTEM_ERROR, error.remark
        else:
            fields = _answer("0", queue_id, 0)
        physical_offset, queue_offset = await storing if storing is not None else (None, 0)
        if physical_offset is not None:
            message_id = offset_message_id(self._store_host, physical_offset)
            fields = _answer(message_id, queue_id, queue_offset)
        return request.response(code, remark, fields)

    async def _push(self, request: Request) -> None:
        """Pass a reply on to who asked.

        Raises:
            BrokerError: it was not accepted.
        """
        header = SendRequest.of(request.command)
        properties = parse_properties(header.properties)
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            raise _failed(f"reply message properties[{REPLY_TO_CLIENT}] is null")
        connection = self._clients.producer(client_id)
        if connection is None:
            raise _failed(f"push reply message fail, channel of <{client_id}> not found.")
        now_ms = self._clock.wall_ms()
        properties[PUSH_REPLY_TIME] = str(now_ms)
        push = self._push_request(request, header, properties, now_ms)
        try:
            answer = await connection.ask(push, ACCEPT_S)
        except PymqError as error:
            raise _failed(f"push reply message to {client_id}fail.") from error
        if answer.code != ResponseCode.SUCCESS:
            raise _failed(f"push reply message to {client_id}fail.")

    def _push_request(
        self, request: Request, header: SendRequest, properties: Mapping[str, str], now_ms: int
    ) -> Command:
        fields = PushReplyRequest(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_count=header.default_topic_queue_count,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=encode_properties(properties).decode(),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=request.connection.peer,
            store_host=self._address,
            store_timestamp=now_ms,
        ).to_fields()
        return Command(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            fields,
            request.body,
            language=LanguageCode.JAVA,
        )

    def _store(self, put: Put, *, wait: bool) -> "asyncio.Future[tuple[int | None, int]]":
        """Begin to store a reply; the future gets its physical and queue offset, or None."""
        told: asyncio.Future[tuple[int | None, int]] = asyncio.get_running_loop().create_future()

        def done(result: PutResult, outcome: Outcome) -> None:
            if told.done():  # it is when the waiting task was cancelled
                return
            if is_in_log(outcome):
                told.set_result((result.physical_offset, result.queue_offset))
            else:
                _log.warning("a reply for topic %s was not stored: %s", put.topic, result.remark)
                told.set_result((None, 0))

        self._log_writer.append(put, done, wait=wait)
        return told


def _answer(message_id: str, queue_id: int, queue_offset: int) -> dict[str, str]:
    return SendResponse(
        message_id=message_id,
        queue_id=queue_id,
        queue_offset=queue_offset,
        region=REGION,
        trace_on=True,
    ).to_fields()


def _failed(remark: str) -> BrokerError:
    return refusal(ResponseCode.SYSTEM_ERROR, remark)
