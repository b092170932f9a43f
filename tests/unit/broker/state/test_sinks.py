"""The table of sinks: what it forgets, and what it has said again."""

import pytest

from pymq.broker.sinks.journal import kept, published
from pymq.broker.state.sinks import FORGET_AFTER_MS, SinkTable
from pymq.errors import BrokerError
from pymq.protocol import fastjson
from pymq.protocol.sink_bodies import SinkBatch
from pymq.protocol.sink_decisions import JournalEntry, JournalKind

NOW_MS = 1_700_000_000_000


def batch(sink: str = "s", number: int = 0, run: str = "r") -> SinkBatch:
    return SinkBatch(sink=sink, query="q", run=run, batch=number)


def entry(kind: JournalKind, what: SinkBatch, *, is_lasting: bool = True) -> JournalEntry:
    return JournalEntry(kind=kind.value, batch=what, is_lasting=is_lasting)


def publish(table: SinkTable, what: SinkBatch, *, is_lasting: bool = True, at: int = 0) -> None:
    table.take(entry(JournalKind.DECIDED, what, is_lasting=is_lasting), (at, NOW_MS), 1000)
    table.take(entry(JournalKind.PUBLISHED, what), (at + 1, NOW_MS), 2000)


def test_sinks_that_are_not_to_last_are_forgotten_after_a_day() -> None:
    table = SinkTable()
    publish(table, batch("job"), is_lasting=False)
    publish(table, batch("query"))
    assert table.forget_old(NOW_MS + FORGET_AFTER_MS) == 0
    assert table.forget_old(NOW_MS + FORGET_AFTER_MS + 1) == 1
    assert [row.last.sink for row in table.rows()] == ["query"]


def test_what_is_decided_and_not_copied_is_not_forgotten() -> None:
    table = SinkTable()
    table.take(entry(JournalKind.DECIDED, batch(), is_lasting=False), (0, NOW_MS), 1000)
    assert table.forget_old(NOW_MS + 2 * FORGET_AFTER_MS) == 0
    assert [sink.decision_end for sink in table.pending()] == [1000]


def test_what_the_journal_would_forget_is_said_again_once() -> None:
    table = SinkTable()
    publish(table, batch("a"))
    publish(table, batch("b"), at=2)
    assert table.about_to_expire(NOW_MS) == []
    old = table.about_to_expire(NOW_MS + 1)
    assert [sink.row.last.sink for sink in old] == ["a", "b"]
    decided_ms = old[0].row.decided_ms
    table.take(entry(JournalKind.KEPT, batch("a")), (4, NOW_MS + 10), 3000)
    (other,) = table.about_to_expire(NOW_MS + 1)
    assert other.row.last.sink == "b"
    assert table.rows()[0].decided_ms == decided_ms


def test_rows_that_are_lost_are_told_until_the_next_batch() -> None:
    table = SinkTable()
    table.take(entry(JournalKind.DECIDED, batch()), (0, NOW_MS), 1000)
    table.take(published(batch(), lost_count=3), (1, NOW_MS), 2000)
    copy = SinkTable()
    copy.restore(fastjson.parse(table.to_text()))
    (sink,) = copy.about_to_expire(NOW_MS + 1)
    again = SinkTable()
    again.take(kept(sink), (2, NOW_MS), 3000)
    for one in (table, copy, again):
        assert [row.lost_count for row in one.rows()] == [3]
        publish(one, batch(number=1), at=4)
        assert [row.lost_count for row in one.rows()] == [0]


def test_the_file_has_all_of_it() -> None:
    table = SinkTable()
    publish(table, batch("a", 7))
    table.take(entry(JournalKind.DECIDED, batch("b", 3)), (2, NOW_MS), 5000)
    copy = SinkTable()
    copy.restore(fastjson.parse(table.to_text()))
    assert copy.rows() == table.rows() and copy.read_to == 3
    assert [(sink.row.last.sink, sink.decision_end) for sink in copy.pending()] == [("b", 5000)]
    assert not copy.admit(batch("a", 7)) and copy.admit(batch("a", 8))


def test_a_sink_that_only_the_journal_knows() -> None:
    """Its decision has expired: what was said again is all there is."""
    table = SinkTable()
    table.take(entry(JournalKind.KEPT, batch(number=9)), (0, NOW_MS), 1000)
    assert not table.admit(batch(number=9)) and table.admit(batch(number=10))
    assert table.rows()[0].is_published and not table.pending()


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
