"""The server commands and the version, for both the fast path and the help."""

import pymq

#: The commands that ``servers`` handles without the other commands' packages, and their summaries.
SERVERS = {
    "up": "Run a name server and a broker in one process.",
    "namesrv": "Run a name server; takes RocketMQ's own properties file.",
    "broker": "Run a broker; takes RocketMQ's own properties file.",
    "controller": "Run a controller, which says which broker of a group is its master.",
}


def version_text() -> str:
    """Return the output of ``--version``."""
    return f"pymq {pymq.__version__}\n"
