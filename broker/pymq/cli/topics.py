"""``pymq topic``: list, create, delete, status."""

from typing import Annotated

import typer

from pymq.cli import arguments, output
from pymq.errors import RouteNotFound

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.")]


@commands.command("list")
@arguments.with_shared
def list_topics(
    shared: arguments.Shared,
    system: Annotated[
        bool, typer.Option("--system", help="Also system topics and those of groups.")
    ] = False,
) -> None:
    """List all topics."""
    with shared.admin() as admin:
        names = admin.topics.names(with_system=system)
    output.table(shared.form, [{"topic": name} for name in names], {"topic": "TOPIC"})


@commands.command()
@arguments.with_shared
def create(
    shared: arguments.Shared,
    topic: Name,
    queues: Annotated[
        int, typer.Option("--queues", min=1, max=65536, help="Queues on each broker.")
    ] = 8,
    order: Annotated[bool, typer.Option("--order", help="Messages are expected in order.")] = False,
    cluster: arguments.Cluster = None,
) -> None:
    """Create a topic on every master broker, or change it."""
    with shared.admin() as admin:
        admin.topics.create(topic, queue_count=queues, order=order, cluster=cluster)
        count = len(admin.topics.status(topic))
    row = {"topic": topic, "queues": count}
    output.table(shared.form, [row], {"topic": "TOPIC", "queues": "QUEUES"})


@commands.command()
@arguments.with_shared
def delete(
    shared: arguments.Shared,
    topic: Name,
    cluster: arguments.Cluster = None,
) -> None:
    """Delete a topic and everything in it, without confirmation."""
    with shared.admin() as admin:
        if topic not in admin.topics.names(with_system=True):
            raise RouteNotFound(f"there is no topic {topic!r} to delete; see `pymq topic list`")
        admin.topics.delete(topic, cluster=cluster)
    output.table(shared.form, [{"topic": topic, "deleted": True}], {"topic": "DELETED"})


@commands.command()
@arguments.with_shared
def status(
    shared: arguments.Shared,
    topic: Name,
) -> None:
    """Show the first and the next offset of every queue of a topic."""
    with shared.admin() as admin:
        found = admin.topics.status(topic)
    rows = [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "minOffset": bounds.min_offset,
            "maxOffset": bounds.max_offset,
            "messages": bounds.max_offset - bounds.min_offset,
            "lastStoreTimestamp": bounds.last_update_timestamp_ms or None,
        }
        for queue, bounds in found.items()
    ]
    headings = {
        "broker": "BROKER",
        "queue": "QUEUE",
        "minOffset": "FIRST",
        "maxOffset": "NEXT",
        "messages": "MESSAGES",
        "lastStoreTimestamp": "LAST STORED",
    }
    output.table(shared.form, rows, headings)
