"""``pymq store``: check, show, rebuild a store directory, without a broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pymq.cli import arguments, output
from pymq.cli.exits import Exit, forbidden
from pymq.cli.output import Form, Row
from pymq.errors import PymqError

if TYPE_CHECKING:
    from pymq.store import StoreConfig
    from pymq.store.inspection import Finding, Report, Summary
    from pymq.store.inspection.summary import QueueSummary

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Directory = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Directory of the store: storePathRootDir of its broker."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The broker's properties file: needed if delay levels, index sizes or the place of "
        "the commit log are not the defaults.",
    ),
]


@contextmanager
def _looking(command: str) -> Iterator[None]:
    """Print why a store cannot be looked at, and end with ``Exit.USAGE``."""
    try:
        with _permitted(command):
            yield
    except PymqError as error:
        output.note(f"pymq store {command}: {error}")
        raise typer.Exit(Exit.USAGE) from error


@contextmanager
def _permitted(command: str) -> Iterator[None]:
    """Print what this user may not look at, and end with ``Exit.USAGE``."""
    try:
        yield
    except PermissionError as error:
        output.note(f"pymq store {command}: {forbidden(error)}")
        raise typer.Exit(Exit.USAGE) from error


def _store_config(directory: Path, file: Path | None) -> "StoreConfig":
    from pymq.cli.configuration import store_config

    return store_config(file, root=directory.absolute())


# -------------------------------------------------------------------------------------- check


@commands.command()
def check(
    directory: Directory,
    config: ConfigFile = None,
    form: arguments.Output = Form.TEXT,
    verbose: arguments.Verbose = 0,
    quiet: arguments.Quiet = 0,
) -> None:
    """Read everything in a store, verify it and change nothing.

    Exit status: 0 if all is well, 1 if something is damaged, 2 if the store could not be read.
    What the next start repairs after an unclean stop does not count as damage.
    """
    with _looking("check"):
        from pymq.store.inspection import check_store

        settings = _store_config(directory, config)
        with output.progress("reading") as on_progress:
            report = check_store(settings, on_progress=on_progress)
    if form is Form.JSON:
        output.line(output.as_json(_report_row(report)))
    else:
        for text in _report_lines(report):
            output.line(output.printable(text))
    if not report.is_whole:
        raise typer.Exit(Exit.REFUSED)


def _report_row(report: "Report") -> Row:
    from pymq.store.inspection import Severity

    return {
        "store": str(report.root),
        "ok": report.is_whole,
        "inUse": report.in_use,
        "cleanStop": report.clean_stop,
        "damageCount": report.findings.count(Severity.DAMAGE),
        "repairCount": report.findings.count(Severity.REPAIR),
        "log": {
            "firstOffset": report.log_first,
            "endOffset": report.log_end,
            "bytes": report.log_bytes,
            "firstStoreTimestamp": report.first_ms,
            "lastStoreTimestamp": report.last_ms,
        },
        "counts": report.counts,
        "findings": [
            {
                "severity": severity.value,
                "kind": kind.name,
                "text": kind.text,
                "count": count,
                "first": [_finding_row(finding) for finding in kept],
            }
            for severity, kind, count, kept in report.findings.groups()
        ],
    }


def _finding_row(finding: "Finding") -> Row:
    return {
        "path": str(finding.path),
        "position": finding.position,
        "found": finding.found,
        "expected": finding.expected,
        "count": finding.count,
        "advice": finding.advice,
    }


def _report_lines(report: "Report") -> Iterator[str]:
    """Yield a report for people."""
    from pymq.store.inspection import Severity

    counts = report.counts
    state = "clean stop" if report.clean_stop else "unclean stop"
    if report.in_use:
        state = "open in another process: what it is writing now may look torn"
    yield f"store       {report.root} ({state})"
    yield (
        f"log         {counts['records']} records, {report.log_bytes} B in {counts['logFiles']} "
        f"files, offsets {report.log_first}..{report.log_end}"
    )
    yield (
        f"stored      {output.time_text(report.first_ms) or '-'} to "
        f"{output.time_text(report.last_ms) or '-'}"
    )
    yield f"queues      {counts['queues']}, {counts['queueEntries']} entries compared with the log"
    yield f"index       {counts['indexEntries']} entries in {counts['indexFiles']} files"
    yield f"tables      {counts['tables']}"
    for severity, kind, count, kept in report.findings.groups():
        yield ""
        yield f"{severity.value.upper()}: {kind.text} ({count})"
        for finding in kept:
            place = "" if finding.position is None else f" at {finding.position}"
            expected = f", expected {finding.expected}" if finding.expected else ""
            alike = f" (and {finding.count - 1} more after it)" if finding.count > 1 else ""
            yield f"  {finding.path}{place}: found {finding.found}{expected}{alike}"
        rest = count - sum(finding.count for finding in kept)
        if rest > 0:
            yield f"  ... and {rest} more"
        yield f"  what to do: {kept[0].advice}"
    yield ""
    damage = report.findings.count(Severity.DAMAGE)
    repair = report.findings.count(Severity.REPAIR)
    if damage:
        yield f"DAMAGED: {damage} findings"
    elif repair:
        yield f"ok: no damage; the next start of a broker repairs {repair} findings"
    else:
        yield "ok: no damage"


# --------------------------------------------------------------------------------------- show


@commands.command()
def show(
    directory: Directory,
    config: ConfigFile = None,
    topics: Annotated[
        bool, typer.Option("--topics", help="One line per topic, not per queue.")
    ] = False,
    form: arguments.Output = Form.TEXT,
    verbose: arguments.Verbose = 0,
    quiet: arguments.Quiet = 0,
) -> None:
    """Show the contents of a store: topics, queues, ranges, times, groups. Reads little."""
    with _looking("show"):
        from pymq.store.inspection import summarize

        summary = summarize(_store_config(directory, config))
    if form is Form.JSON:
        output.line(output.as_json(_summary_row(summary)))
        return
    for label, text in _facts(summary):
        output.line(output.printable(f"{label:<12}{text}"))
    output.line("")
    if topics:
        output.table(form, _topic_rows(summary), _TOPIC_COLUMNS)
    else:
        output.table(form, _queue_rows(summary), _QUEUE_COLUMNS)
    if summary.groups:
        output.line("")
        output.table(form, _group_rows(summary), _GROUP_COLUMNS)


_TIME_COLUMNS = {"firstStoreTimestamp": "FIRST STORED", "lastStoreTimestamp": "LAST STORED"}
_QUEUE_COLUMNS = {
    "topic": "TOPIC",
    "queue": "QUEUE",
    "minOffset": "FIRST",
    "maxOffset": "NEXT",
    "messages": "MESSAGES",
    **_TIME_COLUMNS,
}
_TOPIC_COLUMNS = {
    "topic": "TOPIC", "queues": "QUEUES", "messages": "MESSAGES", **_TIME_COLUMNS
}
_GROUP_COLUMNS = {"group": "GROUP", "topic": "TOPIC", "queues": "QUEUES", "behind": "BEHIND"}


def _facts(summary: "Summary") -> Iterator[tuple[str, str]]:
    state = "stopped cleanly" if summary.clean_stop else "not stopped cleanly"
    yield "store", f"{summary.root} ({'in use' if summary.in_use else state})"
    yield (
        "log",
        f"{summary.log_end - summary.log_first} B in {summary.segment_count} files of "
        f"{summary.segment_bytes} B, offsets {summary.log_first}..{summary.log_end}",
    )
    first, last = output.time_text(summary.first_ms), output.time_text(summary.last_ms)
    yield "stored", f"{first or '-'} to {last or '-'}"
    topics = {queue.topic for queue in summary.queues}
    yield (
        "messages",
        f"{summary.message_count} in {len(summary.queues)} queues of {len(topics)} topics",
    )
    entries = sum(one.entry_count for one in summary.index_files)
    yield "index", f"{entries} entries in {len(summary.index_files)} files"
    yield "tables", ", ".join(summary.tables) or "-"
    for _, kind, count, kept in summary.findings.groups():
        yield "note", f"{kind.text} ({count}): {kept[0].path}: {kept[0].found}"


def _queue_rows(summary: "Summary") -> list[Row]:
    return [
        {
            "topic": one.topic,
            "queue": one.queue_id,
            "minOffset": one.queue_first,
            "maxOffset": one.queue_end,
            "messages": one.message_count,
            "firstStoreTimestamp": one.first_ms,
            "lastStoreTimestamp": one.last_ms,
        }
        for one in summary.queues
    ]


def _topic_rows(summary: "Summary") -> list[Row]:
    topics: dict[str, list[QueueSummary]] = {}
    for one in summary.queues:
        topics.setdefault(one.topic, []).append(one)
    return [
        {
            "topic": topic,
            "queues": len(found),
            "messages": sum(one.message_count for one in found),
            "firstStoreTimestamp": min((x.first_ms for x in found if x.first_ms), default=None),
            "lastStoreTimestamp": max((x.last_ms for x in found if x.last_ms), default=None),
        }
        for topic, found in topics.items()
    ]


def _group_rows(summary: "Summary") -> list[Row]:
    return [
        {
            "group": one.group,
            "topic": one.topic,
            "queues": len(one.offsets),
            "behind": one.behind,
            "offsets": one.offsets,
        }
        for one in summary.groups
    ]


def _summary_row(summary: "Summary") -> Row:
    return {
        "store": str(summary.root),
        "inUse": summary.in_use,
        "cleanStop": summary.clean_stop,
        "log": {
            "files": summary.segment_count,
            "fileBytes": summary.segment_bytes,
            "firstOffset": summary.log_first,
            "endOffset": summary.log_end,
            "bytes": summary.log_end - summary.log_first,
            "firstStoreTimestamp": summary.first_ms,
            "lastStoreTimestamp": summary.last_ms,
        },
        "messages": summary.message_count,
        "queues": _queue_rows(summary),
        "index": [
            {
                "name": one.name,
                "entries": one.entry_count,
                "firstStoreTimestamp": one.first_ms,
                "lastStoreTimestamp": one.last_ms,
            }
            for one in summary.index_files
        ],
        "groups": _group_rows(summary),
        "tables": summary.tables,
        "notes": [
            _finding_row(finding)
            for _, _, _, kept in summary.findings.groups()
            for finding in kept
        ],
    }


# ------------------------------------------------------------------------------------ rebuild


@commands.command()
def rebuild(
    directory: Directory,
    config: ConfigFile = None,
    form: arguments.Output = Form.TEXT,
    verbose: arguments.Verbose = 0,
    quiet: arguments.Quiet = 0,
) -> None:
    """Rebuild queues, index and checkpoint from the log; stop the broker first.

    Log and state tables are not changed. The old files are deleted when the new ones are complete;
    until then there must be space for both. A damaged log is refused.
    """
    from pymq.clock import Clock
    from pymq.store.rebuild import rebuild_store

    settings = _store_config(directory, config)
    with _permitted("rebuild"), output.progress("building") as on_progress:
        summary = rebuild_store(settings, Clock(), on_progress=on_progress)
    if form is Form.JSON:
        output.line(output.as_json(_summary_row(summary)))
        return
    for label, text in _facts(summary):
        output.line(output.printable(f"{label:<12}{text}"))
    output.line("queues, index and checkpoint were rebuilt from the log")
