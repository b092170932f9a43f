"""The output of commands: a table or lines for people, JSON for programs."""

import base64
import dataclasses
import io
import json
import re
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pymq.cli import streams
from pymq.errors import ConfigurationError

if TYPE_CHECKING:
    from pymq.client.operations import SendResult
    from pymq.protocol.message import ReceivedMessage

#: Not allowed in a cell: terminals obey some of them, and a line must stay a single line.
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")

Row = dict[str, Any]


class Form(StrEnum):
    """The choices of ``-o``."""

    TEXT = "text"
    JSON = "json"


def table(form: Form, rows: Sequence[Row], columns: dict[str, str]) -> None:
    """Print rows: a table of the given columns, or one JSON array of all members.

    Args:
        form: which of the two.
        rows: the same members in each; those that end in ``Timestamp`` are ms since 1970.
        columns: member -> heading.
    """
    if form is Form.JSON:
        line(as_json(rows))
        return
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, header_style="bold", pad_edge=False)
    for member, heading in columns.items():
        is_number = any(type(row[member]) in (int, float) for row in rows)
        grid.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(_cell(member, row[member]) for member in columns))
    # Into a pipe nothing is cut or folded at the width of a terminal.
    is_terminal = sys.stdout.isatty()
    drawn = io.StringIO()  # rich itself would end the process where the reader has gone
    width = None if is_terminal else 10_000
    console = Console(
        file=drawn, force_terminal=is_terminal or None, width=width,
        markup=False, highlight=False, emoji=False,
    )  # fmt: skip
    console.print(grid)
    streams.write(drawn.getvalue())


def _cell(member: str, value: Any) -> str:
    if member.endswith("Timestamp") and isinstance(value, int):
        value = time_text(value)
    return "-" if value is None else printable(str(value))


def as_json(value: Any) -> str:
    """Return JSON for standard output: its bytes are UTF-8 whatever the encoding there is."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_utf8 = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    return json.dumps(value, ensure_ascii=not is_utf8)


def line(text: str) -> None:
    """Print one line; see ``streams.write``."""
    streams.write(text + "\n")


def note(text: str) -> None:
    """Tell the person at the terminal something that is not a result, in one printable line."""
    sys.stderr.write(printable(text) + "\n")


def printable(text: str) -> str:
    """Return a string with control characters escaped (``\\n``, ``\\x1b``)."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def time_text(timestamp_ms: int | None) -> str | None:
    """Return a timestamp as local time, to the millisecond; ``None`` for ``None`` or 0."""
    if not timestamp_ms:
        return None
    moment = datetime.fromtimestamp(timestamp_ms / 1000)
    return moment.isoformat(sep=" ", timespec="milliseconds")


@contextmanager
def progress(what: str, *, unit: str = "bytes") -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows (done, total) on a terminal, if there is one."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn(what), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# ----------------------------------------------------------------------------------- messages


def sent_rows(result: "SendResult", named: Callable[[str], str] = str) -> Iterable[Row]:
    """Yield a row for each message of a send or a batch; ``named`` says what topics are called."""
    ids = (result.message_id or "").split(",")
    for index, message_id in enumerate(ids):
        yield {
            "topic": named(result.queue.topic),
            "broker": result.queue.broker_name,
            "queue": result.queue.queue_id,
            "offset": result.queue_offset + index,
            "id": message_id,
            "status": result.status.value,
        }


def sent_text(row: Row) -> str:
    """Return one line about a stored message."""
    text = f"{row['broker']}/{row['queue']} @{row['offset']} {row['id']} {row['status']}"
    return printable(text)


def message_row(message: "ReceivedMessage") -> Row:
    """Return a message for JSON; a body that is not UTF-8 is in base64, as ``bodyBase64``."""
    row: Row = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "id": message.message_id,
        "tags": message.tags,
        "keys": message.keys,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "properties": message.properties,
    }
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["bodyBase64"] = base64.b64encode(message.body).decode()
    return row


def message_details(message: "ReceivedMessage") -> Row:
    """Return everything known about a message, the body last; see ``message_row``."""
    row = message_row(message)
    body = {name: row.pop(name) for name in ("body", "bodyBase64") if name in row}
    more = {
        "offsetId": message.offset_message_id,
        "physicalOffset": message.physical_offset,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "sysFlag": message.sys_flag,
    }
    return row | more | body


def details(form: Form, row: Row) -> None:
    """Print one row: a line for each member that has a value, or one JSON object."""
    if form is Form.JSON:
        line(as_json(row))
        return
    width = max(map(len, row)) + 2
    for name, value in row.items():
        if isinstance(value, dict):
            value = " ".join(f"{key}={one}" for key, one in value.items())
        elif isinstance(value, list):
            value = " ".join(map(str, value))
        if value not in (None, ""):
            line(name.ljust(width) + _cell(name, value))


def message_text(message: "ReceivedMessage") -> str:
    """Return a message as one line: when and where it was stored, tag, keys, body."""
    parts = [
        time_text(message.store_timestamp_ms) or "-",
        f"{message.broker_name}/{message.queue_id}",
        f"@{message.queue_offset}",
    ]
    if message.tags:
        parts.append(f"[{message.tags}]")
    parts += [f"#{key}" for key in message.keys]
    parts.append(message.body.decode("utf-8", "backslashreplace"))
    return printable(" ".join(parts))


def message_printer(
    form: Form,
    *,
    body_only: bool,
    template: str | None = None,
    named: Callable[[str], str] = str,
) -> "Callable[[ReceivedMessage], None]":
    """Return a function that prints a message; ``named`` says what topics are called.

    Raises:
        ConfigurationError: ``template`` is not a format string, or something else is wanted as
            well as nothing but the bodies.
    """
    if body_only:
        if form is Form.JSON or template is not None:
            raise ConfigurationError(
                "--body-only prints nothing but the bodies: leave it out, or -o json and --format"
            )
        return _print_body
    if template is not None:
        show = _templated(template)
    elif form is Form.JSON:

        def show(message: "ReceivedMessage") -> None:
            line(as_json(message_row(message)))

    else:

        def show(message: "ReceivedMessage") -> None:
            line(message_text(message))

    # A copy: who reads the messages goes by what brokers call their topics.
    return lambda message: show(dataclasses.replace(message, topic=named(message.topic)))


def _templated(template: str) -> "Callable[[ReceivedMessage], None]":
    text = template.replace("\\n", "\n").replace("\\t", "\t")
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise ConfigurationError(f"--format {template!r}: {error}") from error
    for name in names:
        first = re.split(r"[\[]", name)[0]
        if first not in _FIELDS:
            raise ConfigurationError(
                f"--format {template!r}: there is no {{{name}}}, only {', '.join(_FIELDS)}"
            )

    def filled(row: Row) -> str:
        try:
            return text.format_map(row)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            raise ConfigurationError(
                f"--format {template!r}: {error}; expected a format such as {{offset:8}}, "
                "{body:.20} or {properties[NAME]}"
            ) from error

    filled(_SAMPLE)  # now, not when the first message is there

    def show(message: "ReceivedMessage") -> None:
        row = message_row(message)
        row |= {
            "body": message.body.decode("utf-8", "backslashreplace"),
            "keys": " ".join(message.keys),
            "tags": message.tags or "",
            "properties": _Properties(message.properties),
            "stored": time_text(message.store_timestamp_ms) or "",
            "born": time_text(message.born_timestamp_ms) or "",
        }
        streams.write(filled(row))

    return show


class _Properties(dict[str, str]):
    """Those of a message: JSON as a whole, and empty what is not there."""

    def __missing__(self, name: str) -> str:
        return ""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)


#: Names in ``--format``.
_FIELDS = (
    *("topic", "broker", "queue", "offset", "id", "tags", "keys", "body", "stored", "born"),
    *("bornTimestamp", "storeTimestamp", "reconsumeTimes", "properties", "flag"),
)
#: What every format can print, if it can print every message: strings may be empty, numbers large.
_SAMPLE: Row = {
    **dict.fromkeys(_FIELDS, ""),
    **dict.fromkeys(("bornTimestamp", "storeTimestamp", "offset"), 1 << 41),
    **dict.fromkeys(("queue", "reconsumeTimes", "flag"), 7),
    "properties": _Properties(),
}


def _print_body(message: "ReceivedMessage") -> None:
    streams.write(message.body + b"\n")
