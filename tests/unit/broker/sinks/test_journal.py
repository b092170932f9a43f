"""The journal of sinks: what is written to it, by whom, and what a start reads from it."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import HOST, FakeClock, QuickFiles, config

from pymq.broker.log_writer import LogWriter, Outcome
from pymq.broker.sinks.journal import SinkJournal, published
from pymq.broker.state.sinks import SinkTable
from pymq.errors import BrokerError, StoreError
from pymq.protocol import fastjson
from pymq.protocol.codes import ResponseCode
from pymq.protocol.names import SINK_TOPIC
from pymq.protocol.record import NewRecord
from pymq.protocol.sink_bodies import SinkBatch, StagedRun
from pymq.protocol.sink_decisions import JournalEntry, JournalKind, StagedRuns
from pymq.settings import take_over, with_changes
from pymq.store import MessageStore, Put, PutResult, PutStatus

HOUR_MS = 3_600_000


class Writer(LogWriter):
    """Keeps what is written until a test looks, or refuses it."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(functools.partial(store.put, store_host=HOST), None)
        self.refused: PutStatus | None = None
        self.is_held = False
        self.held: list[Callable[[], None]] = []

    def append(self, put: Put, done: Any, *, wait: bool = True) -> None:
        if self.refused is not None:
            done(PutResult(self.refused, remark="why"), Outcome.REFUSED)
        elif self.is_held:
            self.held.append(functools.partial(super().append, put, done, wait=wait))
        else:
            super().append(put, done, wait=wait)

    def let_go(self) -> None:
        held, self.held = self.held, []
        for one in held:
            one()


class Bed:
    """A journal on a store of its own.

    Args:
        path: of the store.
        table: what ``sinks.json`` says.
        settings: of the store.
    """

    def __init__(self, path: Path, table: SinkTable | None = None, **settings: Any) -> None:
        self.clock = FakeClock()
        self.config = config(path, **settings)
        self.store = MessageStore.open(self.config, self.clock, files=QuickFiles())
        self.table = table or SinkTable()
        self.writer = Writer(self.store)
        self.journal = SinkJournal(
            self.store,
            self.writer,
            self.table,
            self.clock,
            lambda end, done: done(None),
            config=self.config,
            host=HOST,
        )

    async def publish(self, what: SinkBatch) -> None:
        await self.journal.record(entry(JournalKind.DECIDED, what))
        await self.journal.write(published(what, 0))


def batch(sink: str = "s", number: int = 0) -> SinkBatch:
    return SinkBatch(sink=sink, query="q", run="r", batch=number)


def entry(kind: JournalKind, what: SinkBatch) -> JournalEntry:
    return JournalEntry(kind=kind.value, batch=what)


def run(bed: Bed, test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)
    bed.store.close()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.BUSY, ResponseCode.SYSTEM_BUSY),
        (PutStatus.NOT_WRITABLE, ResponseCode.SERVICE_NOT_AVAILABLE),
        (PutStatus.MESSAGE_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_what_clients_ask_for_is_refused_as_a_send_is(
    tmp_path: Path, status: PutStatus, code: ResponseCode
) -> None:
    bed = Bed(tmp_path)

    async def test() -> None:
        bed.writer.refused = status
        with pytest.raises(BrokerError) as refused:
            await bed.journal.record(entry(JournalKind.DECIDED, batch()))
        assert (refused.value.code, refused.value.remark) == (code, "why")
        with pytest.raises(StoreError):
            await bed.journal.write(published(batch(), 0))
        assert bed.table.find("s") is None

    run(bed, test())


def test_what_is_said_again_undoes_nothing_that_was_written_meanwhile(tmp_path: Path) -> None:
    bed = Bed(tmp_path)

    async def test() -> None:
        for name in ("forgotten", "goes on", "rests"):
            await bed.publish(batch(name, 1))
        bed.clock.now_ms += 40 * HOUR_MS
        bed.writer.is_held = True
        # Who has a sink's lock has just decided something, and it is not in the log yet.
        async with bed.journal.lock("forgotten"), bed.journal.lock("goes on"):
            writing = [
                asyncio.create_task(bed.journal.record(one))
                for one in (
                    entry(JournalKind.FORGOTTEN, batch("forgotten", 1)),
                    entry(JournalKind.DECIDED, batch("goes on", 2)),
                )
            ]
            again = asyncio.create_task(bed.journal.say_again())
            await asyncio.sleep(0.01)
            bed.writer.is_held = False
            bed.writer.let_go()
            await asyncio.gather(*writing)
        assert await again == 1
        assert bed.table.find("forgotten") is None
        found = bed.table.find("goes on")
        assert found is not None and found.row.last.batch == 2

    run(bed, test())
    other = Bed(tmp_path)
    other.journal.load()
    assert [(row.last.sink, row.last.batch) for row in other.table.page("", 10)] == [
        ("goes on", 2),
        ("rests", 1),
    ]
    other.store.close()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"version": 3}, "version 3 and kind 'decided'.*expected version 1 or 2"),
        (
            {"kind": "moved"},
            "version 1 and kind 'moved'.*expected one of the kinds runs, decided, ",
        ),
        ({"batch": {"sink": "s"}}, "'batch' is missing"),
    ],
)
def test_an_entry_of_a_later_pymq_stops_the_start(
    tmp_path: Path, body: dict[str, Any], reason: str
) -> None:
    bed = Bed(tmp_path)
    known = entry(JournalKind.DECIDED, batch()).to_json()
    put_entry(bed, fastjson.dump(known | body))
    with pytest.raises(StoreError, match=f"entry 0 of the journal of sinks.*{reason}"):
        bed.journal.load()
    bed.store.close()


def test_what_is_not_of_pymq_is_left_out_of_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(tmp_path)
    for body in (b"by hand", b"[]", b'{"kind":"kept"}'):
        put_entry(bed, body)
    put_entry(bed, entry(JournalKind.KEPT, batch(number=7)).encode())
    bed.journal.load()
    assert [row.last.batch for row in bed.table.page("", 10)] == [7]
    assert caplog.text.count("left out of the journal of sinks: entry") == 3
    bed.store.close()


def test_a_decision_of_several_records_counts_with_the_last(tmp_path: Path) -> None:
    """Whichever the broker dies after; the next one is made of other runs."""
    whole = replace(entry(JournalKind.DECIDED, batch(number=1)), runs=runs(100))
    parts = whole.split(1000)
    assert len(parts) > 4
    for count in range(len(parts) + 1):
        bed = Bed(tmp_path / str(count), message_bytes_max=1000)
        texts = []
        bed.journal.write_now(entry(JournalKind.DECIDED, batch(number=0)))
        for part in parts[:count]:
            bed.journal.write_now(part)
            texts.append(bed.table.to_text())
        bed.store.close()
        for text in (None, *texts):
            table = SinkTable()
            if text is not None:
                table.restore(fastjson.parse(text))
            again = Bed(tmp_path / str(count), table, message_bytes_max=1000)
            again.journal.load()
            check_decision(again, runs(100) if count == len(parts) else None)
            again.store.close()

    async def test() -> None:
        other = replace(entry(JournalKind.DECIDED, batch(number=1)), runs=runs(70))
        end = await again.journal.record(other)
        check_decision(again, runs(70))
        assert again.table.pending()[0].decision_end == end
        await again.journal.write(published(batch(number=1), 0))
        assert await again.journal.record(entry(JournalKind.DECIDED, batch(number=2))) > end

    # What is left of one that was not finished is no part of the next.
    again = Bed(tmp_path / "2", message_bytes_max=1000)
    again.journal.load()
    run(again, test())
    again = Bed(tmp_path / "2")
    again.journal.load()
    assert [row.last.batch for row in again.table.page("", 10)] == [2]
    again.store.close()


def test_a_decision_of_which_the_log_has_lost_a_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(tmp_path, message_bytes_max=1000)
    known = runs(100)
    what = replace(batch(number=1), row_count=known.row_count)
    parts = replace(entry(JournalKind.DECIDED, what), runs=known).split(1000)
    for part in parts[1:]:
        put_entry(bed, part.encode())
    bed.journal.load()
    check_decision(bed, parts[-1].runs)
    lost = known.row_count - parts[-1].runs.row_count
    assert f"batch 1 of sink s: {lost} of its {known.row_count} messages are lost" in caplog.text
    bed.store.close()


def runs(count: int) -> StagedRuns:
    return StagedRuns.of(
        StagedRun(topic="T", queue_id=0, physical_offset=number, size_bytes=9, count=2, part=count)
        for number in range(count)
    )


def check_decision(bed: Bed, expected: StagedRuns | None) -> None:
    (sink,) = bed.table.pending()
    assert sink.pending is not None
    if expected is None:
        assert sink.row.last.batch == 0
    else:
        assert sink.row.last.batch == 1 and list(sink.pending.runs) == list(expected)


def test_a_log_that_ends_before_what_the_file_knows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the log says counts. What was decided after its end was not; what was before stays."""
    known, now_ms = SinkTable(), FakeClock().now_ms
    for at, kind, what in (
        (1, JournalKind.DECIDED, batch("kept", 7)),
        (2, JournalKind.PUBLISHED, batch("kept", 7)),
        (5, JournalKind.KEPT, batch("kept", 7)),
        (6, JournalKind.KEPT, batch("long ago", 6)),
        (7, JournalKind.DECIDED, batch("lost", 5)),
        (8, JournalKind.PUBLISHED, batch("lost", 5)),
        (9, JournalKind.DECIDED, batch("pending", 0)),
        (10, JournalKind.DECIDED, batch("set back", 8)),
    ):
        known.take(entry(kind, what), (at, now_ms), 900)
    table = SinkTable()
    table.restore(fastjson.parse(known.to_text()))
    bed = Bed(tmp_path, table)
    for kind, what in (
        (JournalKind.FORGOTTEN, batch("nobody")),
        (JournalKind.FORGOTTEN, batch("nobody")),
        (JournalKind.DECIDED, batch("set back", 3)),
        (JournalKind.KEPT, batch("set back", 4)),
    ):
        put_entry(bed, entry(kind, what).encode())
    bed.journal.load()
    found = [(row.last.sink, row.last.batch) for row in table.page("", 10)]
    assert found == [("kept", 7), ("long ago", 6), ("set back", 4)]
    assert table.read_to == 4 and not table.pending()
    told = [record.getMessage() for record in caplog.records]
    assert "the log ends before what is known of sinks (journal 11, log 4)" in told[0]
    assert [text.split(":")[0] for text in told[1:]] == ["sink lost", "sink pending"]
    # It is said again at once.
    old = table.about_to_expire(before_ms=1, now_ms=FakeClock().now_ms)
    again = [sink.row.last.sink for sink in old]
    assert sorted(again) == ["kept", "long ago"]
    bed.store.close()


def test_a_decision_that_the_log_has_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = SinkTable()
    known.take(entry(JournalKind.DECIDED, batch(number=7)), (0, FakeClock().now_ms), 900)
    table = SinkTable()
    table.restore(fastjson.parse(known.to_text()))
    bed = Bed(tmp_path, table)
    put_entry(bed, entry(JournalKind.FORGOTTEN, batch("nobody")).encode())
    bed.journal.load()
    assert "sink s: the log has lost what batch 7 is, which was decided" in caplog.text
    (row,) = table.page("", 10)
    assert row.is_published and not table.pending()
    bed.store.close()


def test_how_long_the_log_is_kept_may_change(tmp_path: Path) -> None:
    bed = Bed(tmp_path)

    async def test() -> None:
        await bed.publish(batch(number=1))
        bed.clock.now_ms += 20 * HOUR_MS
        assert await bed.journal.say_again() == 0
        changes = {"fileReservedTime": "24"}
        take_over(bed.config, with_changes(bed.config, changes, source="a test"))
        assert await bed.journal.say_again() == 1
        assert await bed.journal.say_again() == 0

    run(bed, test())


def put_entry(bed: Bed, body: bytes) -> None:
    bed.journal.put_now(NewRecord(SINK_TOPIC, 0, body, b"", HOST, bed.clock.now_ms))


def test_a_clock_that_was_ahead_makes_nothing_young_for_a_year(tmp_path: Path) -> None:
    """Store times never fall; how old an entry is tells the clock."""
    bed = Bed(tmp_path)

    async def test() -> None:
        bed.clock.now_ms += 365 * 24 * HOUR_MS
        await bed.publish(batch("ahead"))
        bed.clock.now_ms -= 365 * 24 * HOUR_MS
        await bed.publish(batch("later"))
        table = SinkTable()
        again = SinkJournal(
            bed.store,
            bed.writer,
            table,
            bed.clock,
            lambda end, done: done(None),
            config=bed.config,
            host=HOST,
        )
        again.load()
        assert await bed.journal.say_again() == 1, "what was said at the wrong time"
        assert await bed.journal.say_again() == 0, "once"
        bed.clock.now_ms += 37 * HOUR_MS
        before_ms = bed.clock.now_ms - 36 * HOUR_MS
        old = table.about_to_expire(before_ms=before_ms, now_ms=bed.clock.now_ms)
        found = [sink.row.last.sink for sink in old]
        assert sorted(found) == ["ahead", "later"], "after a start: from then on"
        assert await bed.journal.say_again() == 2
        assert await bed.journal.say_again() == 0

    run(bed, test())
