"""The runs of an exactly-once sink: the latest start of its query fences all others.

A run is as old as the first batch of it that is heard of: as the time at which its driver planned
the writing of that batch. So what was left over from an older run is older even if it is heard of
for the first time now, and a run stays as old as it was however often it is heard of.

Writers of no run fence nobody, and nobody fences them: for them the numbers of batches suffice.
"""

from collections.abc import Iterable

from pymq.protocol.sink_bodies import NO_RUN
from pymq.protocol.sink_decisions import SinkRun

#: Runs that are remembered of one sink: the latest ones.
RUNS_MAX = 8


class KnownRuns:
    """The latest runs of one sink."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[SinkRun] = ()) -> None:
        self._runs: list[SinkRun] = []  # the latest last
        for run in runs:
            self.note(run)

    @property
    def latest(self) -> SinkRun | None:
        """The latest run; None if none is known."""
        return self._runs[-1] if self._runs else None

    def all(self) -> list[SinkRun]:
        """Return the runs, the latest last."""
        return list(self._runs)

    def fencing(self, run: SinkRun) -> SinkRun | None:
        """Return the run that began after this one; None if this is the latest, or will be."""
        latest = self.latest
        if latest is None or run.run in (latest.run, NO_RUN):
            return None
        is_older = self._find(run) or run.planned_ms < latest.planned_ms
        return latest if is_older else None

    def note(self, run: SinkRun) -> bool:
        """Remember a run; return whether it is one, and was not known.

        Of runs that are equally old the newcomer is the latest.
        """
        if run.run == NO_RUN or self._find(run):
            return False
        self._runs.append(run)
        self._runs.sort(key=lambda one: one.planned_ms)
        del self._runs[:-RUNS_MAX]
        return True

    def _find(self, run: SinkRun) -> bool:
        return any(one.run == run.run for one in self._runs)
