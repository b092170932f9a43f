"""Consume queues against the log, entry by entry, in both directions.

Entries are collected until there are ``ENTRIES_MAX`` of them (about 10 MB), then compared queue by
queue, so that many small queues cost one read each per round. Which offsets of a queue were
compared is stored as ranges: a few numbers, however many messages the queue has.

A queue whose offsets start from 0 again belongs to a topic that was deleted and created again:
findings from before that are dropped.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from pymq.errors import CorruptRecord
from pymq.protocol.multi_dispatch import is_light
from pymq.protocol.record_batch import Longs
from pymq.store.config import ENTRY_BYTES
from pymq.store.inspection.checked_queue import CheckedQueue, Key, entry_text, read_entries
from pymq.store.inspection.findings import Findings, Kind, Severity
from pymq.store.inspection.layout import StoreLayout
from pymq.store.inspection.log import Block, Gap
from pymq.store.queues.consume_queue import BLANK_SIZE, ENTRY, ConsumeQueue, Entries
from pymq.store.queues.queue_entries import queue_entries
from pymq.store.queues.queue_table import DIRECTORY_BYTES_MAX, QueueKey, illegal_name
from pymq.store.recovery.queue_repair import is_adjacent
from pymq.store.searches import runs

#: Entries collected before they are compared.
ENTRIES_MAX = 1 << 18
_AT_ONCE = 1 << 16

Mask = npt.NDArray[np.bool_]


class QueueCheck:
    """Compares the queues of a store with its log; ``take`` blocks in order, then ``finish``."""

    def __init__(
        self,
        layout: StoreLayout,
        findings: Findings,
        severity_at: Callable[[int], Severity],
        listed_topics: set[str] | None,
    ) -> None:
        """Prepare.

        Args:
            layout: the store.
            findings: what is found is added there.
            severity_at: how bad a wrong entry is, by the physical offset of its record.
            listed_topics: the topics in ``topics.json``; None if unknown.
        """
        self._layout = layout
        self._findings = findings
        self._severity_at = severity_at
        self._listed = listed_topics
        self._queues: dict[Key, CheckedQueue | None] = {}
        self._taken: dict[Key, tuple[list[Longs], list[bytes]]] = {}
        self._taken_count = 0
        self._gap_count = 0
        self._log_end = 0
        self._deleted_count = 0
        self._with_files = {topic for topic, _ in layout.queues.by_key}
        #: Number of queue entries compared.
        self.compared_count = 0

    # -- from the log to the queues -------------------------------------------------------------

    def take(self, block: Block) -> None:
        """Compare the entries of a block's records."""
        for queue, offsets, entries in self._entries(block):
            offsets_taken, entries_taken = self._taken.setdefault(queue.key, ([], []))
            offsets_taken.append(offsets)
            entries_taken.append(entries.tobytes())
            self._taken_count += len(entries)
        if self._taken_count >= ENTRIES_MAX:
            self.flush()

    def add_gap(self) -> None:
        """Record that records are missing here: queue offsets may jump."""
        self.flush()
        self._gap_count += 1

    def knows(self, block: Block) -> bool:
        """Return whether any record of a block has its entry in a queue."""
        for queue, offsets, entries in self._entries(block):
            if queue.entries is None:
                continue
            for part in _consecutive(offsets):
                found = read_entries(queue.entries, int(offsets[part][0]), len(entries[part]))
                wanted = entries[part][: len(found)]
                same = found["physical_offset"] == wanted["physical_offset"]
                if (same & (found["size"] == wanted["size"])).any():
                    return True
        return False

    def _entries(self, block: Block) -> Iterator[tuple[CheckedQueue, Longs, Entries]]:
        """Yield (queue, queue offsets, entries) of the records that have entries."""
        config = self._layout.config
        for topic, queue_id, _, offsets, entries in queue_entries(
            block.columns, config.delay_levels_ms, with_light=config.lists_messages
        ):
            key = topic, queue_id
            if key not in self._queues:
                self._queues[key] = self._queue_of(*key)
            queue = self._queues[key]
            if queue is None:
                continue
            deleted = self._layout.clean_stop.deleted.get(queue.topic)
            if deleted is not None:
                kept = entries["physical_offset"] >= deleted
                self._deleted_count += int(len(kept) - kept.sum())
                offsets, entries = offsets[kept], entries[kept]
            if len(entries):
                yield queue, offsets, entries

    def _queue_of(self, topic_bytes: bytes, queue_id: int) -> CheckedQueue | None:
        topic = topic_bytes.decode("utf-8", "replace")
        reason = illegal_name(topic, queue_id, bytes_max=DIRECTORY_BYTES_MAX)
        config = self._layout.config
        if reason is not None:
            self._findings.add(Kind.NOT_LOOKED_AT, Severity.NOTE, config.log_paths[0], None, reason)
            return None
        where = config.queues_path / topic / str(queue_id)
        files = self._layout.queues.find(topic, queue_id)
        return CheckedQueue((topic_bytes, queue_id), topic, queue_id, files, where)

    def flush(self) -> None:
        """Compare the collected entries."""
        for key, (offsets_taken, entries_taken) in self._taken.items():
            queue = self._queues[key]
            assert queue is not None
            offsets = np.concatenate(offsets_taken)
            # Joined as bytes: concatenate() would convert them to native byte order.
            entries = np.frombuffer(b"".join(entries_taken), ENTRY)
            for part in _consecutive(offsets):
                self._compare(queue, int(offsets[part][0]), entries[part])
        self._taken.clear()
        self._taken_count = 0

    def _compare(self, queue: CheckedQueue, first: int, rows: Entries) -> None:
        expected = queue.next_offset
        if expected is not None and first != expected:
            if first == 0:
                queue.restart()
            elif queue.gap_count == self._gap_count or first < expected:
                self._add_offset(queue, first, expected, int(rows["physical_offset"][0]))
        queue.next_offset = first + len(rows)
        queue.gap_count = self._gap_count
        queue.add_seen(first, first + len(rows))
        self.compared_count += len(rows)
        if queue.entries is None:
            self._add_missing(queue, first, rows)
            return
        found = read_entries(queue.entries, first, len(rows))
        wanted = rows[: len(found)]
        if found.tobytes() != wanted.tobytes():
            self._compare_each(queue, queue.entries, first, found, wanted)
        if len(found) < len(rows):
            self._add_missing(queue, first + len(found), rows[len(found) :])

    def _compare_each(
        self,
        queue: CheckedQueue,
        entries: ConsumeQueue,
        first: int,
        found: Entries,
        wanted: Entries,
    ) -> None:
        try:
            codes, known = entries.tag_codes(found)
        except CorruptRecord:  # A file of its extension is missing.
            codes, known = found["tag_code"].astype(np.int64), np.zeros(len(found), np.bool_)
        missing = found["size"] == 0
        same = found["physical_offset"] == wanted["physical_offset"]
        same &= found["size"] == wanted["size"]
        wrong = ~missing & (~same | (known & (codes != wanted["tag_code"])))
        for run in runs(missing):
            self._add_missing(queue, first + run[0], wanted[run[0] : run[1]])
        for run in runs(wrong):
            self._add(queue, Kind.QUEUE_WRONG, first, run, found, wanted)
        for run in runs(~missing & ~wrong & ~known):
            self._add(queue, Kind.EXTENSION, first, run, found, wanted)

    # -- findings -------------------------------------------------------------------------------

    def _add(
        self,
        queue: CheckedQueue,
        kind: Kind,
        first: int,
        run: tuple[int, int],
        found: Entries,
        wanted: Entries,
    ) -> None:
        begin, end = run
        path, position = queue.place(first + begin)
        queue.own.add(
            kind,
            self._severity_at(int(wanted["physical_offset"][begin])),
            path,
            position,
            f"offset {first + begin}: {entry_text(found[begin])}",
            entry_text(wanted[begin]),
            count=end - begin,
        )

    def _add_missing(self, queue: CheckedQueue, first: int, wanted: Entries) -> None:
        path, position = queue.place(first)
        severity = self._severity_at(int(wanted["physical_offset"][0]))
        if queue.entries is not None and not is_adjacent(queue.entries):
            severity = Severity.REPAIR  # Every start rebuilds such a queue.
        queue.own.add(
            Kind.QUEUE_MISSING,
            severity,
            path,
            position,
            f"offset {first}: nothing",
            entry_text(wanted[0]),
            count=len(wanted),
        )

    def _add_offset(self, queue: CheckedQueue, first: int, expected: int, physical: int) -> None:
        one = self._layout.find_log_file(physical)
        queue.own.add(
            Kind.QUEUE_OFFSET,
            Severity.DAMAGE,
            self._layout.config.log_paths[0] if one is None else one.path,
            None if one is None else physical - one.first,
            f"offset {first} of {queue.topic}/{queue.queue_id}",
            f"{expected}",
        )

    # -- from the queues to the log -------------------------------------------------------------

    def finish(self, gaps: list[Gap], log_end: int) -> None:
        """Check the entries without a record.

        Args:
            gaps: damaged parts of the log; entries that point into them are only consequences.
            log_end: end of the log; an unclean stop may leave entries that point beyond it.
        """
        self.flush()
        self._log_end = log_end
        spans = np.array([(gap.first, gap.end) for gap in gaps], np.int64).reshape(-1, 2)
        found = [queue for queue in self._queues.values() if queue is not None]
        by_key = {(queue.topic, queue.queue_id): queue for queue in found}
        for queue in by_key.values():
            if queue.entries is None and self._is_deleted(queue.topic):
                self._deleted_count += sum(end - first for first, end in queue.seen)
                queue.own.clear()
        for entries in self._layout.queues:
            key = entries.topic.encode(), entries.queue_id
            queue = by_key.get((entries.topic, entries.queue_id)) or CheckedQueue(
                key, entries.topic, entries.queue_id, entries, entries.path
            )
            by_key[queue.topic, queue.queue_id] = queue
            self._check_rest(queue, entries, spans)
        for queue in by_key.values():
            self._findings.add_all(queue.own)
        if self._deleted_count:
            self._findings.add(
                Kind.DELETED,
                Severity.NOTE,
                self._layout.config.log_paths[0],
                None,
                "they stay in the log until their files expire",
                count=self._deleted_count,
            )

    def ends(self) -> dict[QueueKey, int]:
        """Return the end of each queue, with the entries that the next start adds."""
        ends = {key: queue.end_offset for key, queue in self._layout.queues.by_key.items()}
        for queue in self._queues.values():
            if queue is not None and queue.entries is not None and queue.seen:
                key = queue.topic, queue.queue_id
                ends[key] = max(ends[key], queue.seen[-1][1])
        return ends

    def _is_deleted(self, topic: str) -> bool:
        if self._listed is None or is_light(topic):  # these have no settings
            return False
        return topic not in self._listed | self._with_files

    def _check_rest(self, queue: CheckedQueue, entries: ConsumeQueue, spans: Longs) -> None:
        """Check the entries of a queue that were not compared."""
        low = entries.bases[0] // ENTRY_BYTES
        per_file = entries.file_bytes // ENTRY_BYTES
        end = entries.bases[-1] // ENTRY_BYTES + per_file
        begin = min((first for first, _ in queue.seen), default=end)
        at = low
        for first, stop in [*sorted(queue.seen), [end, end]]:
            for base in entries.bases:
                start = max(at, base // ENTRY_BYTES)
                last = min(first, base // ENTRY_BYTES + per_file)
                if start < last:
                    self._check_unseen(queue, entries, base, start, last, begin, spans)
            at = max(at, stop)

    def _check_unseen(
        self,
        queue: CheckedQueue,
        entries: ConsumeQueue,
        base: int,
        start: int,
        last: int,
        begin: int,
        spans: Longs,
    ) -> None:
        """Check entries [start, last) of one file; ``begin`` is the first compared offset."""
        files = self._layout.files
        fd = self._layout.queues.files.descriptor(entries.path_of(base))
        offset = base // ENTRY_BYTES
        for data, data_end in files.data_ranges(
            fd, (start - offset) * ENTRY_BYTES, (last - offset) * ENTRY_BYTES
        ):
            first = max(start, offset + data // ENTRY_BYTES)
            stop = min(last, offset - (-data_end // ENTRY_BYTES))
            while first < stop:
                count = min(_AT_ONCE, stop - first)
                self._judge_unseen(queue, first, read_entries(entries, first, count), begin, spans)
                first += count

    def _judge_unseen(
        self, queue: CheckedQueue, first: int, found: Entries, begin: int, spans: Longs
    ) -> None:
        physical = found["physical_offset"].astype(np.int64)
        size = found["size"].astype(np.int64)
        tags = found["tag_code"].astype(np.int64)
        extra = (physical != 0) | (size != 0) | (tags != 0)
        # Before the first kept record: entries of expired records, and blank ones.
        blank = (size == BLANK_SIZE) & (physical == 0) & (tags == 0)
        expired = (physical >= 0) & (size > 0) & (physical < self._layout.log_first)
        before = np.arange(first, first + len(found)) < begin
        extra &= ~(before & (blank | expired))
        if self._gap_count:
            extra &= ~blank
            for gap_first, gap_end in spans.tolist():
                extra &= ~((physical >= gap_first) & (physical < gap_end) & (size > 0))
        # Without a size the disk kept a part of the entry only, and perhaps not all of the offset.
        beyond = (physical + size > self._log_end) | (size == 0)
        for run in runs(extra):
            path, position = queue.place(first + run[0])
            queue.own.add(
                Kind.QUEUE_EXTRA,
                # Of those beyond the end that were being erased, the first may be half gone.
                self._severity_of_extra(queue, is_beyond=bool(beyond[run[0] : run[1]].any())),
                path,
                position,
                f"offset {first + run[0]}: {entry_text(found[run[0]])}",
                "nothing",
                count=run[1] - run[0],
            )

    def _severity_of_extra(self, queue: CheckedQueue, *, is_beyond: bool) -> Severity:
        """Return the severity by whether the missing records are beyond the end of the log."""
        deleted = self._layout.clean_stop.deleted.get(queue.topic, -1)
        if queue.entries is not None and queue.entries.physical_end <= deleted:
            return Severity.REPAIR  # A power loss brought the queue back.
        is_cut = self._layout.unclean or self._layout.in_use
        return Severity.REPAIR if is_cut and is_beyond else Severity.DAMAGE


def _consecutive(offsets: Longs) -> Iterator[slice]:
    """Yield the runs of consecutive offsets as slices."""
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    edges = [0, *breaks.tolist(), len(offsets)]
    for first, end in zip(edges[:-1], edges[1:], strict=True):
        yield slice(first, end)
