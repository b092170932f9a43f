"""The table of sinks: who may publish, what it forgets, what it saves and has said again."""

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from pymq.broker.sinks.journal import kept, published
from pymq.broker.state import sinks
from pymq.broker.state.sink_runs import RUNS_MAX
from pymq.broker.state.sinks import JOB_KEPT_MS, SinkTable
from pymq.errors import BrokerError, RemoteProtocolError
from pymq.protocol import fastjson
from pymq.protocol.codes import ResponseCode, SinkCode
from pymq.protocol.sink_bodies import NO_RUN, SinkBatch, SinkRow
from pymq.protocol.sink_decisions import JournalEntry, JournalKind, SavedSink, SinkRun

NOW_MS = 1_700_000_000_000


def batch(sink: str = "s", number: int = 0, run: str = "r", planned_ms: int = 0) -> SinkBatch:
    return SinkBatch(sink=sink, query="q", run=run, batch=number, planned_ms=planned_ms)


def entry(kind: JournalKind, what: SinkBatch, **more: Any) -> JournalEntry:
    return JournalEntry(kind=kind.value, batch=what, **more)


def rows(table: SinkTable) -> list[SinkRow]:
    return table.page("", 100)


def reopened(table: SinkTable) -> SinkTable:
    """Return what a start restores."""
    copy = SinkTable()
    copy.restore(fastjson.parse(table.to_text()))
    return copy


def is_fenced(table: SinkTable, what: SinkBatch) -> bool:
    try:
        table.admit(what)
    except BrokerError as error:
        assert error.code == SinkCode.FENCED
        return True
    return False


@pytest.mark.parametrize("name", ["s", "nightly report", "it's $HOME; all", "#1"])
def test_the_cure_of_a_refusal_can_be_run(name: str) -> None:
    """A shell takes the name for one argument, whatever is in it."""
    table = SinkTable()
    publish(table, batch(name, 5))
    for refused in (batch(name, 4), replace(batch(name, 6), query="another")):
        with pytest.raises(BrokerError) as caught:
            table.admit(refused)
        command = re.search(r"begin again \((.*)\)", str(caught.value))
        assert command is not None
        assert shlex.split(command[1]) == ["pymq", "sink", "forget", name]


def publish(table: SinkTable, what: SinkBatch, *, is_lasting: bool = True, at: int = 0) -> None:
    table.take(entry(JournalKind.DECIDED, what, is_lasting=is_lasting), (at, NOW_MS), 1000)
    table.take(entry(JournalKind.PUBLISHED, what), (at + 1, NOW_MS), 2000)


@pytest.mark.parametrize("asked_ms", [0, 3 * JOB_KEPT_MS])
def test_jobs_are_forgotten_when_nobody_repeats_them(asked_ms: int) -> None:
    kept_ms = max(asked_ms, JOB_KEPT_MS)
    table = SinkTable()
    job = entry(JournalKind.DECIDED, batch("job"), is_lasting=False, kept_ms=asked_ms)
    table.take(job, (0, NOW_MS), 1000)
    publish(table, batch("query"), at=1)
    published_ms = NOW_MS + 10 * kept_ms  # It took long.
    table.take(entry(JournalKind.PUBLISHED, batch("job")), (3, published_ms), 2000)
    assert table.forget_old(published_ms + kept_ms) == 0
    assert table.forget_old(published_ms + kept_ms + 1) == 1
    assert [row.last.sink for row in rows(table)] == ["query"]


def test_jobs_that_may_not_be_forgotten_yet_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "JOBS_MAX", 2)
    table = SinkTable()
    for number in range(3):
        table.make_room(NOW_MS)
        publish(table, batch(f"{number}"), at=2 * number, is_lasting=number == 0)
    with pytest.raises(BrokerError, match="JOBS_MAX") as refused:
        table.make_room(NOW_MS + JOB_KEPT_MS)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY  # which is repeated
    table.make_room(NOW_MS + JOB_KEPT_MS + 1)
    assert [row.last.sink for row in rows(table)] == ["0"]


def test_what_is_decided_and_not_copied_is_not_forgotten() -> None:
    table = SinkTable()
    table.take(entry(JournalKind.DECIDED, batch(), is_lasting=False), (0, NOW_MS), 1000)
    assert table.forget_old(NOW_MS + 2 * JOB_KEPT_MS) == 0
    assert [sink.decision_end for sink in table.pending()] == [1000]


def test_what_the_journal_would_forget_is_said_again_once() -> None:
    table = SinkTable()
    publish(table, batch("a"))
    publish(table, batch("b"), at=2)
    now_ms = NOW_MS + 20
    assert table.about_to_expire(before_ms=NOW_MS, now_ms=now_ms) == []
    old = table.about_to_expire(before_ms=NOW_MS + 1, now_ms=now_ms)
    assert [sink.row.last.sink for sink in old] == ["a", "b"]
    decided_ms = old[0].row.decided_ms
    table.take(entry(JournalKind.KEPT, batch("a")), (4, NOW_MS + 10), 3000)
    (other,) = table.about_to_expire(before_ms=NOW_MS + 1, now_ms=now_ms)
    assert other.row.last.sink == "b"
    assert rows(table)[0].decided_ms == decided_ms


def test_rows_that_are_lost_are_told_until_the_next_batch() -> None:
    table = SinkTable()
    table.take(entry(JournalKind.DECIDED, batch()), (0, NOW_MS), 1000)
    table.take(published(batch(), lost_count=3), (1, NOW_MS), 2000)
    copy = reopened(table)
    (sink,) = copy.about_to_expire(before_ms=NOW_MS + 1, now_ms=NOW_MS + 1)
    again = SinkTable()
    again.take(kept(sink), (2, NOW_MS), 3000)
    for one in (table, copy, again):
        assert [row.lost_count for row in rows(one)] == [3]
        publish(one, batch(number=1), at=4)
        assert [row.lost_count for row in rows(one)] == [0]


def test_the_file_and_what_is_read_with_it_are_all_there_is() -> None:
    journal: list[JournalEntry] = []

    def add(table: SinkTable, kind: JournalKind, what: SinkBatch, **more: Any) -> None:
        journal.append(entry(kind, what, **more))
        table.take(journal[-1], (len(journal) - 1, NOW_MS), 1000 * len(journal))

    table = SinkTable()
    for read_from, kind, what, is_lasting in (
        (0, JournalKind.DECIDED, batch("a", 7), True),
        (2, JournalKind.PUBLISHED, batch("a", 7), True),
        (2, JournalKind.DECIDED, batch("b", 3), True),
        (2, JournalKind.DECIDED, batch("job"), False),
        (3, JournalKind.PUBLISHED, batch("b", 3), True),
        (3, JournalKind.PUBLISHED, batch("job"), False),
        (3, JournalKind.RUNS, batch("a", 8), True),
    ):
        add(table, kind, what, is_lasting=is_lasting)
        copy = reopened(table)
        assert (copy.read_from, copy.read_to) == (read_from, len(journal))
        for at in range(read_from, len(journal)):
            copy.take(journal[at], (at, NOW_MS), 1000 * (at + 1))
        assert copy.settle(len(journal)) == ([], [])
        assert rows(copy) == rows(table) and copy.read_to == len(journal)
        assert [one.decision_end for one in copy.pending()] == [
            one.decision_end for one in table.pending()
        ]
        assert '"job"' not in table.to_text()
    table.forget_old(NOW_MS + JOB_KEPT_MS + 1)
    assert reopened(table).read_from == 6


def test_what_has_not_changed_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the event loop, with 50,000 sinks."""
    table = SinkTable()
    for number in range(100):
        publish(table, batch(f"{number}"), at=2 * number)
    table.to_text()
    encoded: list[str] = []
    to_json = SavedSink.to_json
    monkeypatch.setattr(
        SavedSink, "to_json", lambda one: (encoded.append(one.row.last.sink), to_json(one))[1]
    )
    for table_now in (table, reopened(table)):
        encoded.clear()
        table_now.admit(batch("3", 1, run="newer"))
        publish(table_now, batch("7", 1), at=300)
        table_now.take(entry(JournalKind.KEPT, batch("9")), (302, NOW_MS), 3000)
        table_now.to_text()
        assert sorted(encoded) == ["3", "7", "9"]
        assert rows(reopened(table_now)) == rows(table_now)


def test_a_file_of_a_later_pymq() -> None:
    text = SinkTable().to_text().replace('"version":1', '"version":2')
    with pytest.raises(RemoteProtocolError, match="version 2, expected 1"):
        SinkTable().restore(fastjson.parse(text))


def test_pages() -> None:
    table = SinkTable()
    for number in (3, 1, 2, 0):
        publish(table, batch(f"{number}"))
    pages = [table.page(after, 3) for after in ("", "2", "3")]
    assert [[row.last.sink for row in page] for page in pages] == [["0", "1", "2"], ["3"], []]


def test_a_sink_that_only_the_journal_knows() -> None:
    """Its decision has expired: what was said again is all there is."""
    table = SinkTable()
    table.take(entry(JournalKind.KEPT, batch(number=9)), (0, NOW_MS), 1000)
    assert not table.admit(batch(number=9)) and table.admit(batch(number=10))
    assert rows(table)[0].is_published and not table.pending()


def test_who_is_refused_fences_nobody() -> None:
    table = SinkTable()
    publish(table, batch(number=5))
    another = SinkBatch(sink="s", query="another", run="its own", batch=6)
    for refused in (another, batch(number=4, run="set back")):
        with pytest.raises(BrokerError):
            table.admit(refused)
    assert table.admit(batch(number=6))
    assert table.admit(batch(number=6, run="newer"))
    with pytest.raises(BrokerError, match="began after this one"):
        table.admit(batch(number=6))


# -------------------------------------------------------------------------------------- runs


def test_what_is_left_of_an_older_run_fences_nobody() -> None:
    """Not by what it asks first after the newer one, and not by repeating the last batch."""
    table = SinkTable()
    publish(table, batch(number=5, run="old", planned_ms=10))
    assert table.admit(batch(number=6, run="new", planned_ms=20))
    for older in (
        batch(number=6, run="old", planned_ms=30),  # is as old as when it was heard of first
        batch(number=5, run="old", planned_ms=10),
        batch(number=6, run="never heard of", planned_ms=19),
    ):
        assert is_fenced(table, older)
        assert table.admit(batch(number=6, run="new", planned_ms=20))
    assert table.admit(batch(number=6, run="newest", planned_ms=20))
    assert is_fenced(table, batch(number=6, run="new", planned_ms=40))


@pytest.mark.parametrize("published", [False, True])
def test_writers_of_no_run_fence_nobody_and_are_not_fenced(published: bool) -> None:
    table = SinkTable()
    if published:
        publish(table, batch(number=5, run="old", planned_ms=10))
    assert table.admit(batch(number=6, run=NO_RUN, planned_ms=30))
    assert not table.has_unrecorded_run("s")
    for run, planned_ms in (("old", 10), ("new", 20), (NO_RUN, 1)):
        assert table.admit(batch(number=6, run=run, planned_ms=planned_ms))
    publish(table, batch(number=6, run=NO_RUN, planned_ms=40))
    assert is_fenced(table, batch(number=7, run="old", planned_ms=10))
    assert table.admit(batch(number=7, run="new", planned_ms=20))


def test_an_older_run_of_a_sink_that_has_published_nothing() -> None:
    table = SinkTable()
    assert table.admit(batch(run="new", planned_ms=20))
    assert is_fenced(table, batch(run="old", planned_ms=10))
    publish(table, batch(run="new", planned_ms=20))
    assert is_fenced(table, batch(number=1, run="old", planned_ms=10))


def test_runs_are_fenced_after_a_start() -> None:
    """Whether the newer one is in the file, in the journal, or was said again."""
    table = SinkTable()
    publish(table, batch(number=5, run="old", planned_ms=10))
    new = batch(number=6, run="new", planned_ms=20)
    assert not table.has_unrecorded_run("s")
    table.admit(new)
    assert table.has_unrecorded_run("s")
    of_file = reopened(table)
    table.take(entry(JournalKind.BEGUN, new), (2, NOW_MS), 3000)
    assert not table.has_unrecorded_run("s") and not table.has_unrecorded_run("nobody")
    of_journal, of_kept = SinkTable(), SinkTable()
    publish(of_journal, batch(number=5, run="old", planned_ms=10))
    of_journal.take(entry(JournalKind.BEGUN, new), (2, NOW_MS), 3000)
    known = [SinkRun(run="old", planned_ms=10), SinkRun(run="new", planned_ms=20)]
    again = entry(JournalKind.KEPT, batch(number=5, run="old", planned_ms=10), known=known)
    of_kept.take(again, (0, NOW_MS), 1000)
    for one in (of_file, of_journal, of_kept):
        assert is_fenced(one, batch(number=6, run="old", planned_ms=30))
        assert one.admit(new) and not one.has_unrecorded_run("s")


def test_runs_that_are_remembered_are_limited() -> None:
    """However many one sink has, as one that is written by jobs with its name."""
    table = SinkTable()
    for number in range(RUNS_MAX + 100):
        publish(table, batch(number=number, run=f"job {number}", planned_ms=number))
    sink = table.find("s")
    assert sink is not None and len(sink.runs.all()) == RUNS_MAX
    assert is_fenced(table, batch(number=200, run=f"job {RUNS_MAX + 98}"))
    assert is_fenced(table, batch(number=200, run="job 0"))


def test_a_sink_that_is_forgotten_has_no_runs() -> None:
    table = SinkTable()
    publish(table, batch(run="new", planned_ms=20))
    table.take(entry(JournalKind.FORGOTTEN, batch()), (2, NOW_MS), 3000)
    assert table.admit(batch(run="old", planned_ms=10))
