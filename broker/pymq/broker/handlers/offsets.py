"""Consumer offsets, queue bounds, and ranges of queues: 14, 15, 29, 30, 31, 32, 479007."""

from collections.abc import Callable, Mapping

from pymq.broker.cold_reads import ColdReads
from pymq.broker.fitting_ranges import FittingLookup
from pymq.broker.ha.replica_waiters import Replicated
from pymq.broker.log_writer import Outcome
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.errors import BrokerError, refusal
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol.codes import FITTING_RANGES, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.offsets import (
    MaxOffsetRequest,
    MaxOffsetResponse,
    OffsetResponse,
    QueryOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    TimestampResponse,
    UpdateOffsetRequest,
)
from pymq.protocol.range_bodies import FittingRanges, QueueRanges
from pymq.store import MessageStore


class OffsetHandlers:
    """Answers where groups are, and where queues begin and end."""

    def __init__(
        self,
        store: MessageStore,
        offsets: OffsetTable,
        groups: GroupTable,
        topics: TopicTable,
        cold_reads: ColdReads,
        wait_followed: Callable[[Replicated], None] | None,
    ) -> None:
        """Answer commits when ``wait_followed`` says that slaves have them; None: at once."""
        self._store = store
        self._offsets = offsets
        self._groups = groups
        self._topics = topics
        self._cold_reads = cold_reads
        self._wait_followed = wait_followed
        self._fitting = FittingLookup(store, cold_reads)

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.every,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.by_time,
            RequestCode.GET_MAX_OFFSET: self.end,
            RequestCode.GET_MIN_OFFSET: self.first,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
            FITTING_RANGES: self.fitting,
        }

    def every(self, request: Request) -> Command:
        """GET_ALL_CONSUMER_OFFSET (43): slaves ask for them."""
        return request.response(ResponseCode.SUCCESS, body=self._offsets.body().encode())

    def query(self, request: Request) -> Answer:
        """QUERY_CONSUMER_OFFSET (14).

        A group without an offset, in a queue whose first message still exists and is in memory,
        starts at 0 whatever the consumer would choose: messages sent before a new group's first
        start are not skipped.
        """
        header = QueryOffsetRequest.from_fields(request.fields)
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.find(header.consumer_group, topic, queue_id)
        if offset is None:
            first, _ = self._store.queue_bounds(topic, queue_id)
            if header.set_zero_if_not_found is False:
                raise refusal(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, do not set to zero, maybe this group boot first",
                )
            if first <= 0:
                return self._query_of_new(request, topic, queue_id)
            raise _unknown_group()
        return _answer(request, offset)

    async def _query_of_new(self, request: Request, topic: str, queue_id: int) -> Command:
        """Answer 0 if a queue's message 0 is in memory, or yet to come."""
        await self._cold_reads.wait_entries(topic, queue_id, 0, 1)
        start = self._store.physical_offset(topic, queue_id, 0)
        if start is None or self._cold_reads.is_recent(start):
            return _answer(request, 0)
        raise _unknown_group()

    def update(self, request: Request) -> Command | None:
        """UPDATE_CONSUMER_OFFSET (15): a SYNC_MASTER answers when its slaves have it."""
        header = UpdateOffsetRequest.from_fields(request.fields)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if group not in self._groups:
            raise refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if topic not in self._topics:
            raise refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        if queue_id is None:
            raise refusal(ResponseCode.INVALID_PARAMETER, f"QueueId is null, topic is {topic}")
        offset = header.commit_offset
        if offset is None:
            raise refusal(ResponseCode.INVALID_PARAMETER, f"Offset is null, topic is {topic}")
        if queue_id < 0 or offset < 0:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"queue {queue_id}, offset {offset}: neither may be negative",
            )
        if self._offsets.is_overtaken(group, topic, queue_id, offset):
            return request.response(ResponseCode.SUCCESS, "Offset has been previously reset")
        self._offsets.commit(group, topic, queue_id, offset)
        if self._wait_followed is None or request.command.is_one_way:
            return request.response(ResponseCode.SUCCESS)
        self._wait_followed(lambda outcome, reason: _committed(request, outcome, reason))
        return None

    async def by_time(self, request: Request) -> Command:
        """SEARCH_OFFSET_BY_TIMESTAMP (29)."""
        header = SearchOffsetRequest.from_fields(request.fields)
        upper = (header.boundary_type or "").upper() == "UPPER"
        offset = await self._cold_reads.offset_by_time(
            header.topic, header.queue_id, header.timestamp_ms, upper=upper
        )
        return _answer(request, offset)

    def end(self, request: Request) -> Command:
        """GET_MAX_OFFSET (30): the offset the next message will get."""
        header = MaxOffsetRequest.from_fields(request.fields)
        fields = MaxOffsetResponse(
            offset=self._store.queue_bounds(header.topic, header.queue_id)[1],
            topic_id=self._topics.id_of(header.topic),
        )
        return request.response(ResponseCode.SUCCESS, fields=fields.to_fields())

    def first(self, request: Request) -> Command:
        """GET_MIN_OFFSET (31)."""
        header = QueueRequest.from_fields(request.fields)
        return _answer(request, self._store.queue_bounds(header.topic, header.queue_id)[0])

    async def earliest_time(self, request: Request) -> Command:
        """GET_EARLIEST_MSG_STORETIME (32)."""
        header = QueueRequest.from_fields(request.fields)
        first, end = self._store.queue_bounds(header.topic, header.queue_id)
        time_ms = None
        if first < end:
            (time_ms,) = await self._cold_reads.message_times(
                [(header.topic, header.queue_id, first)]
            )
        fields = TimestampResponse(timestamp_ms=-1 if time_ms is None else time_ms).to_fields()
        return request.response(ResponseCode.SUCCESS, fields=fields)

    async def fitting(self, request: Request) -> Command:
        """FITTING_RANGES (479007): how far ranges of queues go within a number of bytes."""
        wanted = QueueRanges.decode(request.body).ranges()
        found = await self._fitting.find(wanted)
        return request.response(ResponseCode.SUCCESS, body=FittingRanges.of(found).encode())


def _answer(request: Request, offset: int) -> Command:
    return request.response(ResponseCode.SUCCESS, fields=OffsetResponse(offset=offset).to_fields())


def _committed(request: Request, outcome: Outcome, reason: str | None) -> None:
    """Answer a commit that slaves have, or that nobody knows of whether they do."""
    if outcome is Outcome.STORED:
        request.respond(request.response(ResponseCode.SUCCESS))
    else:
        remark = f"this offset may be lost in a failover: {reason}; commit it again"
        request.respond(request.response(ResponseCode.FLUSH_SLAVE_TIMEOUT, remark))


def _unknown_group() -> BrokerError:
    return refusal(
        ResponseCode.QUERY_NOT_FOUND,
        "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
    )
