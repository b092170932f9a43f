"""Single messages: VIEW_MESSAGE_BY_ID (33) and QUERY_MESSAGE (12).

Source: RocketMQ QueryMessageProcessor.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor

from pymq.broker.cold_reads import ColdReads
from pymq.broker.record_response import RecordResponses
from pymq.errors import BrokerError, CorruptRecord, OffsetOutOfRange, StoreError, refusal
from pymq.net.dispatcher import Handler, PartedResponse, Request
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.headers.query import (
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageRequest,
)
from pymq.protocol.record import record_place
from pymq.store import MessageStore
from pymq.store.index.key_query import QueryResult

#: Most messages that a query by the producer's id returns (RocketMQ defaultQueryMaxNum).
UNIQUE_COUNT_MAX = 32
#: How long a query waits for the key index to catch up: less than clients wait.
INDEX_WAIT_S = 2.0


class QueryHandlers:
    """Looks up messages.

    Args:
        responses: answers with records.
        wait_indexed: returns when everything that is visible now can be found by its keys; raises
            StoreError if that is impossible.
        executor: reads the files.
    """

    def __init__(
        self,
        store: MessageStore,
        responses: RecordResponses,
        cold_reads: ColdReads,
        wait_indexed: Callable[[], Awaitable[None]],
        executor: Executor,
    ) -> None:
        self._store = store
        self._responses = responses
        self._cold_reads = cold_reads
        self._wait_indexed = wait_indexed
        self._executor = executor

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
            RequestCode.QUERY_MESSAGE: self.query,
        }

    async def view(self, request: Request) -> PartedResponse:
        """VIEW_MESSAGE_BY_ID (33): the message at a physical offset."""
        offset = ViewMessageRequest.from_fields(request.fields).physical_offset
        try:
            buffer = await self._cold_reads.record_view(offset)
        except (OffsetOutOfRange, CorruptRecord) as error:
            raise refusal(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}: {error}"
            ) from error
        return PartedResponse(request.response(ResponseCode.SUCCESS), [buffer])

    async def query(self, request: Request) -> PartedResponse:
        """QUERY_MESSAGE (12): the newest messages with a key, in the order of the log."""
        header = QueryMessageRequest.from_fields(request.fields)
        try:
            await asyncio.wait_for(self._wait_indexed(), INDEX_WAIT_S)
        except TimeoutError:
            pass  # Searches what is indexed, and says so if that is not enough.
        behind_bytes = self._store.keys.behind_bytes
        try:
            found = await self._find(header)
        except StoreError as error:
            raise StoreError(f"key {header.key!r} of topic {header.topic!r}: {error}") from error
        if not found.buffers:
            raise _not_found(header, behind_bytes)
        buffers = found.buffers[::-1]
        fields = QueryMessageResponse(
            index_last_ms=found.index_last_ms, index_last_offset=found.index_last_physical
        ).to_fields()
        answer = self._responses.make(
            request.response(ResponseCode.SUCCESS, fields=fields),
            buffers,
            [record_place(buffer, 0)[1] for buffer in buffers],
        )
        return answer if isinstance(answer, PartedResponse) else await answer

    async def _find(self, header: QueryMessageRequest) -> QueryResult:
        keys = self._store.keys
        job = keys.begin_query(
            header.topic,
            header.key,
            count_max=UNIQUE_COUNT_MAX if header.is_unique_key else header.count_max,
            begin_ms=header.begin_ms,
            end_ms=header.end_ms,
        )
        await asyncio.get_running_loop().run_in_executor(self._executor, job.run)
        return keys.finish_query(job)


def _not_found(header: QueryMessageRequest, behind_bytes: int) -> BrokerError:
    key = f"key {header.key!r} of topic {header.topic!r}"
    if header.count_max <= 0 and not header.is_unique_key:
        return refusal(
            ResponseCode.QUERY_NOT_FOUND,
            f"{key}: at most {header.count_max} messages were asked for",
        )
    if behind_bytes:
        return refusal(
            ResponseCode.SYSTEM_BUSY,
            f"{key} was not found, but {behind_bytes} B of the log are not indexed yet; try again",
        )
    return refusal(
        ResponseCode.QUERY_NOT_FOUND,
        f"can not find message, maybe time range not correct: {key}, stored at "
        f"{header.begin_ms}..{header.end_ms} ms",
    )
