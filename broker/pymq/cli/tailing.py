"""``pymq tail``: the last messages of a topic, and those that follow."""

from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from pymq.cli import arguments, output

if TYPE_CHECKING:
    from pymq.protocol.message import ReceivedMessage


@arguments.with_shared
def tail(
    shared: arguments.Shared,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    # -n is short for --name-server, unless what follows is a number.
    count: Annotated[
        int, typer.Option("--lines", metavar="N", min=0, help="How many (also: -n N, -nN).")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then print what arrives; Ctrl-C ends.")
    ] = False,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="[BROKER:]ID", help="Only of this queue.")
    ] = None,
    tags: Annotated[
        str, typer.Option("--tags", metavar="'A || B'", help="Only messages with these tags.")
    ] = "*",
    template: arguments.Format = None,
    body_only: arguments.BodyOnly = False,
) -> None:
    """Print the last messages of a topic, oldest first."""
    from pymq.cli import queues, reading  # their imports would delay --help

    show = output.message_printer(
        shared.form, body_only=body_only, template=template, named=shared.network.unwrap
    )
    topic = shared.network.wrap(topic)
    with shared.client() as client:
        positions = reading.start_positions(client, topic, "latest")
        if queue is not None:
            only = queues.choose(list(positions), topic, queue)
            positions = {only: positions[only]}
        bounds = client.bounds(positions)
        # The last ones of all may be the last ones of one queue.
        begin = {one: max(first, end - count) for one, (first, end) in bounds.items()}
        if tags != "*":  # and with a filter, anywhere
            begin = {one: first for one, (first, _) in bounds.items()}
        last: deque[ReceivedMessage] = deque(maxlen=count)
        last.extend(reading.backlog(client, begin, tags=tags))
        for message in last:
            show(message)
        if follow:
            adopts = queue is None
            for message in reading.tail(client, begin, tags=tags, adopts_queues=adopts):
                show(message)
