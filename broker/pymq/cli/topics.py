"""``pymq topic``: list, create, delete, status."""

from typing import Annotated

import typer

from pymq.cli import arguments, output
from pymq.errors import RouteNotFound

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.")]


@commands.command("list")
def list_topics(
    system: Annotated[
        bool, typer.Option("--system", help="Also those of the system and of groups.")
    ] = False,
    name_server: arguments.NameServer = arguments.DEFAULT_NAME_SERVER,
    form: arguments.Output = output.Form.TEXT,
    timeout: arguments.Timeout = arguments.DEFAULT_TIMEOUT_S,
    verbose: arguments.Verbose = 0,
    quiet: arguments.Quiet = 0,
) -> None:
    """List all topics."""
    with arguments.admin(name_server, timeout) as admin:
        names = admin.topics(with_system=system)
    output.table(form, [{"topic": name} for name in names], {"topic": "TOPIC"})


@commands.command()
def create(
    topic: Name,
    queues: Annotated[
        int, typer.Option("--queues", min=1, max=65536, help="Queues on each broker.")
    ] = 8,
    order: Annotated[bool, typer.Option("--order", help="Messages are expected in order.")] = False,
    cluster: arguments.Cluster = None,
    name_server: arguments.NameServer = arguments.DEFAULT_NAME_SERVER,
    form: arguments.Output = output.Form.TEXT,
    timeout: arguments.Timeout = arguments.DEFAULT_TIMEOUT_S,
    verbose: arguments.Verbose = 0,
    quiet: arguments.Quiet = 0,
) -> None:
    """Create a topic on every master broker, or change it."""
    with arguments.admin(name_server, timeout) as admin:
        admin.create_topic(topic, queue_count=queues, order=order, cluster=cluster)
        count = len(admin.topic_status(topic))
    row = {"topic": topic, "queues": count}
    output.table(form, [row], {"topic": "TOPIC", "queues": "QUEUES"})


@commands.command()
def delete(
    topic: Name,
    cluster: arguments.Cluster = None,
    name_server: arguments.NameServer = arguments.DEFAULT_NAME_SERVER,
    form: arguments.Output = output.Form.TEXT,
    timeout: arguments.Timeout = arguments.DEFAULT_TIMEOUT_S,
    verbose: arguments.Verbose = 0,
    quiet: arguments.Quiet = 0,
) -> None:
    """Delete a topic and everything in it, without asking."""
    with arguments.admin(name_server, timeout) as admin:
        if topic not in admin.topics(with_system=True):
            raise RouteNotFound(f"there is no topic {topic!r} to delete; see `pymq topic list`")
        admin.delete_topic(topic, cluster=cluster)
    output.table(form, [{"topic": topic, "deleted": True}], {"topic": "DELETED"})


@commands.command()
def status(
    topic: Name,
    name_server: arguments.NameServer = arguments.DEFAULT_NAME_SERVER,
    form: arguments.Output = output.Form.TEXT,
    timeout: arguments.Timeout = arguments.DEFAULT_TIMEOUT_S,
    verbose: arguments.Verbose = 0,
    quiet: arguments.Quiet = 0,
) -> None:
    """Show the first and the next offset of every queue of a topic."""
    with arguments.admin(name_server, timeout) as admin:
        found = admin.topic_status(topic)
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
    output.table(form, rows, headings)
