"""The small files next to the data: checkpoint, abort marker, state tables."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pymq.errors import PymqError
from pymq.protocol import fastjson
from pymq.protocol.bodies import ConsumerOffsetTable, DelayOffsetTable
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.store.files import Files
from pymq.store.inspection.findings import Findings, Kind, Severity
from pymq.store.inspection.layout import StoreLayout
from pymq.store.queues.queue_table import QueueKey
from pymq.store.state.checkpoint import CHECKPOINT_BYTES, CHECKPOINT_NAME
from pymq.store.state.clean_stop import NAME
from pymq.store.state.deleted_topics import deleted_since, told_deletions
from pymq.store.state.sealed_file import unseal

CONFIG_NAME = "config"
_OFFSETS = "consumerOffset.json"
_DELAYS = "delayOffset.json"
_TOPICS = "topics.json"
#: Directories of state tables below the root.
_TABLE_DIRECTORIES = (CONFIG_NAME, "namesrv")

#: (topic, queue id) -> end of the queue.
Ends = Mapping[QueueKey, int]


@dataclass(slots=True)
class Tables:
    """The content of the state tables that is needed here.

    Attributes:
        names: the existing files, without backups.
        topics: the existing topics; None if unknown.
        offsets: (topic, group) -> queue id -> next offset to consume.
        told_deletions: deletions of topics that the offsets know; see ``deleted_topics``.
        delays: delay level -> next offset to deliver.
    """

    names: list[str] = field(default_factory=list)
    topics: set[str] | None = None
    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    told_deletions: dict[str, int] | None = None
    delays: dict[int, int] = field(default_factory=dict)


def read_tables(files: Files, root: Path, findings: Findings) -> Tables:
    """Read all state tables; a damaged one is a finding, and its backup is read."""
    tables = Tables()
    for path in _tables_of(files, root):
        tables.names.append(path.name)
        value = _read_table(files, path, findings)
        if value is None or path.parent.name != CONFIG_NAME:
            continue
        try:
            _take(tables, path.name, value)
        except (PymqError, AttributeError, TypeError) as error:
            findings.add(
                Kind.TABLE, Severity.DAMAGE, path, None, str(error), f"the members of {path.name}"
            )
    return tables


def _tables_of(files: Files, root: Path) -> Iterator[Path]:
    for directory in _TABLE_DIRECTORIES:
        names = {entry.name for entry in files.list_directory(root / directory)}
        for name in sorted({name.removesuffix(".bak") for name in names}):
            if name.endswith(".json"):
                yield root / directory / name


def _read_table(files: Files, path: Path, findings: Findings) -> object:
    """Return the content of a table, or of its backup; None if neither can be read."""
    backup = path.with_name(path.name + ".bak")
    value, problem = _parse(files, path)
    other, other_problem = _parse(files, backup)
    if other_problem is not None and other_problem != _MISSING:
        findings.add(Kind.TABLE, Severity.NOTE, backup, None, other_problem, "JSON")
    if problem is None:
        return value
    if other is None:
        severity = Severity.DAMAGE
    else:  # A crash between two renames leaves only the backup.
        severity = Severity.NOTE if problem == _MISSING else Severity.REPAIR
    findings.add(Kind.TABLE, severity, path, None, problem, "JSON")
    return other


_MISSING = "missing"


def _parse(files: Files, path: Path) -> tuple[object, str | None]:
    """Return (value, None), or (None, what is wrong)."""
    try:
        data = files.read_file(path)
        if data is None:
            return None, _MISSING
        if not data.strip(b"\0 \t\r\n"):
            return None, f"{len(data)} B of white space or zeros"
        return fastjson.parse(unseal(data).decode("utf-8")), None
    except (PymqError, ValueError) as error:
        return None, str(error)


def _take(tables: Tables, name: str, value: object) -> None:
    if name == _TOPICS and isinstance(value, dict):
        tables.topics = set(value.get("topicConfigTable") or ())
    elif name == _OFFSETS:
        for key, queues in ConsumerOffsetTable.from_json(value).offsets.items():
            topic, separator, group = key.partition("@")
            if separator:
                tables.offsets[topic, group] = queues
        tables.told_deletions = told_deletions(value)
    elif name == _DELAYS:
        tables.delays = DelayOffsetTable.from_json(value).offsets


def check_offsets(layout: StoreLayout, tables: Tables, ends: Ends, findings: Findings) -> None:
    """Look for consumer offsets beyond the end of a queue.

    Those in a topic that was deleted since they were saved are forgotten by the next start.
    """
    root = layout.root
    path = root / CONFIG_NAME / _OFFSETS
    forgotten = deleted_since(layout.clean_stop.deleted, tables.told_deletions)
    for (topic, group), queues in tables.offsets.items():
        if topic in forgotten:
            continue
        for queue_id, offset in queues.items():
            end = ends.get((topic, queue_id))
            if end is not None and offset > end:
                findings.add(
                    Kind.CONSUMER_OFFSET,
                    Severity.DAMAGE,
                    path,
                    None,
                    f"{offset} of {group} in {topic}/{queue_id}",
                    f"at most {end}",
                )
    schedule = SCHEDULE_TOPIC
    for level, offset in tables.delays.items():
        end = ends.get((schedule, level - 1))
        if end is not None and offset > end:
            findings.add(
                Kind.CONSUMER_OFFSET,
                Severity.DAMAGE,
                root / CONFIG_NAME / _DELAYS,
                None,
                f"{offset} of delay level {level}",
                f"at most {end}",
            )


def check_state(
    layout: StoreLayout, findings: Findings, *, log_end: int, newest_ms: int
) -> None:
    """Compare checkpoint, abort marker and ``queues.json`` with the log.

    Args:
        layout: the store.
        findings: what is found is added there.
        log_end: end of the log.
        newest_ms: the latest store time in it, 0 in an empty one.
    """
    root, clean_stop = layout.root, layout.clean_stop
    if layout.unclean and not layout.in_use:
        findings.add(
            Kind.MARKER,
            Severity.REPAIR,
            root / "abort",
            None,
            "the last stop was not a clean one",
        )
    _check_checkpoint(layout, findings, log_end, newest_ms)
    if layout.unclean or layout.in_use or clean_stop.log_end < 0:
        return
    if clean_stop.log_end > log_end:
        findings.add(
            Kind.KNOWN_ENDS,
            Severity.DAMAGE,
            root / NAME,
            None,
            f"the log ended at physical offset {clean_stop.log_end}",
            f"{log_end}, where it ends now, at most",
        )


def _check_checkpoint(
    layout: StoreLayout, findings: Findings, log_end: int, newest_ms: int
) -> None:
    path, checkpoint = layout.root / CHECKPOINT_NAME, layout.checkpoint
    data = layout.files.read_file(path)
    if layout.in_use:
        return
    if data is None:
        if log_end:
            findings.add(
                Kind.CHECKPOINT,
                Severity.NOTE,
                path,
                None,
                "missing: after an unclean stop the whole log is read",
            )
        return
    severity = Severity.REPAIR if layout.unclean else Severity.DAMAGE
    if len(data) != CHECKPOINT_BYTES:
        findings.add(
            Kind.CHECKPOINT, severity, path, None, f"{len(data)} B", f"{CHECKPOINT_BYTES} B"
        )
    for position, name, value in (
        (0, "log", checkpoint.log_timestamp),
        (8, "queues", checkpoint.queues_timestamp),
        (16, "index", checkpoint.index_timestamp),
    ):
        if value > newest_ms:
            findings.add(
                Kind.CHECKPOINT,
                severity,
                path,
                position,
                f"time {value} of the {name}",
                f"at most {newest_ms}, the latest store time in the log",
            )
    if checkpoint.flushed_end > log_end:
        findings.add(
            Kind.CHECKPOINT,
            severity,
            path,
            32,
            f"confirmed up to {checkpoint.flushed_end}",
            f"at most {log_end}, the end of the log",
        )
