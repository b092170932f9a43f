"""``pymq sink``: list, show, forget."""

from typing import TYPE_CHECKING, Annotated

import typer

from pymq.cli import arguments, output
from pymq.errors import PymqError

if TYPE_CHECKING:
    from pymq.protocol.sink_bodies import SinkRow

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[
    str, typer.Argument(metavar="SINK", help="Its name: a query's id, or the option txnAppId.")
]
_HEADINGS = {
    "sink": "SINK",
    "broker": "BROKER",
    "batch": "LAST BATCH",
    "rows": "ROWS",
    "decidedTimestamp": "PUBLISHED AT",
}


@commands.command("list")
@arguments.with_shared
def list_sinks(shared: arguments.Shared) -> None:
    """List all exactly-once sinks and the last batch of each."""
    output.table(shared.form, _rows(shared, None), _HEADINGS)


@commands.command()
@arguments.with_shared
def show(shared: arguments.Shared, sink: Name) -> None:
    """Show what a sink has published last, and who did it."""
    rows = _rows(shared, sink)
    if not rows:
        raise PymqError(f"there is no sink {sink!r}; see `pymq sink list`")
    more = {"query": "QUERY", "run": "RUN", "digest": "DIGEST", "published": "VISIBLE"}
    output.table(shared.form, rows, _HEADINGS | more)


@commands.command()
@arguments.with_shared
def forget(shared: arguments.Shared, sink: Name) -> None:
    """Let a sink begin again, for a query that starts from scratch. What it published stays."""
    with shared.changing() as admin:
        brokers = admin.sinks.forget(sink)
    rows = [{"sink": sink, "broker": broker, "forgotten": True} for broker in brokers]
    output.table(shared.form, rows, {"sink": "FORGOTTEN", "broker": "BROKER"})


def _rows(shared: arguments.Shared, sink: str | None) -> list[output.Row]:
    with shared.admin() as admin:
        return [_row(broker, row) for broker, row in admin.sinks.rows(sink)]


def _row(broker: str, row: "SinkRow") -> output.Row:
    last = row.last
    return {
        "sink": last.sink,
        "broker": broker,
        "batch": last.batch,
        "rows": last.row_count,
        "decidedTimestamp": row.decided_ms,
        "query": last.query,
        "run": last.run,
        "digest": last.digest,
        "published": row.is_published,
        "lost": row.lost_count,
        "lasting": row.is_lasting,
    }
