"""The typer application: every command except the servers, which it only lists and passes on.

Help and usage errors do not use rich, because importing it takes time.
"""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

from pymq.cli import clusters, doctor, groups, lookup, messages, servers, sinks, stores, topics
from pymq.cli.exits import EXIT_TEXTS, Exit, exit_for
from pymq.cli.summaries import SERVERS, version_text
from pymq.errors import PymqError

# A line that consists of \b keeps the lines below it from being rewrapped.
_EPILOG = "\b\nExit status:\n" + "\n".join(
    f"  {int(code):<5}{text}" for code, text in EXIT_TEXTS.items()
)


class _Commands(typer.core.TyperGroup):
    """Turns the errors of commands into one line and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PymqError as error:
            # Notes tell what was done before, or elsewhere.
            text = "; ".join([str(error), *getattr(error, "__notes__", ())])
            sys.stderr.write(f"pymq {ctx.invoked_subcommand}: {text}\n")
            raise typer.Exit(exit_for(error)) from error
        except BrokenPipeError as error:
            # The reader of our output has closed it. Python flushes again at exit: into nothing.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(Exit.OK) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(Exit.INTERRUPTED) from error


application = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status."""
    try:
        application(arguments, prog_name="pymq")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.OK
    return Exit.OK


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(version_text())
        raise typer.Exit


@application.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """RocketMQ for Python and Spark: servers, topics, groups and messages."""


def _server(name: str) -> Callable[[typer.Context], None]:
    def serve(context: typer.Context) -> None:
        raise typer.Exit(servers.run(name, SERVERS[name], context.args))

    return serve


for _name, _summary in SERVERS.items():
    application.command(
        _name,
        help=_summary,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(_server(_name))
application.command(no_args_is_help=True)(messages.send)
application.command(no_args_is_help=True)(messages.consume)
application.command()(doctor.doctor)
application.add_typer(topics.commands, name="topic", help="List, create, delete topics.")
application.add_typer(groups.commands, name="group", help="List consumer groups and their lag.")
application.add_typer(lookup.commands, name="message", help="Find messages by key, show one.")
application.add_typer(clusters.commands, name="cluster", help="List brokers, show their state.")
application.add_typer(sinks.commands, name="sink", help="List, show, forget exactly-once sinks.")
application.add_typer(stores.commands, name="store", help="Check, show, rebuild a store directory.")
