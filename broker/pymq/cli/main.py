"""The console script ``pymq``."""

import sys

from pymq import extras
from pymq.cli import streams
from pymq.cli.command_line import prepared
from pymq.cli.exits import Exit
from pymq.cli.summaries import SERVERS, version_text
from pymq.errors import ConfigurationError


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        arguments: of the command line; None: those of the process.
    """
    streams.prepare()
    try:
        status = _run(arguments)
        streams.write("")
    except BrokenPipeError:
        streams.silence()
        return Exit.OK
    except streams.OutputFailed as error:
        streams.silence()
        _tell(error)
        return Exit.UNWRITTEN
    return status


def _run(arguments: list[str] | None) -> int:
    try:
        given = prepared(sys.argv[1:] if arguments is None else arguments)
    except ConfigurationError as error:
        _tell(error)
        return Exit.USAGE
    try:
        if given and given[0] in SERVERS:
            from pymq.cli import servers

            return servers.run(given[0], SERVERS[given[0]], given[1:])
        from pymq.cli import application

        return application.run(given)
    except ModuleNotFoundError as error:
        is_command = given and not given[0].startswith("-")
        by = f"pymq {given[0]}" if is_command else "every other command"
        missing = extras.named(error, by=by)
        if not isinstance(missing, extras.ExtraMissing):
            raise
        return _without(missing, given)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _without(missing: extras.ExtraMissing, given: list[str]) -> Exit:
    """Do what is possible without a missing package: show the version and the help."""
    if given == ["--version"]:
        streams.write(version_text())
        return Exit.OK
    if given in ([], ["-h"], ["--help"]):
        servers = "".join(f"  {name:<11}{summary}\n" for name, summary in SERVERS.items())
        sys.stdout.write(
            f"Usage: pymq COMMAND [ARGS]...\n\nCommands:\n{servers}\nNote: {missing}\n"
        )
        return Exit.OK if given else Exit.USAGE
    _tell(missing)
    return Exit.USAGE


def _tell(error: Exception) -> None:
    from pymq.cli import output  # here, because that takes time

    output.note(f"pymq: {error}")
