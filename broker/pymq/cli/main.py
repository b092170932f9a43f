"""The console script ``pymq``."""

import sys

from pymq.cli.exits import Exit

#: Handled by ``servers`` without the packages that the rest stands on; each with its summary.
SERVERS = {
    "up": "Run a name server and a broker in one process.",
    "namesrv": "Run a name server; takes RocketMQ's own properties file.",
    "broker": "Run a broker; takes RocketMQ's own properties file.",
}


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
        try:
            from pymq.cli import application
        except ModuleNotFoundError as error:
            if error.name not in ("typer", "rich"):
                raise
            sys.stderr.write(
                f"pymq: {error.name} is not installed, and all commands but "
                f"{', '.join(SERVERS)} need it: pip install 'pymq-rocketmq[cli]'\n"
            )
            return Exit.USAGE
        return application.run(given)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
