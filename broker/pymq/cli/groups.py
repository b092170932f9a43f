"""``pymq group``: list, create, delete, members, lag, reset."""

from typing import Annotated

import typer

from pymq.cli import arguments, output
from pymq.errors import GroupNotExist, PymqError

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Its name.")]


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
    group: Name,
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


@commands.command()
@arguments.with_shared
def create(
    shared: arguments.Shared,
    group: Name,
    retries: Annotated[
        int,
        typer.Option(
            "--retries",
            min=0,
            help="Tries after the first before a message is a dead letter.",
        ),
    ] = 16,
    orderly: Annotated[bool, typer.Option("--orderly", help="Its members read in order.")] = False,
    cluster: arguments.Cluster = None,
) -> None:
    """Create a consumer group on every master broker, or set all its settings."""
    from pymq.protocol.bodies import GroupConfig

    settings = GroupConfig(group=group, retry_max_times=retries, consume_message_orderly=orderly)
    with shared.changing() as admin:
        admin.groups.create(settings, cluster=cluster)
    row = {"group": group, "retries": retries, "orderly": orderly}
    output.table(
        shared.form, [row], {"group": "GROUP", "retries": "RETRIES", "orderly": "ORDERLY"}
    )


@commands.command()
@arguments.with_shared
def delete(
    shared: arguments.Shared,
    group: Name,
    forget_offsets: Annotated[
        bool, typer.Option("--forget-offsets", help="Also what it has committed.")
    ] = False,
    with_dead_letters: Annotated[
        bool,
        typer.Option(
            "--with-dead-letters", help="Also its dead letters, which stay in %DLQ%GROUP otherwise."
        ),
    ] = False,
    cluster: arguments.Cluster = None,
) -> None:
    """Delete a consumer group, and its retry topic, from every master broker.

    It does not ask for confirmation. What waits in %RETRY%GROUP for another try is lost.
    """
    from pymq.protocol.names import dead_letter_topic

    with shared.changing() as admin:
        if group not in admin.groups.names(with_system=True, cluster=cluster):
            raise GroupNotExist(
                f"there is no group {group!r} to delete; see `pymq group list`", code=26
            )
        kept = None if with_dead_letters else dead_letter_topic(group)
        if kept not in admin.topics.names(with_system=True):
            kept = None
        admin.groups.delete(
            group,
            forget_offsets=forget_offsets,
            with_dead_letters=with_dead_letters,
            cluster=cluster,
        )
    row = {
        "group": group,
        "deleted": True,
        "offsetsForgotten": forget_offsets,
        "deadLettersKept": kept,
    }
    output.table(shared.form, [row], {"group": "DELETED"})
    if kept is not None and shared.form is output.Form.TEXT:
        said = f"its dead letters stay in {kept}; `pymq topic delete {kept}` deletes them"
        output.line(output.printable(said))


@commands.command()
@arguments.with_shared
def members(shared: arguments.Shared, group: Name) -> None:
    """Show who is in a group now, and what they subscribe to; exit status 1 if there is nobody."""
    with shared.admin() as admin:
        found = admin.groups.members(group)
    if not found.connections:
        raise PymqError(f"group {group!r} has no members; see `pymq group list`")
    subscriptions = {
        topic: one.expression for topic, one in sorted(found.subscriptions.items())
    }
    rows = [
        {
            "member": one.client_id,
            "address": one.client_address,
            "language": one.language,
            "subscriptions": subscriptions,
        }
        for one in found.connections
    ]
    headings = {"member": "MEMBER", "address": "ADDRESS", "language": "LANGUAGE"}
    output.table(shared.form, rows, headings)
    if shared.form is output.Form.TEXT:
        for topic, expression in subscriptions.items():
            output.line(output.printable(f"subscribed to {topic}: {expression}"))


@commands.command()
@arguments.with_shared
def reset(
    shared: arguments.Shared,
    group: Name,
    topic: Annotated[str, typer.Option("--topic", help="In this topic.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="earliest|latest|OFFSET|TIME",
            help="Where it goes on. TIME is like 2026-01-31T12:00, or 15m for 15 minutes ago.",
        ),
    ],
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="[BROKER:]ID", help="Only in this queue."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print what would change.")
    ] = False,
) -> None:
    """Set a group to another place in a topic, whether members are connected or not.

    MOVED is how many messages are skipped; a negative number are consumed again.
    """
    from datetime import datetime

    from pymq.cli import queues, reading  # their imports would delay --help

    target = reading.parse_start(to, now=datetime.now().astimezone(), option="--to")
    with shared.admin() if dry_run else shared.changing() as admin:
        chosen = None
        if queue is not None:
            route = admin.topics.route(topic)
            named = {at: name for name, known in route.addresses.items() for at in known.values()}
            broker, colon, number = queue.rpartition(":")
            queue = f"{named.get(broker, broker)}{colon}{number}"  # mqadmin has addresses there
            chosen = queues.choose(route.read_queues, topic, queue)
        found = admin.offsets.reset(group, topic, target, queue=chosen, dry_run=dry_run)
    rows = [
        {
            "topic": topic,
            "broker": one.queue.broker_name,
            "queue": one.queue.queue_id,
            "before": one.before,
            "after": one.after,
            "moved": one.moved,
            "minOffset": one.first,
            "maxOffset": one.end,
            "done": not dry_run,
        }
        for one in found
    ]
    headings = {
        "broker": "BROKER",
        "queue": "QUEUE",
        "before": "BEFORE",
        "after": "WOULD BE" if dry_run else "AFTER",
        "moved": "MOVED",
        "minOffset": "FIRST",
        "maxOffset": "NEXT",
    }
    output.table(shared.form, rows, headings)
