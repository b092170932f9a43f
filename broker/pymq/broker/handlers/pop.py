"""Pops: POP_MESSAGE (200050).

Source: RocketMQ PopMessageProcessor.
"""

import asyncio
import functools
from collections.abc import Coroutine, Mapping

from pymq.broker.held_requests import waited_ms
from pymq.broker.pop.access import PopAccess
from pymq.broker.pop.attempt import PopAttempt
from pymq.broker.pop.checkpoint import MESSAGES_MAX
from pymq.broker.pop.in_flight import InFlight
from pymq.broker.pop.pop_order import PopOrder
from pymq.broker.pop.pop_polls import HeldPop, Holding, PopPolls
from pymq.broker.pop.pop_response import PopResponses, message_offsets, start_offsets
from pymq.broker.pop.popping import Popped, Popping, Steps, Wanted
from pymq.broker.pop.sent_times import SentTimes
from pymq.broker.put_answer import send_answer
from pymq.broker.record_response import RecordResponses
from pymq.broker.selections import Selections
from pymq.broker.state.filter_turns import TurnBudget
from pymq.broker.state.filters import SQL92
from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.clock import Clock
from pymq.errors import refusal
from pymq.net.dispatcher import Answer, Handler, Request, Response
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.pop import PopRequest, PopResponse
from pymq.store import (
    EVERYTHING,
    Arrival,
    EntryPrefetchJob,
    MatchingRead,
    MessageStore,
    Selection,
)

#: A request that was read so long before its turn, and longer ago than its client wanted to wait,
#: if it did, is not executed: nobody would take what it pops.
_LATE_MS = 500
#: How long to wait for the end of a connection that came right behind a request.
_END_READ_S = 0.05
#: Pause before a pop that took nothing goes on with messages it has not looked at.
_GO_ON_S = 0.01


class PopHandlers:
    """Hands out messages for a limited time, at once or when they arrive."""

    def __init__(
        self,
        broker_name: str,
        clock: Clock,
        store: MessageStore,
        access: PopAccess,
        selections: Selections,
        waiting: RecordResponses,
        *,
        popping: Popping,
        in_flight: InFlight,
        order: PopOrder,
        statistics: BrokerStatistics,
        polls: PopPolls,
        responses: PopResponses,
    ) -> None:
        self._broker_name = broker_name
        self._clock = clock
        self._store = store
        self._access = access
        self._selections = selections
        self._waiting = waiting
        self._popping = popping
        self._in_flight = in_flight
        self._order = order
        self._statistics = statistics
        self._polls = polls
        self._responses = responses
        self._sent_times = SentTimes()

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.POP_MESSAGE: self.pop,
        }

    # --- popping

    def pop(self, request: Request) -> Answer:
        """POP_MESSAGE (200050)."""
        header = PopRequest.from_fields(request.fields)
        # RocketMQ goes by the time at which the client says it was sent: one whose clock is behind
        # gets nothing then, ever.
        age_ms = waited_ms(request)
        unread_ms = 0.0
        if header.poll_ms > 0 and header.born_time > 0:
            unread_ms = self._sent_times.late_ms(request.connection, header.born_time)
        if 0 < header.poll_ms < age_ms + unread_ms - _LATE_MS:
            return self._too_late(request, header)
        waits_ms = header.poll_ms - age_ms - unread_ms
        deadline_s = self._clock.monotonic_s() + waits_ms / 1000
        if unread_ms:
            return self._pop_unread(request, header, deadline_s)
        return self._pop_checked(request, header, deadline_s)

    async def _pop_unread(
        self, request: Request, header: PopRequest, deadline_s: float
    ) -> Response | None:
        """Serve a pop that has waited to be read, unless its client closed the connection.

        That is read after the request, and clients that get no answers do so every few seconds.
        """
        await asyncio.sleep(_END_READ_S)
        if not request.connection.is_open:
            request.abandon()
            return None
        answer = self._pop_checked(request, header, deadline_s)
        return await answer if isinstance(answer, Coroutine) else answer

    def _pop_again(self, request: Request, header: PopRequest, deadline_s: float) -> Answer:
        """Serve a pop that was held, unless its client does not wait for the answer any more.

        A broker that stood still answers those late; what it popped then would be lost until its
        invisible time ends.
        """
        if self._clock.monotonic_s() > deadline_s + _LATE_MS / 1000:
            # In a turn of its own: thousands may be too late, and each wakes the next one.
            room = header.topic, header.consumer_group, header.queue_id
            asyncio.get_running_loop().call_soon(self._polls.wake, room)
            return self._too_late(request, header)
        return self._pop_checked(request, header, deadline_s)

    def _too_late(self, request: Request, header: PopRequest) -> Command:
        remark = f"the broker[{self._broker_name}] pop message is timeout too much"
        return _nothing(request, ResponseCode.POLLING_TIMEOUT, remark, header, 0)

    def _pop_checked(self, request: Request, header: PopRequest, deadline_s: float) -> Answer:
        """Serve a pop, for the first time or again, once its filter is compiled."""
        is_sql = header.expression_type == SQL92
        if is_sql and not self._selections.is_ready(header.topic, None, header.expression):
            return self._pop_unprepared(request, header, deadline_s)
        return self._pop(request, header, self._check(header), deadline_s)

    async def _pop_unprepared(
        self, request: Request, header: PopRequest, deadline_s: float
    ) -> Response | None:
        await self._selections.prepare(header.expression or "")
        if not request.connection.is_open:
            self._give_up(request, header)
            return None
        answer = self._pop(request, header, self._check(header), deadline_s)
        return await answer if isinstance(answer, Coroutine) else answer

    def _pop(
        self, request: Request, header: PopRequest, wanted: Wanted, deadline_s: float
    ) -> Answer:
        popped, budget = Popped(), TurnBudget(wanted.selection.weight)
        if header.order or not self._in_flight.is_full:
            steps = self._popping.pop(wanted, budget, popped)
            reading = next(steps, None)
            if reading is not None:
                return self._pop_cold(
                    request, header, wanted, deadline_s, popped, reading, steps, budget
                )
        if popped.taken:
            return self._keep(request, header, popped)
        return self._hold(request, header, wanted, deadline_s, popped)

    async def _pop_cold(
        self,
        request: Request,
        header: PopRequest,
        wanted: Wanted,
        deadline_s: float,
        popped: Popped,
        reading: MatchingRead | EntryPrefetchJob,
        steps: Steps,
        budget: TurnBudget,
    ) -> Response | None:
        if not await self._take_late(request, reading, steps, budget):
            self._give_up(request, header)
            return None
        if popped.taken:
            answer = self._keep(request, header, popped)
        else:
            # What arrived meanwhile has woken nobody.
            popped.is_unfinished |= self._popping.has_any(
                wanted.topic,
                wanted.group,
                wanted.queue_id,
                in_order=wanted.in_order,
                attempt_id=wanted.attempt_id,
            )
            answer = self._hold(request, header, wanted, deadline_s, popped)
        return await answer if isinstance(answer, Coroutine) else answer

    async def _take_late(
        self,
        request: Request,
        first: MatchingRead | EntryPrefetchJob,
        steps: Steps,
        budget: TurnBudget,
    ) -> bool:
        """Go on with the steps of a pop; undo them and return False if its sender has gone."""
        reading: MatchingRead | EntryPrefetchJob | None = first
        while reading is not None:
            if isinstance(reading, MatchingRead):
                await self._waiting.wait_in_memory(*reading.places())
                await self._selections.turns.wait(budget)
            else:
                await self._waiting.run(reading)
            if not request.connection.is_open:
                steps.close()
                return False
            reading = next(steps, None)
        return True

    def _keep(self, request: Request, header: PopRequest, popped: Popped) -> Answer:
        for taken in popped.taken:
            self._statistics.read(
                header.consumer_group,
                taken.topic,
                taken.queue_id,
                count=taken.result.count,
                size_bytes=sum(map(len, taken.result.buffers)),
                latency_ms=0,  # the pages are in memory by now
            )
        if header.order:
            attempt = self._order.keep(
                popped, header.consumer_group, header.invisible_ms, header.attempt_id
            )
            return self._answer(request, header, popped.rest_count, attempt)
        self._statistics.popped(header.consumer_group, header.topic, len(popped.taken))
        ended = functools.partial(self._kept, request, header, popped.rest_count)
        self._in_flight.keep(popped, header.consumer_group, header.invisible_ms, ended)
        return None

    def _kept(
        self, request: Request, header: PopRequest, rest_count: int, attempt: PopAttempt
    ) -> None:
        request.resume(functools.partial(self._answer, request, header, rest_count, attempt))

    def _answer(
        self, request: Request, header: PopRequest, rest_count: int, attempt: PopAttempt
    ) -> Answer:
        if not attempt.kept:
            assert attempt.failure is not None
            code, remark = send_answer(*attempt.failure)
            return request.response(code, remark)
        if rest_count > 0:
            self._polls.wake((header.topic, header.consumer_group, header.queue_id))
        fields = PopResponse(
            pop_time=attempt.pop_time,
            invisible_ms=header.invisible_ms,
            revive_queue_id=attempt.revive_queue_id,
            rest_count=rest_count,
            start_offset_info=start_offsets(attempt),
            message_offset_info=message_offsets(attempt),
            order_count_info=attempt.order_counts,
        ).to_fields()
        head = request.response(ResponseCode.SUCCESS, "FOUND", fields)
        return self._responses.make(head, header.topic, header.invisible_ms, attempt)

    def _hold(
        self,
        request: Request,
        header: PopRequest,
        wanted: Wanted,
        deadline_s: float,
        popped: Popped,
    ) -> Answer:
        holding = Holding.LATE
        room = header.topic, header.consumer_group, header.queue_id
        if header.poll_ms > 0:
            holding = self._polls.hold(
                HeldPop(
                    request,
                    deadline_s,
                    functools.partial(self._pop_again, request, header, deadline_s),
                    room,
                    self._popping.retry_topics(header.topic, header.consumer_group),
                    functools.partial(self._is_wanted, wanted.selection),
                )
            )
        if holding is Holding.HELD:
            if popped.is_unfinished:
                loop = asyncio.get_running_loop()
                loop.call_later(_GO_ON_S, self._polls.wake, room)
            return None
        code = ResponseCode.POLLING_TIMEOUT
        if holding is Holding.FULL:
            code = ResponseCode.POLLING_FULL
        return _nothing(request, code, "NO_MESSAGE_IN_QUEUE", header, popped.rest_count)

    def _give_up(self, request: Request, header: PopRequest) -> None:
        """Give up a pop whose sender has disconnected; what woke it is for the next one."""
        request.abandon()
        self._polls.wake((header.topic, header.consumer_group, header.queue_id))

    def _check(self, header: PopRequest) -> Wanted:
        """Check that a pop may be served."""
        self._access.check_broker("pop message")
        if header.message_count_max > MESSAGES_MAX:
            raise refusal(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._broker_name}] pop message's num is greater than {MESSAGES_MAX}",
            )
        self._access.check_reading(header.topic, header.queue_id, header.consumer_group)
        if not header.order:
            self._access.check_retrying(header.topic, header.consumer_group)
        return Wanted(
            topic=header.topic,
            group=header.consumer_group,
            queue_id=header.queue_id,
            count_max=header.message_count_max,
            init_mode=header.init_mode,
            selection=self._select(header),
            in_order=header.order,
            attempt_id=header.attempt_id,
            invisible_ms=header.invisible_ms,
        )

    def _select(self, header: PopRequest) -> Selection:
        if not header.expression:
            return EVERYTHING
        kind = header.expression_type
        return self._selections.of_expression(
            header.topic,
            header.expression,
            kind,
            group=header.consumer_group,
            is_allowed=True,
        )

    def _is_wanted(self, selection: Selection, arrival: Arrival) -> bool:
        return self._store.reads.is_selected(arrival, selection)


def _nothing(
    request: Request, code: int, remark: str, header: PopRequest, rest_count: int
) -> Command:
    fields = PopResponse(
        pop_time=0,
        invisible_ms=header.invisible_ms,
        revive_queue_id=0,
        rest_count=rest_count,
        start_offset_info="",
        message_offset_info="",
    ).to_fields()
    return request.response(code, remark, fields)
