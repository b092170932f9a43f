"""``pymq copy``: messages to another topic or cluster, dead letters back to their topic."""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pymq.cli import arguments, output

if TYPE_CHECKING:
    from pymq.protocol.message import Message


@arguments.with_shared
def copy(
    shared: arguments.Shared,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The topic to read.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The topic to send to.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|OFFSET|TIME",
            help="Where to begin. TIME is like 2026-01-31T12:00, or 15m for 15 minutes ago.",
        ),
    ] = "earliest",
    tags: Annotated[
        str, typer.Option("--tags", metavar="'A || B'", help="Only messages with these tags.")
    ] = "*",
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="[BROKER:]ID", help="Only of this queue.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="Only the first N.")
    ] = None,
    elsewhere: Annotated[
        str | None,
        typer.Option(
            "--to-name-server", metavar="HOST:PORT[;...]", help="Send to this other cluster."
        ),
    ] = None,
) -> None:
    """Copy the messages that are there, in the order of their storing, and leave them there.

    Bodies, tags, keys and properties are kept; ids, queues and times are new. Dead letters are in
    topic %DLQ%GROUP: `pymq copy %DLQ%billing orders`.
    """
    from pymq.cli import queues, reading, replaying  # their imports would delay --help
    from pymq.errors import ConfigurationError

    begin = reading.parse_start(start, now=datetime.now().astimezone())
    if source == target and elsewhere is None:
        raise ConfigurationError(f"SOURCE and TARGET are both {source!r}: it would never end")
    whole = shared.network.wrap(target)
    source_topic = shared.network.wrap(source)
    with shared.client() as client, shared.client(elsewhere) as other:
        positions = reading.start_positions(client, source_topic, begin)
        if queue is not None:
            only = queues.choose(list(positions), source_topic, queue)
            positions = {only: positions[only]}
        ends = client.bounds(positions)
        total = sum(max(end - positions[one], 0) for one, (_, end) in ends.items())
        with output.progress("copying", unit="messages") as on_progress:

            def messages() -> "Iterator[Message]":
                for number, one in enumerate(reading.backlog(client, positions, tags=tags), 1):
                    yield replaying.message_of(one, whole)
                    on_progress(number, total)
                    if number == count:
                        return

            sent = replaying.send_all(other, messages(), None, form=shared.form, is_shown=False)
    row = {"source": source, "target": target, "messages": sent}
    headings = {"source": "SOURCE", "target": "TARGET", "messages": "COPIED"}
    output.table(shared.form, [row], headings)
