"""What this process has found out about the brokers of sinks; it holds for the run of a query."""

import functools
import time
from dataclasses import dataclass, field

from pymq.client.sockets.bulk_client import BulkClient
from pyspark_pymq.sink.answers import is_moved, tell_again
from pyspark_pymq.sink.identity import BatchIdentity

#: Name servers that were away when the others were told of a sink are told again after this.
TELL_AGAIN_S = 30.0


def _later_s() -> float:
    return time.monotonic() + TELL_AGAIN_S


@dataclass(slots=True)
class KnownHome:
    """A sink that this process knows.

    Attributes:
        run: the start of the query, or the job, that has asked last.
        broker: the name of its broker.
        untold: name servers that were away when the others were told.
        tell_at_s: not before this are they told again; monotonic.
    """

    run: str
    broker: str
    untold: list[str]
    tell_at_s: float = field(default_factory=_later_s)

    def is_current(self, client: BulkClient, identity: BatchIdentity) -> bool:
        """Say whether the sink is still there, as far as name servers know.

        Between two starts of a query a user may have moved it, which another process saw.

        Raises:
            PymqError: another run than the last one asks, and no name server answers.
        """
        if self.run == identity.run:
            return True
        if is_moved(client, identity.sink, self.broker):
            return False
        self.run = identity.run
        return True

    def tell_if_due(self, client: BulkClient, identity: BatchIdentity) -> None:
        """Tell the name servers that were away, now and then; those that still are stay untold."""
        if self.untold and time.monotonic() >= self.tell_at_s:
            self.tell_at_s = _later_s()
            self.untold = tell_again(client, identity.sink, self.broker, self.untold)


@functools.cache
def homes_of_this_process() -> dict[tuple[tuple[str, ...], str, str | None], KnownHome]:
    """Return what is known; by name servers, sink, and the broker of the user's choice."""
    return {}


@functools.cache
def unable_of_this_process() -> set[tuple[tuple[str, ...], str, str]]:
    """Return name servers, sink and run of queries that no broker can write exactly once."""
    return set()
