"""The typer application: every command except the servers, which it only lists and passes on.

Help and usage errors do not use rich, because importing it takes time.
"""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

from pymq.cli import servers
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


_TOP = typer.Typer(
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
    # Only what is asked for is imported and prepared, because that takes time; the names and
    # summaries of the others are enough for the help.
    verb = next((one for one in arguments if not one.startswith("-")), None)
    is_completion = "_PYMQ_COMPLETE" in os.environ
    if is_completion:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    try:
        application(None if is_completion else verb or "")(arguments, prog_name="pymq")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.OK
    return Exit.OK


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(version_text())
        raise typer.Exit


@_TOP.callback()
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


#: Command -> module and what is there: a function, or an application of verbs; and a summary.
_COMMANDS: dict[str, tuple[str, str, str]] = {
    "send": ("messages", "send", "Send messages; print where each is stored."),
    "consume": ("messages", "consume", "Print messages as they arrive, or those that are there."),
    "tail": ("tailing", "tail", "Print the last messages of a topic, and those that follow."),
    "copy": ("copying", "copy", "Copy messages to another topic, or to another cluster."),
    "topic": ("topics", "commands", "List, create, change, delete topics; show their routes."),
    "group": ("groups", "commands", "List, create, delete, reset consumer groups; lag, members."),
    "message": ("lookup", "commands", "Find messages by key, id or place."),
    "cluster": ("clusters", "commands", "List brokers, show their state."),
    "doctor": ("doctor", "doctor", "Find out what is wrong, and what to do."),
    "sink": ("sinks", "commands", "List, show, forget exactly-once sinks."),
    "store": ("stores", "commands", "Check, show, rebuild a store directory."),
    "completion": ("completion", "completion", "Print a shell's completion script."),
}


def application(wanted: str | None) -> typer.Typer:
    """Return the application with one command that works, all others in name only.

    Args:
        wanted: the command; ``None``: all work.
    """
    for name, summary in SERVERS.items():
        _TOP.command(
            name,
            help=summary,
            add_help_option=False,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )(_server(name))
    for name, (module, attribute, summary) in _COMMANDS.items():
        if wanted not in (None, name):
            _TOP.command(name, help=summary)(_unprepared)
            continue
        command = getattr(importlib.import_module(f"pymq.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            _TOP.add_typer(command, name=name, help=summary)
        else:
            needs = name not in ("doctor", "completion")
            _TOP.command(name, short_help=summary, no_args_is_help=needs)(command)
    return _TOP


def _unprepared() -> None:
    """A command that was not asked for."""
    raise AssertionError("a command that was not prepared was called")
