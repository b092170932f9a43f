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

*Jobs* are sinks that are not to last: they publish one batch, and are remembered as long as
somebody may repeat that.
"""

import logging
import shlex
from collections import OrderedDict
from dataclasses import dataclass, field

from pymq.broker.state.sink_runs import KnownRuns
from pymq.errors import RemoteProtocolError, refusal
from pymq.protocol import fastjson
from pymq.protocol.codes import ResponseCode, SinkCode
from pymq.protocol.sink_bodies import SinkBatch, SinkRow
from pymq.protocol.sink_decisions import (
    JOURNAL_VERSION,
    JournalEntry,
    JournalKind,
    SavedSink,
    SavedSinks,
    SinkRun,
    StagedRuns,
)

_log = logging.getLogger(__name__)

#: Sinks that have published nothing, of which runs are remembered.
_STRANGERS_MAX = 10_000
#: How long a job is remembered at least after it was published, and how many are.
JOB_KEPT_MS, JOBS_MAX = 600_000, 10_000


@dataclass(slots=True)
class Sink:
    """A sink that has published something.

    Attributes:
        row: what.
        runs: of its query.
        recorded: the latest run of which the journal knows.
        pending: the decision about its last batch, until all of that is copied.
        decision_end: physical offset behind the record of that.
        decision_first: queue offset of the first record of that in the journal, which may be gone;
            -1: long ago.
        place: queue offset of its last record in the journal, and when that was stored, ms.
        kept_ms: of a job, how long it is remembered.
        text: how it is saved; None: as it is now, it was not saved yet.
    """

    row: SinkRow
    runs: KnownRuns = field(default_factory=KnownRuns)
    recorded: SinkRun | None = None
    pending: JournalEntry | None = None
    decision_end: int = 0
    decision_first: int = -1
    place: tuple[int, int] = (-1, 0)
    kept_ms: int = JOB_KEPT_MS
    text: str | None = None

    def note(self, run: SinkRun) -> None:
        """Take over that the journal has a run."""
        self.runs.note(run)
        if self.runs.latest is not None and self.runs.latest.run == run.run:
            self.recorded = self.runs.latest
        self.text = None

    def saved(self) -> str:
        """Return its JSON text for the table's file; the same as long as nothing changes."""
        if self.text is None:
            saved = SavedSink(
                row=self.row,
                runs=self.runs.all(),
                decision_offset=self.decision_first,
                journal_offset=self.place[0],
                stored_ms=self.place[1],
            )
            self.text = fastjson.dump(saved.to_json()).decode()
        return self.text


class SinkTable:
    """The sinks of a broker.

    Attributes:
        is_changed: whether the table is to be saved.
        read_to: offset of the journal up to which the table has what it says.
        read_from: where a start has to begin to read it, because the table's file has not all.
    """

    def __init__(self) -> None:
        self._sinks: dict[str, Sink] = {}
        self._jobs: set[str] = set()
        #: Of sinks of which a decision is being written, that takes several records: the first of
        #: these and what there is.
        self._unfinished: dict[str, tuple[int, list[StagedRuns]]] = {}
        #: The runs of sinks that have published nothing, in memory only.
        self._strangers: OrderedDict[str, KnownRuns] = OrderedDict()
        self.is_changed = False
        self.read_to = self.read_from = 0

    def find(self, name: str) -> Sink | None:
        """Return a sink; None if it has published nothing."""
        return self._sinks.get(name)

    def page(self, after: str, count: int) -> list[SinkRow]:
        """Return what sinks have published: by name, those after one."""
        names = sorted(name for name in self._sinks if name > after)
        return [self._sinks[name].row for name in names[:count]]

    def pending(self) -> list[Sink]:
        """Return the sinks whose last batch is decided, and not all copied."""
        return [sink for sink in self._sinks.values() if sink.pending is not None]

    # --- who may publish

    def admit(self, batch: SinkBatch) -> bool:
        """Return whether a batch is new; False: it was published already, or will be.

        Raises:
            BrokerError: the sink must not publish it.
        """
        sink = self._sinks.get(batch.sink)
        if sink is not None:
            _check_batch(batch, sink.row.last)
            runs = sink.runs
        else:
            runs = self._strangers.setdefault(batch.sink, KnownRuns())
            self._strangers.move_to_end(batch.sink)
            if len(self._strangers) > _STRANGERS_MAX:
                self._strangers.popitem(last=False)
        # Last: who is refused fences nobody.
        _check_run(batch, runs)
        if runs.note(_run(batch)) and sink is not None:
            sink.text, self.is_changed = None, True
        return sink is None or batch.batch > sink.row.last.batch

    def has_unrecorded_run(self, name: str) -> bool:
        """Say whether the journal does not know yet which run of a sink is the latest."""
        sink = self._sinks.get(name)
        return sink is not None and sink.recorded is not sink.runs.latest

    def make_room(self, now_ms: int) -> None:
        """Check that one more job can be remembered.

        Raises:
            BrokerError: there are too many.
        """
        if len(self._jobs) >= JOBS_MAX:
            self.forget_old(now_ms)
        if len(self._jobs) >= JOBS_MAX:
            raise refusal(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self._jobs)} batch writes have been published lately, and none of them may "
                f"be forgotten yet, expected fewer than {JOBS_MAX} (JOBS_MAX); ask again",
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
        self.read_to = max(self.read_to, place[0] + 1)
        name, kind = entry.batch.sink, JournalKind(entry.kind)
        if kind == JournalKind.RUNS:
            self._gather(entry, place[0])
        elif kind == JournalKind.DECIDED:
            self._decided(entry, place, physical_end)
        elif kind == JournalKind.FORGOTTEN:
            self._strangers.pop(name, None)
            self._forget(name)
        elif kind == JournalKind.KEPT:
            self._kept(entry, place)
        elif (sink := self._sinks.get(name)) is not None:
            sink.note(_run(entry.batch))
            if kind == JournalKind.PUBLISHED and sink.row.last.batch == entry.batch.batch:
                sink.pending, sink.row.is_published, sink.place = None, True, place
                sink.row.lost_count = entry.lost_count

    def _decided(self, entry: JournalEntry, place: tuple[int, int], physical_end: int) -> None:
        name = entry.batch.sink
        first, entry.runs = self._gathered(entry, place[0])
        before = self._sinks.get(name)
        runs = self._strangers.pop(name, KnownRuns()) if before is None else before.runs
        row = SinkRow(
            last=entry.batch,
            decided_ms=place[1],
            is_published=False,
            is_lasting=entry.is_lasting,
        )
        self._sinks[name] = sink = Sink(
            row,
            runs,
            None if before is None else before.recorded,
            pending=entry,
            decision_end=physical_end,
            decision_first=first,
            place=place,
            kept_ms=max(JOB_KEPT_MS, entry.kept_ms),
        )
        sink.note(_run(entry.batch))
        (self._jobs.discard if entry.is_lasting else self._jobs.add)(name)

    def _kept(self, entry: JournalEntry, place: tuple[int, int]) -> None:
        name = entry.batch.sink
        sink = self._sinks.get(name)
        if sink is None or sink.row.last.batch != entry.batch.batch:
            # What it repeats has expired; or the table's file knew more than the log has.
            row = SinkRow(
                last=entry.batch,
                decided_ms=entry.decided_ms or place[1],
                lost_count=entry.lost_count,
            )
            runs = KnownRuns() if sink is None else sink.runs
            self._sinks[name] = sink = Sink(row, runs)
            self._jobs.discard(name)
        for run in (*entry.known, _run(entry.batch)):
            sink.note(run)
        sink.place = place

    def _gather(self, entry: JournalEntry, offset: int) -> None:
        """Keep runs of a decision that is not there yet, and may never be."""
        name = entry.batch.sink
        first, runs = self._unfinished.pop(name, (offset, []))
        if entry.part == 0:
            first, runs = offset, []
        if entry.part == len(runs):  # or else the log has lost what was before
            self._unfinished[name] = first, [*runs, entry.runs]

    def _gathered(self, entry: JournalEntry, offset: int) -> tuple[int, StagedRuns]:
        """Return the first record of a decision, and all of its runs."""
        batch = entry.batch
        first, runs = self._unfinished.pop(batch.sink, (offset, []))
        if entry.part != len(runs):
            first, runs = offset, []
        whole = StagedRuns.joined([*runs, entry.runs])
        if entry.part and whole.row_count < batch.row_count:
            _log.error(
                "batch %d of sink %s: %d of its %d messages are lost: the log has not all of the "
                "decision any more",
                batch.batch,
                batch.sink,
                batch.row_count - whole.row_count,
                batch.row_count,
            )
        return (first if runs else offset), whole

    def _forget(self, name: str) -> None:
        self._sinks.pop(name, None)
        self._jobs.discard(name)
        self._unfinished.pop(name, None)
        self.is_changed = True

    def forget_old(self, now_ms: int) -> int:
        """Forget the jobs that nobody repeats any more; return how many."""
        old = [
            name
            for name in self._jobs
            if (sink := self._sinks[name]).pending is None
            # From when it was published: its writer may have waited for that.
            and now_ms - sink.place[1] > sink.kept_ms
        ]
        for name in old:
            self._forget(name)
        return len(old)

    def about_to_expire(self, *, before_ms: int, now_ms: int) -> list[Sink]:
        """Return the sinks to last whose record in the journal is older than ``before_ms``.

        So is one that was written later than now, by a clock that was ahead.
        """
        return [
            sink
            for sink in self._sinks.values()
            if sink.row.is_lasting
            and sink.pending is None
            and not before_ms <= sink.place[1] <= now_ms
        ]

    # --- as a file

    def to_text(self) -> str:
        """Return the text of ``sinks.json``: jobs and what is pending a start finds in the journal.

        What has not changed is not encoded again.
        """
        sinks = self._sinks.values()
        again = [
            sink.decision_first
            for sink in sinks
            if sink.pending is not None or not sink.row.is_lasting
        ]
        again += (first for first, _ in self._unfinished.values())
        read_from = min([self.read_to, *again])
        head = SavedSinks(read_to=self.read_to, read_from=read_from, sinks=[])
        lines = ",\n".join(sink.saved() for sink in sinks if sink.row.is_lasting)
        return fastjson.dump(head.to_json()).decode().replace("[]", f"[\n{lines}\n]")

    def restore(self, value: object) -> None:
        """Take over the contents of ``sinks.json``.

        Raises:
            RemoteProtocolError: it is not that, or of a later pymq.
        """
        saved = SavedSinks.from_json(value)
        if saved.version != JOURNAL_VERSION:
            raise RemoteProtocolError(
                f"sinks have version {saved.version}, expected {JOURNAL_VERSION}"
            )
        self.read_to, self.read_from = saved.read_to, saved.read_from
        for one in saved.sinks:
            runs = KnownRuns(one.runs)
            place = one.journal_offset, one.stored_ms
            sink = Sink(one.row, runs, runs.latest, decision_first=one.decision_offset, place=place)
            sink.saved()
            self._sinks[one.row.last.sink] = sink

    def read_again(self) -> None:
        """Have all of the journal read again: it ends before what the file knows."""
        self.read_to = self.read_from = 0
        self.is_changed = True

    def settle(self, end: int) -> tuple[list[SinkRow], list[SinkRow]]:
        """Make the best of what the journal does not say, when it was read up to its end.

        Returns:
            The sinks that are forgotten, because their decisions are lost with the end of the log,
            and so is what was published by them, which comes after them; and those of which the
            beginning of the log is lost, with the decision and what it was to publish.
        """
        forgotten, undecided = [], []
        for name, sink in list(self._sinks.items()):
            if sink.decision_first >= end:
                self._forget(name)
                forgotten.append(sink.row)
                continue
            if sink.place[0] >= end:
                sink.place, sink.text = (-1, 0), None  # It is soon said again.
            if not sink.row.is_published and sink.pending is None:
                sink.row.is_published, sink.text = True, None
                undecided.append(sink.row)
        return forgotten, undecided


def _run(batch: SinkBatch) -> SinkRun:
    return SinkRun(run=batch.run, planned_ms=batch.planned_ms)


def _check_run(batch: SinkBatch, runs: KnownRuns) -> None:
    """Refuse a run that is not the latest."""
    latest = runs.fencing(_run(batch))
    if latest is not None:
        raise refusal(
            SinkCode.FENCED,
            f"sink {batch.sink}: run {latest.run} of the query began after this one, "
            f"{batch.run}, which may not write any more. Was the query started twice, with "
            "copies of one checkpoint? Give each a checkpoint, and a sink, of its own. (The "
            f"drivers planned this at {latest.planned_ms} and {batch.planned_ms} ms since the "
            "epoch: are their clocks right?)",
        )


def _check_batch(batch: SinkBatch, last: SinkBatch) -> None:
    """Refuse a batch that must not come after the last one."""
    again = f"pymq sink forget {shlex.quote(batch.sink)}"
    if batch.query != last.query:
        raise refusal(
            SinkCode.OTHER_QUERY,
            f"sink {batch.sink}: query {last.query} has published up to batch {last.batch} "
            f"there, and this is query {batch.query}, batch {batch.batch}. A new query needs a "
            f"sink of its own, or let this one begin again ({again})",
        )
    if batch.batch < last.batch:
        raise refusal(
            SinkCode.BATCH_TOO_OLD,
            f"sink {batch.sink}: batch {batch.batch} comes after batch {last.batch} was "
            "published. The query was set back behind what it has published: what lies between "
            "would be missing, or be there twice. Start it from where it was, or let the sink "
            f"begin again ({again})",
        )
