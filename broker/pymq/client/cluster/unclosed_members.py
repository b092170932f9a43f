"""Members of groups that nobody closes: what they had not committed comes again, and that is said.

Producers have a warning of their own, which counts what they had in flight.
"""

import logging
import weakref
from collections.abc import Callable

from pymq.client.cluster.home import Process

_log = logging.getLogger(__name__)


def watch_unclosed_member(connections: object, what: str | None) -> Callable[[], object]:
    """Have it logged when a client, or its program, ends without ``close``; return a revocation.

    Args:
        connections: of the client, which live as long as it does.
        what: the client is; ``None``: nothing is lost with it, and nothing is logged.
    """
    if what is None:
        return _nothing
    return weakref.finalize(connections, _say, what, Process()).detach


def _nothing() -> None:
    """Nothing is watched."""


def _say(what: str, process: Process) -> None:
    if not process.is_forked:  # Otherwise the parent has it.
        _log.warning(
            "%s was left without close(): what it had consumed, and neither acknowledged nor "
            "committed, comes again; use it in an `async with` block, or await close(), which "
            "leaves the group",
            what,
        )
