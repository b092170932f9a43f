"""The console script ``pymq``."""

import sys

from pymq.cli.exits import Exit
from pymq.cli.summaries import SERVERS

#: Package -> the extra of ours that brings it.
_EXTRAS = {"numpy": "broker", "typer": "cli", "rich": "cli"}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        arguments: of the command line; the process's own unless given.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given and given[0] in SERVERS:
            from pymq.cli import servers

            return servers.run(given[0], SERVERS[given[0]], given[1:])
        from pymq.cli import application

        return application.run(given)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(error.name or "")
        if extra is None:
            raise
        sys.stderr.write(
            f"pymq: {error.name} is not installed: pip install 'pymq-rocketmq[{extra}]'\n"
        )
        return Exit.USAGE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
