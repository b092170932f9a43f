"""The typer application: every command except the servers, which it only lists and passes on.

Help and usage errors do not use rich, because importing it takes time.
"""

import copy
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core
from typer.models import CommandInfo

from pymq.cli import output, servers, streams
from pymq.cli.exits import EXIT_TEXTS, Exit, exit_for, with_notes
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
            output.note(f"pymq {ctx.invoked_subcommand}: {with_notes(error)}")
            raise typer.Exit(exit_for(error)) from error
        except BrokenPipeError as error:
            streams.silence()  # the reader of our output has seen enough
            raise typer.Exit(Exit.OK) from error
        except streams.OutputFailed as error:
            streams.silence()
            output.note(f"pymq {ctx.invoked_subcommand}: {with_notes(error)}")
            raise typer.Exit(Exit.UNWRITTEN) from error
        except KeyboardInterrupt as error:
            if done := with_notes(error):
                output.note(f"pymq {ctx.invoked_subcommand}: {done}")
            raise typer.Exit(Exit.INTERRUPTED) from error


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status."""
    # Only what is asked for is imported and prepared, because that takes time; the names and
    # summaries of the others are enough for the help.
    words = [one for one in arguments if not one.startswith("-")]
    is_completion = "_PYMQ_COMPLETE" in os.environ
    if is_completion:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    try:
        application(None if is_completion else words[:2])(arguments, prog_name="pymq")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # that of the help
            return Exit.OK
        return end.code if isinstance(end.code, int) else Exit.OK
    return Exit.OK


def _print_version(wanted: bool) -> None:
    if wanted:
        streams.write(version_text())
        raise typer.Exit


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


#: Command -> summary.
_COMMANDS = {
    "send": "Send messages; print where each is stored.",
    "consume": "Print messages as they arrive, or those that are there.",
    "tail": "Print the last messages of a topic, and those that follow.",
    "copy": "Copy messages to another topic, or to another cluster.",
    "topic": "List, create, change, delete topics; show their routes.",
    "group": "List, create, delete, reset consumer groups; lag, members.",
    "message": "Find messages by key, id or place.",
    "cluster": "List brokers, show their state.",
    "doctor": "Find out what is wrong, and what to do.",
    "sink": "List, show, forget exactly-once sinks.",
    "store": "Check, show, rebuild a store directory.",
    "completion": "Print a shell's completion script.",
}


def _load(name: str) -> Any:
    """Return a command: a function, or an application of verbs."""
    match name:
        case "send" | "consume":
            from pymq.cli import messages

            return messages.send if name == "send" else messages.consume
        case "tail":
            from pymq.cli import tailing

            return tailing.tail
        case "copy":
            from pymq.cli import copying

            return copying.copy
        case "topic":
            from pymq.cli import topics

            return topics.commands
        case "group":
            from pymq.cli import groups

            return groups.commands
        case "message":
            from pymq.cli import lookup

            return lookup.commands
        case "cluster":
            from pymq.cli import clusters

            return clusters.commands
        case "doctor":
            from pymq.cli import doctor

            return doctor.doctor
        case "sink":
            from pymq.cli import sinks

            return sinks.commands
        case "store":
            from pymq.cli import stores

            return stores.commands
        case _:
            from pymq.cli import completion

            return completion.completion


def application(words: list[str] | None) -> typer.Typer:
    """Return the application with one command that works, all others in name only.

    Args:
        words: the command, and the verb after it; ``None``: all work.
    """
    wanted, verb = (*(words or ()), None, None)[:2]
    top = typer.Typer(
        cls=_Commands,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=_EPILOG,
    )
    top.callback()(_top)
    for name, summary in SERVERS.items():
        top.command(
            name,
            help=summary,
            add_help_option=False,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )(_server(name))
    for name, summary in _COMMANDS.items():
        if words is not None and wanted != name:
            top.command(name, help=summary)(_unprepared)
            continue
        command = _load(name)
        if isinstance(command, typer.Typer):
            only = [one for one in command.registered_commands if verb == _name_of(one)]
            if only:  # in a copy: this may not be the last command of the process
                command = copy.copy(command)
                command.registered_commands = only
            top.add_typer(command, name=name, help=summary)
        else:
            needs = name not in ("doctor", "completion")
            top.command(name, short_help=summary, no_args_is_help=needs)(command)
    return top


def _name_of(command: CommandInfo) -> str | None:
    return command.name or getattr(command.callback, "__name__", None)


def _unprepared() -> None:
    """A command that was not asked for."""
    raise AssertionError("a command that was not prepared was called")
