"""Exactly-once sinks: which batch each has published last, and who may publish the next one.

A writer repeats a batch when it does not know what became of it, and only the last one. So the
number of the last batch is all that has to be remembered:

========================  =========================================================================
batch                     what is done
========================  =========================================================================
above the last one        it is published
the last one              nothing: it was published already
below the last one        refused: the writer was set back behind what it has published, and what
                          lies between would be missing, or be there twice
========================  =========================================================================
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass

from pymq.errors import refusal
from pymq.protocol import fastjson
from pymq.protocol.codes import SinkCode
from pymq.protocol.sink_bodies import SinkBatch, SinkRow
from pymq.protocol.sink_decisions import (
    JournalEntry,
    JournalKind,
    SavedSink,
    SavedSinks,
    StagedRuns,
)

_log = logging.getLogger(__name__)

#: Runs that are remembered of one sink, and sinks of which some are.
_RUNS_MAX, _SINKS_MAX = 8, 10_000
#: How long a sink that is not to last is remembered: longer than anybody repeats a request.
FORGET_AFTER_MS = 24 * 3_600_000


@dataclass(slots=True)
class Sink:
    """A sink that has published something.

    Attributes:
        row: what.
        pending: the decision about its last batch, until all of that is copied.
        decision_end: physical offset behind the record of that.
        place: queue offset of its last record in the journal, and when that was stored, ms.
    """

    row: SinkRow
    pending: JournalEntry | None = None
    decision_end: int = 0
    place: tuple[int, int] = (-1, 0)


class SinkTable:
    """The sinks of a broker.

    Attributes:
        is_changed: whether the table is to be saved.
        read_to: offset of the journal up to which the table has what it says.
        read_from: where a start has to begin to read it, because the table's file has not all.
    """

    def __init__(self) -> None:
        self._sinks: dict[str, Sink] = {}
        #: Of sinks of which a decision is being written, that takes several records: the first of
        #: these and what there is.
        self._unfinished: dict[str, tuple[int, list[StagedRuns]]] = {}
        #: The runs that were seen of each sink, the latest last. Not saved, but for the one that
        #: published last.
        self._runs: OrderedDict[str, list[str]] = OrderedDict()
        self.is_changed = False
        self.read_to = self.read_from = 0

    def find(self, name: str) -> Sink | None:
        """Return a sink; None if it has published nothing."""
        return self._sinks.get(name)

    def rows(self) -> list[SinkRow]:
        """Return what all sinks have published, by name."""
        return [self._sinks[name].row for name in sorted(self._sinks)]

    def pending(self) -> list[Sink]:
        """Return the sinks whose last batch is decided, and not all copied."""
        return [sink for sink in self._sinks.values() if sink.pending is not None]

    def clear(self) -> None:
        """Forget everything."""
        self._sinks.clear()
        self._runs.clear()
        self._unfinished.clear()
        self.read_to = self.read_from = 0
        self.is_changed = True

    # --- who may publish

    def admit(self, batch: SinkBatch) -> bool:
        """Return whether a batch is new; False: it was published already, or will be.

        Raises:
            BrokerError: the sink must not publish it.
        """
        sink = self._sinks.get(batch.sink)
        if sink is not None:
            _check_batch(batch, sink.row.last)
        # Last: who is refused fences nobody.
        self._check_run(batch)
        return sink is None or batch.batch > sink.row.last.batch

    def _check_run(self, batch: SinkBatch) -> None:
        """Note a run, and refuse one that is not the latest of its sink."""
        runs = self._runs.setdefault(batch.sink, [])
        self._runs.move_to_end(batch.sink)
        if batch.run not in runs:
            runs.append(batch.run)
            del runs[:-_RUNS_MAX]
            if len(self._runs) > _SINKS_MAX:
                self._runs.popitem(last=False)
        elif runs[-1] != batch.run:
            raise refusal(
                SinkCode.FENCED,
                f"sink {batch.sink}: run {runs[-1]} of the query began after this one, "
                f"{batch.run}, which may not write any more. Was the query started twice, with "
                "copies of one checkpoint? Give each a checkpoint, and a sink, of its own",
            )

    # --- what was written to the journal

    def take(self, entry: JournalEntry, place: tuple[int, int], physical_end: int) -> None:
        """Take over what a record of the journal says.

        Args:
            entry: the record.
            place: its queue offset, and when it was stored, ms.
            physical_end: physical offset behind it.
        """
        self.is_changed = True
        self.read_to = place[0] + 1
        name = entry.batch.sink
        if entry.kind == JournalKind.FORGOTTEN:
            self._sinks.pop(name, None)
            self._runs.pop(name, None)
            return
        sink = self._sinks.get(name)
        if entry.kind == JournalKind.PUBLISHED:
            if sink is not None and sink.row.last.batch == entry.batch.batch:
                sink.pending, sink.row.is_published, sink.place = None, True, place
                sink.row.lost_count = entry.lost_count
            return
        if entry.kind == JournalKind.RUNS:
            self._gather(entry, place[0])
            return
        is_decided = entry.kind == JournalKind.DECIDED
        row = SinkRow(
            last=entry.batch,
            decided_ms=place[1] if is_decided or sink is None else sink.row.decided_ms,
            is_published=not is_decided,
            is_lasting=entry.is_lasting,
            lost_count=entry.lost_count,
        )
        if is_decided:
            entry.runs = self._gathered(entry)
            self._sinks[name] = Sink(row, entry, physical_end, place)
            runs = self._runs.setdefault(name, [])
            if entry.batch.run not in runs:
                runs.append(entry.batch.run)
        elif sink is None:
            self._sinks[name] = Sink(row, place=place)
        else:
            sink.place = place

    def _gather(self, entry: JournalEntry, offset: int) -> None:
        """Keep runs of a decision that is not there yet, and may never be."""
        name = entry.batch.sink
        first, runs = self._unfinished.pop(name, (offset, []))
        if entry.part == 0:
            first, runs = offset, []
        if entry.part == len(runs):  # or else the log has lost what was before
            self._unfinished[name] = first, [*runs, entry.runs]

    def _gathered(self, entry: JournalEntry) -> StagedRuns:
        """Return all runs of a decision."""
        batch = entry.batch
        _, runs = self._unfinished.pop(batch.sink, (0, []))
        whole = StagedRuns.joined([*runs, entry.runs]) if entry.part == len(runs) else entry.runs
        if entry.part and whole.row_count < batch.row_count:
            _log.error(
                "batch %d of sink %s: %d of its %d messages are lost: the log has not all of the "
                "decision any more",
                batch.batch,
                batch.sink,
                batch.row_count - whole.row_count,
                batch.row_count,
            )
        return whole

    def forget_old(self, now_ms: int) -> int:
        """Forget the sinks that are not to last, after a while; return how many."""
        old = [
            name
            for name, sink in self._sinks.items()
            if not sink.row.is_lasting
            and sink.pending is None
            and now_ms - sink.row.decided_ms > FORGET_AFTER_MS
        ]
        for name in old:
            del self._sinks[name]
            self._runs.pop(name, None)
            self.is_changed = True
        return len(old)

    def about_to_expire(self, before_ms: int) -> list[Sink]:
        """Return the sinks to last whose record in the journal is older than that."""
        return [
            sink
            for sink in self._sinks.values()
            if sink.row.is_lasting and sink.pending is None and sink.place[1] < before_ms
        ]

    # --- as a file

    def to_text(self) -> str:
        """Return the text of ``sinks.json``."""
        saved = [
            SavedSink(
                row=sink.row,
                pending=sink.pending,
                decision_end=sink.decision_end,
                journal_offset=sink.place[0],
                stored_ms=sink.place[1],
            )
            for sink in self._sinks.values()
        ]
        unfinished = [first for first, _ in self._unfinished.values()]
        read_from = min([self.read_to, *unfinished])
        return fastjson.dump_pretty(
            SavedSinks(read_to=self.read_to, read_from=read_from, sinks=saved).to_json()
        )

    def restore(self, value: object) -> None:
        """Take over the contents of ``sinks.json``."""
        saved = SavedSinks.from_json(value)
        self.read_to, self.read_from = saved.read_to, saved.read_from
        for one in saved.sinks:
            name, run = one.row.last.sink, one.row.last.run
            place = one.journal_offset, one.stored_ms
            self._sinks[name] = Sink(one.row, one.pending, one.decision_end, place)
            self._runs[name] = [run]


def _check_batch(batch: SinkBatch, last: SinkBatch) -> None:
    """Refuse a batch that must not come after the last one."""
    if batch.query != last.query:
        raise refusal(
            SinkCode.OTHER_QUERY,
            f"sink {batch.sink}: query {last.query} has published up to batch {last.batch} "
            f"there, and this is query {batch.query}, batch {batch.batch}. A new query needs a "
            f"sink of its own, or let this one begin again (pymq sink forget {batch.sink})",
        )
    if batch.batch < last.batch:
        raise refusal(
            SinkCode.BATCH_TOO_OLD,
            f"sink {batch.sink}: batch {batch.batch} comes after batch {last.batch} was "
            "published. The query was set back behind what it has published: what lies between "
            "would be missing, or be there twice. Start it from where it was, or let the sink "
            f"begin again (pymq sink forget {batch.sink})",
        )
