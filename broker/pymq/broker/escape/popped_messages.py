"""Messages that were popped from the master and not acknowledged: other groups deliver them again.

They go to the retry topics of their groups there. What is acknowledged meanwhile cannot reach this
group, and is delivered once more.

Source: RocketMQ PopReviveService, EscapeBridge.putMessageToSpecificQueue.
"""

import asyncio
from collections.abc import Callable

from pymq.broker.escape.writer import RemoteWriter
from pymq.broker.log_writer import Done, Outcome
from pymq.broker.pop.in_flight import REVIVE_IDLE_S, REVIVE_INTERVAL_S, InFlight
from pymq.net.tasks import Tasks
from pymq.protocol.record import NewRecord
from pymq.store import Put, PutResult, PutStatus, RecordGroup


class RemoteRevivals:
    """Takes what is written when messages are revived: copies are sent, the journal stays as it is.

    How far the journal is needed is told by its cursor.
    """

    def __init__(self, writer: RemoteWriter) -> None:
        self._writer = writer

    def append(self, put: Put, done: Done, *, wait: bool = True) -> None:
        """Send the copy of a message; as ``LogWriter.append``."""
        if not isinstance(put, RecordGroup):
            recorded = PutResult(PutStatus.OK, count=1)
            asyncio.get_running_loop().call_soon(done, recorded, Outcome.STORED)
            return
        copy = put.records[0]
        assert isinstance(copy, NewRecord)

        def sent(result: PutResult, outcome: Outcome) -> None:
            put.places[:] = [result] * len(put.records)
            done(result, outcome)

        self._writer.append(copy, sent)


class PoppedMessages:
    """Revives what is due.

    Args:
        make: makes what is in flight.
        writer: sends what is revived.
    """

    def __init__(self, make: Callable[[], InFlight], writer: RemoteWriter) -> None:
        self._make = make
        self._writer = writer
        self._in_flight: InFlight | None = None
        self._tasks = Tasks("popped messages")

    async def begin(self, is_cancelled: Callable[[], bool]) -> None:
        """Read what is in flight, and begin to revive."""
        self._in_flight = in_flight = self._make()
        in_flight.open()
        self._tasks = Tasks("popped messages")
        self._tasks.repeat(
            "revival", in_flight.revive, REVIVE_INTERVAL_S, idle_s=REVIVE_IDLE_S
        )

    async def end(self) -> None:
        """Stop; how far it has come is committed already."""
        await self._tasks.close()
        await self._writer.wait_idle()
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            await in_flight.close()
