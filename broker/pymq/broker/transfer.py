"""Records out of the log as the body of a response, without copying them.

What is not in memory any more is read in a thread first: a page of the map that has to come from
the disk would stop the loop, and with it everybody else.

Source: RocketMQ ManyMessageTransfer, OneMessageTransfer, QueryMessageTransfer.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from pymq.errors import CorruptRecord, LocalProtocolError, StoreError
from pymq.net.server import ServerConnection
from pymq.net.tasks import Tasks
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command, encode_header
from pymq.protocol.framing import frame_prefix
from pymq.store import MessageStore

_log = logging.getLogger(__name__)


class RecordTransfer:
    """Sends responses whose bodies are records.

    Args:
        executor: where records are read that may not be in memory any more.
        tasks: owner of such reads.
        memory_bytes: how much of the end of the log is taken to be in memory.
        frame_bytes_max: largest response.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        executor: Executor,
        tasks: Tasks,
        memory_bytes: int,
        frame_bytes_max: int,
    ) -> None:
        self._store = store
        self._executor = executor
        self._tasks = tasks
        self._memory_bytes = memory_bytes
        self._frame_bytes_max = frame_bytes_max

    def send(
        self,
        connection: ServerConnection,
        command: Command,
        response: Command,
        buffers: Sequence[memoryview],
        starts: Sequence[int],
        check: Callable[[], None] | None = None,
    ) -> None:
        """Answer a request, now or once the disk has given the records.

        Args:
            connection: where to.
            command: the request.
            response: its answer, without a body.
            buffers: the body, as views on the log.
            starts: the physical offset of each buffer; the first is the lowest.
            check: looks at the records once they are in memory; raises CorruptRecord.
        """
        if starts and self._store.log_end - starts[0] > self._memory_bytes:
            work = self._send_from_disk(connection, command, response, buffers, starts, check)
            self._tasks.start("cold read", work)
        else:
            self._send(connection, command, response, buffers, check)

    async def _send_from_disk(
        self,
        connection: ServerConnection,
        command: Command,
        response: Command,
        buffers: Sequence[memoryview],
        starts: Sequence[int],
        check: Callable[[], None] | None,
    ) -> None:
        try:
            job = self._store.begin_prefetch(buffers, starts)
        except StoreError as error:
            _log.debug("not prefetched: %s", error)  # read when it is sent, if it can be
        else:
            await asyncio.get_running_loop().run_in_executor(self._executor, job.run)
        self._send(connection, command, response, buffers, check)

    def _send(
        self,
        connection: ServerConnection,
        command: Command,
        response: Command,
        buffers: Sequence[memoryview],
        check: Callable[[], None] | None,
    ) -> None:
        try:
            if check is not None:
                check()
        except CorruptRecord as error:
            _log.error("%s is refused: %s", connection.peer, error)
            connection.respond(command, command.reply(ResponseCode.SYSTEM_ERROR, str(error)))
            return
        header = encode_header(response)
        try:
            prefix = frame_prefix(
                len(header),
                sum(map(len, buffers)),
                form=command.form,
                frame_bytes_max=self._frame_bytes_max,
            )
        except LocalProtocolError as error:
            connection.respond(command, command.reply(ResponseCode.SYSTEM_ERROR, str(error)))
            return
        connection.send(prefix + header, *buffers)
