"""Timer messages: RECALL_MESSAGE (370), GET_TIMER_CHECK_POINT (60), GET_TIMER_METRICS (61).

Source: RocketMQ RecallMessageProcessor, AdminBrokerProcessor.
"""

import asyncio
import functools
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from pymq.broker.config import BrokerConfig
from pymq.broker.log_writer import LogWriter, Outcome
from pymq.broker.message_hooks import MessageHooks
from pymq.broker.put_answer import is_in_log, is_kept, send_answer
from pymq.broker.state.timer_metrics import TimerMetrics
from pymq.broker.state.topics import TopicTable
from pymq.clock import Clock
from pymq.errors import BrokerError, LocalProtocolError, RemoteProtocolError, refusal
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import REGION
from pymq.protocol.headers.timers import RecallRequest, RecallResponse
from pymq.protocol.message import (
    PRODUCER_GROUP,
    TAGS,
    TIMER_DELIVERY_MS,
    UNIQUE_KEY,
    encode_properties,
)
from pymq.protocol.parking import TIMER_DELETE_KEY
from pymq.protocol.recall_handles import RecallHandle
from pymq.protocol.record import NewRecord
from pymq.protocol.tag_codes import tag_code
from pymq.store import PutResult, TimerStore, checkpoint_now

_log = logging.getLogger(__name__)

_TAG = "_RECALL_TAG_"
_FAILED = "recall failed, execute error"
_REGION = {"MSG_REGION": REGION}
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


class FollowedTimerHandlers:
    """Tells how far timers were at the master of this slave.

    Args:
        kept: returns what was kept of it; reads a file.
        readers: for that.
    """

    def __init__(self, kept: Callable[[], bytes], readers: Executor) -> None:
        self._kept = kept
        self._readers = readers

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.GET_TIMER_CHECK_POINT: self.checkpoint}

    async def checkpoint(self, request: Request) -> Command:
        """GET_TIMER_CHECK_POINT (60): a master that is about to be online asks its slaves."""
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(self._readers, self._kept)
        return request.response(ResponseCode.SUCCESS, body=body)


class TimerHandlers:
    """Cancels timer messages, and shows how far timers are.

    Args:
        timers: None: timers are not enabled.
        metrics: how many messages wait for each topic.
        hooks: have the message wait that cancels another one.
        log_writer: stores it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        topics: TopicTable,
        timers: TimerStore | None,
        metrics: TimerMetrics,
        hooks: MessageHooks,
        log_writer: LogWriter,
    ) -> None:
        self._config = config
        self._clock = clock
        self._topics = topics
        self._timers = timers
        self._metrics = metrics
        self._hooks = hooks
        self._log_writer = log_writer

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.RECALL_MESSAGE: self.recall,
            RequestCode.GET_TIMER_CHECK_POINT: self.checkpoint,
            RequestCode.GET_TIMER_METRICS: self.metrics,
        }

    # --- recall

    def recall(self, request: Request) -> Answer:
        """RECALL_MESSAGE (370); answered when what cancels the message is as safe as a send.

        Whether the message still waits is not known then, as in RocketMQ.
        """
        try:
            header = RecallRequest.from_fields(request.fields)
            handle = self._accept(header)
            record = self._cancelling(request, handle, header.producer_group)
        except BrokerError as error:
            return request.response(error.code, error.remark, _REGION)
        done = functools.partial(self._recalled, request, handle)
        self._log_writer.append(record, done)
        return None

    def _recalled(
        self, request: Request, handle: RecallHandle, result: PutResult, outcome: Outcome
    ) -> None:
        if is_kept(outcome):
            fields = RecallResponse(message_id=handle.message_id).to_fields()
            response = request.response(ResponseCode.SUCCESS, None, fields | _REGION)
        elif is_in_log(outcome):  # whoever asks again recalls it once more, which is harmless
            code, remark = send_answer(result, outcome)
            response = request.response(code, remark, _REGION)
        else:
            _log.warning("a message is not recalled: %s", result.remark)
            response = request.response(ResponseCode.SYSTEM_ERROR, _FAILED, _REGION)
        request.respond(response)

    def _accept(self, header: RecallRequest) -> RecallHandle:
        """Return the handle of a recall, or refuse it."""
        config = self._config
        if not config.recall_messages:
            raise refusal(
                ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden"
            )
        if not config.is_writable and not config.recall_when_not_writable:
            raise refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
            )
        if header.topic not in self._topics:
            raise refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"recall failed, the topic[{header.topic}] not exist",
            )
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except RemoteProtocolError as error:
            raise refusal(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
        if handle.topic != header.topic:
            raise refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != config.name:
            raise refusal(
                ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available"
            )
        time_ms = int(handle.time) if _NUMBER.fullmatch(handle.time) else -1
        if not 0 < time_ms - self._clock.wall_ms() < config.timer_max_delay_s * 1000:
            raise refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle

    def _cancelling(
        self, request: Request, handle: RecallHandle, group: str | None
    ) -> NewRecord:
        """Return the record that cancels a message."""
        now_ms = self._clock.wall_ms()
        properties = {
            TAGS: _TAG,
            TIMER_DELETE_KEY: f"{handle.topic}+{handle.message_id}",
            UNIQUE_KEY: handle.message_id,
            TIMER_DELIVERY_MS: handle.time,
            "BORN_TIMESTAMP": str(now_ms),
        }
        if group:
            properties[PRODUCER_GROUP] = group
        try:
            record = NewRecord(
                handle.topic,
                0,
                b"0",
                encode_properties(properties),
                request.connection.packed_host,
                now_ms,
                tag_code=tag_code(_TAG),
            )
            return self._hooks.apply(record, properties)
        except (BrokerError, LocalProtocolError) as error:
            _log.warning("a message is not recalled: %s", error)
            raise refusal(ResponseCode.SYSTEM_ERROR, _FAILED) from error

    # --- how far timers are

    def checkpoint(self, request: Request) -> Command:
        """GET_TIMER_CHECK_POINT (60): as if all of the log were on the disk."""
        if self._timers is None:
            raise refusal(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return request.response(ResponseCode.SUCCESS, body=checkpoint_now(self._timers).encode())

    def metrics(self, request: Request) -> Command:
        """GET_TIMER_METRICS (61)."""
        if self._timers is None:
            raise refusal(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        return request.response(ResponseCode.SUCCESS, body=self._metrics.body().encode())
