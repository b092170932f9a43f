"""The content of a store, read from the ends of its files."""

from dataclasses import dataclass, field
from pathlib import Path

from pymq.store.config import StoreConfig
from pymq.store.files import ReadOnlyFiles
from pymq.store.inspection.findings import Findings
from pymq.store.inspection.layout import StoreLayout, read_layout
from pymq.store.inspection.log import WINDOW_BYTES
from pymq.store.inspection.tables import read_tables
from pymq.store.log.log_scan import Stop, follow_sizes
from pymq.store.queues.queue_table import QueueKey


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """One queue.

    Attributes:
        topic, queue_id: which.
        queue_first: offset of the first message that the log still holds.
        queue_end: offset of the next message.
        first_ms, last_ms: store times of the first and last message; None without one.
    """

    topic: str
    queue_id: int
    queue_first: int
    queue_end: int
    first_ms: int | None
    last_ms: int | None

    @property
    def message_count(self) -> int:
        """How many messages it holds."""
        return self.queue_end - self.queue_first


@dataclass(frozen=True, slots=True)
class IndexFileSummary:
    """One index file; times in ms."""

    name: str
    entry_count: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The progress of a consumer group in a topic.

    Attributes:
        group, topic: which.
        offsets: queue id -> next offset to consume.
        behind: number of messages it has not consumed yet.
    """

    group: str
    topic: str
    offsets: dict[int, int]
    behind: int


@dataclass(slots=True)
class Summary:
    """What a store directory holds.

    Attributes:
        root: the directory.
        in_use: a broker has it open.
        clean_stop: there is no abort marker.
        segment_bytes, segment_count: commit-log files.
        log_first, log_end: physical offsets.
        first_ms, last_ms: store times of the first and last message; None without one.
        queues: by topic and queue id.
        index_files: oldest first.
        groups: by group and topic.
        tables: names of the state tables.
        findings: files that do not fit.
    """

    root: Path
    in_use: bool
    clean_stop: bool
    segment_bytes: int
    segment_count: int
    log_first: int
    log_end: int
    first_ms: int | None
    last_ms: int | None
    queues: list[QueueSummary] = field(default_factory=list)
    index_files: list[IndexFileSummary] = field(default_factory=list)
    groups: list[GroupSummary] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    @property
    def message_count(self) -> int:
        """Messages in all queues."""
        return sum(queue.message_count for queue in self.queues)


def summarize(config: StoreConfig) -> Summary:
    """Return the content of a store; nothing is changed, and few bytes of each file are read.

    Args:
        config: where it is.

    Raises:
        StoreError: there is no store, or it cannot be read.
    """
    findings = Findings()
    layout = read_layout(config, ReadOnlyFiles(), findings)
    try:
        return _summary_of(layout, findings)
    finally:
        layout.close()


def _summary_of(layout: StoreLayout, findings: Findings) -> Summary:
    queues, covered = [], layout.log_first
    for queue in sorted(layout.queues, key=lambda one: (one.topic, one.queue_id)):
        low = queue.first_kept(layout.log_first)
        covered = max(covered, queue.physical_end)
        is_empty = low == queue.end_offset
        queues.append(
            QueueSummary(
                queue.topic,
                queue.queue_id,
                low,
                queue.end_offset,
                None if is_empty else layout.store_time_at(queue.entry(low)[0]),
                None if is_empty else layout.store_time_at(queue.entry(queue.end_offset - 1)[0]),
            )
        )
    last, end = _log_end(layout, min(covered, layout.log_limit))
    times = [one.last_ms for one in queues if one.last_ms is not None]
    if last is not None and (stored_ms := layout.store_time_at(last)) is not None:
        times.append(stored_ms)
    tables = read_tables(layout.files, layout.root, findings)
    ends = {(one.topic, one.queue_id): one for one in queues}
    return Summary(
        layout.root,
        layout.in_use,
        not layout.unclean,
        layout.config.segment_bytes,
        len(layout.log_files),
        layout.log_first,
        end,
        layout.store_time_at(layout.log_first),
        max(times, default=None),
        queues,
        [
            IndexFileSummary(
                one.path.name,
                one.header.next_number - 1,
                one.header.begin_ms,
                one.header.end_ms,
            )
            for one in layout.index_files
        ],
        [
            GroupSummary(group, topic, offsets, _behind(topic, offsets, ends))
            for (topic, group), offsets in sorted(
                tables.offsets.items(), key=lambda item: item[0][::-1]
            )
        ],
        tables.names,
        findings,
    )


def _behind(
    topic: str, offsets: dict[int, int], queues: dict[QueueKey, QueueSummary]
) -> int:
    """Return how many messages of a topic a group has not consumed yet."""
    behind = 0
    for queue_id, offset in offsets.items():
        queue = queues.get((topic, queue_id))
        if queue is not None:
            behind += max(0, queue.queue_end - max(offset, queue.queue_first))
    return behind


def _log_end(layout: StoreLayout, covered: int) -> tuple[int | None, int]:
    """Go from the last record with a queue entry to the end of the log.

    Returns:
        (physical offset of the last record after ``covered``, or None; that of the end).
    """
    last, at = None, covered
    while (one := layout.find_log_file(at)) is not None:
        data = layout.read_log(at, WINDOW_BYTES)
        starts, done, stop = follow_sizes(memoryview(data), 0, len(data))
        if len(starts):
            last = at + int(starts[-1])
        at += done
        if stop is Stop.BLANK:
            at = one.first + layout.config.segment_bytes
        elif not done:
            break
    return last, at
