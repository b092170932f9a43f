"""``pymq doctor``: what is wrong between name server and consumer, and what to do."""

from typing import Annotated

import typer

from pymq.cli import arguments, output
from pymq.cli.exits import Exit

#: Java's consumers commit every 5 s (persistConsumerOffsetInterval), and not at all in their first
#: 10 s: until then a group that consumes well does not move. One that moves is not watched on.
WATCH_S = 15.0


@arguments.with_shared
def doctor(
    shared: arguments.Shared,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Look at this topic: route, permissions.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="Look at this group: members, lag.")
    ] = None,
    watch_s: Annotated[
        float,
        typer.Option(
            "--watch",
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help="How long a queue with lag must not move to be said to stand.",
        ),
    ] = WATCH_S,
) -> None:
    """Find out what keeps messages from being sent or consumed, and say what to do.

    Looks at name servers, and where they are looked up, at brokers at the addresses they
    advertise, then at topic and group.
    Exit status: 0 if all is well, 1 if something is wrong, 2 if a name is not a legal one, 3 if no
    name server can be asked.
    """
    from pymq.cli.diagnosis import Diagnosis  # its imports would delay --help
    from pymq.cli.findings import State
    from pymq.client.cluster.config import parse_name_servers

    diagnosis = Diagnosis(
        parse_name_servers(shared.name_server),
        topic=topic,
        group=group,
        network=shared.network,
        timeout_s=shared.timeout_s,
        watch_s=watch_s,
    )
    rows, is_well = [], True
    try:
        for finding in diagnosis.run():
            is_well = is_well and finding.state is not State.WRONG
            rows.append(finding.row())
            if shared.form is output.Form.TEXT:
                output.line(
                    output.printable(f"{finding.state:<6}{finding.check:<12}{finding.text}")
                )
                if finding.advice:
                    output.line(output.printable(f"{'':<18}-> {finding.advice}"))
    finally:  # what was found before something failed is no less true
        if shared.form is output.Form.JSON:
            output.table(shared.form, rows, {})
    if not is_well:
        raise typer.Exit(Exit.UNREACHABLE if diagnosis.is_unreachable else Exit.REFUSED)
