"""Single messages: VIEW_MESSAGE_BY_ID (33) and QUERY_MESSAGE (12).

Source: RocketMQ QueryMessageProcessor.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor

from pymq.broker.handling import Handler, call
from pymq.broker.transfer import RecordTransfer
from pymq.errors import CorruptRecord, OffsetOutOfRange, StoreError, refusal
from pymq.net.server import ServerConnection
from pymq.net.tasks import Tasks
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.query import (
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageRequest,
)
from pymq.protocol.record import record_place
from pymq.store import KeyQuery, MessageStore

#: What a query by the producer's id returns at most (RocketMQ defaultQueryMaxNum).
UNIQUE_COUNT_MAX = 32
#: How long a query waits for the key index to catch up: less than the patience of clients.
INDEX_WAIT_S = 2.0


class QueryHandlers:
    """Looks messages up.

    Args:
        transfer: answers with records.
        wait_indexed: returns when what is visible now can be found by its keys; raises
            StoreError when that cannot be.
        tasks: owner of queries that wait.
        executor: where files are read.
    """

    def __init__(
        self,
        store: MessageStore,
        transfer: RecordTransfer,
        wait_indexed: Callable[[], Awaitable[None]],
        tasks: Tasks,
        executor: Executor,
    ) -> None:
        self._store = store
        self._transfer = transfer
        self._wait_indexed = wait_indexed
        self._tasks = tasks
        self._executor = executor

    def table(self) -> Mapping[int, Handler]:
        """Return what each code leads to."""
        return {
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
            RequestCode.QUERY_MESSAGE: self.query,
        }

    def view(self, connection: ServerConnection, command: Command) -> None:
        """VIEW_MESSAGE_BY_ID (33): the message at a physical offset."""
        offset = ViewMessageRequest.from_fields(command.fields).physical_offset
        try:
            buffer = self._store.record_view(offset)
        except (OffsetOutOfRange, CorruptRecord) as error:
            raise refusal(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}: {error}"
            ) from error
        self._transfer.send(
            connection, command, command.reply(ResponseCode.SUCCESS), [buffer], [offset]
        )

    def query(self, connection: ServerConnection, command: Command) -> None:
        """QUERY_MESSAGE (12): the newest messages with a key, in the order of the log."""
        request = QueryMessageRequest.from_fields(command.fields)
        self._tasks.start("query by key", self._query_later(connection, command, request))

    async def _query_later(
        self, connection: ServerConnection, command: Command, request: QueryMessageRequest
    ) -> None:
        try:
            await asyncio.wait_for(self._wait_indexed(), INDEX_WAIT_S)
        except TimeoutError:
            pass  # Looks among what is indexed, and says so when that is not enough.
        except StoreError as error:
            connection.respond(command, command.reply(ResponseCode.SYSTEM_ERROR, str(error)))
            return
        behind_bytes = self._store.keys.behind_bytes
        try:
            job = self._store.keys.begin_query(
                request.topic,
                request.key,
                count_max=UNIQUE_COUNT_MAX if request.is_unique_key else request.count_max,
                begin_ms=request.begin_ms,
                end_ms=request.end_ms,
            )
        except StoreError as error:
            remark = f"key {request.key!r} of topic {request.topic!r}: {error}"
            connection.respond(command, command.reply(ResponseCode.SYSTEM_ERROR, remark))
            return
        await asyncio.get_running_loop().run_in_executor(self._executor, job.run)
        answer = functools.partial(self._answer, request, job, behind_bytes)
        response = call(answer, connection, command)
        if response is not None:
            connection.respond(command, response)

    def _answer(
        self,
        request: QueryMessageRequest,
        job: KeyQuery,
        behind_bytes: int,
        connection: ServerConnection,
        command: Command,
    ) -> None:
        topic, key = request.topic, request.key
        try:
            found = self._store.keys.finish_query(job)
        except StoreError as error:
            raise refusal(
                ResponseCode.SYSTEM_ERROR, f"key {key!r} of topic {topic!r}: {error}"
            ) from error
        if not found.buffers:
            if behind_bytes:
                raise refusal(
                    ResponseCode.SYSTEM_BUSY,
                    f"key {key!r} of topic {topic!r} is not among what is indexed, and "
                    f"{behind_bytes} B of the log are not yet; try again",
                )
            raise refusal(
                ResponseCode.QUERY_NOT_FOUND,
                f"can not find message, maybe time range not correct: key {key!r} of topic "
                f"{topic!r}, stored at {request.begin_ms}..{request.end_ms} ms",
            )
        buffers = found.buffers[::-1]
        header = QueryMessageResponse(
            index_last_ms=found.index_last_ms, index_last_offset=found.index_last_physical
        )
        self._transfer.send(
            connection,
            command,
            command.reply(ResponseCode.SUCCESS, fields=header.to_fields()),
            buffers,
            [record_place(buffer, 0)[1] for buffer in buffers],
        )
