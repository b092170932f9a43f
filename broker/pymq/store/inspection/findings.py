"""What a check finds, in bounded space: the first findings of each kind, and their number."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path

#: Number of findings kept of one kind and severity; the rest are only counted.
KEPT_MAX = 20

_RESTORE = (
    "restore the file from a copy or a slave; only the log cannot be rebuilt from the log"
)
_REBUILD = "stop the broker and rebuild queues and index: pymq store rebuild"


class Severity(StrEnum):
    """How bad it is."""

    DAMAGE = "damage"  #: not repaired automatically
    REPAIR = "repair"  #: left by an unclean stop; the next start of a broker repairs it
    NOTE = "note"  #: not a problem


class Kind(Enum):
    """What a finding is about: name for programs, text for users, what to do about damage."""

    LOG_FILE = "commit-log file missing, misnamed or of a wrong size", (
        "put the missing file back, move a foreign one out of the directory"
    )
    LOG_RECORD = "no valid record where the log must have one", _RESTORE
    LOG_TAIL = "what follows the last record", _RESTORE
    UNREADABLE = "the disk cannot be read", (
        "save the rest of this disk, then " + _RESTORE
    )
    STORE_TIME = "store time lower than that of an earlier record", (
        "a clock was set back, or the record is damaged: compare it with a copy or a slave"
    )
    QUEUE_OFFSET = "queue offset that does not follow the one before", (
        "the record is damaged, or one before it is lost: compare it with a copy or a slave"
    )
    DELETED = "records of deleted topics", "nothing"
    QUEUE_FILE = "consume-queue file missing, misnamed or of a wrong size", (
        "move what is foreign out of the directory, then: pymq store rebuild"
    )
    QUEUE_MISSING = "messages without their consume-queue entry", _REBUILD
    QUEUE_WRONG = "consume-queue entries that differ from the log", _REBUILD
    QUEUE_EXTRA = "consume-queue entries that no record belongs to", _REBUILD
    EXTENSION = "consume-queue entries without their unit in the extension", _REBUILD
    INDEX_FILE = "index file of a wrong size or with an impossible header", _REBUILD
    INDEX_CHAIN = "index chains that lead past their entries", _REBUILD
    INDEX_EXTRA = "index entries that no message's key belongs to", _REBUILD
    INDEX_TIME = "index entries with a wrong time", _REBUILD
    INDEX_MISSING = "keys that are not in the index", _REBUILD
    MARKER = "how the store was left", "start a broker on it, or run: pymq store rebuild"
    CHECKPOINT = "checkpoint that cannot be right", (
        "remove the file, or run pymq store rebuild: without it recovery reads the whole log"
    )
    KNOWN_ENDS = "log shorter than at the last clean stop", (
        "a file is missing or was replaced by an older one: put the newer one back"
    )
    TABLE = "state table that cannot be read", (
        "take it from a copy, or remove it and its backup to start from scratch"
    )
    CONSUMER_OFFSET = "consumer offset beyond the end of its queue", (
        "messages were lost, or log and tables are not of one time; the group's consumers will "
        "be set to the end of the queue"
    )
    TIMER_CHECKPOINT = "how far timer messages were delivered", (
        "take config/timercheck from a copy; without it messages may be delivered once more"
    )
    TIMER_LOG = "timer log that does not fit the messages that wait", (
        "stop the broker and delete the directory timerlog: the next start makes it again from "
        "the messages"
    )
    TIMER_WHEEL = "timer wheel that does not fit the timer log", (
        "stop the broker and delete the file timerwheel: the next start makes it again"
    )
    NOT_LOOKED_AT = "not looked at", "nothing"

    def __init__(self, text: str, advice: str) -> None:
        self.text = text
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        path: the file, or directory.
        position: in the file; None if the finding has no position.
        found, expected: what is there, and what should be; ``expected`` may be empty.
        count: number of adjacent equal findings, this one included.
    """

    kind: Kind
    severity: Severity
    path: Path
    position: int | None
    found: str
    expected: str = ""
    count: int = 1

    @property
    def advice(self) -> str:
        """What to do."""
        if self.severity is Severity.REPAIR:
            return "nothing: the next start of a broker repairs it"
        return "nothing" if self.severity is Severity.NOTE else self.kind.advice


class Findings:
    """Findings by kind and severity: the first ``KEPT_MAX`` of each, and their total number."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Severity, Kind], list[Finding]] = {}
        self._counts: dict[tuple[Severity, Kind], int] = {}

    def add(
        self,
        kind: Kind,
        severity: Severity,
        path: Path,
        position: int | None,
        found: str,
        expected: str = "",
        *,
        count: int = 1,
    ) -> None:
        """Add one finding, which may represent several adjacent ones."""
        key = severity, kind
        self._counts[key] = self._counts.get(key, 0) + count
        kept = self._kept.setdefault(key, [])
        if len(kept) < KEPT_MAX:
            kept.append(Finding(kind, severity, path, position, found, expected, count))

    def add_all(self, other: "Findings") -> None:
        """Add the findings of another one."""
        for key, kept in other._kept.items():
            mine = self._kept.setdefault(key, [])
            mine += kept[: KEPT_MAX - len(mine)]
            self._counts[key] = self._counts.get(key, 0) + other._counts[key]

    def clear(self) -> None:
        """Remove all findings."""
        self._kept.clear()
        self._counts.clear()

    def count(self, severity: Severity, kind: Kind | None = None) -> int:
        """Return how many there are of a severity, and of one kind."""
        return sum(
            count
            for (this, of), count in self._counts.items()
            if this is severity and kind in (None, of)
        )

    def groups(self) -> Iterator[tuple[Severity, Kind, int, list[Finding]]]:
        """Yield (severity, kind, how many, the first of them), the worst first."""
        for severity in Severity:
            for kind in Kind:
                if kept := self._kept.get((severity, kind)):
                    yield severity, kind, self._counts[severity, kind], kept

    def __len__(self) -> int:
        return sum(self._counts.values())
