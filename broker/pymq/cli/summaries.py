"""The commands that serve, and the version: known to the fast path and to the help alike."""

import pymq

#: Handled by ``servers`` without the packages that the rest stands on; each with its summary.
SERVERS = {
    "up": "Run a name server and a broker in one process.",
    "namesrv": "Run a name server; takes RocketMQ's own properties file.",
    "broker": "Run a broker; takes RocketMQ's own properties file.",
}


def version_text() -> str:
    """Return what ``--version`` prints."""
    return f"pymq {pymq.__version__}\n"
