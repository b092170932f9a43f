"""``pymq message``: find, show, at."""

from datetime import datetime
from typing import Annotated

import typer

from pymq.cli import arguments, output
from pymq.errors import MessageNotFound

commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@commands.command()
@arguments.with_shared
def find(
    shared: arguments.Shared,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="One of its keys, or the id its producer gave it.")
    ],
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Stored then or later. TIME is like 2026-01-31T12:00, or 15m for 15 minutes ago.",
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Stored then or before.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, max=64, help="Only the N newest.")
    ] = 64,
) -> None:
    """Print the messages that have a key, oldest first; exit status 1 if there are none."""
    from pymq.cli import reading  # its imports would delay --help

    now = datetime.now().astimezone()
    limits = {}
    for name, option, text in (("begin_ms", "--from", begin), ("end_ms", "--to", end)):
        if text is not None:
            moment = reading.parse_moment(option, text, now=now)
            limits[name] = int(moment.timestamp() * 1000)
    with shared.admin() as admin:
        found = admin.messages.by_key(topic, key, count_max=count, **limits)
    if not found:
        within = " within these times" if limits else ""
        raise MessageNotFound(f"topic {topic!r} has no message with key {key!r}{within}")
    print_message = output.message_printer(shared.form, body_only=False)
    for message in found:
        print_message(message)


@commands.command()
@arguments.with_shared
def show(
    shared: arguments.Shared,
    message_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Its id: the broker's, or with --topic its producer's."),
    ],
    topic: Annotated[str | None, typer.Option("--topic", help="The topic it is in.")] = None,
) -> None:
    """Show everything that is known about a message."""
    with shared.admin() as admin:
        message = admin.messages.by_id(message_id, topic)
    output.details(shared.form, output.message_details(message))


@commands.command()
@arguments.with_shared
def at(
    shared: arguments.Shared,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Its offset.")],
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="[BROKER:]ID", help="Which, if the topic has several."),
    ] = None,
) -> None:
    """Show the message at an offset of a queue."""
    from pymq.cli import queues
    from pymq.errors import ConfigurationError

    with shared.admin() as admin:
        known = admin.topics.route(topic).read_queues
        if queue is None and len(known) != 1:
            raise ConfigurationError(f"topic {topic!r} has {len(known)} queues: give --queue")
        chosen = known[0] if queue is None else queues.choose(known, topic, queue)
        message = admin.messages.by_offset(chosen, offset)
    output.details(shared.form, output.message_details(message))
