"""How what this process has staged lies in the log: so it need not be read again to be copied.

What an earlier process has staged is read, and checked, before it is decided about and when it is
copied. What this one has written is there: a log loses records only in a start. Records that end
with a checksum are always read: who wants checksums wants them checked.
"""

from typing import NamedTuple

from pymq.protocol.sink_bodies import StagedRun
from pymq.protocol.staged_records import StagedLayout, StagedRecords

#: Records whose layout is known, of 12 to 13 B each; of more the oldest are forgotten.
RECORDS_MAX = 2_000_000
#: A run takes as much memory as so many records, in addition to its own.
RUN_RECORDS = 50


class _Known(NamedTuple):
    run: StagedRun
    layout: StagedLayout


class StagedLayouts:
    """Layouts of runs that are neither copied nor too many."""

    def __init__(self, records_max: int = RECORDS_MAX) -> None:
        self._records_max = records_max
        #: By physical offset, in the order in which they were staged.
        self._known: dict[int, _Known] = {}
        self._records = 0

    def add(self, records: StagedRecords, physical_offset: int) -> None:
        """Remember records that were written at a physical offset."""
        if records.record_crc:
            return
        run = StagedRun(
            topic=records.topic,
            queue_id=records.queue_id,
            physical_offset=physical_offset,
            size_bytes=records.record_bytes,
            count=records.count,
            part=records.part,
        )
        self._known[physical_offset] = _Known(run, records.layout())
        self._records += RUN_RECORDS + records.count
        while self._records > self._records_max:
            self._forget(next(iter(self._known)))

    def find(self, run: StagedRun) -> StagedLayout | None:
        """Return the layout of a run; None if it is not known that this run was staged."""
        known = self._known.get(run.physical_offset)
        return known.layout if known is not None and known.run == run else None

    def drop(self, run: StagedRun) -> None:
        """Forget a run."""
        if run.physical_offset in self._known:
            self._forget(run.physical_offset)

    def _forget(self, physical_offset: int) -> None:
        self._records -= RUN_RECORDS + self._known.pop(physical_offset).run.count
