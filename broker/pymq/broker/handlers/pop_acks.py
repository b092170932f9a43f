"""What consumers say of messages they popped: acknowledgements, and changes of the invisible time.

ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053).

Source: RocketMQ AckMessageProcessor, ChangeInvisibleTimeProcessor.
"""

import functools
from collections.abc import Mapping

from pymq.broker.log_writer import Outcome
from pymq.broker.pop.access import PopAccess
from pymq.broker.pop.checkpoint import CheckpointKey, GroupQueue
from pymq.broker.pop.in_flight import InFlight
from pymq.broker.pop.pop_order import PopOrder
from pymq.broker.put_answer import is_in_log, send_answer
from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.errors import refusal
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.pop import (
    AckRequest,
    ChangeInvisibleTimeRequest,
    ChangeInvisibleTimeResponse,
)
from pymq.protocol.pop_bodies import BatchAckRequest
from pymq.protocol.receipt_handles import ORDER_REVIVE_QUEUE, ReceiptHandle, topic_of_kind
from pymq.store import MessageStore, PutResult


class PopAckHandlers:
    """Handles acknowledgements, and messages that are to come back at another time."""

    def __init__(
        self,
        store: MessageStore,
        access: PopAccess,
        in_flight: InFlight,
        order: PopOrder,
        statistics: BrokerStatistics,
    ) -> None:
        self._store = store
        self._access = access
        self._in_flight = in_flight
        self._order = order
        self._statistics = statistics

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.ACK_MESSAGE: self.acknowledge,
            RequestCode.BATCH_ACK_MESSAGE: self.acknowledge_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change,
        }

    def acknowledge(self, request: Request) -> Answer:
        """ACK_MESSAGE (200051)."""
        header = AckRequest.from_fields(request.fields)
        self._access.check_queue(header.topic, header.queue_id)
        first, end = self._store.queue_bounds(header.topic, header.queue_id)
        if not first <= header.queue_offset <= end:
            raise refusal(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{header.topic}@{header.queue_id}, "
                f"commit:{header.queue_offset}, store:{first}~{end}",
            )
        handle = ReceiptHandle.parse(header.handle)
        if handle.is_order:
            queue = header.topic, header.consumer_group, header.queue_id
            self._acknowledge_in_order(queue, header.queue_offset, handle.pop_time)
            return request.response(ResponseCode.SUCCESS)
        key = _key(header, handle)
        if self._in_flight.has(key):  # counters stay: none for groups that somebody made up
            self._statistics.acknowledged(header.consumer_group, header.topic)
        told = functools.partial(_acknowledged, request)
        self._in_flight.acknowledge(key, [header.queue_offset], told)
        return None

    def _acknowledge_in_order(self, queue: GroupQueue, queue_offset: int, pop_time: int) -> None:
        problem = self._order.acknowledge(queue, queue_offset, pop_time)
        if problem is not None:
            raise refusal(ResponseCode.MESSAGE_ILLEGAL, problem)

    def acknowledge_batch(self, request: Request) -> Answer:
        """BATCH_ACK_MESSAGE (200151)."""
        body = BatchAckRequest.decode(request.body) if request.body else BatchAckRequest()
        if not body.acks:
            raise refusal(ResponseCode.NO_MESSAGE, "a batch of acknowledgements without any")
        wanted = []
        problems = []
        for ack in body.acks:
            topic = topic_of_kind(ack.topic, ack.group, ack.kind)
            first, end = self._store.queue_bounds(topic, ack.queue_id)
            # Messages that do not exist are left out.
            offsets = [offset for offset in ack.queue_offsets() if first <= offset <= end]
            queue = topic, ack.group, ack.queue_id
            if ack.revive_queue_id == ORDER_REVIVE_QUEUE:
                problems += [
                    self._order.acknowledge(queue, offset, ack.pop_time) for offset in offsets
                ]
            elif offsets:
                key = *queue, ack.start_offset, ack.pop_time, body.broker_name or ""
                wanted.append((key, offsets))
                if self._in_flight.has(key):
                    self._statistics.acknowledged(ack.group, ack.topic, len(offsets))
        problem = next((one for one in problems if one is not None), None)
        batch = _Batch(request, len(wanted), problem)
        for key, offsets in wanted:
            self._in_flight.acknowledge(key, offsets, batch.take)
        return None if wanted else batch.answer()

    def change(self, request: Request) -> Answer:
        """CHANGE_MESSAGE_INVISIBLETIME (200053)."""
        header = ChangeInvisibleTimeRequest.from_fields(request.fields)
        self._access.check_queue(header.topic, header.queue_id)
        first, end = self._store.queue_bounds(header.topic, header.queue_id)
        if not first <= header.queue_offset < end:
            raise refusal(ResponseCode.NO_MESSAGE, "")
        handle = ReceiptHandle.parse(header.handle)
        if handle.is_order:
            return self._change_in_order(request, header, handle)
        key = _key(header, handle)
        if self._in_flight.has(key):
            # As in RocketMQ: an acknowledgement, and a checkpoint of this message alone.
            self._statistics.acknowledged(header.consumer_group, header.topic)
            self._statistics.popped(header.consumer_group, header.topic)
        told = functools.partial(_changed, request, header, handle)
        self._in_flight.change(key, header.queue_offset, header.invisible_ms, told)
        return None

    def _change_in_order(
        self, request: Request, header: ChangeInvisibleTimeRequest, handle: ReceiptHandle
    ) -> Command:
        queue = header.topic, header.consumer_group, header.queue_id
        invisible_ms = self._order.change(
            queue, header.queue_offset, handle.pop_time, header.invisible_ms
        )
        if invisible_ms is None:  # it was acknowledged
            return _changed_response(request, 0, 0, 0)
        return _changed_response(request, handle.pop_time, invisible_ms, handle.revive_queue_id)


def _key(header: AckRequest | ChangeInvisibleTimeRequest, handle: ReceiptHandle) -> CheckpointKey:
    return (
        header.topic,
        header.consumer_group,
        header.queue_id,
        handle.start_offset,
        handle.pop_time,
        handle.broker_name,
    )


def _acknowledged(request: Request, result: PutResult, outcome: Outcome) -> None:
    if is_in_log(outcome):
        request.respond(request.response(ResponseCode.SUCCESS))
    else:
        request.respond(request.response(*send_answer(result, outcome)))


def _changed(
    request: Request,
    header: ChangeInvisibleTimeRequest,
    handle: ReceiptHandle,
    pop_time: int,
    result: PutResult,
    outcome: Outcome,
) -> None:
    if not is_in_log(outcome):
        request.respond(request.response(*send_answer(result, outcome)))
    else:
        request.respond(
            _changed_response(request, pop_time, header.invisible_ms, handle.revive_queue_id)
        )


def _changed_response(
    request: Request, pop_time: int, invisible_ms: int, revive_queue_id: int
) -> Command:
    fields = ChangeInvisibleTimeResponse(
        pop_time=pop_time, invisible_ms=invisible_ms, revive_queue_id=revive_queue_id
    ).to_fields()
    return request.response(ResponseCode.SUCCESS, fields=fields)


class _Batch:
    """A request that is answered when all of its parts are in the log, or some cannot be."""

    def __init__(self, request: Request, waiting_count: int, problem: str | None) -> None:
        self._request = request
        self._waiting_count = waiting_count
        self._failure: tuple[int, str | None] | None = None
        if problem is not None:
            self._failure = ResponseCode.MESSAGE_ILLEGAL, problem

    def take(self, result: PutResult, outcome: Outcome) -> None:
        """Note what became of one part."""
        if not is_in_log(outcome):
            self._failure = send_answer(result, outcome)
        self._waiting_count -= 1
        if not self._waiting_count:
            self._request.respond(self.answer())

    def answer(self) -> Command:
        """Return the response."""
        if self._failure is None:
            return self._request.response(ResponseCode.SUCCESS)
        return self._request.response(*self._failure)
