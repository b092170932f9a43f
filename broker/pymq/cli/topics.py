"""``pymq topic``: list, create, update, delete, status, config, route."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from pymq.cli import arguments, output
from pymq.errors import ConfigurationError, RouteNotFound

if TYPE_CHECKING:
    from pymq.protocol.bodies import TopicConfig

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.")]
Perm = Annotated[int, typer.Option("--perm", help="6: read and write, 4: read, 2: write.")]


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
    perm: Perm = 6,
    order: Annotated[bool, typer.Option("--order", help="Messages are expected in order.")] = False,
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            metavar="K=V",
            help="A setting of 5.x, such as message.type=FIFO; may be repeated.",
        ),
    ] = None,
    cluster: arguments.Cluster = None,
) -> None:
    """Create a topic on every master broker, or set all its settings; see update."""
    with shared.changing() as admin:
        brokers = admin.topics.create(
            topic,
            queue_count=queues,
            perm=perm,
            order=order,
            attributes=_attributes(attributes or ()),
            cluster=cluster,
        )
    row = {"topic": topic, "queues": queues * len(brokers)}
    output.table(shared.form, [row], {"topic": "TOPIC", "queues": "QUEUES"})


@commands.command()
@arguments.with_shared
def update(
    shared: arguments.Shared,
    topic: Name,
    queues: Annotated[
        int | None, typer.Option("--queues", min=1, max=65536, help="Queues on each broker.")
    ] = None,
    perm: Annotated[
        int | None, typer.Option("--perm", help="6: read and write, 4: read, 2: write.")
    ] = None,
    order: Annotated[
        bool | None, typer.Option("--order/--no-order", help="Messages are expected in order.")
    ] = None,
    cluster: arguments.Cluster = None,
) -> None:
    """Change some settings of a topic on every master broker that has it, and leave the rest."""
    with shared.changing() as admin:
        found = admin.topics.update(
            topic, queue_count=queues, perm=perm, order=order, cluster=cluster
        )
    _print_configs(shared, found)


@commands.command()
@arguments.with_shared
def config(shared: arguments.Shared, topic: Name) -> None:
    """Show the settings of a topic on each master broker."""
    with shared.admin() as admin:
        found = admin.topics.config(topic)
    _print_configs(shared, found)


def _print_configs(shared: arguments.Shared, found: "dict[str, TopicConfig]") -> None:
    rows = [
        {
            "broker": name,
            "readQueues": one.read_queue_count,
            "writeQueues": one.write_queue_count,
            "perm": one.perm,
            "order": one.order,
            "attributes": one.attributes,
        }
        for name, one in found.items()
    ]
    headings = {
        "broker": "BROKER",
        "readQueues": "QUEUES TO READ",
        "writeQueues": "TO WRITE",
        "perm": "PERM",
        "order": "ORDER",
    }
    output.table(shared.form, rows, headings)


def _attributes(pairs: Iterable[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ConfigurationError(f"--attribute {pair!r}: expected NAME=VALUE")
        found[name] = value
    return found


@commands.command()
@arguments.with_shared
def route(shared: arguments.Shared, topic: Name) -> None:
    """Show the brokers of a topic, the addresses they advertise, and their queues."""
    with shared.admin() as admin:
        found = admin.topics.route(topic)
    rows = [
        {
            "broker": name,
            "id": number,
            "address": address,
            "readQueues": sum(queue.broker_name == name for queue in found.read_queues),
            "writeQueues": sum(queue.broker_name == name for queue in found.write_queues),
        }
        for name, known in sorted(found.addresses.items())
        for number, address in sorted(known.items())
    ]
    headings = {
        "broker": "BROKER",
        "id": "ID",
        "address": "ADDRESS",
        "readQueues": "QUEUES TO READ",
        "writeQueues": "TO WRITE",
    }
    output.table(shared.form, rows, headings)


@commands.command()
@arguments.with_shared
def delete(
    shared: arguments.Shared,
    topic: Name,
    cluster: arguments.Cluster = None,
) -> None:
    """Delete a topic and everything in it, without confirmation."""
    with shared.changing() as admin:
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
