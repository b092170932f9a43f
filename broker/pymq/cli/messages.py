"""``pymq send`` and ``pymq consume``: their arguments."""

from pathlib import Path
from typing import Annotated

import typer

from pymq.cli import arguments, output
from pymq.errors import ConfigurationError

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]


# --------------------------------------------------------------------------------------- send


@arguments.with_shared
def send(
    shared: arguments.Shared,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="The topic; none: that of each line of --from-json."),
    ] = None,
    body: Annotated[
        str | None,
        typer.Argument(
            metavar="[BODY]",
            help="The message. Without it and --file, or -: each line of standard input is one.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Send the contents of a file.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="The tag.")] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--keys", metavar="KEY", help="A key; may be repeated.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="K=V", help="A property; may be repeated."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", metavar="[BROKER:]ID", help="Send to this queue; by default they take turns."
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="Send it N times.")] = 1,
    from_json: Annotated[
        Path | None,
        typer.Option(
            "--from-json",
            metavar="FILE|-",
            help="Send what `consume -o json` printed: bodies, tags, keys, properties.",
        ),
    ] = None,
) -> None:
    """Send messages; print where each is stored.

    A message is reported when its broker has acknowledged it. With a status other than SEND_OK it
    is stored, but not proven to be as safe as the broker's settings promise (exit status 1).
    """
    from pymq.cli import sending  # its imports would delay --help

    if from_json is not None:
        if body is not None or file is not None or tags or keys or properties or count != 1:
            raise ConfigurationError("--from-json: expected without BODY, and what belongs to it")
        with shared.client() as client:
            sending.send_json(
                client, topic, from_json, network=shared.network, queue=queue, form=shared.form
            )
        return
    if topic is None:
        raise ConfigurationError("TOPIC is missing: where is the message to be sent?")
    named = sending.parse_properties(properties or ())
    bodies = sending.bodies(body, file, count)
    with shared.client() as client:
        sending.send(
            client, shared.network.wrap(topic), bodies,
            tags=tags, keys=keys, properties=named, queue=queue,
            form=shared.form, named=shared.network.unwrap,
        )  # fmt: skip


# ------------------------------------------------------------------------------------ consume


@arguments.with_shared
def consume(
    shared: arguments.Shared,
    topic: Topic,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            help="Consume as a member of this group. Without it no offsets are committed.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|OFFSET|TIME",
            help="Where to begin; with --group, only where it has committed no offset. TIME is "
            "like 2026-01-31T12:00, or 15m for 15 minutes ago.  [default: latest; with "
            "--no-follow: earliest]",
            show_default=False,
        ),
    ] = None,
    tags: Annotated[
        str, typer.Option("--tags", metavar="'A || B'", help="Only messages with these tags.")
    ] = "*",
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="End after N messages.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more, or end with the last one.")
    ] = True,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="[BROKER:]ID", help="Only of this queue; without --group."),
    ] = None,
    template: arguments.Format = None,
    body_only: arguments.BodyOnly = False,
) -> None:
    """Print messages as they arrive (Ctrl-C ends), or those that are there.

    With --no-follow and --count, the exit status is 1 if there are fewer messages.
    """
    from pymq.cli import consuming  # its imports would delay --help

    with shared.client() as client:
        consuming.consume(
            client,
            shared.network.wrap(topic),
            network=shared.plain_network,
            timeout_s=shared.timeout_s,
            group=None if group is None else shared.network.wrap(group),
            start=start,
            tags=tags,
            follow=follow,
            count=count,
            queue=queue,
            show=output.message_printer(
                shared.form,
                body_only=body_only,
                template=template,
                named=shared.network.unwrap,
            ),
        )
