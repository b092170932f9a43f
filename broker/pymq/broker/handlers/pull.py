"""Pulls: PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361), with long polling and filters.

Source: RocketMQ PullMessageProcessor.
"""

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from pymq.broker.config import BrokerConfig
from pymq.broker.ha.slave import Slave
from pymq.broker.long_poll import HeldPull, LongPoll
from pymq.broker.pull_checks import PullChecks
from pymq.broker.record_response import RecordResponses
from pymq.broker.selections import Selections
from pymq.broker.sent_back import SentBack
from pymq.broker.state.filter_turns import TurnBudget
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.clock import Clock
from pymq.errors import refusal
from pymq.net.dispatcher import Answer, Handler, PartedResponse, Request, Response
from pymq.protocol.codes import LanguageCode, PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.pull import PullRequest, PullResponse
from pymq.store import (
    SCAN_MAX,
    Arrival,
    EntryPrefetchJob,
    MatchingRead,
    MessageStore,
    ReadResult,
    ReadStatus,
    Selection,
)

#: Plain numbers: combining flags of an enumeration costs a microsecond, and every pull asks.
_COMMIT, _SUSPEND = int(PullFlag.COMMIT_OFFSET), int(PullFlag.SUSPEND)
#: How long a slave holds a pull that it sends back to the master, and that comes again.
_SENT_BACK_MS = 1000

_CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class PullHandlers:
    """Hands out messages, at once or when they arrive."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        selections: Selections,
        long_poll: LongPoll,
        responses: RecordResponses,
        statistics: BrokerStatistics,
        slave: Slave | None,
    ) -> None:
        """Answer pulls of a broker that follows with ``slave``; of a master without."""
        self._config = config
        self._clock = clock
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._checks = PullChecks(config, topics, groups, selections)
        self._turns = selections.turns
        self._long_poll = long_poll
        self._responses = responses
        self._statistics = statistics
        self._slave = slave
        self._sent_back = SentBack()

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pull,
        }

    def pull(self, request: Request) -> Answer:
        """Answer a pull, or hold it until a message arrives."""
        header = PullRequest.from_fields(request.fields)
        self._checks.check_code(request.command.code)
        if self._slave is not None and self._slave.is_unsure:
            return self._pull_unsure(request, header)
        if not self._checks.is_ready(header):
            return self._pull_unprepared(request, header)
        return self._pull_checked(request, header)

    async def _pull_unprepared(self, request: Request, header: PullRequest) -> Response | None:
        await self._checks.prepare(header)
        if not request.connection.is_open:
            request.abandon()
            return None
        answer = self._pull_checked(request, header)
        return await answer if isinstance(answer, Coroutine) else answer

    def _pull_checked(self, request: Request, header: PullRequest) -> Answer:
        selection = self._checks.check(header)
        reset = self._reset(request, header)
        if reset is not None:
            is_sent_back = reset.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            if not (is_sent_back and self._comes_again(request, header)):
                return reset
            again = functools.partial(self._pull_again, request, header, selection)
            self._hold_for(request, header, again, lambda arrival: False, _SENT_BACK_MS)
            return None
        if header.sys_flag & _COMMIT and header.commit_offset >= 0 and self._keeps_commits():
            self._offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        prefetch = self._entry_prefetch(header)
        if prefetch is not None:
            return self._pull_cold(request, header, selection, prefetch)
        return self._pull(request, header, selection)

    async def _pull_cold(
        self,
        request: Request,
        header: PullRequest,
        selection: Selection,
        prefetch: EntryPrefetchJob,
    ) -> Response | None:
        await self._responses.run(prefetch)
        if not request.connection.is_open:
            request.abandon()
            return None
        answer = self._pull(request, header, selection)
        return await answer if isinstance(answer, Coroutine) else answer

    def _pull(self, request: Request, header: PullRequest, selection: Selection) -> Answer:
        found = self._begin(header, selection)
        if header.sys_flag & _SUSPEND and isinstance(found, ReadResult):
            # Nothing has arrived since: no other task had a turn.
            code, offset = self._verdict(header, found)
            has_master = self._slave is not None and self._slave.has_master
            is_sent_back = has_master and code == ResponseCode.PULL_RETRY_IMMEDIATELY
            comes_again = is_sent_back and self._comes_again(request, header)
            if code == ResponseCode.PULL_NOT_FOUND or comes_again:
                most_ms = _SENT_BACK_MS if comes_again else None
                self._hold(request, header, selection, most_ms=most_ms)
                self._note(header, offset)
                return None
        return self._finish(request, header, found, selection)

    # --- sent back to the master

    def _comes_again(self, request: Request, header: PullRequest) -> bool:
        """Record that a pull is sent back to the master; return whether it was and may wait."""
        queue = header.consumer_group, header.topic, header.queue_id
        comes_again = self._sent_back.comes_again(request.connection, queue, header.queue_offset)
        return comes_again and bool(header.sys_flag & _SUSPEND)

    def _pull_unsure(self, request: Request, header: PullRequest) -> Answer:
        """Send a pull back to the master, as what is here may not be read yet.

        A refusal would keep consumers here: they look for a suggestion in answers only.
        """
        remark = "the master of this slave has not confirmed all of its log since it was started"
        is_range = not header.sys_flag & _SUSPEND
        if is_range and request.command.language == LanguageCode.PYTHON:
            # pymq's readers of ranges ask the master next, and take other answers for a loss.
            busy = "[REJECTREQUEST]system busy, start flow control for a while: "
            raise refusal(ResponseCode.SYSTEM_BUSY, busy + remark)
        answer = self._to_master(request, header, remark)
        if not self._comes_again(request, header):
            return answer
        self._hold_for(request, header, lambda: answer, lambda arrival: False, _SENT_BACK_MS)
        return None

    def _to_master(self, request: Request, header: PullRequest, remark: str) -> Command:
        first, end = self._store.queue_bounds(header.topic, header.queue_id)
        fields = self._fields(header, header.queue_offset, first, end)
        return request.response(ResponseCode.PULL_RETRY_IMMEDIATELY, remark, fields)

    def _keeps_commits(self) -> bool:
        """Return whether what is committed here counts, and not what is at the master."""
        slave = self._slave
        return slave is None or (slave.is_acting and not slave.hands_over)

    # --- reading and answering

    def _entry_prefetch(self, header: PullRequest) -> EntryPrefetchJob | None:
        count = max(SCAN_MAX, min(header.message_count_max, self._config.extended_pull_count_max))
        return self._store.reads.entry_prefetch(
            header.topic, header.queue_id, header.queue_offset, count
        )

    def _begin(self, header: PullRequest, selection: Selection) -> ReadResult | MatchingRead:
        config = self._config
        extended = header.extended_bytes_max
        if extended is None:
            count_max = min(header.message_count_max, config.pull_count_max)
            bytes_max = config.pull_bytes_max
        else:
            count_max = min(header.message_count_max, config.extended_pull_count_max)
            bytes_max = min(extended, config.extended_pull_bytes_max)
        return self._store.reads.begin(
            header.topic,
            header.queue_id,
            header.queue_offset,
            count_max=max(count_max, 1),
            bytes_max=max(bytes_max, 1),
            selection=selection,
        )

    def _finish(
        self,
        request: Request,
        header: PullRequest,
        found: ReadResult | MatchingRead,
        selection: Selection,
    ) -> Answer:
        """Answer with what was found; with a coroutine if a disk or a turn has to be waited for."""
        if isinstance(found, MatchingRead):
            budget = TurnBudget(selection.weight)
            while isinstance(found, MatchingRead):
                if budget.is_spent or self._responses.is_cold(*found.places()):
                    return self._finish_late(request, header, found, budget)
                found = self._store.reads.advance(found) or found
        return self._answer(request, header, found)

    async def _finish_late(
        self, request: Request, header: PullRequest, reading: MatchingRead, budget: TurnBudget
    ) -> Response | None:
        result = None
        while result is None:
            await self._responses.wait_in_memory(*reading.places())
            await self._turns.wait(budget)
            if not request.connection.is_open:
                request.abandon()
                return None
            result = self._store.reads.advance(reading)
            if result is None and budget.is_over:
                result = self._store.reads.stop(reading)
        answer = self._answer(request, header, result)
        return await answer if isinstance(answer, Coroutine) else answer

    def _hold(
        self,
        request: Request,
        header: PullRequest,
        selection: Selection,
        *,
        most_ms: int | None = None,
    ) -> None:
        again = functools.partial(self._pull_again, request, header, selection)
        wants = functools.partial(self._is_wanted, header.queue_offset, selection)
        self._hold_for(request, header, again, wants, most_ms)

    def _hold_for(
        self,
        request: Request,
        header: PullRequest,
        work: Callable[[], Answer],
        wants: Callable[[Arrival], bool],
        most_ms: int | None,
    ) -> None:
        wait_ms = header.suspend_timeout_ms
        if not self._config.long_polling:
            wait_ms = self._config.short_polling_ms
        if most_ms is not None:
            wait_ms = min(wait_ms, most_ms)
        deadline_s = self._clock.monotonic_s() + max(wait_ms, 0) / 1000
        queues = ((header.topic, header.queue_id),)
        self._long_poll.hold(HeldPull(request, deadline_s, work, queues, wants))

    def _pull_again(self, request: Request, header: PullRequest, selection: Selection) -> Answer:
        reset = self._reset(request, header)
        if reset is not None:
            return reset
        return self._finish(request, header, self._begin(header, selection), selection)

    def _reset(self, request: Request, header: PullRequest) -> Command | None:
        """Return the answer to a pull of a group that was reset, which says where to go on."""
        topic, queue_id = header.topic, header.queue_id
        if not self._keeps_commits():
            if self._slave is None or not self._slave.has_master:
                return None
            return self._reset_at_master(request, header)
        offset = self._offsets.take_reset(header.consumer_group, topic, queue_id)
        if offset is None:
            return None
        self._note(header, offset)
        first, end = self._store.queue_bounds(topic, queue_id)
        fields = self._fields(header, offset, first, end)
        return request.response(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", fields)

    def _reset_at_master(self, request: Request, header: PullRequest) -> Command | None:
        """Return the answer that sends a member of such a group back to the master."""
        if not self._offsets.has_reset(header.consumer_group, header.topic, header.queue_id):
            return None
        return self._to_master(request, header, "OFFSET_RESET")

    def _note(self, header: PullRequest, offset: int) -> None:
        """Record where a pull ended, unless its topic or group was deleted while it was held."""
        group, topic = header.consumer_group, header.topic
        if topic in self._topics and group in self._groups:
            self._offsets.note_pull(group, topic, header.queue_id, offset)

    def _is_wanted(self, offset: int, selection: Selection, arrival: Arrival) -> bool:
        """Return whether a held pull, which reads from an offset on, wants what has arrived."""
        return arrival.queue_end > offset and self._store.reads.is_selected(arrival, selection)

    def _answer(
        self, request: Request, header: PullRequest, result: ReadResult
    ) -> PartedResponse | Coroutine[Any, Any, PartedResponse]:
        code, offset = self._verdict(header, result)
        self._note(header, offset)
        # Those who lag behind so far that they read from the disk may burden another broker.
        is_late = (
            self._config.slave_read
            and bool(result.starts)
            and not self._responses.is_recent(result.starts[-1])
        )
        fields = self._fields(header, offset, result.queue_first, result.queue_end, is_late=is_late)
        head = request.response(code, result.status.name, fields)
        answer = self._responses.make(head, result.buffers, result.starts, result.check)
        if code != ResponseCode.SUCCESS:
            return answer
        if isinstance(answer, Coroutine):
            return self._count_cold(header, result, answer)
        self._count(header, result, latency_ms=0)
        return answer

    async def _count_cold(
        self,
        header: PullRequest,
        result: ReadResult,
        answer: Coroutine[Any, Any, PartedResponse],
    ) -> PartedResponse:
        begun_s = self._clock.monotonic_s()
        response = await answer
        elapsed_s = self._clock.monotonic_s() - begun_s
        self._count(header, result, latency_ms=int(elapsed_s * 1000))
        return response

    def _count(self, header: PullRequest, result: ReadResult, *, latency_ms: int) -> None:
        self._statistics.read(
            header.consumer_group,
            header.topic,
            header.queue_id,
            count=result.count,
            size_bytes=sum(map(len, result.buffers)),
            latency_ms=latency_ms,
        )

    def _verdict(self, header: PullRequest, result: ReadResult) -> tuple[int, int]:
        """Return the response code, and the offset at which to go on.

        A slave sends readers that are not late back to its master, and corrects no offset: it may
        just not have what is there. While its master is away, they wait here.
        """
        code = _CODES.get(result.status)
        if code is None:  # no such queue, or nothing in it
            code = (
                ResponseCode.PULL_OFFSET_MOVED
                if header.queue_offset != 0
                else ResponseCode.PULL_NOT_FOUND
            )
        if self._slave is None or code == ResponseCode.SUCCESS:
            return code, result.next_queue_offset
        if self._slave.has_master:
            return ResponseCode.PULL_RETRY_IMMEDIATELY, header.queue_offset
        if header.queue_offset > result.queue_end:
            return ResponseCode.PULL_NOT_FOUND, header.queue_offset
        return code, result.next_queue_offset

    def _fields(
        self, header: PullRequest, offset: int, first: int, end: int, *, is_late: bool = False
    ) -> dict[str, str]:
        """Return the header of an answer: where to go on, and at which broker."""
        topic, group = self._topics.find(header.topic), self._groups.known(header.consumer_group)
        broker_id = 0
        if self._config.slave_read and group is not None:
            broker_id = group.which_broker_when_consume_slowly if is_late else group.broker_id
        return PullResponse(
            suggest_which_broker_id=broker_id,
            next_begin_offset=offset,
            min_offset=first,
            max_offset=end,
            topic_sys_flag=0 if topic is None else topic.topic_sys_flag,
            group_sys_flag=0 if group is None else group.group_sys_flag,
        ).to_fields()
