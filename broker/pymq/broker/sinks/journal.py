"""The journal of sinks: a topic with what was decided; the table of sinks is made from it."""

import asyncio
import logging
from collections.abc import Callable

from pymq.broker.log_writer import LogWriter, Outcome
from pymq.broker.put_answer import is_in_log
from pymq.broker.state.sinks import Sink, SinkTable
from pymq.clock import Clock
from pymq.errors import DurabilityUnknown, RemoteProtocolError, StoreError
from pymq.protocol.message import KEYS
from pymq.protocol.names import SINK_TOPIC
from pymq.protocol.record import NewRecord, decode_records
from pymq.protocol.sink_bodies import JournalEntry, JournalKind, SinkBatch
from pymq.store import MessageStore, Put, PutResult, PutStatus

_log = logging.getLogger(__name__)

QUEUE_ID = 0
_READ_COUNT, _READ_BYTES = 256, 4 << 20
_HOUR_MS = 3_600_000


class SinkJournal:
    """Writes the journal, and reads it at a start.

    Args:
        table: gets what the journal says.
        wait_flushed: calls back when the log is flushed up to a physical offset, or with the
            reason why that cannot be promised.
        reserved_hours: how long the log is kept: what it says of a sink is said again before.
        host: our packed address.
    """

    def __init__(
        self,
        store: MessageStore,
        log_writer: LogWriter,
        table: SinkTable,
        clock: Clock,
        wait_flushed: Callable[[int, Callable[[str | None], None]], None],
        *,
        reserved_hours: int,
        host: bytes,
    ) -> None:
        self._store = store
        self._log_writer = log_writer
        self._table = table
        self._clock = clock
        self._wait_flushed = wait_flushed
        self._reserved_hours = reserved_hours
        self._host = host

    def load(self) -> None:
        """Take over what the table's file does not know yet, at a start.

        Raises:
            StoreError: the journal cannot be read.
        """
        first, end = self._store.queue_bounds(SINK_TOPIC, QUEUE_ID)
        if self._table.read_to > end:
            _log.error(
                "the log ends before what is known of sinks (journal %d, log %d): what they have "
                "published is read from the log again",
                self._table.read_to,
                end,
            )
            self._table.clear()
        at = max(first, self._table.read_to)
        while at < end:
            result = self._store.read(
                SINK_TOPIC, QUEUE_ID, at, count_max=_READ_COUNT, bytes_max=_READ_BYTES
            )
            result.check()
            for buffer in result.buffers:
                for record in decode_records(buffer, verify=True):
                    try:
                        entry = JournalEntry.decode(record.body)
                    except RemoteProtocolError as error:
                        _log.error("left out of the journal of sinks: %s", error)
                        continue
                    place = record.queue_offset, record.store_timestamp
                    self._table.take(entry, place, record.physical_offset + record.size)
            at = max(result.next_queue_offset, at + 1)

    async def write(self, entry: JournalEntry) -> int:
        """Write an entry; the table has it as soon as it is in the log, wherever that fails.

        Returns:
            The physical offset behind it.

        Raises:
            StoreError: it is not in the log.
        """
        return await self.put(self._record(entry), entry)

    async def put(self, put: Put, entry: JournalEntry | None = None) -> int:
        """Append to the log, in whatever flush mode; return the physical offset behind it.

        Args:
            put: what.
            entry: what it says to the table.

        Raises:
            StoreError: it is not in the log.
            DurabilityUnknown: it may be.
        """
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(result: PutResult, outcome: Outcome) -> None:
            if is_in_log(outcome) and entry is not None:
                self._take(entry, result)
            if written.done():  # The task was cancelled.
                return
            if is_in_log(outcome):
                written.set_result(result.physical_end)
            elif outcome is Outcome.FAILED:
                written.set_exception(DurabilityUnknown(f"it may be in the log: {result.remark}"))
            else:
                written.set_exception(StoreError(result.remark or outcome.value))

        self._log_writer.append(put, done, wait=False)
        return await written

    def write_now(self, entry: JournalEntry) -> None:
        """Write an entry at a start, when nobody else uses the store.

        Raises:
            StoreError: it is not in the log.
        """
        self._take(entry, self.put_now(self._record(entry)))

    def put_now(self, put: Put) -> PutResult:
        """Append to the log at a start.

        Raises:
            StoreError: it is not in the log.
        """
        (result,) = self._store.put([put], self._host)
        if result.status is not PutStatus.OK:
            raise StoreError(result.remark or result.status.value)
        return result

    def _take(self, entry: JournalEntry, place: PutResult) -> None:
        self._table.take(entry, (place.queue_offset, place.store_timestamp), place.physical_end)

    async def wait_secured(self, physical_end: int) -> None:
        """Return once the log is on the disk up to a physical offset, whatever the flush mode.

        Raises:
            DurabilityUnknown: that cannot be promised.
        """
        told: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def done(reason: str | None) -> None:
            if not told.done():
                told.set_result(reason)

        self._wait_flushed(physical_end, done)
        reason = await told
        if reason is not None:
            raise DurabilityUnknown(f"it is decided, perhaps not on the disk: {reason}")

    async def say_again(self) -> int:
        """Write again what the journal would forget with the log; return how many entries."""
        now_ms = self._clock.wall_ms()
        self._table.forget_old(now_ms)
        old = self._table.about_to_expire(now_ms - self._reserved_hours * _HOUR_MS // 2)
        for sink in old:
            await self.write(kept(sink))
        return len(old)

    def _record(self, entry: JournalEntry) -> NewRecord:
        name = entry.batch.sink
        return NewRecord(
            SINK_TOPIC,
            QUEUE_ID,
            entry.encode(),
            f"{KEYS}\x01{name}\x02".encode() if " " not in name else b"",
            self._host,
            self._clock.wall_ms(),
        )


def published(batch: SinkBatch, lost_count: int) -> JournalEntry:
    """Return the entry that says that all of a batch is visible, but for what is lost."""
    return JournalEntry(kind=JournalKind.PUBLISHED.value, batch=batch, lost_count=lost_count)


def kept(sink: Sink) -> JournalEntry:
    """Return the entry that says of a sink what an earlier one said."""
    row = sink.row
    return JournalEntry(
        kind=JournalKind.KEPT.value,
        batch=row.last,
        is_lasting=row.is_lasting,
        lost_count=row.lost_count,
    )
