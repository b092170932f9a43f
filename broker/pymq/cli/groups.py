"""``pymq group``: list, lag."""

from typing import Annotated

import typer

from pymq.cli import arguments, output
from pymq.errors import PymqError

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@commands.command("list")
@arguments.with_shared
def list_groups(
    shared: arguments.Shared,
    system: Annotated[
        bool, typer.Option("--system", help="Also the built-in groups of every broker.")
    ] = False,
) -> None:
    """List all consumer groups and how many members of each are connected."""
    with shared.admin() as admin:
        rows = [
            {"group": group, "members": len(admin.groups.members(group).connections)}
            for group in admin.groups.names(with_system=system)
        ]
    output.table(shared.form, rows, {"group": "GROUP", "members": "MEMBERS"})


@commands.command()
@arguments.with_shared
def lag(
    shared: arguments.Shared,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Its name.")],
    topic: Annotated[str | None, typer.Option("--topic", help="Only in this topic.")] = None,
) -> None:
    """Show how many messages a group has not consumed yet, per queue."""
    with shared.admin() as admin:
        found = admin.offsets.lag(group, topic)
    if not found:
        where = f" in topic {topic!r}" if topic else ""
        raise PymqError(f"group {group!r} has committed no offset{where}; see `pymq group list`")
    rows = [
        {
            "topic": progress.queue.topic,
            "broker": progress.queue.broker_name,
            "queue": progress.queue.queue_id,
            "consumerOffset": progress.consumer_offset,
            "maxOffset": progress.broker_offset,
            "lag": progress.lag,
            "lastConsumedTimestamp": progress.last_timestamp_ms,
        }
        for progress in found
    ]
    headings = {
        "topic": "TOPIC",
        "broker": "BROKER",
        "queue": "QUEUE",
        "consumerOffset": "CONSUMED UP TO",
        "maxOffset": "NEXT",
        "lag": "LAG",
        "lastConsumedTimestamp": "LAST CONSUMED, STORED AT",
    }
    output.table(shared.form, rows, headings)
    if shared.form is output.Form.TEXT:
        output.line(f"total lag {sum(progress.lag for progress in found)}")
