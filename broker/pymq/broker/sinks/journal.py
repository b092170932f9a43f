"""The journal of sinks: a topic with what was decided; the table of sinks is made from it."""

import asyncio
import logging
import weakref
from collections.abc import Callable

from pymq.broker.log_writer import LogWriter, Outcome
from pymq.broker.put_answer import is_in_log, send_answer
from pymq.broker.state.sinks import Sink, SinkTable
from pymq.clock import Clock
from pymq.errors import DurabilityUnknown, RemoteProtocolError, StoreError, refusal
from pymq.protocol import fastjson
from pymq.protocol.message import KEYS
from pymq.protocol.names import SINK_TOPIC
from pymq.protocol.record import NewRecord, Record, decode_records
from pymq.protocol.sink_bodies import SinkBatch
from pymq.protocol.sink_decisions import (
    JOURNAL_VERSION,
    JOURNAL_VERSION_DELAYS,
    JournalEntry,
    JournalKind,
)
from pymq.store import MessageStore, Put, PutResult, PutStatus, StoreConfig

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
        config: of the store: how long messages may be, and how long the log is kept; what it says
            of a sink is said again before.
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
        config: StoreConfig,
        host: bytes,
    ) -> None:
        self._store = store
        self._log_writer = log_writer
        self._table = table
        self._clock = clock
        self._wait_flushed = wait_flushed
        self._config = config
        self._host = host
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def lock(self, sink: str) -> asyncio.Lock:
        """Return what to hold while what is known of a sink decides on what is written of it.

        Until an entry is in the log, the table does not know it.
        """
        return self._locks.setdefault(sink, asyncio.Lock())

    def load(self) -> None:
        """Take over what the table's file does not know yet, at a start.

        Raises:
            StoreError: the journal cannot be read, or has what only a later pymq understands.
        """
        first, end = self._store.queue_bounds(SINK_TOPIC, QUEUE_ID)
        if self._table.read_to > end:
            _log.error(
                "the log ends before what is known of sinks (journal %d, log %d): what they have "
                "published is read from the log again",
                self._table.read_to,
                end,
            )
            self._table.read_again()
        at = max(first, self._table.read_from)
        while at < end:
            result = self._store.read(
                SINK_TOPIC, QUEUE_ID, at, count_max=_READ_COUNT, bytes_max=_READ_BYTES
            )
            result.check()
            for buffer in result.buffers:
                for record in decode_records(buffer, verify=True):
                    entry = _entry(record)
                    if entry is not None:
                        place = self._place(record.queue_offset, record.store_timestamp)
                        self._table.take(entry, place, record.physical_offset + record.size)
            at = max(result.next_queue_offset, at + 1)
        forgotten, undecided = self._table.settle(end)
        for row in forgotten:
            _log.error(
                "sink %s: the log has lost its last batch %d, and says nothing of those before: "
                "the sink begins again. If its query was set back behind that batch, rows will be "
                "there twice",
                row.last.sink,
                row.last.batch,
            )
        for row in undecided:
            _log.error(
                "sink %s: the log has lost what batch %d is, which was decided: what was not "
                "copied of its %d messages is lost",
                row.last.sink,
                row.last.batch,
                row.last.row_count,
            )

    def make_room(self) -> None:
        """Check that one more job can be remembered; raises as ``SinkTable.make_room``."""
        self._table.make_room(self._clock.wall_ms())

    async def record(self, entry: JournalEntry) -> int:
        """Write an entry that a client asks for; return the physical offset behind it.

        What a message cannot hold becomes several, of which the last one counts: others have a
        turn between them. The table has it as soon as it is in the log, wherever that fails.

        Raises:
            BrokerError: it is not in the log; as a send is refused, so that who repeats a send
                repeats this.
            DurabilityUnknown: it may be.
        """
        end = 0
        for one in entry.split(self._config.message_bytes_max):
            result, outcome = await self._append(self._record(one), one)
            if not is_in_log(outcome):
                code, remark = send_answer(result, outcome)
                raise refusal(code, remark or outcome.value)
            end = result.physical_end
        return end

    async def write(self, entry: JournalEntry) -> int:
        """Write an entry, as ``record`` does.

        Raises:
            StoreError, DurabilityUnknown: as ``put``.
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
        result, outcome = await self._append(put, entry)
        if not is_in_log(outcome):
            raise StoreError(result.remark or outcome.value)
        return result.physical_end

    async def _append(self, put: Put, entry: JournalEntry | None) -> tuple[PutResult, Outcome]:
        told: asyncio.Future[tuple[PutResult, Outcome]]
        told = asyncio.get_running_loop().create_future()

        def done(result: PutResult, outcome: Outcome) -> None:
            if is_in_log(outcome) and entry is not None:
                self._take(entry, result)
            if not told.done():  # It is when the task was cancelled.
                told.set_result((result, outcome))

        self._log_writer.append(put, done, wait=False)
        result, outcome = await told
        if outcome is Outcome.FAILED:
            raise DurabilityUnknown(f"it may be in the log: {result.remark}")
        return result, outcome

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
        at = self._place(place.queue_offset, place.store_timestamp)
        self._table.take(entry, at, place.physical_end)

    def _place(self, queue_offset: int, store_timestamp: int) -> tuple[int, int]:
        """Return where and when an entry was written.

        Store times never fall: after a clock was ahead they are in the future, but the log is kept
        by the clock.
        """
        return queue_offset, min(store_timestamp, self._clock.wall_ms())

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
            raise DurabilityUnknown(f"it is decided, perhaps not safely: {reason}")

    async def say_again(self) -> int:
        """Write again what the journal would forget with the log; return how many entries."""
        now_ms = self._clock.wall_ms()
        self._table.forget_old(now_ms)  # of which nothing is said again
        count = 0
        before_ms = now_ms - self._config.reserved_hours * _HOUR_MS // 2
        for sink in self._table.about_to_expire(before_ms=before_ms, now_ms=now_ms):
            name = sink.row.last.sink
            async with self.lock(name):
                # While others were written, it may have been forgotten, or published something.
                if self._table.find(name) is sink:
                    await self.write(kept(sink))
                    count += 1
        return count

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


def _entry(record: Record) -> JournalEntry | None:
    """Return what a record of the journal says; None if it is not of pymq.

    Raises:
        StoreError: it is of a pymq that this one does not understand. To leave it out would be to
            guess what was published.
    """
    try:
        value = fastjson.parse(record.body)
        if type(value) is not dict or "version" not in value or "kind" not in value:
            raise RemoteProtocolError("it has no version and kind")
    except RemoteProtocolError as error:
        _log.error("left out of the journal of sinks: entry %d: %s", record.queue_offset, error)
        return None
    version, kind = value["version"], value["kind"]
    try:
        if version not in (JOURNAL_VERSION, JOURNAL_VERSION_DELAYS):
            raise RemoteProtocolError(
                f"expected version {JOURNAL_VERSION} or {JOURNAL_VERSION_DELAYS}"
            )
        if kind not in list(JournalKind):
            raise RemoteProtocolError(f"expected one of the kinds {', '.join(JournalKind)}")
        return JournalEntry.from_json(value)
    except RemoteProtocolError as error:
        raise StoreError(
            f"entry {record.queue_offset} of the journal of sinks (topic {SINK_TOPIC}) has version "
            f"{version!a} and kind {kind!a}, which this pymq does not know: {error}. Start the "
            "pymq that wrote it; without the entry nobody knows what sinks have published"
        ) from error


def published(batch: SinkBatch, lost_count: int) -> JournalEntry:
    """Return the entry that says that all of a batch is visible, but for what is lost."""
    return JournalEntry(kind=JournalKind.PUBLISHED.value, batch=batch, lost_count=lost_count)


def kept(sink: Sink) -> JournalEntry:
    """Return the entry that says of a sink what an earlier one said."""
    row = sink.row
    return JournalEntry(
        kind=JournalKind.KEPT.value,
        batch=row.last,
        lost_count=row.lost_count,
        decided_ms=row.decided_ms,
        known=sink.runs.all(),
    )
