"""Reads a whole store and reports everything that is wrong.

If a part of the log has no valid record, it depends on what follows. Records after it that have
queue entries, or that were on the disk according to the checkpoint, are in use: then the part is
damaged. Otherwise it is the end of the log: the unfinished write of an unclean stop, or bytes
that RocketMQ leaves in place when it cuts a log. The rules are those of
``pymq.store.recovery.recovery``.

Memory: about 150 MB whatever the size of the store, most of it for pieces of files and the slots
of one index file, a few hundred bytes per queue, and about a hundred per message that waits for a
time of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pymq.store.config import StoreConfig
from pymq.store.inspection.findings import Findings, Kind, Severity
from pymq.store.inspection.index import IndexCheck
from pymq.store.inspection.index_items import ItemStream
from pymq.store.inspection.layout import StoreLayout, read_layout
from pymq.store.inspection.log import Blank, Block, Gap, Part, read_log
from pymq.store.inspection.queues import QueueCheck
from pymq.store.inspection.reading import PatientFiles
from pymq.store.inspection.tables import check_offsets, check_state, read_tables
from pymq.store.inspection.timers import TimerCheck

#: A clock set back by this little is only a note: recovery allows for it.
_CLOCK_STEP_MS = 3000

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Report:
    """What was read, and what is wrong.

    Attributes:
        root: the store directory.
        in_use: a broker had it open: data being written may look torn.
        clean_stop: there is no abort marker.
        log_first, log_end: physical offsets of the log's first and last bytes.
        log_bytes: read of the log.
        first_ms, last_ms: lowest and highest store time; None in an empty store.
        counts: numbers of files, records, queues, entries and items.
        findings: what is wrong.
    """

    root: Path
    in_use: bool
    clean_stop: bool
    log_first: int = 0
    log_end: int = 0
    log_bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)

    @property
    def is_whole(self) -> bool:
        """Whether there is no damage; what the next start repairs is not damage."""
        return not self.findings.count(Severity.DAMAGE)


def check_store(
    config: StoreConfig,
    *,
    on_progress: Progress = lambda done, total: None,
) -> Report:
    """Read everything in a store directory and compare it; nothing is changed.

    A store in use can be read, too: data being written are not reported as damage.

    Args:
        config: where it is; delay levels and sizes of the index, if they are not the defaults.
        on_progress: called with (bytes read, bytes to read) from time to time.

    Raises:
        StoreError: there is no store, or it cannot be read.
    """
    findings = Findings()
    layout = read_layout(config, PatientFiles(findings), findings)
    try:
        return _Check(layout, findings, on_progress).run()
    finally:
        layout.close()


class _Check:
    def __init__(self, layout: StoreLayout, findings: Findings, on_progress: Progress) -> None:
        self._layout = layout
        self._findings = findings
        self._on_progress = on_progress
        self._report = Report(layout.root, layout.in_use, not layout.unclean, findings=findings)
        self._is_recovering = layout.unclean or layout.in_use
        #: The end of the last record with a queue entry.
        self._covered = max((queue.physical_end for queue in layout.queues), default=-1)
        checkpoint = layout.checkpoint
        self._queues_from = layout.first_trusted(checkpoint.trusted_ms)
        indexed = max((one.header.last_physical for one in layout.index_files), default=-1)
        if self._is_recovering:
            indexed = min(indexed, layout.first_trusted(checkpoint.index_trusted_ms) - 1)
        #: The next start goes on indexing after it.
        self._indexed = indexed
        self._tables = read_tables(layout.files, layout.root, findings)
        self._queues = QueueCheck(layout, findings, self._queue_severity, self._tables.topics)
        self._timers = TimerCheck(layout, findings)
        self._index: IndexCheck | None = None
        if layout.index_layout is not None and layout.index_files:
            items = ItemStream(
                layout,
                findings,
                self._index_severity,
                self._add_read,
                rebuilt=self._rebuilt_index_file() if self._is_recovering else None,
            )
            self._index = IndexCheck(layout, findings, self._index_severity, items)
        #: Gaps that may be the end of the log, and those that are damage.
        self._open: list[Gap] = []
        self._damaged: list[Gap] = []
        self._last_times = np.empty(0, np.int64)
        self._record_count = self._dead_count = 0
        self._read_bytes, self._total_bytes = 0, self._expected_bytes()

    def run(self) -> Report:
        layout, report = self._layout, self._report
        report.log_first = report.log_end = layout.log_first
        for one in layout.log_files:
            try:
                for part in read_log(layout.files, one, layout.config):
                    self._take(part)
            except FileNotFoundError:
                self._add_gone(one.path)
        self._judge_end()
        self._queues.finish(self._damaged, report.log_end)
        if self._index is not None:
            self._index.finish()
        elif not layout.index_files and self._has_known_index():
            self._findings.add(
                Kind.INDEX_FILE,
                Severity.REPAIR,  # The next start indexes the whole log.
                layout.config.index_path,
                None,
                "no index",
                "that of the last clean stop",
            )
        self._timers.finish(newest_ms=report.last_ms or 0)
        check_state(
            layout,
            self._findings,
            log_end=report.log_end,
            newest_ms=report.last_ms or 0,
        )
        if not layout.in_use:
            check_offsets(layout, self._tables, self._queues.ends(), self._findings)
        report.counts = self._counts()
        report.in_use = layout.in_use or layout.files.is_locked(layout.root)
        return report

    def _has_known_index(self) -> bool:
        note = self._layout.clean_stop.index
        return note is not None and note.last_physical >= self._layout.log_first

    def _rebuilt_index_file(self) -> Path | None:
        """Return the file whose slots recovery rebuilds; it drops the items after ``_indexed``."""
        for one in reversed(self._layout.index_files):
            if one.header.next_number > 1 and one.header.first_physical <= self._indexed:
                return one.path
        return None

    def _counts(self) -> dict[str, int]:
        layout = self._layout
        return {
            "logFiles": len(layout.log_files),
            "records": self._record_count,
            "queues": len(layout.queues),
            "queueEntries": self._queues.compared_count,
            "indexFiles": len(layout.index_files),
            "indexEntries": self._index.item_count if self._index is not None else 0,
            "tables": len(self._tables.names),
        }

    # -- progress -----------------------------------------------------------------------------

    def _expected_bytes(self) -> int:
        layout = self._layout
        total = 0
        for one in layout.log_files:
            total += min(layout.config.segment_bytes, max(0, self._covered - one.first))
        if self._index is not None and layout.index_layout is not None:
            for index_file in layout.index_files:
                total += 4 * layout.index_layout.slot_count
                total += 20 * (index_file.header.next_number - 1)
        return total

    def _add_read(self, count: int) -> None:
        self._read_bytes += count
        self._on_progress(self._read_bytes, max(self._read_bytes, self._total_bytes))

    # -- the log --------------------------------------------------------------------------------

    def _take(self, part: Part) -> None:
        if isinstance(part, Gap):
            self._open.append(part)
            return
        if isinstance(part, Blank):
            if not self._open:
                self._report.log_end = part.end
            return
        if self._open:
            if not self._is_alive(part):
                self._dead_count += len(part.columns)
                return
            self._add_damage()
        self._check_times(part)
        self._record_count += len(part.columns)
        self._queues.take(part)
        self._timers.take(part)
        if self._index is not None:
            self._index.take(part)
        self._report.log_end = part.end
        self._report.log_bytes += part.end - int(part.physical[0])
        self._add_read(part.end - int(part.physical[0]))

    def _is_alive(self, block: Block) -> bool:
        """Return whether records after a gap are in use; see the module's docstring."""
        layout, columns = self._layout, block.columns
        if not self._is_recovering:
            first = int(block.physical[0])
            clean_end = layout.clean_stop.log_end
            return self._covered < 0 or first < clean_end or self._queues.knows(block)
        checkpoint = layout.checkpoint
        safe = columns.store_timestamp < checkpoint.log_timestamp
        safe |= (columns.store_timestamp == checkpoint.log_timestamp) & (
            block.physical < checkpoint.flushed_end
        )
        return bool(safe.any()) and self._queues.knows(block)

    def _add_damage(self) -> None:
        for gap in self._open:
            self._add_gap(gap, Severity.DAMAGE)
        self._open.clear()

    def _add_gap(self, gap: Gap, severity: Severity) -> None:
        self._damaged.append(gap)
        self._queues.add_gap()
        if self._index is not None:
            self._index.add_gap(gap)
        self._findings.add(
            Kind.LOG_RECORD,
            severity,
            gap.path,
            gap.position,
            f"{gap.found}; no valid record in {gap.end - gap.first} B",
            gap.expected,
        )

    def _judge_end(self) -> None:
        """Classify the parts without records at the end of the log."""
        written = [gap for gap in self._open if not gap.is_zero]
        covered = max(self._covered, self._layout.clean_stop.log_end)
        end = self._report.log_end
        if not self._is_recovering and covered > end:
            # Queues or ``queues.json`` refer to records that are missing.
            for gap in self._open:
                if gap.first < covered:
                    self._add_gap(gap, Severity.DAMAGE)
                elif not gap.is_zero:
                    self._add_tail(gap)
            return
        for gap in written:
            self._add_tail(gap)

    def _add_tail(self, gap: Gap) -> None:
        severity = Severity.REPAIR if self._is_recovering else Severity.NOTE
        why = "an unfinished write" if self._is_recovering else "not a record of any queue"
        self._findings.add(
            Kind.LOG_TAIL,
            severity,
            gap.path,
            gap.position,
            f"{gap.end - gap.first} B after the end of the log: {gap.found}",
            f"zeros; this is {why}",
        )

    def _check_times(self, block: Block) -> None:
        """Look for records whose store time is lower than that of an earlier record."""
        times = block.columns.store_timestamp
        before = len(self._last_times)
        every = np.concatenate([self._last_times, times])
        self._last_times = every[-2:]
        # A time that is higher than both its neighbours, which agree, is the wrong one.
        high = np.zeros(len(every), np.bool_)
        high[1:-1] = (every[1:-1] > every[2:]) & (every[2:] >= every[:-2])
        lowest = int(every.min())
        latest = np.maximum.accumulate(np.where(high, lowest, every))
        if self._report.last_ms is not None:
            latest = np.maximum(latest, self._report.last_ms)
        off = np.where(high, every - np.append(every[1:], 0), latest - every)
        for severity, wrong in (
            (Severity.NOTE, (off > 0) & (off <= _CLOCK_STEP_MS)),
            (Severity.DAMAGE, off > _CLOCK_STEP_MS),
        ):
            rows = np.flatnonzero(wrong[before:])
            if len(rows):
                self._add_time(block, severity, int(rows[0]), len(rows))
        good = np.where(high, lowest, every)[before:]
        self._report.last_ms = max(self._report.last_ms or 0, int(good.max()))
        first_ms = self._report.first_ms
        self._report.first_ms = lowest if first_ms is None else min(first_ms, lowest)

    def _add_time(self, block: Block, severity: Severity, row: int, count: int) -> None:
        self._findings.add(
            Kind.STORE_TIME,
            severity,
            block.path,
            int(block.physical[row]) - block.file_first,
            f"store time {block.columns.store_timestamp[row]}",
            "a time between those of its neighbours",
            count=count,
        )

    def _add_gone(self, path: Path) -> None:
        severity = Severity.NOTE if self._layout.in_use else Severity.DAMAGE
        self._findings.add(Kind.LOG_FILE, severity, path, None, "deleted while it was read")

    # -- severity -------------------------------------------------------------------------------

    def _queue_severity(self, physical: int) -> Severity:
        """Return how bad a wrong entry is: recovery compares entries from some offset on."""
        first = self._queues_from if self._is_recovering else self._covered
        return Severity.REPAIR if physical >= first else Severity.DAMAGE

    def _index_severity(self, physical: int) -> Severity:
        return Severity.REPAIR if physical > self._indexed else Severity.DAMAGE
