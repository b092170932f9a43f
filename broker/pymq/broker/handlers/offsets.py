"""Consumer offsets and queue bounds: 14, 15, 29, 30, 31, 32."""

from collections.abc import Mapping

from pymq.broker.handling import Handler
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.errors import refusal
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.offsets import (
    MaxOffsetRequest,
    OffsetResponse,
    QueryOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    TimestampResponse,
    UpdateOffsetRequest,
)
from pymq.store import MessageStore


class OffsetHandlers:
    """Where groups are, and where queues begin and end.

    Args:
        memory_bytes: how much of the end of the log is taken to be in memory.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: OffsetTable,
        groups: GroupTable,
        topics: TopicTable,
        *,
        memory_bytes: int,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._groups = groups
        self._topics = topics
        self._memory_bytes = memory_bytes

    def table(self) -> Mapping[int, Handler]:
        """Return what each code leads to."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.by_time,
            RequestCode.GET_MAX_OFFSET: self.end,
            RequestCode.GET_MIN_OFFSET: self.first,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
        }

    def query(self, connection: ServerConnection, command: Command) -> Command:
        """QUERY_CONSUMER_OFFSET (14).

        A group without offset in a queue that still has its first message, and that message
        in memory, starts at 0 whatever the consumer would choose: messages sent before a new
        group's first start are not skipped.
        """
        request = QueryOffsetRequest.from_fields(command.fields)
        topic, queue_id = request.topic, request.queue_id
        offset = self._offsets.find(request.consumer_group, topic, queue_id)
        if offset is None:
            first, _ = self._store.queue_bounds(topic, queue_id)
            may_be_zero = request.set_zero_if_not_found is not False
            if may_be_zero and first <= 0 and self._is_recent(topic, queue_id):
                offset = 0
        if offset is None:
            raise refusal(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )
        return _answer(command, offset)

    def _is_recent(self, topic: str, queue_id: int) -> bool:
        """Is a queue's message 0 among what memory holds, or yet to come?"""
        start = self._store.physical_offset(topic, queue_id, 0)
        return start is None or self._store.log_end - start <= self._memory_bytes

    def update(self, connection: ServerConnection, command: Command) -> Command:
        """UPDATE_CONSUMER_OFFSET (15)."""
        request = UpdateOffsetRequest.from_fields(command.fields)
        if request.queue_id < 0 or request.commit_offset < 0:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"queue {request.queue_id}, offset {request.commit_offset}: expected both "
                "not to be negative",
            )
        self._groups.require(request.consumer_group)
        self._topics.require(request.topic)
        self._offsets.commit(
            request.consumer_group, request.topic, request.queue_id, request.commit_offset
        )
        return command.reply(ResponseCode.SUCCESS)

    def by_time(self, connection: ServerConnection, command: Command) -> Command:
        """SEARCH_OFFSET_BY_TIMESTAMP (29)."""
        request = SearchOffsetRequest.from_fields(command.fields)
        upper = (request.boundary_type or "").upper() == "UPPER"
        return _answer(
            command,
            self._store.offset_by_time(
                request.topic, request.queue_id, request.timestamp_ms, upper=upper
            ),
        )

    def end(self, connection: ServerConnection, command: Command) -> Command:
        """GET_MAX_OFFSET (30): the offset the next message will get."""
        request = MaxOffsetRequest.from_fields(command.fields)
        return _answer(command, self._store.queue_bounds(request.topic, request.queue_id)[1])

    def first(self, connection: ServerConnection, command: Command) -> Command:
        """GET_MIN_OFFSET (31)."""
        request = QueueRequest.from_fields(command.fields)
        return _answer(command, self._store.queue_bounds(request.topic, request.queue_id)[0])

    def earliest_time(self, connection: ServerConnection, command: Command) -> Command:
        """GET_EARLIEST_MSG_STORETIME (32)."""
        request = QueueRequest.from_fields(command.fields)
        first, end = self._store.queue_bounds(request.topic, request.queue_id)
        time_ms = None
        if first < end:
            time_ms = self._store.message_time(request.topic, request.queue_id, first)
        fields = TimestampResponse(timestamp_ms=-1 if time_ms is None else time_ms).to_fields()
        return command.reply(ResponseCode.SUCCESS, fields=fields)


def _answer(command: Command, offset: int) -> Command:
    return command.reply(
        ResponseCode.SUCCESS, fields=OffsetResponse(offset=offset).to_fields()
    )
