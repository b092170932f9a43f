"""What is known of one consume queue while it is compared with the log."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pymq.store.config import ENTRY_BYTES
from pymq.store.inspection.findings import Findings
from pymq.store.queues.consume_queue import ENTRY, ConsumeQueue, Entries

#: Topic, as in records, and queue id.
Key = tuple[bytes, int]


@dataclass(slots=True)
class CheckedQueue:
    """The state of one queue during the check.

    Attributes:
        key: its topic, as in records, and its id.
        entries: its files; None if it has none.
        where: path for findings if the queue has no files.
        next_offset: the queue offset of its next record; None before the first one.
        gap_count: number of gaps in the log before ``next_offset`` was set.
        seen: ranges [first, end) of queue offsets that were compared, ascending.
        own: findings since the topic was created.
    """

    key: Key
    topic: str
    queue_id: int
    entries: ConsumeQueue | None
    where: Path
    next_offset: int | None = None
    gap_count: int = 0
    seen: list[list[int]] = field(default_factory=list)
    own: Findings = field(default_factory=Findings)

    def restart(self) -> None:
        """Drop everything: the topic was deleted and created again."""
        self.seen.clear()
        self.own.clear()

    def add_seen(self, first: int, end: int) -> None:
        """Record that offsets were compared."""
        if self.seen and self.seen[-1][1] == first:
            self.seen[-1][1] = end
        else:
            self.seen.append([first, end])

    def place(self, offset: int) -> tuple[Path, int | None]:
        """Return (path, position) of an entry, for findings."""
        entries = self.entries
        if entries is None:
            return self.where, None
        position = offset * ENTRY_BYTES
        base = position - position % entries.file_bytes
        path = Path(entries.path_of(base)) if base in entries.bases else entries.path
        return path, position - base


def read_entries(entries: ConsumeQueue, first: int, count: int) -> Entries:
    """Return entries; fewer if a file is missing."""
    return entries.entries(first, count) if first >= 0 else np.empty(0, ENTRY)


def entry_text(entry: np.void) -> str:
    """Return an entry as findings show it."""
    return f"({entry['physical_offset']}, {entry['size']}, {entry['tag_code']})"
