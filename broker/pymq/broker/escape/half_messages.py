"""Transactions that nobody has ended: other groups have them, and ask their producers.

A half message that is old enough to be checked is sent as the transactional message that it was,
and is a half message there. Here it counts as closed: the cursor of the half topic says so, to this
slave after a restart and to the master that comes back.

Source: RocketMQ TransactionalMessageServiceImpl.check, EscapeBridge.putMessageToRemoteBroker.
"""

import asyncio
import functools
import logging
from collections.abc import Callable

from pymq.broker.escape.writer import RemoteWriter
from pymq.broker.log_writer import Outcome
from pymq.broker.pop.record_reading import RecordReading
from pymq.broker.put_answer import is_never_stored
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.transactions import OpenTransactions
from pymq.clock import Clock
from pymq.errors import StoreError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.message import (
    REAL_TOPIC,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    TRANSACTION_PREPARED,
)
from pymq.protocol.names import HALF_TOPIC, TRANSACTION_GROUP
from pymq.protocol.parking import (
    REAL_QUEUE_ID,
    copy_of,
    is_deliverable,
    real_place,
    with_properties,
)
from pymq.protocol.record import NewRecord, Record
from pymq.protocol.transaction_records import PREPARED_OFFSET, QUEUE_ID
from pymq.store import MessageStore, PutResult

_log = logging.getLogger(__name__)

#: Between two looks.
LOOK_INTERVAL_S = 1.0
#: Half messages looked at before others get their turn.
_BATCH_COUNT = 64
#: What a half message has besides the properties of the message.
_OF_HALVES = dict.fromkeys(
    (REAL_TOPIC, REAL_QUEUE_ID, TRANSACTION_ID, TRANSACTION_CHECK_TIMES, PREPARED_OFFSET)
)


class HalfMessages:
    """Sends open half messages to other groups.

    Args:
        find: returns which are open.
        writer: sends them.
        offsets: keeps the cursor of the half topic.
        timeout_ms: what is younger waits.
    """

    def __init__(
        self,
        store: MessageStore,
        reading: RecordReading,
        clock: Clock,
        find: Callable[[], OpenTransactions],
        writer: RemoteWriter,
        offsets: OffsetTable,
        *,
        timeout_ms: int,
    ) -> None:
        self._store = store
        self._reading = reading
        self._clock = clock
        self._find = find
        self._writer = writer
        self._offsets = offsets
        self._timeout_ms = timeout_ms
        self._table = OpenTransactions()
        self._said = SaidOnce(_log)
        self._tasks: Tasks | None = None

    async def begin(self, is_cancelled: Callable[[], bool]) -> None:
        """Find what is open, and begin to look at it."""
        self._table = self._find()
        self._tasks = Tasks("half messages")
        self._tasks.repeat("look", self._look, LOOK_INTERVAL_S)

    async def end(self) -> None:
        """Stop, and record how far it is."""
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            await tasks.close()
            await self._writer.wait_idle()
            self._save()

    async def _look(self) -> None:
        """Send everything that is old enough."""
        _, end = self._store.queue_bounds(HALF_TOPIC, QUEUE_ID)
        for first, last in list(self._table.open_runs(end)):
            at = first
            while at < last:
                try:
                    read = await self._reading.read(
                        HALF_TOPIC, QUEUE_ID, at, min(_BATCH_COUNT, last - at)
                    )
                except StoreError as error:
                    self._said.warn("half", "half messages cannot be read: %s", error)
                    return
                following = min(max(read.next_queue_offset, at + 1), last)
                due = [one for one in read.records if self._is_due(one)]
                await asyncio.gather(*map(self._send, due))
                lost = set(range(at, following)) - {one.queue_offset for one in read.records}
                self._table.restore(sorted(lost), None)
                at = following
        self._save()

    def _is_due(self, half: Record) -> bool:
        age_ms = self._clock.age_ms(half.born_timestamp)
        return not 0 <= age_ms < self._timeout_ms

    async def _send(self, half: Record) -> None:
        place = real_place(half.properties)
        if place is None or not is_deliverable(place[0]):
            return  # the master discards it
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer.send(_prepared(half, *place), functools.partial(self._sent, half, told))
        await told

    def _sent(
        self, half: Record, told: "asyncio.Future[None]", result: PutResult, outcome: Outcome
    ) -> None:
        if outcome is Outcome.STORED:
            self._table.restore([half.queue_offset], None)
            self._said.over("half")
        elif not is_never_stored(result, outcome):
            self._said.warn(
                "half",
                "transactions that are to be checked are not sent to another group: %s; trying "
                "again",
                result.remark,
            )
        if not told.done():
            told.set_result(None)

    def _save(self) -> None:
        cursor = self._table.half_cursor
        if cursor > (self._offsets.find(TRANSACTION_GROUP, HALF_TOPIC, QUEUE_ID) or 0):
            self._offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, QUEUE_ID, cursor)


def _prepared(half: Record, topic: str, queue_id: int) -> NewRecord:
    """Return the transactional message that a half message was made of."""
    message = copy_of(half, topic, queue_id)
    message.properties = with_properties(
        half.properties, {**_OF_HALVES, TRANSACTION_PREPARED: "true"}
    )
    return message
